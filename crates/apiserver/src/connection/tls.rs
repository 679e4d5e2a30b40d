use std::sync::Arc;

use rubelet_unverified_tls::TakesAll;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, Error};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ByteStream, ConnectError};
use crate::kubeconfig::{Identity, Trust};

/// How to do TLS with one server.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    trust: Trust,
    server_name: ServerName<'static>,
    offers_http2: bool,
}

impl Tls {
    /// `name` is what the server's certificate has to be made out to: a name or an IP address.
    pub(crate) fn new(trust: Trust, name: &str, offers_http2: bool) -> Result<Self, ConnectError> {
        let server_name = ServerName::try_from(name.to_owned())
            .map_err(|_| ConnectError::ServerName { name: name.to_owned() })?;
        Ok(Self { trust, server_name, offers_http2 })
    }

    /// Does the handshake over `stream`.
    pub(crate) async fn handshake(
        &self,
        stream: Box<dyn ByteStream>,
        identity: Option<&Identity>,
    ) -> Result<TlsStream<Box<dyn ByteStream>>, ConnectError> {
        let with = || self.server_name.to_str().into_owned();
        let config = self
            .client_config(identity)
            .map_err(|source| ConnectError::TlsSettings { with: with(), source })?;
        TlsConnector::from(Arc::new(config))
            .connect(self.server_name.clone(), stream)
            .await
            .map_err(|source| ConnectError::Tls { with: with(), source })
    }

    fn client_config(&self, identity: Option<&Identity>) -> Result<ClientConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match &self.trust {
            Trust::Roots(roots) => builder.with_root_certificates(roots.store()),
            Trust::Anybody => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(TakesAll))
            }
        };
        let mut config = match identity {
            Some(identity) => {
                let resolver = SingleCertAndKey::from(identity.certified_key());
                builder.with_client_cert_resolver(Arc::new(resolver))
            }
            None => builder.with_no_client_auth(),
        };
        if self.offers_http2 {
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        // A resumed session would stay with the client certificate it began with.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}
