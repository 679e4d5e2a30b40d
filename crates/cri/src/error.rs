use std::error::Error;
use std::fmt;
use std::time::Duration;

use tonic::{Code, Status, TimeoutExpired};

use crate::Rpc;

/// What kind of failure a call met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CriErrorKind {
    /// The runtime knows no such object.
    NotFound,
    /// The object, or its name, is taken. containerd answers so (or with [`Self::Other`]) for a
    /// name that an earlier, timed-out create still reserves.
    AlreadyExists,
    /// The call's deadline passed. Its effect may or may not come about later.
    DeadlineExceeded,
    /// The runtime cannot be reached, or went away during the call.
    Unavailable,
    /// The runtime does not offer this call.
    Unimplemented,
    /// The runtime, or the size limit of a message, has no room for it.
    ResourceExhausted,
    /// The runtime refuses the request as it is.
    InvalidArgument,
    /// Anything else; most errors of today's runtimes are of code `Unknown`.
    Other,
}

/// How to go on after a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Nothing is known to be wrong with the request: look at the runtime's state again, and try
    /// at the next occasion.
    Retry,
    /// The runtime tried and failed, or lacks something: try again with growing delays.
    BackOff,
    /// The same request will fail again, until somebody changes it.
    Permanent,
}

/// A call that failed. Its text is what users of the kubelet know:
/// `rpc error: code = NotFound desc = ...`.
#[derive(Debug)]
pub struct CriError {
    /// The call.
    pub rpc: Rpc,
    /// The kind of failure.
    pub kind: CriErrorKind,
    /// The runtime's own words, or ours if the runtime never answered.
    pub message: String,
    code: Code,
}

impl CriError {
    /// An error without a cause.
    pub fn new(rpc: Rpc, kind: CriErrorKind, message: impl Into<String>) -> Self {
        let code = match kind {
            CriErrorKind::NotFound => Code::NotFound,
            CriErrorKind::AlreadyExists => Code::AlreadyExists,
            CriErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
            CriErrorKind::Unavailable => Code::Unavailable,
            CriErrorKind::Unimplemented => Code::Unimplemented,
            CriErrorKind::ResourceExhausted => Code::ResourceExhausted,
            CriErrorKind::InvalidArgument => Code::InvalidArgument,
            CriErrorKind::Other => Code::Unknown,
        };
        Self { rpc, kind, message: message.into(), code }
    }

    /// The runtime answered, but without something the protocol demands.
    pub(crate) fn incomplete_answer(rpc: Rpc, message: impl Into<String>) -> Self {
        Self::new(rpc, CriErrorKind::Other, message)
    }

    /// The deadline of our own passed.
    pub(crate) fn deadline(rpc: Rpc, deadline: Duration) -> Self {
        let message = format!(
            "context deadline exceeded: no answer within {}",
            rubelet_types::format_go_duration(deadline)
        );
        Self::new(rpc, CriErrorKind::DeadlineExceeded, message)
    }

    /// What tonic reports, be it the runtime's answer or a failure on the way.
    pub(crate) fn from_status(rpc: Rpc, status: Status) -> Self {
        if find_cause::<TimeoutExpired>(&status) {
            return Self::new(rpc, CriErrorKind::DeadlineExceeded, "context deadline exceeded");
        }
        if let Some(cause) = status.source() {
            // Only what happened on the way has a cause. The transport finds many codes for a
            // connection that broke (Unknown, Internal, Canceled); they all mean the same to us.
            let message = match deepest(cause).to_string() {
                // The connector's text is complete as it is.
                text if status.code() == Code::Unavailable => text,
                text => format!("error reading from server: {text}"),
            };
            return Self::new(rpc, CriErrorKind::Unavailable, message);
        }
        let code = match status.code() {
            // The transport says so of a message above the size limit; other implementations of
            // gRPC, and so everybody's expectation, say ResourceExhausted.
            Code::OutOfRange => Code::ResourceExhausted,
            code => code,
        };
        let kind = match code {
            Code::NotFound => CriErrorKind::NotFound,
            Code::AlreadyExists => CriErrorKind::AlreadyExists,
            Code::DeadlineExceeded => CriErrorKind::DeadlineExceeded,
            Code::Unavailable => CriErrorKind::Unavailable,
            Code::Unimplemented => CriErrorKind::Unimplemented,
            Code::ResourceExhausted => CriErrorKind::ResourceExhausted,
            Code::InvalidArgument => CriErrorKind::InvalidArgument,
            _ => CriErrorKind::Other,
        };
        Self { rpc, kind, message: status.message().to_owned(), code }
    }

