//! What a query for logs of services asks for (`enableSystemLogQuery`).

use jiff::Timestamp;

/// Services of one query.
const MAX_SERVICES: usize = 4;
/// The length of a service's name.
const MAX_NAME: usize = 256;
/// Lines that `tailLines` may ask for.
const MAX_LINES: i64 = 100_000;

/// A query that was found sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogQuery {
    /// A file beneath the directory of logs.
    File(String),
    /// Logs of services, in the journal or in files.
    Services { names: Vec<String>, options: JournalOptions },
}

/// Which part of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JournalOptions {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    lines: Option<i64>,
    boot: Option<i64>,
    pattern: Option<String>,
}

/// A query that is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadQuery {
    /// A parameter is not understood (400).
    Malformed(String),
    /// The parameters do not go together, or are out of bounds (406).
    NotAcceptable(String),
}

fn invalid(field: &str, value: &impl std::fmt::Debug, why: &str) -> String {
    format!("{field}: Invalid value: {value:?}: {why}")
}

/// Several errors as one text, as users know it.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

impl LogQuery {
    /// Reads the parameters of a request; none if there are none that count. `has_path` tells that the
    /// request names a path, too.
    pub(super) fn parse(
        query: &[(String, String)],
        has_path: bool,
    ) -> Result<Option<Self>, BadQuery> {
        let mut errors = Vec::new();
        let named: Vec<&str> = query
            .iter()
            .filter(|(key, _)| key == "query")
            .map(|(_, value)| value.as_str())
            .collect();
        // A slash says that a file is meant.
        let (files, services): (Vec<&str>, Vec<&str>) =
            named.iter().partition(|name| name.contains(['/', '\\']));
        let services: Vec<&str> =
            services.into_iter().filter(|name| !name.trim().is_empty()).collect();
        if !named.is_empty() && files.is_empty() && services.is_empty() {
            errors.push(invalid("query", &named, "may not be empty"));
        }
        let first = |name: &str| {
            let mut values = query.iter().filter(|(key, _)| key == name);
            values.next().map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
        };
        let mut time = |name: &'static str| {
            let value = first(name)?;
            value.parse::<Timestamp>().map_or_else(
                |_| {
                    errors.push(invalid(name, &value, "invalid time format"));
                    None
                },
                Some,
            )
        };
        let (since, until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name: &'static str| {
            let value = first(name)?;
            value.parse::<i64>().map_or_else(
                |error| {
                    errors.push(invalid(name, &value, &error.to_string()));
                    None
                },
                Some,
            )
        };
        let (boot, lines) = (number("boot"), number("tailLines"));
        let pattern = first("pattern").map(str::to_owned);
        if !errors.is_empty() {
            return Err(BadQuery::Malformed(aggregate(&errors)));
        }
        let options = JournalOptions { since, until, lines, boot, pattern };
        let has_options = options != JournalOptions::default();
        if files.is_empty() && services.is_empty() && !has_options {
            return Ok(None);
        }
        if has_path {
            return Err(BadQuery::NotAcceptable("path not allowed in query mode".to_owned()));
        }
        let mut errors = check_services(&services);
        match (files.as_slice(), services.is_empty()) {
            ([], true) => {
                errors.push("query: Required value: cannot be empty with options".to_owned());
            }
            ([], false) => {}
            (_, false) => {
                let both = format!("[{}], [{}]", files.join(" "), services.join(" "));
                errors.push(invalid("query", &both, "cannot specify a file and service"));
            }
            ([_], true) if has_options => {
                errors.push(invalid("query", &files, "cannot specify file with options"));
            }
            ([_], true) => {}
            (_, true) => {
                errors.push(invalid("query", &files, "cannot specify more than one file"));
            }
        }
        errors.extend(options.check());
        if !errors.is_empty() {
            return Err(BadQuery::NotAcceptable(aggregate(&errors)));
        }
        Ok(Some(match files.first() {
            Some(file) => Self::File(file.replace('\\', "/")),
            None => {
                Self::Services { names: services.into_iter().map(str::to_owned).collect(), options }
            }
        }))
    }
}

fn check_services(services: &[&str]) -> Vec<String> {
    let mut errors = Vec::new();
    for name in services {
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.:@".contains(letter);
        if name.len() > MAX_NAME {
            errors.push(invalid("query", name, "length must be no more than 256"));
        } else if !name.chars().all(is_allowed) {
            errors.push(invalid("query", name, "input contains unsupported characters"));
        }
    }
    if services.len() > MAX_SERVICES {
        let count = services.len();
        errors.push(format!("query: Too many: {count}: must have at most {MAX_SERVICES} items"));
    }
    errors
}

