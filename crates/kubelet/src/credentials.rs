//! How the kubelet is known at the API server, and how its own server is known to others.

use std::path::PathBuf;

use anyhow::Context;
use k8s_openapi::api::core::v1::NodeAddress;
use rubelet_apiserver::{ApiServer, ApiServerOptions, KubeConfig, ProxyEnvironment};
use rubelet_certificate_manager::{
    ClientCertificateManager, ClientCertificateMetrics, ClientCredentials,
    ServingCertificateManager, ServingCertificateMetrics, ServingRotationPort,
};
use rubelet_config::Effective;
use rubelet_node_status::NodeHandle;
use rubelet_server::TlsReload;
use rubelet_types::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::node::Node;
use crate::settings;
use crate::version::user_agent;

/// The API server, and what keeps this kubelet known there.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) api: ApiServer,
    credentials: ClientCredentials,
    rotation: Option<ClientCertificateManager>,
}

impl Joined {
    /// Takes the credentials that flags and configuration name; `None` for a kubelet that is alone.
    /// Without `rotateCertificates` it waits for a first certificate, if there is one to wait for.
    ///
    /// # Errors
    ///
    /// There are no credentials that can be used.
    pub(crate) async fn join(
        effective: &Effective,
        node: &Node,
        clock: &Clock,
    ) -> anyhow::Result<Option<Self>> {
        let options = &effective.options;
        let Some(kubeconfig) = options.kubeconfig.clone() else { return Ok(None) };
        let variable = |name: &str| std::env::var(name).ok();
        let speak = ApiServerOptions {
            http2: variable("DISABLE_HTTP2").is_none_or(|value| value.is_empty()),
            proxies: ProxyEnvironment::from_variables(variable),
            ..ApiServerOptions::from_configuration(&effective.config, user_agent())
        };
        let credentials = ClientCredentials {
            kubeconfig: kubeconfig.clone(),
            bootstrap_kubeconfig: options.bootstrap_kubeconfig.clone(),
            cert_dir: options.cert_dir.clone(),
            node_name: node.name.clone(),
            options: speak.clone(),
            clock: clock.clone(),
        };
        let (config, rotation) = if effective.config.rotate_certificates {
            let (config, manager) = credentials.prepare_rotation().await?;
            (config, Some(manager))
        } else {
            credentials.ensure_bootstrapped().await?;
            let load = tokio::task::spawn_blocking(move || KubeConfig::load(&kubeconfig));
            (load.await?.context("--kubeconfig")?, None)
        };
        tracing::info!(server = config.server(), "Joining a cluster");
        let api = ApiServer::new(&config, speak, clock.clone()).context("--kubeconfig")?;
        Ok(Some(Self { api, credentials, rotation }))
    }

    /// Tells of the client certificate, if it is kept up to date.
    pub(crate) fn certificate_metrics(&self, clock: &Clock) -> Option<ClientCertificateMetrics> {
        let status = self.rotation.as_ref()?.status();
        Some(ClientCertificateMetrics { status, clock: clock.clone() })
    }

    /// Keeps the client certificate up to date until `stop`.
    ///
    /// # Errors
    ///
    /// There has been no valid certificate for a while although the API server answers: a process
    /// that is started anew may get one.
    pub(crate) async fn keep_client_certificate(
        self,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        match self.rotation {
            Some(manager) => {
                Ok(manager.run(self.credentials.rotation_port(self.api), stop).await?)
            }
            None => {
                stop.cancelled().await;
                Ok(())
            }
        }
    }
}

/// A serving certificate that the cluster signs (`serverTLSBootstrap`).
pub(crate) struct SignedServing {
    manager: ServingCertificateManager,
    api: ApiServer,
    node: NodeHandle,
}

impl SignedServing {
    /// Opens its store.
    ///
    /// # Errors
    ///
    /// The certificate directory cannot be used.
    pub(crate) async fn open(
        effective: &Effective,
        node_name: &str,
        clock: &Clock,
        (api, node): (ApiServer, NodeHandle),
    ) -> anyhow::Result<Self> {
        let settings = settings::serving_certificate(effective, node_name);
        let clock = clock.clone();
        let open = move || ServingCertificateManager::open(settings, clock);
        let manager = tokio::task::spawn_blocking(open)
            .await?
            .context("failed to initialize server certificate manager")?;
        Ok(Self { manager, api, node })
    }

    /// Tells of the certificate.
    pub(crate) fn metrics(&self, clock: &Clock) -> ServingCertificateMetrics {
        ServingCertificateMetrics { status: self.manager.status(), clock: clock.clone() }
    }

    /// Where certificate and key may be.
    pub(crate) fn places(&self) -> Vec<(PathBuf, PathBuf)> {
        self.manager.places().into_iter().map(|pair| (pair.certificate, pair.key)).collect()
    }

    /// Keeps the certificate up to date until `stop`, and tells the server by `reload`.
    pub(crate) async fn keep(self, reload: TlsReload, stop: CancellationToken) {
        let (told, addresses) = watch::channel(Vec::new());
        let port = ServingRotationPort::new(self.api, move || reload.reload());
        let mut node = self.node;
        let follow = async {
            loop {
                told.send_if_modified(|known| {
                    let now = addresses_of(&node);
                    let changed = *known != now;
                    *known = now;
                    changed
                });
                node.changed().await;
            }
        };
        tokio::select! {
            () = self.manager.run(port, addresses, stop) => {}
            () = follow => {}
        }
    }
}

fn addresses_of(node: &NodeHandle) -> Vec<NodeAddress> {
    let published = node.current();
    let status = published.as_ref().and_then(|published| published.node.status.as_ref());
    status.and_then(|status| status.addresses.clone()).unwrap_or_default()
}
