//! Kubeconfig files.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::pki::Pair;

/// How somebody proves who he is.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// A certificate and its key, in the file itself.
    Inline(Pair),
    /// A certificate and its key, in files beside.
    Files {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// A bearer token.
    Token(String),
}

/// The text of a kubeconfig with one cluster, one user and one context.
pub(crate) fn render(server: &str, authority: &str, user: &str, who: &Credentials) -> String {
    let proof = match who {
        Credentials::Inline(pair) => format!(
            "    client-certificate-data: {}\n    client-key-data: {}\n",
            STANDARD.encode(&pair.certificate),
            STANDARD.encode(&pair.key)
        ),
        Credentials::Files { certificate, key } => {
            // YAML takes a JSON string as it is.
            let quoted =
                |path: &PathBuf| serde_json::Value::from(path.display().to_string()).to_string();
            format!(
                "    client-certificate: {}\n    client-key: {}\n",
                quoted(certificate),
                quoted(key)
            )
        }
        Credentials::Token(token) => format!("    token: {token}\n"),
    };
    let authority = STANDARD.encode(authority);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: rubelet\n  \
           cluster:\n    \
             server: {server}\n    \
             certificate-authority-data: {authority}\n\
         users:\n\
         - name: {user}\n  \
           user:\n\
         {proof}\
         contexts:\n\
         - name: rubelet\n  \
           context:\n    \
             cluster: rubelet\n    \
             user: {user}\n\
         current-context: rubelet\n"
    )
}
