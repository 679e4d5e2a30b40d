use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use kube::core::Status;

/// What a request asks for, in the words of the API's authorisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read all objects that match.
    List,
    /// Follow changes.
    Watch,
    /// Make a new object.
    Create,
    /// Replace an object.
    Update,
    /// Change a part of an object.
    Patch,
    /// Remove an object.
    Delete,
}

impl Verb {
    /// The verb as RBAC rules spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) verb: Verb,
    /// Plural, with the subresource: `pods/status`.
    pub(crate) resource: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}"),
            (None, Some(name)) => write!(f, " {name}"),
            (Some(namespace), None) => write!(f, " in {namespace}"),
            (None, None) => Ok(()),
        }
    }
}

/// What kind of failure a request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiErrorKind {
    /// There is no such object, or no such resource.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The object has changed since it was read, or a precondition does not hold.
    Conflict,
    /// Not allowed.
    Forbidden,
    /// The server does not know who asks.
    Unauthorized,
    /// The object is well-formed and wrong.
    Invalid,
    /// The request is wrong as it is; it is not sent at all if that can be seen before.
    BadRequest,
    /// The server asks for patience.
    TooManyRequests,
    /// The resource version, or the continue token, is too old: list again.
    Expired,
    /// No answer in time. The request may or may not come into effect later.
    Timeout,
    /// The server, or something on the way to it, is not ready.
    Unavailable,
    /// The server failed.
    Internal,
    /// The server cannot be reached, or went away during the request.
    Connection,
    /// There are no credentials to send: a token file or a plugin failed.
    Credentials,
    /// The answer cannot be understood.
    Decode,
    /// The answer is longer than is read.
    TooLong,
    /// Any other refusal.
    Other,
}

/// A request that failed.
///
/// Its text is the server's own where the server answered (`pods "web" not found`), and otherwise
/// says what was tried; what went wrong on the way stands in [`Error::source`].
pub struct ApiError {
    /// The kind of failure.
    pub kind: ApiErrorKind,
    details: Box<Details>,
}

