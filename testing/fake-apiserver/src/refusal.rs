use http::StatusCode;
use serde_json::{Value, json};

use crate::kinds::Kind;

/// A request that is not carried out, as the `Status` that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) retry_after: Option<u32>,
    /// Resource, group and name that `details` tells.
    about: Option<Box<[String; 3]>>,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            retry_after: None,
            about: None,
        }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        let about = [kind.plural, kind.group, name].map(str::to_owned);
        self.about = Some(Box::new(about));
        self
    }

    /// `pods`, or `leases.coordination.k8s.io`.
    fn qualified(kind: &Kind) -> String {
        if kind.group.is_empty() {
            kind.plural.to_owned()
        } else {
            format!("{}.{}", kind.plural, kind.group)
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", Self::qualified(kind));
        Self::new(404, "NotFound", message).about(kind, name)
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", Self::qualified(kind));
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, because: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {because}",
            Self::qualified(kind)
        );
        Self::new(409, "Conflict", message).about(kind, name)
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, because: &str) -> Self {
        let subject = if kind.group.is_empty() {
            kind.kind.to_owned()
        } else {
            format!("{}.{}", kind.kind, kind.group)
        };
        Self::new(422, "Invalid", format!("{subject} {name:?} is invalid: {because}"))
            .about(kind, name)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    pub(crate) fn unsupported_media_type(content_type: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format ({content_type}) - accepted media \
             types include: application/json, application/merge-patch+json, \
             application/strategic-merge-patch+json"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        Self { retry_after: Some(1), ..Self::new(504, "Timeout", message) }
    }

    pub(crate) fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some([resource, group, name]) = self.about.as_deref() {
            status["details"] = json!({"name": name, "group": group, "kind": resource});
        }
        if let Some(seconds) = self.retry_after {
            status["details"]["retryAfterSeconds"] = json!(seconds);
        }
        status
    }
}
