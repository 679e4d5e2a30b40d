//! Identifiers as newtypes: a pod uid is never mistaken for a sandbox id.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps the id as it came from its source.
            pub fn new(id: impl AsRef<str>) -> Self {
                Self(Arc::from(id.as_ref()))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self::new(id)
            }
        }
    };
}

string_id! {
    /// `metadata.uid` of a pod as the kubelet runs it (for a static pod: the uid computed from its
    /// manifest, which its mirror pod carries as an annotation, not as uid).
    PodUid
}
string_id! {
    /// The runtime's id of a pod sandbox, without a runtime prefix.
    SandboxId
}
string_id! {
    /// `<name>_<namespace>`: at most one static pod of a full name runs at a time.
    PodFullName
}
string_id! {
    /// The runtime's id of a container, without the `<runtime>://` prefix that status shows.
    ContainerId
}

/// Everything needed to name a pod to a person, a log or a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodRef {
    /// The pod's uid.
    pub uid: PodUid,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl PodRef {
    /// Builds a reference from its parts.
    pub fn new(uid: impl Into<PodUid>, namespace: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        Self {
            uid: uid.into(),
            namespace: Arc::from(namespace.as_ref()),
            name: Arc::from(name.as_ref()),
        }
    }

    /// `<name>_<namespace>`.
    pub fn full_name(&self) -> PodFullName {
        PodFullName::new(format!("{}_{}", self.name, self.namespace))
    }
}

impl fmt::Display for PodRef {
    /// `name_namespace(uid)`, the form that users know from the kubelet's messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}({})", self.name, self.namespace, self.uid)
    }
}

impl fmt::Debug for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodRef({self})")
    }
}
