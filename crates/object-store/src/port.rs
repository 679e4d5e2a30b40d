use futures_util::stream::BoxStream;

use crate::kind::ReferredObject;

/// How new an object that is read has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// As it is now.
    Consistent,
    /// As the server's cache has it, which costs the server less.
    Cached,
}

/// An object could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// It does not exist.
    NotFound,
    /// It cannot be told; with the server's own text, where it answered.
    Unavailable(String),
}

/// What is seen of an object that is followed.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation<K> {
    /// It is so now.
    Present(K),
    /// It does not exist now.
    Absent,
    /// It exists and cannot be understood; says why.
    Undecodable(String),
    /// It cannot be followed at present, and what was seen before may be out of date; says why.
    Interrupted(String),
}

/// What the store needs from the API server. Every call ends within a bounded time.
pub trait ObjectApi: Clone + Send + Sync + 'static {
    /// Reads an object.
    fn read<K: ReferredObject>(
        &self,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> impl Future<Output = Result<K, ReadFailure>> + Send;

    /// Follows one object until the stream is dropped. It has no end, begins with what is there, and
    /// goes on by itself after an interruption.
    fn follow<K: ReferredObject>(
        &self,
        namespace: &str,
        name: &str,
    ) -> BoxStream<'static, Observation<K>>;
}