struct Details {
    target: Target,
    message: String,
    code: Option<u16>,
    retry_after: Option<Duration>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ApiError {
    pub(crate) fn new(target: Target, kind: ApiErrorKind, message: impl Into<String>) -> Self {
        let details = Details {
            target,
            message: message.into(),
            code: None,
            retry_after: None,
            source: None,
        };
        Self { kind, details: Box::new(details) }
    }

    pub(crate) fn caused_by(
        target: Target,
        kind: ApiErrorKind,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        let message = format!("cannot {target}");
        let mut error = Self::new(target, kind, message);
        error.details.source = Some(source.into());
        error
    }

    /// The request got no answer within `limit`.
    pub(crate) fn timeout(target: Target, limit: Duration) -> Self {
        let limit = rubelet_types::format_go_duration(limit);
        let message = format!("cannot {target}: no answer within {limit}");
        Self::new(target, ApiErrorKind::Timeout, message)
    }

    /// The server refused: HTTP status, what `Retry-After` says, and the body.
    pub(crate) fn refused(
        target: Target,
        code: StatusCode,
        retry_after: Option<Duration>,
        body: &[u8],
    ) -> Self {
        let status = serde_json::from_slice::<Status>(body).ok().filter(|s| !s.message.is_empty());
        let Some(status) = status else {
            let kind = kind_of(code.as_u16(), "");
            let text = String::from_utf8_lossy(&body[..body.len().min(MAX_PLAIN_TEXT)]);
            let text = match text.trim() {
                "" => code.canonical_reason().unwrap_or("unknown status").to_owned(),
                text => text.to_owned(),
            };
            let message = format!("cannot {target}: the server answered {}: {text}", code.as_u16());
            let mut error = Self::new(target, kind, message);
            error.details.code = Some(code.as_u16());
            error.details.retry_after = retry_after;
            return error;
        };
        let mut error = Self::from_status(target, status, code.as_u16());
        error.details.retry_after = retry_after.or(error.details.retry_after);
        error
    }

    /// What a `Status` object says; `code` where it has none of its own.
    pub(crate) fn from_status(target: Target, status: Status, code: u16) -> Self {
        let code = if status.code == 0 { code } else { status.code };
        let kind = kind_of(code, &status.reason);
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let mut error = Self::new(target, kind, status.message);
        error.details.code = Some(code);
        error.details.retry_after = (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)));
        error
    }

    /// What was asked for.
    pub fn verb(&self) -> Verb {
        self.details.target.verb
    }

    /// The resource, with its subresource: `pods/status`.
    pub fn resource(&self) -> &str {
        &self.details.target.resource
    }

    /// The namespace that was asked about; nothing for cluster scope and for all namespaces.
    pub fn namespace(&self) -> Option<&str> {
        self.details.target.namespace.as_deref()
    }

    /// The object that was asked about; nothing for lists and watches.
    pub fn name(&self) -> Option<&str> {
        self.details.target.name.as_deref()
    }

    /// The HTTP status code, if the server answered.
    pub fn code(&self) -> Option<u16> {
        self.details.code
    }

    /// How long the server asks to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        self.details.retry_after
    }

    /// There is no such object.
    pub fn is_not_found(&self) -> bool {
        self.kind == ApiErrorKind::NotFound
    }

    /// The name is taken.
    pub fn is_already_exists(&self) -> bool {
        self.kind == ApiErrorKind::AlreadyExists
    }

    /// The object has changed since it was read, or a precondition does not hold.
    pub fn is_conflict(&self) -> bool {
        self.kind == ApiErrorKind::Conflict
    }

    /// The request is not allowed.
    pub fn is_forbidden(&self) -> bool {
        self.kind == ApiErrorKind::Forbidden
    }

    /// The authoriser of nodes knows of nothing that relates this node to the object. It follows the
    /// pods of the cluster as we do, and may hear later of a new one.
    pub(crate) fn is_unrelated(&self) -> bool {
        self.is_forbidden() && self.details.message.contains("no relationship found between node")
    }

    /// The same request may succeed later although nobody changes it.
    ///
    /// A conflict is not: it wants the object to be read again first.
    pub fn is_retriable(&self) -> bool {
        match self.kind {
            ApiErrorKind::TooManyRequests
            | ApiErrorKind::Timeout
            | ApiErrorKind::Unavailable
            | ApiErrorKind::Internal
            | ApiErrorKind::Connection
            | ApiErrorKind::Credentials => true,
            ApiErrorKind::NotFound
            | ApiErrorKind::AlreadyExists
            | ApiErrorKind::Conflict
            | ApiErrorKind::Forbidden
            | ApiErrorKind::Unauthorized
            | ApiErrorKind::Invalid
            | ApiErrorKind::BadRequest
            | ApiErrorKind::Expired
            | ApiErrorKind::Decode
            | ApiErrorKind::TooLong
            | ApiErrorKind::Other => false,
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.details.message)
    }
}

impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiError")
            .field("kind", &self.kind)
            .field("target", &self.details.target)
            .field("message", &self.details.message)
            .field("code", &self.details.code)
            .field("source", &self.details.source)
            .finish()
    }
}

impl Error for ApiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.details.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// How much of an answer that is no `Status` is shown.
const MAX_PLAIN_TEXT: usize = 512;

