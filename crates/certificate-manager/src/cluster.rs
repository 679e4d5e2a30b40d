//! Client certificates in a cluster: kubeconfigs, and the API server they lead to.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rubelet_apiserver::{
    ApiError, ApiErrorKind, ApiServer, ApiServerOptions, ClientCertificate, Event,
    InitialCertificate as KubeConfigCertificate, KubeConfig, KubeConfigError, Selector,
};
use rubelet_checkpoint::{Durability, WriteError, write_atomic};
use rubelet_types::{Clock, error_chain};

use crate::bootstrap::{FirstCertificateError, obtain_first_certificate};
use crate::certificate::{CertificatePair, PairError};
use crate::client::{ClientCertificateManager, ClientCertificateSettings, InitialCertificate};
use crate::issue::{RequestError, RequestErrorKind, SeenRequest, SigningRequests};
use crate::request::Purpose;
use crate::rotation::RotationPort;
use crate::store::{CertificateStore, PairFiles, StoreError, make_directory};

/// The API server, asked for certificates under the credentials that it was made with.
#[derive(Clone)]
pub struct ClusterRequests(ApiServer);

impl ClusterRequests {
    /// Asks over the general lane of `api`.
    pub fn new(api: &ApiServer) -> Self {
        Self(api.general())
    }
}

impl std::fmt::Debug for ClusterRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterRequests")
    }
}

impl SigningRequests for ClusterRequests {
    async fn create(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, RequestError> {
        let requests = self.0.cluster::<CertificateSigningRequest>();
        requests.create(request).await.map_err(request_error)
    }

    async fn get(&self, name: &str) -> Result<CertificateSigningRequest, RequestError> {
        self.0.cluster::<CertificateSigningRequest>().get(name).await.map_err(request_error)
    }

    fn watch(&self, name: &str) -> BoxStream<'static, SeenRequest> {
        let name = name.to_owned();
        let requests = self.0.cluster::<CertificateSigningRequest>();
        let watch = requests.watch(&Selector::name(&name));
        watch.map(move |event| seen(&name, event)).boxed()
    }

    async fn is_responding(&self) -> bool {
        self.0.is_responding().await
    }
}

fn seen(name: &str, event: Event<CertificateSigningRequest>) -> SeenRequest {
    let undecodable = |error: String| {
        let message = format!("certificate signing request {name:?} cannot be understood: {error}");
        SeenRequest::Interrupted(RequestError {
            kind: RequestErrorKind::Other,
            message,
            source: None,
        })
    };
    match event {
        Event::Applied(request) => SeenRequest::Present(Box::new(request)),
        Event::Replaced(mut all) => match (all.objects.pop(), all.undecodable.pop()) {
            (Some(request), _) => SeenRequest::Present(Box::new(request)),
            (None, Some(strange)) => undecodable(strange.error),
            (None, None) => SeenRequest::Absent,
        },
        Event::Deleted(_) => SeenRequest::Absent,
        Event::Undecodable(strange) => undecodable(strange.error),
        Event::Interrupted(error) => SeenRequest::Interrupted(request_error(error)),
    }
}

fn request_error(error: ApiError) -> RequestError {
    let kind = match error.kind {
        ApiErrorKind::AlreadyExists => RequestErrorKind::AlreadyExists,
        ApiErrorKind::NotFound => RequestErrorKind::NotFound,
        ApiErrorKind::Forbidden => RequestErrorKind::Forbidden,
        ApiErrorKind::Unauthorized => RequestErrorKind::Unauthorized,
        _ => RequestErrorKind::Other,
    };
    let message = error.to_string();
    // The text of the error is the message already: what caused it is what is left to be told.
    let source = error.source().map(|cause| error_chain(cause).into());
    RequestError { kind, message, source }
}

/// How a kubelet of a cluster is known there, as its flags say.
#[derive(Clone, Debug)]
pub struct ClientCredentials {
    /// `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// The node's name.
    pub node_name: String,
    /// How to speak to the API server when asking for certificates.
    pub options: ApiServerOptions,
    /// The wall clock.
    pub clock: Clock,
}

