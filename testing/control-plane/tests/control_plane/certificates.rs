//! The kubelet's certificate manager against the real approver and the real signer.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use rubelet_apiserver::{
    ApiServer, ApiServerOptions, ClientCertificate, KubeConfig, ProxyEnvironment, Selector,
};
use rubelet_certificate_manager::{
    CertificatePair, ClientCredentials, ServingCertificateManager, ServingCertificateSettings,
    ServingRotationPort,
};
use rubelet_control_plane::{ControlPlane, Credentials};
use rubelet_test_bed::trials::Trial;
use rubelet_types::{Clock, error_chain};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::ground::{Ground, block_on, eventually};

pub(crate) const TRIALS: &[Trial<Ground>] = &[
    Trial {
        name: "a_kubelet_gets_its_first_certificate_with_a_token",
        run: a_kubelet_gets_its_first_certificate_with_a_token,
    },
    Trial {
        name: "a_token_that_nobody_knows_is_an_error_that_says_so",
        run: a_token_that_nobody_knows_is_an_error_that_says_so,
    },
    Trial {
        name: "a_kubelet_replaces_certificates_of_half_a_minute_with_its_own",
        run: a_kubelet_replaces_certificates_of_half_a_minute_with_its_own,
    },
    Trial {
        name: "a_kubelet_gets_its_serving_certificate_once_somebody_approves_it",
        run: a_kubelet_gets_its_serving_certificate_once_somebody_approves_it,
    },
];

/// The files of one kubelet.
struct Kubelet {
    credentials: ClientCredentials,
}

impl Kubelet {
    fn new(control_plane: &ControlPlane, name: &str, bootstrap: PathBuf) -> Self {
        let dir = control_plane.dir().join("kubelets").join(name);
        let credentials = ClientCredentials {
            kubeconfig: dir.join("kubelet.conf"),
            bootstrap_kubeconfig: Some(bootstrap),
            cert_dir: dir.join("pki"),
            node_name: name.to_owned(),
            options: options(),
            clock: Clock::system(),
        };
        Self { credentials }
    }

    fn api(&self, config: &KubeConfig) -> anyhow::Result<ApiServer> {
        Ok(ApiServer::new(config, options(), Clock::system())?)
    }

    fn current(&self) -> anyhow::Result<CertificatePair> {
        let path = self.credentials.cert_dir.join("kubelet-client-current.pem");
        let pem = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(CertificatePair::from_pem(&pem, &pem)?)
    }
}

fn options() -> ApiServerOptions {
    ApiServerOptions {
        user_agent: "kubelet/test".to_owned(),
        general: None,
        events: None,
        heartbeat_timeout: Duration::from_secs(30),
        request_timeout: Duration::from_secs(60),
        http2: true,
        proxies: ProxyEnvironment::default(),
    }
}

/// Only the node itself may create its object.
async fn create_node(api: &ApiServer, name: &str) -> anyhow::Result<()> {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    api.cluster::<Node>().create(&node).await?;
    Ok(())
}

/// The requests for a node's certificates: by whom, and for which signer.
async fn requests(
    control_plane: &ControlPlane,
    node: &str,
) -> anyhow::Result<Vec<(String, CertificateSigningRequest)>> {
    let config = KubeConfig::load(&control_plane.admin_kubeconfig())?;
    let api = ApiServer::new(&config, options(), Clock::system())?;
    let all = api.cluster::<CertificateSigningRequest>().list(&Selector::all()).await?;
    let subject = format!("CN=system:node:{node}");
    let mut found = Vec::new();
    for request in all.objects {
        let (_, pem) = x509_parser::pem::parse_x509_pem(&request.spec.request.0)?;
        let (_, parsed) = X509CertificationRequest::from_der(&pem.contents)?;
        if parsed.certification_request_info.subject.to_string().ends_with(&subject) {
            found.push((request.spec.username.clone().unwrap_or_default(), request));
        }
    }
    Ok(found)
}

fn a_kubelet_gets_its_first_certificate_with_a_token(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    let kubelet = Kubelet::new(control_plane, "first", control_plane.bootstrap_kubeconfig());
    block_on(async {
        kubelet.credentials.ensure_bootstrapped().await?;
        let kubeconfig = &kubelet.credentials.kubeconfig;
        let found = ClientCertificate::check(kubeconfig, Clock::system().now())?;
        ensure!(found.is_valid(), "{found:?}");
        let api = kubelet.api(&KubeConfig::load(kubeconfig)?)?;
        create_node(&api, "first").await?;
        ensure!(create_node(&api, "another").await.is_err(), "it may be anybody");
        let leaf = kubelet.current()?.leaf().clone();
        ensure!(leaf.common_name == "system:node:first", "{leaf:?}");

        // A restart finds everything in order, and asks nobody.
        kubelet.credentials.ensure_bootstrapped().await?;
        let requests = requests(control_plane, "first").await?;
        ensure!(requests.len() == 1, "{requests:?}");
        ensure!(requests[0].0.starts_with("system:bootstrap:"), "{requests:?}");
        let name = requests[0].1.metadata.name.as_deref().unwrap_or_default();
        ensure!(name.starts_with("node-csr-"), "{name}");
        control_plane.admin().delete("/api/v1/nodes/first").await?;
        Ok(())
    })
}