/// The reason decides where it is known, since one code stands for several of them.
fn kind_of(code: u16, reason: &str) -> ApiErrorKind {
    match reason {
        "NotFound" => ApiErrorKind::NotFound,
        "AlreadyExists" => ApiErrorKind::AlreadyExists,
        "Conflict" => ApiErrorKind::Conflict,
        "Forbidden" => ApiErrorKind::Forbidden,
        "Unauthorized" => ApiErrorKind::Unauthorized,
        "Invalid" => ApiErrorKind::Invalid,
        "BadRequest" => ApiErrorKind::BadRequest,
        "TooManyRequests" => ApiErrorKind::TooManyRequests,
        "Expired" | "Gone" => ApiErrorKind::Expired,
        "Timeout" | "ServerTimeout" => ApiErrorKind::Timeout,
        "ServiceUnavailable" => ApiErrorKind::Unavailable,
        "InternalError" => ApiErrorKind::Internal,
        _ => match code {
            400 => ApiErrorKind::BadRequest,
            401 => ApiErrorKind::Unauthorized,
            403 => ApiErrorKind::Forbidden,
            404 => ApiErrorKind::NotFound,
            409 => ApiErrorKind::Conflict,
            410 => ApiErrorKind::Expired,
            422 => ApiErrorKind::Invalid,
            429 => ApiErrorKind::TooManyRequests,
            502 | 503 => ApiErrorKind::Unavailable,
            504 => ApiErrorKind::Timeout,
            500..=599 => ApiErrorKind::Internal,
            _ => ApiErrorKind::Other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            verb: Verb::Get,
            resource: "pods".to_owned(),
            namespace: Some("default".to_owned()),
            name: Some("web".to_owned()),
        }
    }

    #[test]
    fn a_refusal_says_the_servers_own_words_and_who_asked_for_what() {
        let body = br#"{"kind":"Status","apiVersion":"v1","status":"Failure",
            "message":"pods \"web\" not found","reason":"NotFound","code":404,
            "details":{"name":"web","kind":"pods"}}"#;
        let error = ApiError::refused(target(), StatusCode::NOT_FOUND, None, body);
        assert_eq!(error.kind, ApiErrorKind::NotFound);
        assert_eq!(error.to_string(), "pods \"web\" not found");
        assert_eq!(
            (error.verb(), error.resource(), error.namespace(), error.name(), error.code()),
            (Verb::Get, "pods", Some("default"), Some("web"), Some(404))
        );
        assert!(!error.is_retriable());
    }

    #[test]
    fn an_answer_that_is_no_status_is_shown_as_it_is() {
        let patience = Some(Duration::from_secs(1));
        let error = ApiError::refused(
            target(),
            StatusCode::TOO_MANY_REQUESTS,
            patience,
            b"Too many requests, please try again later.\n",
        );
        assert_eq!(error.kind, ApiErrorKind::TooManyRequests);
        assert_eq!(error.retry_after(), patience);
        assert_eq!(
            error.to_string(),
            "cannot get pods default/web: the server answered 429: Too many requests, please try \
             again later."
        );
        let error = ApiError::refused(target(), StatusCode::BAD_GATEWAY, None, b"");
        assert!(error.to_string().ends_with("the server answered 502: Bad Gateway"), "{error}");
        assert!(error.is_retriable());
    }

    #[test]
    fn the_reason_counts_more_than_the_code() {
        for (code, reason, kind, retriable) in [
            (409, "AlreadyExists", ApiErrorKind::AlreadyExists, false),
            (409, "Conflict", ApiErrorKind::Conflict, false),
            (409, "", ApiErrorKind::Conflict, false),
            (410, "Expired", ApiErrorKind::Expired, false),
            (410, "Gone", ApiErrorKind::Expired, false),
            (500, "ServerTimeout", ApiErrorKind::Timeout, true),
            (504, "Timeout", ApiErrorKind::Timeout, true),
            (500, "InternalError", ApiErrorKind::Internal, true),
            (503, "ServiceUnavailable", ApiErrorKind::Unavailable, true),
            (422, "Invalid", ApiErrorKind::Invalid, false),
            (401, "Unauthorized", ApiErrorKind::Unauthorized, false),
            (403, "Forbidden", ApiErrorKind::Forbidden, false),
            (429, "TooManyRequests", ApiErrorKind::TooManyRequests, true),
            (405, "MethodNotAllowed", ApiErrorKind::Other, false),
        ] {
            let status = Status { message: "m".into(), reason: reason.into(), ..Status::default() };
            let error = ApiError::from_status(target(), status, code);
            assert_eq!((error.kind, error.is_retriable()), (kind, retriable), "{code} {reason}");
        }
    }

    #[test]
    fn the_details_of_a_status_may_ask_for_patience() {
        let body = br#"{"message":"The order in line is too low","reason":"Timeout","code":504,
            "details":{"retryAfterSeconds":3}}"#;
        let error = ApiError::refused(target(), StatusCode::GATEWAY_TIMEOUT, None, body);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn the_cause_is_a_source_and_not_repeated() {
        let cause = std::io::Error::other("connection refused");
        let error = ApiError::caused_by(target(), ApiErrorKind::Connection, cause);
        assert_eq!(error.to_string(), "cannot get pods default/web");
        assert_eq!(error.source().expect("a cause").to_string(), "connection refused");
    }
}