/// A kubelet of a cluster cannot start for want of credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The kubeconfig cannot be used, and nothing can take its place.
    #[error("unable to load kubeconfig")]
    Kubeconfig(#[source] KubeConfigError),
    /// Bootstrapping is needed, and its kubeconfig cannot be used.
    #[error("unable to load bootstrap kubeconfig")]
    BootstrapKubeconfig(#[source] KubeConfigError),
    /// The certificate in the kubeconfig cannot be used.
    #[error("the client certificate in kubeconfig {} cannot be used", path.display())]
    Inline {
        /// The kubeconfig.
        path: PathBuf,
        /// Why.
        source: PairError,
    },
    /// The certificate directory cannot be read or written.
    #[error("failed to initialize client certificate store")]
    Store(#[source] StoreError),
    /// There is no first certificate.
    #[error("failed to run Kubelet: could not get the first client certificate")]
    First(#[source] FirstCertificateError),
    /// The new kubeconfig cannot be written.
    #[error(transparent)]
    WriteKubeconfig(#[from] WriteError),
    /// The runtime is shutting down.
    #[error("interrupted")]
    Interrupted,
}

impl ClientCredentials {
    /// Without `rotateCertificates`: sees to it that the kubeconfig has a client certificate that has
    /// not expired, if there is a bootstrap kubeconfig to get one with. Waits until somebody has
    /// approved and signed it, up to an hour. Does nothing without a bootstrap kubeconfig.
    ///
    /// Interrupted at whatever moment, the next run goes on with the same key and the same request.
    ///
    /// # Errors
    ///
    /// [`CredentialsError`]: the process has to end.
    pub async fn ensure_bootstrapped(&self) -> Result<(), CredentialsError> {
        let Some(bootstrap) = self.bootstrap_kubeconfig.clone() else { return Ok(()) };
        let this = self.clone();
        let prepared = blocking(move || {
            let store = this.open_store()?;
            if !this.needs_bootstrap()? {
                tracing::info!(path = %this.kubeconfig.display(),
                    "Kubeconfig exists and is valid, skipping bootstrap");
                // A crash may have left it.
                store.remove_key().map_err(CredentialsError::Store)?;
                return Ok(None);
            }
            let config =
                KubeConfig::load(&bootstrap).map_err(CredentialsError::BootstrapKubeconfig)?;
            Ok(Some((store, config)))
        });
        let Some((store, config)) = prepared.await? else { return Ok(()) };
        tracing::info!(
            server = config.server(),
            "Using bootstrap kubeconfig to get a TLS client certificate, key and kubeconfig file"
        );
        let requests = self.requests(&config).map_err(CredentialsError::BootstrapKubeconfig)?;
        obtain_first_certificate(&requests, &store, &self.node_name, &self.clock)
            .await
            .map_err(CredentialsError::First)?;
        let this = self.clone();
        blocking(move || {
            this.write_kubeconfig(&config, &store)?;
            store.remove_key().map_err(CredentialsError::Store)
        })
        .await
    }

    /// With `rotateCertificates`: brings kubeconfig and store into the state from which the manager
    /// keeps the certificate up to date, and returns the kubeconfig for the kubelet's own API server,
    /// and the manager. Waits for nobody: there may be no certificate yet, and the API server may be
    /// away.
    ///
    /// If the kubeconfig cannot be used, or its certificate has expired, and there is a bootstrap
    /// kubeconfig, then a new kubeconfig takes its place that points at the certificate to come.
    ///
    /// # Errors
    ///
    /// [`CredentialsError`]: the process has to end.
    pub async fn prepare_rotation(
        &self,
    ) -> Result<(KubeConfig, ClientCertificateManager), CredentialsError> {
        let this = self.clone();
        blocking(move || {
            let store = this.open_store()?;
            if let Some(bootstrap) = &this.bootstrap_kubeconfig
                && this.needs_bootstrap()?
            {
                let config =
                    KubeConfig::load(bootstrap).map_err(CredentialsError::BootstrapKubeconfig)?;
                this.write_kubeconfig(&config, &store)?;
                tracing::info!(
                    "Using the bootstrap credentials to request a certificate in the background"
                );
            }
            let current = store.current_path();
            let load = || {
                KubeConfig::load_with_rotated_certificate(&this.kubeconfig, &current)
                    .map_err(CredentialsError::Kubeconfig)
            };
            let initial = this.initial_certificate(&load()?, &current)?;
            let settings = ClientCertificateSettings {
                directory: this.cert_dir.clone(),
                node_name: this.node_name.clone(),
                initial,
            };
            let manager = ClientCertificateManager::open(settings, this.clock.clone())
                .map_err(CredentialsError::Store)?;
            // Again: it may have imported one.
            Ok((load()?, manager))
        })
        .await
    }

    /// What the manager needs to run: `api` is the kubelet's own API server, made of the kubeconfig
    /// that [`prepare_rotation`](Self::prepare_rotation) returned.
    pub fn rotation_port(&self, api: ApiServer) -> ClientRotationPort {
        ClientRotationPort { credentials: self.clone(), api }
    }

    /// The store, with its damages mended: whether the kubeconfig is valid depends on it.
    fn open_store(&self) -> Result<CertificateStore, CredentialsError> {
        let store = CertificateStore::open(&self.cert_dir, Purpose::Client, None)
            .map_err(CredentialsError::Store)?;
        store.current(self.clock.now()).map_err(CredentialsError::Store)?;
        Ok(store)
    }

    fn needs_bootstrap(&self) -> Result<bool, CredentialsError> {
        let found = ClientCertificate::check(&self.kubeconfig, self.clock.now())
            .map_err(CredentialsError::Kubeconfig)?;
        let path = self.kubeconfig.display();
        match &found {
            ClientCertificate::Valid { .. } | ClientCertificate::NoKubeconfig => {}
            ClientCertificate::Unusable { because } => tracing::error!(%path, because,
                "Unable to use the existing kubeconfig"),
            ClientCertificate::Expired { not_after } => tracing::error!(%path, %not_after,
                "Part of the existing client certificate is expired"),
        }
        Ok(!found.is_valid())
    }

    /// Upstream's kubeconfig for the server of `config` with the certificate of `store`. One that says
    /// so already stays untouched.
    fn write_kubeconfig(
        &self,
        config: &KubeConfig,
        store: &CertificateStore,
    ) -> Result<(), CredentialsError> {
        let text = config.text_with_client_certificate(&store.current_path());
        // A link that leads to the file stays one.
        let path = match fs::canonicalize(&self.kubeconfig) {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.kubeconfig.clone(),
            Err(source) => {
                let path = self.kubeconfig.clone();
                return Err(CredentialsError::Kubeconfig(KubeConfigError::Read { path, source }));
            }
        };
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            return Ok(());
        }
        if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
            make_directory(directory).map_err(CredentialsError::Store)?;
        }
        Ok(write_atomic(&path, text.as_bytes(), Durability::Synced)?)
    }

    fn initial_certificate(
        &self,
        config: &KubeConfig,
        current: &Path,
    ) -> Result<InitialCertificate, CredentialsError> {
        Ok(match config.initial_certificate() {
            KubeConfigCertificate::None => InitialCertificate::None,
            KubeConfigCertificate::Files { certificate, .. } if certificate == current => {
                InitialCertificate::None
            }
            KubeConfigCertificate::Files { certificate, key } => {
                let (certificate, key) = (certificate.clone(), key.clone());
                InitialCertificate::Files(PairFiles { certificate, key })
            }
            KubeConfigCertificate::Inline(pem) => {
                let pair =
                    CertificatePair::from_pem(pem.certificate_pem(), pem.key_pem()).map_err(
                        |source| CredentialsError::Inline { path: self.kubeconfig.clone(), source },
                    )?;
                InitialCertificate::Inline(pair)
            }
        })
    }

    /// What the kubelet was given to begin with, read anew: a token may have been replaced.
    fn initial_kubeconfig(&self) -> Result<KubeConfig, CredentialsError> {
        match &self.bootstrap_kubeconfig {
            Some(bootstrap) if self.needs_bootstrap()? => {
                KubeConfig::load(bootstrap).map_err(CredentialsError::BootstrapKubeconfig)
            }
            _ => KubeConfig::load(&self.kubeconfig).map_err(CredentialsError::Kubeconfig),
        }
    }

    fn requests(&self, config: &KubeConfig) -> Result<ClusterRequests, KubeConfigError> {
        let options = ApiServerOptions { general: None, ..self.options.clone() };
        let api = ApiServer::new(config, options, self.clock.clone())?;
        Ok(ClusterRequests::new(&api))
    }
}

/// Rotation of the client certificate over the kubelet's own API server, or over what it was given
/// to begin with while there is no valid certificate.
#[derive(Clone)]
pub struct ClientRotationPort {
    credentials: ClientCredentials,
    api: ApiServer,
}

impl std::fmt::Debug for ClientRotationPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientRotationPort")
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

impl RotationPort for ClientRotationPort {
    type Requests = ClusterRequests;

    async fn signing_requests(
        &self,
        has_valid_certificate: bool,
    ) -> Result<ClusterRequests, Box<dyn Error + Send + Sync>> {
        if has_valid_certificate {
            return Ok(ClusterRequests::new(&self.api));
        }
        let credentials = self.credentials.clone();
        let config = blocking(move || credentials.initial_kubeconfig()).await?;
        Ok(self.credentials.requests(&config)?)
    }

    async fn certificate_changed(&self) {
        match self.api.reload().await {
            Ok(_) => tracing::info!(
                "Certificate rotation detected, shutting down client connections to start using \
                 new credentials"
            ),
            // It tries again by itself.
            Err(error) => tracing::warn!(
                error = error_chain(&error),
                "The new client certificate is not in use yet"
            ),
        }
    }
}

/// Rotation of the serving certificate over the kubelet's own API server.
#[derive(Clone)]
pub struct ServingRotationPort<F> {
    api: ApiServer,
    changed: F,
}

impl<F: Fn() + Send + Sync> ServingRotationPort<F> {
    /// `changed` is called when there is a new certificate in the store, and returns at once.
    pub fn new(api: ApiServer, changed: F) -> Self {
        Self { api, changed }
    }
}

impl<F> std::fmt::Debug for ServingRotationPort<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServingRotationPort")
    }
}

impl<F: Fn() + Send + Sync> RotationPort for ServingRotationPort<F> {
    type Requests = ClusterRequests;

    async fn signing_requests(
        &self,
        _: bool,
    ) -> Result<ClusterRequests, Box<dyn Error + Send + Sync>> {
        Ok(ClusterRequests::new(&self.api))
    }

    fn certificate_changed(&self) -> impl Future<Output = ()> + Send {
        (self.changed)();
        std::future::ready(())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CredentialsError> + Send + 'static,
) -> Result<T, CredentialsError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(CredentialsError::Interrupted))
}
