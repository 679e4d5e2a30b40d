use std::path::Path;
use std::{fs, io};

use jiff::Timestamp;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{KubeConfig, KubeConfigError};

/// Whether a kubeconfig has a client certificate that works, which decides whether to bootstrap.
#[derive(Debug)]
pub enum ClientCertificate {
    /// There is no kubeconfig.
    NoKubeconfig,
    /// There is one, and it, or a file that it names, cannot be used, or it names no client
    /// certificate: a kubeconfig with only a token counts as invalid here, as upstream has it.
    Unusable {
        /// Why.
        because: String,
    },
    /// A certificate of the chain has expired.
    Expired {
        /// When.
        not_after: Timestamp,
    },
    /// All of the chain's certificates have time left.
    Valid {
        /// Until when the one does that ends first.
        not_after: Timestamp,
    },
}

impl ClientCertificate {
    /// Looks at the kubeconfig at `path`, as of `now`. Blocks.
    ///
    /// A certificate that is not valid *yet* passes, as it does upstream.
    ///
    /// # Errors
    ///
    /// The file may be there, and cannot be looked at: no reason to bootstrap, upstream gives up.
    pub fn check(path: &Path, now: Timestamp) -> Result<Self, KubeConfigError> {
        match fs::metadata(path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::NoKubeconfig),
            Err(source) => return Err(KubeConfigError::Read { path: path.to_owned(), source }),
        }
        Ok(match KubeConfig::load(path) {
            Ok(config) => Self::of(&config, now),
            Err(error) => Self::Unusable { because: with_causes(&error) },
        })
    }

    /// The same about a kubeconfig that has been read.
    pub fn of(config: &KubeConfig, now: Timestamp) -> Self {
        let mut first_end: Option<Timestamp> = None;
        for certificate in config.client_certificates() {
            let not_after = match X509Certificate::from_der(certificate) {
                Ok((_, certificate)) => certificate.validity().not_after.timestamp(),
                Err(error) => {
                    let because = format!("a client certificate cannot be read: {error}");
                    return Self::Unusable { because };
                }
            };
            let not_after = Timestamp::from_second(not_after).unwrap_or(Timestamp::MAX);
            first_end = Some(first_end.map_or(not_after, |end| end.min(not_after)));
        }
        match first_end {
            None => Self::Unusable { because: "it names no client certificate".to_owned() },
            Some(not_after) if now > not_after => Self::Expired { not_after },
            Some(not_after) => Self::Valid { not_after },
        }
    }

    /// Nothing stands against using the kubeconfig as it is.
    pub fn is_valid(&self) -> bool {
        matches!(self, Self::Valid { .. })
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
