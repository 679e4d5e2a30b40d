//! TLS without any trust: a probe asks whether somebody answers, not who.

use std::sync::Arc;

use rubelet_unverified_tls::TakesAll;
use rustls::client::Resumption;
use rustls::{ClientConfig, Error};

/// Client configuration that accepts every certificate and offers no ALPN protocol.
pub(crate) fn unverified_client_config() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the ring provider implements TLS 1.2 and TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TakesAll))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Go's words for a handshake that `error` ended.
pub(crate) fn handshake_text(error: &Error) -> String {
    match error {
        Error::AlertReceived(alert) => {
            let name = format!("{alert:?}");
            let mut words = String::from("remote error: tls: ");
            for (index, letter) in name.chars().enumerate() {
                if letter.is_uppercase() && index > 0 {
                    words.push(' ');
                }
                words.extend(letter.to_lowercase());
            }
            words
        }
        Error::InvalidMessage(_) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        other => format!("tls: {other}"),
    }
}
