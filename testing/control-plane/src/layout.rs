//! Where everything is, and what each component is told of it.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::component::Component;
use crate::kubeconfig::{self, Credentials};
use crate::options::Options;
use crate::pki::{self, Authority, Pair};
use crate::ports::Ports;

/// The issuer of service account tokens, kubeadm's.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The user that the API server is to kubelets.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
const FRONT_PROXY_CLIENT: &str = "front-proxy-client";
/// How often a node's life is looked at, at most: upstream's default.
const NODE_MONITOR_PERIOD: Duration = Duration::from_secs(5);

/// Directory, ports and certificates of one control plane.
#[derive(Debug)]
pub(crate) struct Layout {
    dir: PathBuf,
    pub(crate) ports: Ports,
    pub(crate) address: IpAddr,
    pub(crate) authority: Authority,
    pub(crate) admin: Pair,
}

impl Layout {
    /// Makes the certificates and writes them and the kubeconfig files into `dir`.
    pub(crate) fn prepare(dir: &Path, options: &Options) -> anyhow::Result<Self> {
        let authority = Authority::create("kubernetes")?;
        let layout = Self {
            dir: dir.to_owned(),
            ports: Ports::choose(options)?,
            address: options.address(),
            admin: authority.client("kubernetes-admin", Some("system:masters"))?,
            authority,
        };
        layout.write_certificates(options)?;
        for component in [Component::ControllerManager, Component::Scheduler] {
            let user = format!("system:{component}");
            let who = Credentials::Inline(layout.authority.client(&user, None)?);
            layout.write_kubeconfig(&layout.kubeconfig_of(component), &user, &who)?;
        }
        layout.write_kubeconfig(
            &layout.admin_kubeconfig(),
            "kubernetes-admin",
            &Credentials::Inline(layout.admin.clone()),
        )?;
        Ok(layout)
    }

