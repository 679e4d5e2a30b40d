use std::fmt;

/// A kind of API object that pods refer to by name, in their own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl ObjectKind {
    /// As the API server's errors name it: `configmap "x" not found`.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    /// As the kubelet's own messages name it, which is also its field in a volume's source.
    pub fn noun(self) -> &'static str {
        match self {
            Self::ConfigMap => "configMap",
            Self::Secret => "secret",
        }
    }

    /// The type's name in the API.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

/// What became of reading an object from the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched<T> {
    /// It is there.
    Found(T),
    /// It does not exist.
    NotFound,
    /// It cannot be told; with the text that users read.
    Failed(String),
}