fn a_token_that_nobody_knows_is_an_error_that_says_so(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    let known = std::fs::read_to_string(control_plane.bootstrap_kubeconfig())?;
    let unknown = control_plane.dir().join("unknown-token.conf");
    std::fs::write(
        &unknown,
        known.replace(&control_plane.bootstrap_token(), "abcdef.0123456789abcdef"),
    )?;
    let kubelet = Kubelet::new(control_plane, "unknown", unknown);
    block_on(async {
        let Err(error) = kubelet.credentials.ensure_bootstrapped().await else {
            anyhow::bail!("somebody knew it");
        };
        let text = error_chain(&error);
        ensure!(text.contains("the bootstrap token or the certificate may have expired"), "{text}");
        ensure!(text.ends_with("Unauthorized"), "{text}");
        ensure!(!kubelet.credentials.kubeconfig.exists(), "a kubeconfig without a certificate");
        Ok(())
    })
}

fn a_kubelet_replaces_certificates_of_half_a_minute_with_its_own(
    ground: &Ground,
) -> anyhow::Result<()> {
    let mut options = ground.options();
    options.scheduler = false;
    options.controller_manager_args = vec!["--cluster-signing-duration=30s".to_owned()];
    let control_plane = ground.start(options)?;
    let kubelet = Kubelet::new(&control_plane, "short", control_plane.bootstrap_kubeconfig());
    block_on(async {
        let (config, manager) = kubelet.credentials.prepare_rotation().await?;
        let api = kubelet.api(&config)?;
        ensure!(create_node(&api, "short").await.is_err(), "a node without a certificate");
        let status = manager.status();
        let stop = CancellationToken::new();
        let port = kubelet.credentials.rotation_port(api.clone());
        let run = AbortOnDropHandle::new(tokio::spawn(manager.run(port, stop.clone())));
        let api_of_node = &api;
        eventually("the node's certificate", async || {
            Ok(create_node(api_of_node, "short").await.map_err(|error| format!("{error:#}")))
        })
        .await?;
        let first = kubelet.current()?.leaf().clone();

        let by_itself = "system:node:short";
        eventually("a renewal", async || {
            let requests = requests(&control_plane, "short").await?;
            let own = requests.iter().any(|(by, request)| {
                let issued = request.status.as_ref().and_then(|status| status.certificate.as_ref());
                by == by_itself && issued.is_some()
            });
            let rotated = status.rotation_ages().count > 0;
            Ok(if own && rotated { Ok(()) } else { Err(format!("{requests:?}")) })
        })
        .await?;
        let second = kubelet.current()?.leaf().clone();
        ensure!(second.not_after > first.not_after, "{first:?} {second:?}");
        // Also after the first one has expired.
        eventually("the end of the first certificate", async || {
            let now = Clock::system().now();
            Ok(if first.is_valid(now) { Err(format!("it is {now}")) } else { Ok(()) })
        })
        .await?;
        eventually("the node to be known by a later certificate", async || {
            let found = api_of_node.cluster::<Node>().get("short").await;
            Ok(found.map_err(|error| error_chain(&error)))
        })
        .await?;
        stop.cancel();
        run.await??;
        Ok(())
    })
}

fn a_kubelet_gets_its_serving_certificate_once_somebody_approves_it(
    ground: &Ground,
) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    let node = control_plane.node("server")?;
    block_on(async {
        let api = ApiServer::new(&KubeConfig::load(&node.kubeconfig)?, options(), Clock::system())?;
        let settings = ServingCertificateSettings {
            directory: control_plane.dir().join("kubelets/server/pki"),
            node_name: "server".to_owned(),
            given: None,
            dns_only: false,
        };
        let manager = ServingCertificateManager::open(settings, Clock::system())?;
        let (status, places) = (manager.status(), manager.places());
        let address = |type_: &str, address: &str| NodeAddress {
            type_: type_.to_owned(),
            address: address.to_owned(),
        };
        let (_keep, addresses) =
            watch::channel(vec![address("InternalIP", "10.0.0.7"), address("Hostname", "server")]);
        let (told, tell) = watch::channel(0);
        let port = ServingRotationPort::new(api, move || told.send_modify(|count| *count += 1));
        let _run = AbortOnDropHandle::new(tokio::spawn(manager.run(
            port,
            addresses,
            CancellationToken::new(),
        )));
        let name = eventually("the request", async || {
            let requests = requests(control_plane, "server").await?;
            let name = requests.first().and_then(|(_, request)| request.metadata.name.clone());
            Ok(name.ok_or_else(|| "none".to_owned()))
        })
        .await?;
        ensure!(status.current(Clock::system().now()).is_none(), "nobody approved it");
        control_plane.kubectl(&["certificate", "approve", &name]).await?;
        let leaf = eventually("the certificate", async || {
            let leaf = status.current(Clock::system().now());
            Ok(leaf.ok_or_else(|| "none".to_owned()))
        })
        .await?;
        ensure!(leaf.dns_names == ["server"], "{leaf:?}");
        ensure!(leaf.ip_addresses == ["10.0.0.7".parse::<std::net::IpAddr>()?], "{leaf:?}");
        eventually("the server to be told", async || {
            Ok(if *tell.borrow() == 1 { Ok(()) } else { Err("not yet".to_owned()) })
        })
        .await?;
        let pem = std::fs::read(&places[0].certificate)?;
        ensure!(CertificatePair::from_pem(&pem, &pem)?.leaf() == &*leaf, "another on disk");
        let client = control_plane.client(&Credentials::Inline(node.pair))?;
        let request = client
            .get(&format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}"))
            .await?;
        ensure!(request["spec"]["signerName"] == "kubernetes.io/kubelet-serving", "{request}");
        Ok(())
    })
}