    fn write_certificates(&self, options: &Options) -> anyhow::Result<()> {
        let ca = self.authority.pair();
        write(&self.pki("ca.crt"), &ca.certificate)?;
        write(&self.pki("ca.key"), &ca.key)?;
        let mut hosts: Vec<String> = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
            "127.0.0.1",
        ]
        .map(str::to_owned)
        .to_vec();
        hosts.extend(first_addresses(&options.service_cidr)?.iter().map(IpAddr::to_string));
        if !hosts.contains(&self.address.to_string()) {
            hosts.push(self.address.to_string());
        }
        self.write_pair("apiserver", &self.authority.server("kube-apiserver", hosts)?)?;
        let local = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        self.write_pair("controllers", &self.authority.server("controllers", local)?)?;
        self.write_pair("kubelet-client", &self.authority.client(KUBELET_CLIENT, None)?)?;
        let front_proxy = Authority::create("front-proxy-ca")?;
        write(&self.pki("front-proxy-ca.crt"), front_proxy.certificate())?;
        self.write_pair("front-proxy-client", &front_proxy.client(FRONT_PROXY_CLIENT, None)?)?;
        let (private, public) = pki::signing_key()?;
        write(&self.pki("sa.key"), &private)?;
        write(&self.pki("sa.pub"), &public)
    }

    /// Writes a certificate and its key beneath `pki`, and says where.
    pub(crate) fn write_pair(&self, name: &str, pair: &Pair) -> anyhow::Result<()> {
        write(&self.pki(&format!("{name}.crt")), &pair.certificate)?;
        write(&self.pki(&format!("{name}.key")), &pair.key)
    }

    /// Writes a kubeconfig file.
    pub(crate) fn write_kubeconfig(
        &self,
        file: &Path,
        user: &str,
        who: &Credentials,
    ) -> anyhow::Result<()> {
        write(file, &self.kubeconfig(&self.server(), user, who))
    }

    /// The text of a kubeconfig file.
    pub(crate) fn kubeconfig(&self, server: &str, user: &str, who: &Credentials) -> String {
        kubeconfig::render(server, self.authority.certificate(), user, who)
    }

    /// A file beneath `pki`.
    pub(crate) fn pki(&self, name: &str) -> PathBuf {
        self.dir.join("pki").join(name)
    }

    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    pub(crate) fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.dir.join("bootstrap.kubeconfig")
    }

    fn kubeconfig_of(&self, component: Component) -> PathBuf {
        self.dir.join(format!("{component}.kubeconfig"))
    }

    pub(crate) fn log(&self, component: Component) -> PathBuf {
        self.dir.join(format!("{component}.log"))
    }

    /// The URL of the API server.
    pub(crate) fn server(&self) -> String {
        format!("https://{}", self.endpoint(Component::ApiServer).0)
    }

    /// The address of a component, and the path at which it says that it is well.
    pub(crate) fn endpoint(&self, component: Component) -> (SocketAddr, &'static str) {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        match component {
            Component::Etcd => (local(self.ports.etcd), "/health"),
            Component::ApiServer => {
                (SocketAddr::new(self.address, self.ports.api_server), "/readyz")
            }
            Component::ControllerManager => (local(self.ports.controller_manager), "/healthz"),
            Component::Scheduler => (local(self.ports.scheduler), "/readyz"),
        }
    }

    /// What a component is started with.
    pub(crate) fn arguments(&self, component: Component, options: &Options) -> Vec<String> {
        match component {
            Component::Etcd => self.etcd_arguments(),
            Component::ApiServer => self.api_server_arguments(options),
            Component::ControllerManager => self.controller_manager_arguments(options),
            Component::Scheduler => self.scheduler_arguments(options),
        }
    }

    fn etcd_arguments(&self) -> Vec<String> {
        let clients = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peers = format!("http://127.0.0.1:{}", self.ports.etcd_peers);
        vec![
            "--name=rubelet".to_owned(),
            format!("--data-dir={}", self.dir.join("etcd").display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=rubelet={peers}"),
            "--log-level=warn".to_owned(),
            // The data outlives its process; that of a machine without power is of no interest.
            "--unsafe-no-fsync".to_owned(),
        ]
    }

    fn api_server_arguments(&self, options: &Options) -> Vec<String> {
        let file = |name: &str| self.pki(name).display().to_string();
        let mut arguments = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports.etcd),
            format!("--bind-address={}", self.address),
            format!("--advertise-address={}", self.address),
            format!("--secure-port={}", self.ports.api_server),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            "--enable-bootstrap-token-auth=true".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--service-cluster-ip-range={}", options.service_cidr),
            format!("--service-account-issuer={ISSUER}"),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
            format!("--kubelet-client-key={}", file("kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
            format!("--requestheader-client-ca-file={}", file("front-proxy-ca.crt")),
            format!("--requestheader-allowed-names={FRONT_PROXY_CLIENT}"),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", file("front-proxy-client.crt")),
            format!("--proxy-client-key-file={}", file("front-proxy-client.key")),
            "--profiling=false".to_owned(),
        ];
        if self.address.is_loopback() {
            // An endpoint must not be a loopback address, and that is not worth an exit.
            arguments.push("--endpoint-reconciler-type=none".to_owned());
        }
        arguments.extend(options.api_server_args.iter().cloned());
        arguments
    }

    fn controller_manager_arguments(&self, options: &Options) -> Vec<String> {
        let file = |name: &str| self.pki(name).display().to_string();
        let mut arguments = self.controller_arguments(Component::ControllerManager);
        arguments.extend([
            format!("--secure-port={}", self.ports.controller_manager),
            "--controllers=*,bootstrapsigner,tokencleaner".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            format!("--service-account-private-key-file={}", file("sa.key")),
            format!("--root-ca-file={}", file("ca.crt")),
            format!("--cluster-signing-cert-file={}", file("ca.crt")),
            format!("--cluster-signing-key-file={}", file("ca.key")),
            format!("--service-cluster-ip-range={}", options.service_cidr),
            format!("--allocate-node-cidrs={}", options.pod_cidr.is_some()),
        ]);
        arguments.extend(options.pod_cidr.iter().map(|cidr| format!("--cluster-cidr={cidr}")));
        if let Some(grace) = options.node_monitor_grace {
            // It has to be looked at often enough to be seen in time.
            let period = (grace / 4).min(NODE_MONITOR_PERIOD);
            arguments.push(format!("--node-monitor-grace-period={}ms", grace.as_millis()));
            arguments.push(format!("--node-monitor-period={}ms", period.as_millis()));
        }
        arguments.extend(options.controller_manager_args.iter().cloned());
        arguments
    }

    fn scheduler_arguments(&self, options: &Options) -> Vec<String> {
        let mut arguments = self.controller_arguments(Component::Scheduler);
        arguments.push(format!("--secure-port={}", self.ports.scheduler));
        arguments.extend(options.scheduler_args.iter().cloned());
        arguments
    }

    fn controller_arguments(&self, component: Component) -> Vec<String> {
        let file = |name: &str| self.pki(name).display().to_string();
        let kubeconfig = self.kubeconfig_of(component).display().to_string();
        vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", file("controllers.crt")),
            format!("--tls-private-key-file={}", file("controllers.key")),
            // There is one of it: it would only wait for itself.
            "--leader-elect=false".to_owned(),
            "--profiling=false".to_owned(),
        ]
    }
}

