//! Client certificates: shown in the handshake, believed later.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use tracing::warn;

use crate::access::User;
use crate::tls::ServingTls;

/// The certificate that somebody showed when he connected.
#[derive(Clone, Debug)]
pub(crate) struct ShownCertificate {
    chain: Arc<[CertificateDer<'static>]>,
    tls: Arc<ServingTls>,
}

impl ShownCertificate {
    /// `chain` is his certificate, and those that lead to its issuer.
    pub(crate) fn new(chain: &[CertificateDer<'static>], tls: &Arc<ServingTls>) -> Self {
        Self { chain: chain.into(), tls: Arc::clone(tls) }
    }

    /// Whom it names, if it is to be believed now. Connections last: meanwhile it may expire, and its
    /// issuer may be believed no longer, so each request asks, as upstream.
    pub(crate) fn user(&self) -> Option<User> {
        self.tls.current().user(&self.chain)
    }
}

/// Lets everybody through who holds the key of the certificate he shows. Whether its issuer is
/// believed is asked by [`ClientAuthorities::user`]: who is not answered 401, as by the Go kubelet,
/// and may show a token as well. A failed handshake would not tell him why.
#[derive(Clone, Debug)]
pub(crate) struct ClientAuthorities(Arc<dyn ClientCertVerifier>);

impl ClientAuthorities {
    pub(crate) fn new(verifier: Arc<dyn ClientCertVerifier>) -> Self {
        Self(verifier)
    }

    /// Whom a client's certificate names, the first of `chain`; none if it is not to be believed.
    pub(crate) fn user(&self, chain: &[CertificateDer<'_>]) -> Option<User> {
        let (certificate, intermediates) = chain.split_first()?;
        match self.0.verify_client_cert(certificate, intermediates, UnixTime::now()) {
            Ok(_) => User::of_certificate(certificate),
            Err(error) => {
                warn!(%error, "a client certificate is not believed");
                None
            }
        }
    }
}

impl ClientCertVerifier for ClientAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