impl JournalOptions {
    fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            errors.push(invalid("untilTime", &until.to_string(), "must be after `sinceTime`"));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            errors.push(invalid("boot", &boot, "must be less than 1"));
        }
        if let Some(lines) = self.lines.filter(|lines| !(0..=MAX_LINES).contains(lines)) {
            errors.push(invalid("tailLines", &lines, "must be between 0 and 100000, inclusive"));
        }
        errors
    }

    /// Whether nothing but the newest boot's whole journal is asked for.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The words that `journalctl` is told. Each of a user's is part of one word, never a word.
    pub(super) fn arguments(&self, services: &[String]) -> Vec<String> {
        let time = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        let mut arguments =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        arguments.extend(self.since.map(|at| format!("--since={}", time(at))));
        arguments.extend(self.until.map(|at| format!("--until={}", time(at))));
        arguments.extend(self.lines.map(|lines| format!("--lines={lines}")));
        arguments.extend(services.iter().map(|name| format!("--unit={name}")));
        arguments.extend(self.pattern.iter().map(|pattern| format!("--grep={pattern}")));
        arguments.extend(self.boot.map(|boot| format!("--boot={boot}")));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str, has_path: bool) -> String {
        let pairs: Vec<(String, String)> = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        match LogQuery::parse(&pairs, has_path) {
            Ok(None) => "none".to_owned(),
            Ok(Some(LogQuery::File(path))) => format!("file {path}"),
            Ok(Some(LogQuery::Services { names, options })) => options.arguments(&names).join(" "),
            Err(BadQuery::Malformed(text)) => format!("400 {text}"),
            Err(BadQuery::NotAcceptable(text)) => format!("406 {text}"),
        }
    }

    #[test]
    fn queries_are_understood_or_refused() {
        let plain = "--utc --no-pager --output=short-precise";
        for (query, expected) in [
            ("", "none".to_owned()),
            ("other=1", "none".to_owned()),
            ("query=kubelet", format!("{plain} --unit=kubelet")),
            ("query=a&query=b@1&boot=-1", format!("{plain} --unit=a --unit=b@1 --boot=-1")),
            (
                "query=a&sinceTime=2026-01-02T03:04:05%2B01:00",
                "400 sinceTime: Invalid value: \"2026-01-02T03:04:05%2B01:00\": invalid time format"
                    .to_owned(),
            ),
            (
                "query=a&sinceTime=2026-01-02T03:04:05+01:00&tailLines=5&pattern=--x y",
                format!(
                    "{plain} --since=2026-01-02 02:04:05 UTC --lines=5 --unit=a --grep=--x y"
                ),
            ),
            ("query=/syslog", "file /syslog".to_owned()),
            ("query= ", "400 query: Invalid value: [\" \"]: may not be empty".to_owned()),
            (
                "tailLines=x&boot=y",
                "400 [boot: Invalid value: \"y\": invalid digit found in string, tailLines: \
                 Invalid value: \"x\": invalid digit found in string]"
                    .to_owned(),
            ),
            ("boot=0", "406 query: Required value: cannot be empty with options".to_owned()),
            ("query=a&boot=1", "406 boot: Invalid value: 1: must be less than 1".to_owned()),
            (
                "query=a&tailLines=100001",
                "406 tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive"
                    .to_owned(),
            ),
            (
                "query=a/b&boot=0",
                "406 query: Invalid value: [\"a/b\"]: cannot specify file with options".to_owned(),
            ),
            (
                "query=a/b&query=c",
                "406 query: Invalid value: \"[a/b], [c]\": cannot specify a file and service"
                    .to_owned(),
            ),
            (
                "query=a;b",
                "406 query: Invalid value: \"a;b\": input contains unsupported characters"
                    .to_owned(),
            ),
            (
                "query=a&query=b&query=c&query=d&query=e",
                "406 query: Too many: 5: must have at most 4 items".to_owned(),
            ),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                "406 untilTime: Invalid value: \"2026-01-01T00:00:00Z\": must be after `sinceTime`"
                    .to_owned(),
            ),
        ] {
            assert_eq!(parse(query, false), expected, "{query}");
        }
        assert_eq!(parse("query=a", true), "406 path not allowed in query mode");
        assert_eq!(parse("", true), "none");
    }
}
