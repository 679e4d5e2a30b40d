use std::sync::Arc;

use rubelet_types::{Fetched, ObjectKind};

/// An object could not be given. The text is what users read in events and statuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadObjectError {
    /// It does not exist.
    #[error("{} {name:?} not found", kind.resource())]
    NotFound {
        /// What it is.
        kind: ObjectKind,
        /// Its name.
        name: String,
    },
    /// No pod of this node refers to it.
    #[error("object {namespace:?}/{name:?} not registered")]
    NotRegistered {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Its watch has not begun in time.
    #[error(
        "failed to sync {} cache: timed out waiting for the condition{}",
        kind.resource(),
        trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default()
    )]
    NotSynced {
        /// What it is.
        kind: ObjectKind,
        /// What the API server said last, if it said something.
        trouble: Option<String>,
    },
    /// The API server did not give it.
    #[error("{message}")]
    Unavailable {
        /// Why.
        message: String,
    },
}

impl ReadObjectError {
    /// The object does not exist, for certain.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// As those who use objects take them in.
pub(crate) fn fetched<K>(result: Result<Arc<K>, ReadObjectError>) -> Fetched<Arc<K>> {
    match result {
        Ok(object) => Fetched::Found(object),
        Err(error) if error.is_not_found() => Fetched::NotFound,
        Err(error) => Fetched::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_the_ones_that_users_know() {
        let kind = ObjectKind::ConfigMap;
        let name = || "x".to_owned();
        for (error, text) in [
            (ReadObjectError::NotFound { kind, name: name() }, "configmap \"x\" not found"),
            (
                ReadObjectError::NotRegistered { namespace: "ns".to_owned(), name: name() },
                "object \"ns\"/\"x\" not registered",
            ),
            (
                ReadObjectError::NotSynced { kind, trouble: None },
                "failed to sync configmap cache: timed out waiting for the condition",
            ),
            (
                ReadObjectError::NotSynced { kind, trouble: Some("forbidden".to_owned()) },
                "failed to sync configmap cache: timed out waiting for the condition: forbidden",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
