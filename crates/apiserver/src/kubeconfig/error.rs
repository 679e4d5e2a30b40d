use std::io;
use std::path::PathBuf;

/// A kubeconfig cannot be used. Each says which file, and what in it.
#[derive(Debug, thiserror::Error)]
pub enum KubeConfigError {
    /// The kubeconfig itself cannot be read.
    #[error("cannot read kubeconfig {}", path.display())]
    Read {
        /// The kubeconfig.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is no YAML, or its fields are of the wrong types.
    #[error("cannot parse kubeconfig {}", path.display())]
    Parse {
        /// The kubeconfig.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Something that has to be there is not.
    #[error("kubeconfig {}: {what}", path.display())]
    Missing {
        /// The kubeconfig.
        path: PathBuf,
        /// What, such as `no current-context` or `there is no cluster "a"`.
        what: String,
    },
    /// A field's value makes no sense.
    #[error("kubeconfig {}: {field} {value:?}: {problem}", path.display())]
    BadField {
        /// The kubeconfig.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Its value, which is nothing secret.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file that the kubeconfig names cannot be read.
    #[error("kubeconfig {}: cannot read {field} {}", path.display(), file.display())]
    ReadFile {
        /// The kubeconfig.
        path: PathBuf,
        /// The field that names the file.
        field: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Inline data is not base64.
    #[error("kubeconfig {}: {field} is not base64", path.display())]
    Base64 {
        /// The kubeconfig.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Where it breaks off.
        #[source]
        source: base64::DecodeError,
    },
    /// A certificate or key cannot be used.
    #[error("kubeconfig {}: {origin}: {problem}", path.display())]
    BadPem {
        /// The kubeconfig.
        path: PathBuf,
        /// The field, with the file it names: `client-certificate /var/lib/x.pem`.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// The system has no CA certificates, and the kubeconfig names none.
    #[error("kubeconfig {}: it names no certificate authority, and the system has none", path.display())]
    NoSystemRoots {
        /// The kubeconfig.
        path: PathBuf,
    },
}
