//! What the query of a request says.

use std::num::ParseIntError;

use axum::extract::Query;
use http::Uri;

/// Which streams a caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamOptions {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; never with a terminal.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

/// A query that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    /// Nothing would be streamed.
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStream,
    /// An old WebSocket has to say its ports.
    #[error("query parameter \"port\" is required")]
    NoPort,
    #[error("query parameter \"port\" cannot be empty")]
    EmptyPort,
    #[error("unable to parse {text:?} as a port: {source}")]
    Port { text: String, source: ParseIntError },
    #[error("port {text:?} must be > 0")]
    PortZero { text: String },
}

impl StreamOptions {
    /// The streams that a query asks for. Only `1` is a yes; of standard error and a terminal, the
    /// terminal wins.
    pub(crate) fn from_query(query: &[(String, String)]) -> Result<Self, QueryError> {
        let is_set = |name: &str| first(query, name) == Some("1");
        let tty = is_set("tty");
        let options = Self {
            stdin: is_set("input"),
            stdout: is_set("output"),
            stderr: is_set("error") && !tty,
            tty,
        };
        if !options.stdin && !options.stdout && !options.stderr {
            return Err(QueryError::NoStream);
        }
        Ok(options)
    }
}

fn first<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn all<'a>(query: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// `command`, once for each word.
pub(crate) fn commands(query: &[(String, String)]) -> Vec<String> {
    all(query, "command").map(str::to_owned).collect()
}

/// `cmd` of `/run`: words with one space between any two.
pub(crate) fn old_command(query: &[(String, String)]) -> Vec<String> {
    first(query, "cmd").unwrap_or_default().split(' ').map(str::to_owned).collect()
}

/// `port`, once or more often, each with one number or some with commas between.
pub(crate) fn forwarded_ports(query: &[(String, String)]) -> Result<Vec<u16>, QueryError> {
    let mut ports = Vec::new();
    for text in all(query, "port") {
        if text.is_empty() {
            return Err(QueryError::EmptyPort);
        }
        for part in text.split(',') {
            let port = part
                .parse()
                .map_err(|source| QueryError::Port { text: text.to_owned(), source })?;
            if port == 0 {
                return Err(QueryError::PortZero { text: text.to_owned() });
            }
            ports.push(port);
        }
    }
    if ports.is_empty() { Err(QueryError::NoPort) } else { Ok(ports) }
}

/// `timeout` of `/checkpoint`, the last one that is said. What is less than nothing is none.
pub(crate) fn last_timeout(query: &[(String, String)]) -> Result<Option<u32>, ParseIntError> {
    let last = all(query, "timeout").last();
    let seconds: Option<i64> = last.map(str::parse).transpose()?;
    Ok(seconds.map(|seconds| u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)))
}

/// The pairs of a query, in order. What is no text becomes text with replacements.
pub(crate) fn parse_query(uri: &Uri) -> Vec<(String, String)> {
    Query::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_query(query: &str) -> Vec<(String, String)> {
        super::parse_query(&format!("/?{query}").parse().unwrap())
    }

    fn streams(query: &str) -> Result<String, String> {
        let options =
            StreamOptions::from_query(&parse_query(query)).map_err(|it| it.to_string())?;
        let StreamOptions { stdin, stdout, stderr, tty } = options;
        let names = [(stdin, "in"), (stdout, "out"), (stderr, "err"), (tty, "tty")];
        Ok(names.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn only_one_is_a_yes_and_a_terminal_has_no_standard_error() {
        let none = "you must specify at least 1 of stdin, stdout, stderr".to_owned();
        for (query, expected) in [
            ("input=1&output=1&error=1", Ok("in out err")),
            ("output=1&error=1&tty=1", Ok("out tty")),
            ("error=1&tty=1", Err(none.clone())),
            ("input=true&output=1", Ok("out")),
            ("input=true", Err(none.clone())),
            ("output=0&output=1", Err(none.clone())),
            ("tty=1", Err(none.clone())),
            ("", Err(none.clone())),
        ] {
            assert_eq!(streams(query), expected.map(str::to_owned), "{query}");
        }
    }

    #[test]
    fn ports_are_numbers_with_or_without_commas() {
        for (query, expected) in [
            ("port=80", Ok(vec![80])),
            ("port=80,81&port=65535", Ok(vec![80, 81, 65535])),
            ("", Err("query parameter \"port\" is required")),
            ("port=", Err("query parameter \"port\" cannot be empty")),
            ("port=0", Err("port \"0\" must be > 0")),
            ("port=80,x", Err("unable to parse \"80,x\" as a port: invalid digit found in string")),
        ] {
            let ports = forwarded_ports(&parse_query(query)).map_err(|it| it.to_string());
            assert_eq!(ports, expected.map_err(str::to_owned), "{query}");
        }
    }

    #[test]
    fn the_last_timeout_counts() {
        for (query, expected) in [
            ("", Ok(None)),
            ("timeout=5", Ok(Some(5))),
            ("timeout=x&timeout=7", Ok(Some(7))),
            ("timeout=-1", Ok(Some(0))),
            ("timeout=7&timeout=x", Err(())),
        ] {
            assert_eq!(last_timeout(&parse_query(query)).map_err(drop), expected, "{query}");
        }
    }

    #[test]
    fn words_of_a_command_are_taken_as_they_are() {
        let query = parse_query("command=sh&command=-c&command=echo+%22%C3%A4%22%2B1&cmd=ls+-l++x");
        assert_eq!(commands(&query), ["sh", "-c", "echo \"ä\"+1"]);
        assert_eq!(old_command(&query), ["ls", "-l", "", "x"]);
        assert_eq!(
            parse_query("a=%zz&b=%4&c"),
            [
                ("a".to_owned(), "%zz".to_owned()),
                ("b".to_owned(), "%4".to_owned()),
                ("c".to_owned(), String::new()),
            ]
        );
    }
}
