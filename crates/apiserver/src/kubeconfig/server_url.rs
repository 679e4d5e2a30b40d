use std::fmt;
use std::fmt::Write;

use http::Uri;

/// Where the API server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    is_tls: bool,
    /// Without brackets around an IPv6 address.
    host: String,
    port: u16,
    /// What stands before `/api`: empty, or `/with/slash/in/front`.
    prefix: String,
}

impl ServerUrl {
    /// Reads `text`, a URL or `host:port`; the latter is HTTPS if `wants_tls`.
    pub(crate) fn parse(text: &str, wants_tls: bool) -> Result<Self, String> {
        let with_scheme = match (text.contains("://"), wants_tls) {
            (true, _) => text.to_owned(),
            (false, true) => format!("https://{text}"),
            (false, false) => format!("http://{text}"),
        };
        let url: Uri = with_scheme.parse().map_err(|error| format!("{error}"))?;
        let is_tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("its scheme has to be https or http".to_owned()),
        };
        if url.query().is_some() {
            return Err("it must not have a query".to_owned());
        }
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("it has no host".to_owned());
        }
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let prefix = url.path().trim_end_matches('/').to_owned();
        Ok(Self { is_tls, host: host.to_owned(), port, prefix })
    }

    /// A server that has no address.
    pub(crate) fn within_process() -> Self {
        Self { is_tls: false, host: "apiserver".to_owned(), port: 80, prefix: String::new() }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// `host:port`, with brackets where an address needs them.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority(), self.prefix)
    }
}

/// A key of `as-user-extra` as part of a header's name: what no such name may hold is escaped.
pub(super) fn escape_header_key(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        let is_token = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
        if is_token {
            escaped.push(char::from(byte).to_ascii_lowercase());
        } else {
            // Writing to a string never fails.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_all_kinds_are_understood() {
        for (text, wants_tls, shown) in [
            ("https://10.0.0.1:6443", true, "https://10.0.0.1:6443"),
            ("https://api.example.com", true, "https://api.example.com:443"),
            ("https://[fd00::1]:6443/", true, "https://[fd00::1]:6443"),
            ("https://rancher/k8s/clusters/c-1/", true, "https://rancher:443/k8s/clusters/c-1"),
            ("http://127.0.0.1:8080", false, "http://127.0.0.1:8080"),
            ("10.0.0.1:6443", true, "https://10.0.0.1:6443"),
            ("localhost:8080", false, "http://localhost:8080"),
        ] {
            let url = ServerUrl::parse(text, wants_tls).expect(text);
            assert_eq!(url.to_string(), shown);
        }
        assert_eq!(
            ServerUrl::parse("https://[fd00::1]:6443", true).expect("a URL").host(),
            "fd00::1"
        );
    }

    #[test]
    fn what_is_no_server_is_refused_with_a_reason() {
        for text in ["unix:///run/x.sock", "https://", "https://a b", "https://a/?x=1"] {
            assert!(ServerUrl::parse(text, true).is_err(), "{text}");
        }
    }

    #[test]
    fn header_keys_are_escaped() {
        assert_eq!(escape_header_key("Example.com/Project"), "example.com%2Fproject");
    }
}
