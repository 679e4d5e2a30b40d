//! The little of URLs that probes need: building one from a spec, and following redirects.

use std::fmt;

use crate::target::Scheme;

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// An absolute `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: Scheme,
    /// Without brackets.
    pub(crate) host: String,
    /// As written; none means the scheme's own.
    port: Option<u16>,
    /// Starts with `/`; ready to be sent.
    path: String,
    /// Without `?`; ready to be sent.
    query: Option<String>,
}

impl Url {
    /// The URL of a probe. `path` may carry a query; a scheme, an authority and a fragment in it
    /// are ignored.
    pub(crate) fn new(scheme: Scheme, host: &str, port: u16, path: &str) -> Self {
        let local = match split_scheme(path) {
            Some((_, rest)) => after_authority(rest),
            None => path.strip_prefix("//").map_or(path, after_authority),
        };
        let (path, query) = split_path(local);
        Self {
            scheme,
            host: host.to_owned(),
            port: Some(port),
            path: rooted(encode(path, is_path_byte)),
            query: query.map(|query| encode(query, is_query_byte)),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or(match self.scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        })
    }

    /// `host:port` as written, for the `Host` header.
    pub(crate) fn authority(&self) -> String {
        match self.port {
            Some(port) => join_host_port(&self.host, port),
            None if self.host.contains(':') => format!("[{}]", self.host),
            None => self.host.clone(),
        }
    }

    /// Path and query, as the request line has them.
    pub(crate) fn path_and_query(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// Where `location` leads from here; none if that is no http URL.
    pub(crate) fn join(&self, location: &str) -> Option<Self> {
        if let Some((scheme, rest)) = split_scheme(location) {
            return self.at_authority(Scheme::from_url(scheme)?, rest);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return self.at_authority(self.scheme, rest);
        }
        let (path, query) = split_path(location);
        let mut url = self.clone();
        if !path.is_empty() {
            let merged = if path.starts_with('/') {
                path.to_owned()
            } else {
                let directory = &self.path[..=self.path.rfind('/').unwrap_or(0)];
                format!("{directory}{path}")
            };
            url.path = encode(&without_dots(&merged), is_path_byte);
            url.query = None;
        }
        if let Some(query) = query {
            url.query = Some(encode(query, is_query_byte));
        }
        Some(url)
    }

    fn at_authority(&self, scheme: Scheme, rest: &str) -> Option<Self> {
        let local = after_authority(rest);
        let authority = &rest[..rest.len() - local.len()];
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => {
                let (host, behind) = bracketed.split_once(']')?;
                (host, behind.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some("") | None => None,
            Some(port) => Some(port.parse().ok()?),
        };
        let (path, query) = split_path(local);
        Some(Self {
            scheme,
            host: host.to_owned(),
            port,
            path: rooted(encode(&without_dots(path), is_path_byte)),
            query: query.map(|query| encode(query, is_query_byte)),
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path_and_query())
    }
}

/// Splits `scheme://rest`.
pub(crate) fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let mut letters = scheme.bytes();
    let valid = letters.next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    valid.then_some((scheme, rest))
}

/// What follows `host:port`.
fn after_authority(text: &str) -> &str {
    text.find(['/', '?', '#']).map_or("", |end| &text[end..])
}

/// Path and query, without the fragment.
fn split_path(text: &str) -> (&str, Option<&str>) {
    let text = text.split('#').next().unwrap_or_default();
    match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (text, None),
    }
}

fn rooted(path: String) -> String {
    if path.starts_with('/') { path } else { format!("/{path}") }
}

/// Resolves `.` and `..` as RFC 3986 says.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." && kept.len() > 1 {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    kept.join("/")
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/".contains(&byte)
}

fn is_query_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>#".contains(&byte)
}

/// Escapes what may not stand in a request line; what is escaped already stays.
fn encode(text: &str, allowed: fn(u8) -> bool) -> String {
    let bytes = text.as_bytes();
    let mut encoded = String::with_capacity(bytes.len());
    for (index, &byte) in bytes.iter().enumerate() {
        let escape = byte == b'%'
            && bytes.len() > index + 2
            && bytes[index + 1..index + 3].iter().all(u8::is_ascii_hexdigit);
        if escape || (byte != b'%' && allowed(byte)) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_probes() {
        for (host, path, expected) in [
            ("10.0.0.1", "/", "http://10.0.0.1:80/"),
            ("10.0.0.1", "", "http://10.0.0.1:80/"),
            ("10.0.0.1", "healthz", "http://10.0.0.1:80/healthz"),
            ("::1", "/healthz", "http://[::1]:80/healthz"),
            ("h", "/a?b=c&d=%20#frag", "http://h:80/a?b=c&d=%20"),
            ("h", "/a b/ü?x y", "http://h:80/a%20b/%C3%BC?x%20y"),
            ("h", "/%zz%41", "http://h:80/%25zz%41"),
            ("h", "/\r\nX: y", "http://h:80/%0D%0AX:%20y"),
            ("h", "//other/path", "http://h:80/path"),
            ("h", "https://other:1/path?q", "http://h:80/path?q"),
        ] {
            assert_eq!(Url::new(Scheme::Http, host, 80, path).to_string(), expected, "{path}");
        }
    }

    #[test]
    fn redirects_resolve_against_the_present_url() {
        let base = Url::new(Scheme::Http, "h", 8080, "/a/b?c=d");
        for (location, expected) in [
            ("/x", Some("http://h:8080/x")),
            ("x", Some("http://h:8080/a/x")),
            ("../x?y", Some("http://h:8080/x?y")),
            ("../../../x", Some("http://h:8080/x")),
            ("./", Some("http://h:8080/a/")),
            ("?e=f", Some("http://h:8080/a/b?e=f")),
            ("", Some("http://h:8080/a/b?c=d")),
            ("//i/x", Some("http://i/x")),
            ("https://h/x#y", Some("https://h/x")),
            ("HTTP://user:secret@[::1]:81", Some("http://[::1]:81/")),
            ("ftp://h/x", None),
            ("http://h:port/", None),
        ] {
            let joined = base.join(location).map(|url| url.to_string());
            assert_eq!(joined.as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn ports_default_by_scheme() {
        let base = Url::new(Scheme::Http, "h", 8080, "/");
        assert_eq!(base.join("https://h/").unwrap().port(), 443);
        assert_eq!(base.join("http://h/").unwrap().port(), 80);
    }
}
