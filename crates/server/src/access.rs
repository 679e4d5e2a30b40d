use std::fmt;

use http::Method;
use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

/// Somebody who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user name: the common name of a client certificate, or `system:anonymous`.
    pub name: String,
    /// The groups: the organisations of a client certificate and `system:authenticated`, or
    /// `system:unauthenticated`.
    pub groups: Vec<String>,
}

impl User {
    fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
        }
    }

    /// Who a client certificate, which has been verified, says its holder is; none if it names
    /// nobody.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().last()?.as_str().ok()?;
        if name.is_empty() {
            return None;
        }
        let organisations =
            subject.iter_organization().filter_map(|it| it.as_str().ok()).map(str::to_owned);
        Some(Self {
            name: name.to_owned(),
            groups: organisations.chain(["system:authenticated".to_owned()]).collect(),
        })
    }
}

/// How requests are authorised (`authorization.mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Authorization {
    /// Everybody who is authenticated may do everything.
    AlwaysAllow,
    /// The API server decides. This kubelet has none, so nobody may do anything.
    WebhookWithoutApiServer,
}

/// Who may ask for what on 10250.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// `authentication.anonymous.enabled`: who does not say who he is counts as
    /// `system:anonymous`.
    pub anonymous: bool,
    /// `authorization.mode`.
    pub authorization: Authorization,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nobody knows who asks.
    Unauthorized,
    /// He may not; the text says what.
    Forbidden(String),
}

impl Access {
    /// Decides on a request by the holder of `certificate`, if there is one.
    pub(crate) fn decide(
        &self,
        certificate: Option<&User>,
        method: &Method,
        path: &str,
    ) -> Result<User, Refusal> {
        let user = match certificate {
            Some(user) => user.clone(),
            None if self.anonymous => User::anonymous(),
            None => return Err(Refusal::Unauthorized),
        };
        match self.authorization {
            Authorization::AlwaysAllow => Ok(user),
            Authorization::WebhookWithoutApiServer => {
                let request = Attributes::of(method, path);
                Err(Refusal::Forbidden(format!(
                    "Forbidden (user={}, {request})\nauthorization mode Webhook needs an API \
                     server, and this kubelet runs without one\n",
                    user.name
                )))
            }
        }
    }
}

/// What a request asks for, in the words of authorisation: always on the resource `nodes`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attributes {
    verb: &'static str,
    /// Tried in order; one that is allowed is enough.
    subresources: &'static [&'static str],
}

impl Attributes {
    fn of(method: &Method, path: &str) -> Self {
        let verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let subresources: &[&str] = match first {
            "healthz" => &["healthz", "proxy"],
            "pods" | "runningpods" => &["pods", "proxy"],
            "configz" => &["configz", "proxy"],
            _ => &["proxy"],
        };
        Self { verb, subresources }
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subresources = self.subresources.join(" ");
        write!(f, "verb={}, resource=nodes, subresource(s)=[{subresources}]", self.verb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(anonymous: bool, authorization: Authorization) -> Access {
        Access { anonymous, authorization }
    }

    #[test]
    fn who_may_do_what() {
        use Authorization::{AlwaysAllow, WebhookWithoutApiServer};
        let alice = User { name: "alice".to_owned(), groups: Vec::new() };
        for (access, certificate, expected) in [
            (access(false, AlwaysAllow), None, Err(Refusal::Unauthorized)),
            (access(true, AlwaysAllow), None, Ok("system:anonymous")),
            (access(false, AlwaysAllow), Some(&alice), Ok("alice")),
            (access(false, WebhookWithoutApiServer), None, Err(Refusal::Unauthorized)),
            (
                access(false, WebhookWithoutApiServer),
                Some(&alice),
                Err(Refusal::Forbidden(
                    "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[configz \
                     proxy])\nauthorization mode Webhook needs an API server, and this kubelet \
                     runs without one\n"
                        .to_owned(),
                )),
            ),
        ] {
            let decision = access.decide(certificate, &Method::GET, "/configz");
            let decision = decision.as_ref().map(|user| user.name.as_str());
            assert_eq!(decision, expected.as_ref().copied(), "{access:?}");
        }
    }

    #[test]
    fn requests_map_to_subresources_of_the_node() {
        for (method, path, verb, subresources) in [
            (Method::GET, "/pods", "get", &["pods", "proxy"][..]),
            (Method::GET, "/runningpods/", "get", &["pods", "proxy"]),
            (Method::GET, "/healthz/log", "get", &["healthz", "proxy"]),
            (Method::POST, "/exec/ns/pod/c", "create", &["proxy"]),
            (Method::PUT, "/debug/flags/v", "update", &["proxy"]),
        ] {
            assert_eq!(Attributes::of(&method, path), Attributes { verb, subresources }, "{path}");
        }
    }
}
