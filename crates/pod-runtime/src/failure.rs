use rubelet_cri::CriError;
use rubelet_types::error_chain;

/// Why an operation on a pod failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeFailure {
    /// The Kubernetes reason; empty where there is none.
    pub reason: &'static str,
    /// The text that users read.
    pub message: String,
    /// It was cancelled, and is no failure of the pod's.
    pub cancelled: bool,
}

impl RuntimeFailure {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), cancelled: false }
    }

    pub(crate) fn cancelled() -> Self {
        Self { reason: "", message: "cancelled".to_owned(), cancelled: true }
    }
}

impl From<CriError> for RuntimeFailure {
    fn from(error: CriError) -> Self {
        Self::new("", error.to_string())
    }
}

/// Runs file system work where it may block.
pub(crate) async fn blocking<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, RuntimeFailure>
where
    T: Send + 'static,
    E: std::error::Error + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(RuntimeFailure::new("", error_chain(&error))),
        Err(_) => Err(RuntimeFailure::new("", "internal error: file system work panicked")),
    }
}
