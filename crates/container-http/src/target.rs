use std::fmt;

use http::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};

use crate::http_get::HttpFailure;
use crate::port::{PortError, resolve_port};
use crate::url::Url;

/// Scheme of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS; nobody's certificate is verified.
    Https,
}

impl Scheme {
    /// Reads the API's `scheme`; its default, and so anything else, is `HTTP`.
    pub fn parse(value: Option<&str>) -> Self {
        match value {
            Some(value) if value.eq_ignore_ascii_case("https") => Self::Https,
            _ => Self::Http,
        }
    }

    pub(crate) fn from_url(scheme: &str) -> Option<Self> {
        if scheme.eq_ignore_ascii_case("http") {
            Some(Self::Http)
        } else if scheme.eq_ignore_ascii_case("https") {
            Some(Self::Https)
        } else {
            None
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

/// What a request is for; it decides the `User-Agent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A probe: `kube-probe/<version>`.
    Probe,
    /// A lifecycle hook: `kube-lifecycle/<version>`.
    LifecycleHook,
}

/// Whom to ask for what: an `httpGet` action with everything resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    /// HTTP or HTTPS.
    pub scheme: Scheme,
    /// An address (IPv6 without brackets) or a name.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The path as the spec has it, with its query.
    pub path: String,
    /// Headers as the spec has them. `Host` replaces the host of the URL, `User-Agent` and
    /// `Accept` replace the defaults, and an empty value of these leaves the header away.
    pub headers: Vec<(String, String)>,
    /// What it is for.
    pub purpose: Purpose,
}

impl HttpTarget {
    /// Resolves `action` of `container`; the host it does not name is `pod_ip`.
    pub fn new(
        action: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
        purpose: Purpose,
    ) -> Result<Self, PortError> {
        Ok(Self {
            scheme: Scheme::parse(action.scheme.as_deref()),
            host: action
                .host
                .as_deref()
                .filter(|host| !host.is_empty())
                .unwrap_or(pod_ip)
                .to_owned(),
            port: resolve_port(&action.port, container)?,
            path: action.path.clone().unwrap_or_default(),
            headers: action
                .http_headers
                .iter()
                .flatten()
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect(),
            purpose,
        })
    }

    /// `host:port`, with brackets around an IPv6 address, as the `LifecycleHTTPFallback` event
    /// names the container.
    pub fn authority(&self) -> String {
        crate::url::join_host_port(&self.host, self.port)
    }

    pub(crate) fn url(&self) -> Url {
        Url::new(self.scheme, &self.host, self.port, &self.path)
    }

    /// The headers to send, without `Host`, and the value of `Host` if the spec sets one.
    pub(crate) fn header_map(
        &self,
        version: &str,
    ) -> Result<(HeaderMap, Option<HeaderValue>), HttpFailure> {
        let mut headers = HeaderMap::new();
        let mut host = None;
        for (name, value) in &self.headers {
            let header = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| HttpFailure::InvalidHeaderName { name: name.clone() })?;
            let value = HeaderValue::from_bytes(value.trim().as_bytes())
                .map_err(|_| HttpFailure::InvalidHeaderValue { name: name.clone() })?;
            match header.as_str() {
                "host" => {
                    host.get_or_insert(value);
                }
                // What frames the message, or says how long the connection lives, is not the
                // author's to choose: a request has no body and is the only one.
                "content-length" | "transfer-encoding" | "trailer" | "connection" => {}
                "user-agent" if headers.contains_key(USER_AGENT) => {}
                _ => {
                    headers.append(header, value);
                }
            }
        }
        let agent = match self.purpose {
            Purpose::Probe => format!("kube-probe/{version}"),
            Purpose::LifecycleHook => format!("kube-lifecycle/{version}"),
        };
        if !headers.contains_key(USER_AGENT) {
            let agent = HeaderValue::try_from(agent).map_err(|_| {
                HttpFailure::InvalidHeaderValue { name: USER_AGENT.as_str().to_owned() }
            })?;
            headers.insert(USER_AGENT, agent);
        }
        if !headers.contains_key(ACCEPT) {
            headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        }
        for header in [USER_AGENT, ACCEPT] {
            if headers.get(&header).is_some_and(HeaderValue::is_empty) {
                headers.remove(&header);
            }
        }
        Ok((headers, host.filter(|host| !host.is_empty())))
    }
}
