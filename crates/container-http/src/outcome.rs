/// How one attempt of a probe ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The container is well; what it answered.
    Success(String),
    /// It counts as success, and its author should know this.
    Warning(String),
    /// The container is not well; why, as the event tells it.
    Failure(String),
    /// The attempt says nothing about the container: it is repeated, and thrown away if that
    /// does not help.
    Error {
        /// The state the event names.
        state: ErroredAs,
        /// What went wrong.
        message: String,
    },
}

/// The state that the event of an errored attempt names
/// (`Readiness probe errored and resulted in unknown state: ...`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErroredAs {
    /// Nothing was learned.
    Unknown,
    /// The container answered, and broke off.
    Failure,
}

impl std::fmt::Display for ErroredAs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Failure => "failure",
        })
    }
}