    /// The name of the gRPC status code, such as `Unknown`.
    pub fn code_name(&self) -> &'static str {
        code_name(self.code)
    }

    /// How to go on.
    pub fn disposition(&self) -> Disposition {
        match self.kind {
            CriErrorKind::Unavailable | CriErrorKind::DeadlineExceeded => Disposition::Retry,
            CriErrorKind::Unimplemented | CriErrorKind::InvalidArgument => Disposition::Permanent,
            CriErrorKind::NotFound
            | CriErrorKind::AlreadyExists
            | CriErrorKind::ResourceExhausted
            | CriErrorKind::Other => Disposition::BackOff,
        }
    }

    /// The runtime knows no such object.
    pub fn is_not_found(&self) -> bool {
        self.kind == CriErrorKind::NotFound
    }

    /// The runtime does not offer the call.
    pub fn is_unimplemented(&self) -> bool {
        self.kind == CriErrorKind::Unimplemented
    }
}

impl fmt::Display for CriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Upstream drops the code from pull errors where it says nothing: the text goes into
        // events, and the image manager recognises reasons at its beginning.
        if self.rpc == Rpc::PullImage && self.code == Code::Unknown {
            return f.write_str(&self.message);
        }
        write!(f, "rpc error: code = {} desc = {}", self.code_name(), self.message)
    }
}

/// Without a source: what went wrong on the way stands in the text, which goes into events.
impl Error for CriError {}

fn find_cause<E: Error + 'static>(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<E>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn deepest<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_the_one_users_know() {
        let error = CriError::from_status(
            Rpc::ContainerStatus,
            Status::not_found("an error occurred when try to find container \"x\": not found"),
        );
        assert_eq!(
            error.to_string(),
            "rpc error: code = NotFound desc = an error occurred when try to find container \
             \"x\": not found"
        );
        assert_eq!(error.kind, CriErrorKind::NotFound);
    }

    #[test]
    fn a_pull_error_of_unknown_code_is_shown_without_it() {
        let error = CriError::from_status(Rpc::PullImage, Status::unknown("RegistryUnavailable"));
        assert_eq!(error.to_string(), "RegistryUnavailable");
        let error = CriError::from_status(Rpc::PullImage, Status::not_found("no such manifest"));
        assert_eq!(error.to_string(), "rpc error: code = NotFound desc = no such manifest");
    }

    #[test]
    fn every_code_has_a_kind_and_a_way_to_go_on() {
        use CriErrorKind as Kind;
        for (code, kind, disposition) in [
            (Code::NotFound, Kind::NotFound, Disposition::BackOff),
            (Code::AlreadyExists, Kind::AlreadyExists, Disposition::BackOff),
            (Code::DeadlineExceeded, Kind::DeadlineExceeded, Disposition::Retry),
            (Code::Unavailable, Kind::Unavailable, Disposition::Retry),
            (Code::Unimplemented, Kind::Unimplemented, Disposition::Permanent),
            (Code::ResourceExhausted, Kind::ResourceExhausted, Disposition::BackOff),
            (Code::OutOfRange, Kind::ResourceExhausted, Disposition::BackOff),
            (Code::InvalidArgument, Kind::InvalidArgument, Disposition::Permanent),
            (Code::Unknown, Kind::Other, Disposition::BackOff),
            (Code::FailedPrecondition, Kind::Other, Disposition::BackOff),
            (Code::Cancelled, Kind::Other, Disposition::BackOff),
            (Code::Internal, Kind::Other, Disposition::BackOff),
        ] {
            let error = CriError::from_status(Rpc::Status, Status::new(code, "text"));
            assert_eq!((error.kind, error.disposition()), (kind, disposition), "{code:?}");
        }
    }

    #[test]
    fn an_error_made_from_a_kind_shows_the_code_of_that_kind() {
        let error = CriError::new(Rpc::StopContainer, CriErrorKind::Unavailable, "gone");
        assert_eq!(error.to_string(), "rpc error: code = Unavailable desc = gone");
        let error = CriError::new(Rpc::StopContainer, CriErrorKind::Other, "gone");
        assert_eq!(error.to_string(), "rpc error: code = Unknown desc = gone");
    }
}
