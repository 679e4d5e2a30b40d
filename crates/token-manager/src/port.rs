use crate::token::{IssuedToken, WantedToken};

/// There is no token; with the server's own text, where it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenFailure {
    /// The pod or its service account does not exist, or there is no such token: what was issued
    /// before is worth nothing any more.
    Gone(String),
    /// It cannot be told, or may pass.
    Unavailable(String),
}

/// What the token manager needs from the API server. Every call ends within a bounded time.
pub trait TokenApi: Clone + Send + Sync + 'static {
    /// Asks for a new token.
    fn request_token(
        &self,
        wanted: &WantedToken,
    ) -> impl Future<Output = Result<IssuedToken, TokenFailure>> + Send;
}
