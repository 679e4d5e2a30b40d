use jiff::Timestamp;

/// Why an image is not there, as the waiting container's status shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct EnsureImageError {
    /// The waiting reason, one of [`rubelet_types::reasons`].
    pub reason: &'static str,
    /// The text beside it.
    pub message: String,
    /// When the next attempt makes sense, where that is known exactly: the end of a pull's
    /// back-off. Otherwise the caller's usual period holds, as it does right after a failed pull
    /// and for everything that only a change of the spec or of the node can mend.
    pub retry_at: Option<Timestamp>,
}