/// Writes a file that only its owner may read; directories are made.
pub(crate) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let written = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
        let options =
            fs::File::options().write(true).create(true).truncate(true).mode(0o600).clone();
        options.open(file)?.write_all(text.as_bytes())
    });
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// The first address of each range, which is that of the `kubernetes` Service.
fn first_addresses(ranges: &str) -> anyhow::Result<Vec<IpAddr>> {
    let first = |range: &str| -> Option<IpAddr> {
        let (network, _) = range.split_once('/')?;
        Some(match network.parse().ok()? {
            IpAddr::V4(address) => IpAddr::V4(address.to_bits().checked_add(1)?.into()),
            IpAddr::V6(address) => IpAddr::V6(address.to_bits().checked_add(1)?.into()),
        })
    };
    ranges
        .split(',')
        .map(|range| first(range).with_context(|| format!("{range} is no range of addresses")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubernetes_service_has_the_first_address_of_each_range() {
        let addresses = first_addresses("10.96.0.0/16,fd00:10:96::/112").expect("two ranges");
        let expected: Vec<IpAddr> =
            vec!["10.96.0.1".parse().expect("one"), "fd00:10:96::1".parse().expect("two")];
        assert_eq!(addresses, expected);
        assert!(first_addresses("10.96.0.0").is_err());
    }

    #[test]
    fn a_node_is_looked_at_often_within_its_grace_and_never_less_often_than_upstream() {
        let dir = std::env::temp_dir().join(format!("rubelet-layout-{}", std::process::id()));
        let mut options = Options::new(PathBuf::from("/run"));
        let layout = Layout::prepare(&dir, &options).expect("prepared");
        let mut told = |grace: Option<u64>| -> Vec<String> {
            options.node_monitor_grace = grace.map(Duration::from_secs);
            let arguments = layout.arguments(Component::ControllerManager, &options);
            arguments.into_iter().filter(|flag| flag.starts_with("--node-monitor")).collect()
        };
        assert_eq!(told(None), Vec::<String>::new());
        assert_eq!(
            told(Some(4)),
            ["--node-monitor-grace-period=4000ms", "--node-monitor-period=1000ms"]
        );
        assert_eq!(
            told(Some(50)),
            ["--node-monitor-grace-period=50000ms", "--node-monitor-period=5000ms"]
        );
        fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn keys_are_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("rubelet-keys-{}", std::process::id()));
        let layout = Layout::prepare(&dir, &Options::new(PathBuf::from("/run"))).expect("prepared");
        for file in [layout.pki("ca.key"), layout.pki("sa.key"), layout.admin_kubeconfig()] {
            let mode = fs::metadata(&file).expect("written").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", file.display());
        }
        fs::remove_dir_all(dir).expect("removed");
    }
}
