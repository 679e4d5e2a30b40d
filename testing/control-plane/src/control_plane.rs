//! The control plane itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use hyper::Method;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::bootstrap::{self, BootstrapToken};
use crate::client::Client;
use crate::component::Component;
use crate::directory::{RunDirectory, sweep_abandoned};
use crate::kubeconfig::Credentials;
use crate::layout::{self, Layout};
use crate::machine::{Machine, ThisMachine};
use crate::options::Options;
use crate::pki::Pair;
use crate::process::Process;
use crate::tools::Tools;

/// How long a component may take until it is well: seconds where nothing else happens.
const HEALTHY_WITHIN: Duration = Duration::from_secs(180);
/// How often it is looked at.
const POLL: Duration = Duration::from_millis(25);

/// A running control plane. Dropping it kills its processes and removes its directory.
#[derive(Debug)]
pub struct ControlPlane {
    tools: Tools,
    options: Options,
    machine: Arc<dyn Machine>,
    layout: Layout,
    token: BootstrapToken,
    admin: Client,
    // After the processes, which write there.
    processes: Mutex<BTreeMap<Component, Process>>,
    directory: RunDirectory,
}

/// The credentials of a node, `system:node:NAME` in the group `system:nodes`.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// The node's name.
    pub name: String,
    /// A kubeconfig that names the files of certificate and key.
    pub kubeconfig: PathBuf,
    /// A kubeconfig that holds certificate and key.
    pub kubeconfig_inline: PathBuf,
    /// The file of the certificate.
    pub certificate: PathBuf,
    /// The file of the key.
    pub key: PathBuf,
    /// Certificate and key.
    pub pair: Pair,
}

impl ControlPlane {
    /// Starts a control plane and waits until it can be used: the API server is ready, nodes may
    /// join, and, with a controller manager, pods can be made in the namespace `default`.
    ///
    /// # Errors
    /// When something is missing or does not come up; the error carries the end of its log, and
    /// nothing is left running.
    pub async fn start(tools: &Tools, options: Options) -> anyhow::Result<Self> {
        tools.check(&options)?;
        sweep_abandoned(&options.run)?;
        let directory = RunDirectory::create(&options.run)?;
        let layout = Layout::prepare(directory.path(), &options)?;
        let machine: Arc<dyn Machine> = match &options.site {
            Some(site) => Arc::clone(&site.machine),
            None => Arc::new(ThisMachine::new()?),
        };
        let token = BootstrapToken::random();
        let admin = Client::new(
            Arc::clone(&machine),
            layout.endpoint(Component::ApiServer).0,
            layout.authority.certificate(),
            Some(&Credentials::Inline(layout.admin.clone())),
        )?;
        layout.write_kubeconfig(
            &layout.bootstrap_kubeconfig(),
            "kubelet-bootstrap",
            &Credentials::Token(token.text()),
        )?;
        let control_plane = Self {
            tools: tools.clone(),
            options,
            machine,
            layout,
            token,
            admin,
            processes: Mutex::default(),
            directory,
        };
        control_plane.come_up().await?;
        Ok(control_plane)
    }

    async fn come_up(&self) -> anyhow::Result<()> {
        self.start_again(Component::Etcd).await?;
        self.start_again(Component::ApiServer).await?;
        let others = || {
            self.options
                .components()
                .filter(|one| matches!(one, Component::ControllerManager | Component::Scheduler))
        };
        for component in others() {
            self.launch(component)?;
        }
        self.wait_for_namespaces().await?;
        self.let_nodes_join().await?;
        for component in others() {
            self.wait_until_healthy(component).await?;
        }
        if self.options.controller_manager {
            self.wait_until_pods_can_be_made().await?;
        }
        Ok(())
    }

    /// The API server makes its namespaces by itself, some time after it is ready.
    async fn wait_for_namespaces(&self) -> anyhow::Result<()> {
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            self.wait_for_object(&format!("/api/v1/namespaces/{name}"), Component::ApiServer)
                .await?;
        }
        Ok(())
    }

    /// Makes what joining nodes need, and waits until the API server goes by it.
    async fn let_nodes_join(&self) -> anyhow::Result<()> {
        for (collection, object) in bootstrap::objects(&self.token) {
            let name = object["metadata"]["name"].to_string();
            self.admin
                .create(&collection, &object)
                .await
                .with_context(|| format!("cannot create {name}"))?;
        }
        let joining = self.client(&Credentials::Token(self.token.text()))?;
        let (path, question) = bootstrap::may_it_join();
        self.wait_for("the token to be believed", Component::ApiServer, async || {
            let body = Some(("application/json", &question));
            let (_, answer) = joining.request(Method::POST, path, body).await?;
            match answer["status"]["allowed"].as_bool() {
                Some(true) => Ok(Ok(())),
                _ => Ok(Err(answer.to_string())),
            }
        })
        .await
    }

    /// Admission refuses pods until their namespace has its service account, and kubelets cannot
    /// make them their token volumes until it has the authority's certificate.
    async fn wait_until_pods_can_be_made(&self) -> anyhow::Result<()> {
        for object in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            let path = format!("/api/v1/namespaces/default/{object}");
            self.wait_for_object(&path, Component::ControllerManager).await?;
        }
        Ok(())
    }

    async fn wait_for_object(&self, path: &str, maker: Component) -> anyhow::Result<()> {
        self.wait_for(path, maker, async || {
            let (status, answer) = self.admin.request(Method::GET, path, None).await?;
            Ok(if status == 200 { Ok(()) } else { Err(answer.to_string()) })
        })
        .await
    }

    /// Looks until `look` says so; it says what there is in the meantime. `maker` is whose doing it
    /// is.
    async fn wait_for(
        &self,
        what: &str,
        maker: Component,
        look: impl AsyncFn() -> anyhow::Result<Result<(), String>>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + HEALTHY_WITHIN;
        loop {
            let Err(state) = look().await? else { return Ok(()) };
            if Instant::now() >= deadline {
                let log = self.log_tail(maker);
                bail!("waited for {what}: {state}\nthe log of {maker} ends with:\n{log}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Starts a component that was killed, on the same port with the same data, and waits until it
    /// is well; nothing happens while it runs.
    ///
    /// # Errors
    /// When it does not come up; the error carries the end of its log.
    pub async fn start_again(&self, component: Component) -> anyhow::Result<()> {
        self.launch(component)?;
        self.wait_until_healthy(component).await
    }

    /// As [`ControlPlane::start_again`], but does not wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(&self, component: Component) -> anyhow::Result<()> {
        let mut processes = self.processes();
        if processes.contains_key(&component) {
            return Ok(());
        }
        let path = self.layout.log(component);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut command = self.machine.command(&self.tools.executable(component));
        command
            .args(self.layout.arguments(component, &self.options))
            .current_dir(self.directory.path())
            // Flags of etcd and proxies for HTTP come by the environment, too.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share a log")?)
            .stderr(log);
        let child =
            self.machine.spawn(command).with_context(|| format!("cannot start {component}"))?;
        processes.insert(component, Process::new(component, child));
        Ok(())
    }

    /// Waits until a component says that it is well.
    ///
    /// # Errors
    /// When it does not run or is not well in time; the error carries the end of its log.
    pub async fn wait_until_healthy(&self, component: Component) -> anyhow::Result<()> {
        let (address, path) = self.layout.endpoint(component);
        let client = match component {
            Component::Etcd => Client::plain(Arc::clone(&self.machine), address),
            Component::ApiServer => self.admin.clone(),
            Component::ControllerManager | Component::Scheduler => {
                let authority = self.layout.authority.certificate();
                Client::new(Arc::clone(&self.machine), address, authority, None)?
            }
        };
        let client = client.with_timeout(Duration::from_secs(5));
        let deadline = Instant::now() + HEALTHY_WITHIN;
        loop {
            let state = match client.request(Method::GET, path, None).await {
                Ok((200, _)) => return Ok(()),
                Ok((status, answer)) => format!("{status} {answer}"),
                Err(error) => format!("{error:#}"),
            };
            let ended = match self.processes().get_mut(&component) {
                Some(process) => process.ended()?,
                None => bail!("{component} was not started"),
            };
            let log = || self.log_tail(component);
            if let Some(status) = ended {
                bail!("{component} ended with {status}; its log ends with:\n{}", log());
            }
            if Instant::now() >= deadline {
                bail!("{component} is not well: {state}; its log ends with:\n{}", log());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills a component with SIGKILL: its port refuses connections from now on.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&self, component: Component) -> anyhow::Result<()> {
        match self.processes().remove(&component) {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Holds a component still with SIGSTOP: it takes connections and does not answer.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, component: Component) -> anyhow::Result<()> {
        self.signal(component, Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self, component: Component) -> anyhow::Result<()> {
        self.signal(component, Signal::CONT)
    }

    fn signal(&self, component: Component, signal: Signal) -> anyhow::Result<()> {
        let processes = self.processes();
        let process = processes.get(&component);
        process.with_context(|| format!("{component} does not run"))?.signal(signal)
    }

    /// The process id of a component while it runs.
    pub fn pid(&self, component: Component) -> Option<u32> {
        self.processes().get(&component).map(Process::id)
    }

    /// Ends all of it. Dropping it does the same.
    pub fn stop(self) {
        drop(self);
    }

    /// Its directory: state, certificates, kubeconfig files, logs.
    pub fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// The URL of the API server.
    pub fn server(&self) -> String {
        self.layout.server()
    }

    /// The address of the API server.
    pub fn address(&self) -> IpAddr {
        self.layout.address
    }

    /// The port of the API server.
    pub fn port(&self) -> u16 {
        self.layout.ports.api_server
    }

    /// The certificate of the cluster's authority, as PEM: it signs serving certificates, client
    /// certificates and certificate requests.
    pub fn authority(&self) -> &str {
        self.layout.authority.certificate()
    }

    /// The file with [`ControlPlane::authority`]: a kubelet's `clientCAFile`.
    pub fn authority_file(&self) -> PathBuf {
        self.layout.pki("ca.crt")
    }

    /// A kubeconfig for somebody who may do anything.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.layout.admin_kubeconfig()
    }

    /// The text of such a kubeconfig, for an API server that is reached by another URL. Its
    /// certificate is good for loopback, too.
    pub fn admin_kubeconfig_for(&self, server: &str) -> String {
        let who = Credentials::Inline(self.layout.admin.clone());
        self.layout.kubeconfig(server, "kubernetes-admin", &who)
    }

    /// A kubeconfig with a token by which a node joins (`--bootstrap-kubeconfig`). With a
    /// controller manager its request for a certificate is approved and signed within a second.
    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.layout.bootstrap_kubeconfig()
    }

    /// The token in there.
    pub fn bootstrap_token(&self) -> String {
        self.token.text()
    }

    /// Makes the credentials of a node, in the directory `nodes/NAME`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn node(&self, name: &str) -> anyhow::Result<NodeIdentity> {
        let user = format!("system:node:{name}");
        let pair = self.layout.authority.client(&user, Some("system:nodes"))?;
        let file = |file: &str| self.dir().join("nodes").join(name).join(file);
        let identity = NodeIdentity {
            name: name.to_owned(),
            kubeconfig: file("kubeconfig"),
            kubeconfig_inline: file("kubeconfig-inline"),
            certificate: file("client.crt"),
            key: file("client.key"),
            pair,
        };
        layout::write(&identity.certificate, &identity.pair.certificate)?;
        layout::write(&identity.key, &identity.pair.key)?;
        self.layout.write_kubeconfig(
            &identity.kubeconfig,
            &user,
            &Credentials::Files {
                certificate: identity.certificate.clone(),
                key: identity.key.clone(),
            },
        )?;
        let inline = Credentials::Inline(identity.pair.clone());
        self.layout.write_kubeconfig(&identity.kubeconfig_inline, &user, &inline)?;
        Ok(identity)
    }

    /// Credentials of a node as those of [`ControlPlane::node`], whose certificate expired the day
    /// before.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn expired_node(&self, name: &str) -> anyhow::Result<Pair> {
        self.layout.authority.expired_client(&format!("system:node:{name}"), Some("system:nodes"))
    }

    /// Writes a kubeconfig of somebody, for this API server.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_kubeconfig(
        &self,
        file: &Path,
        user: &str,
        who: &Credentials,
    ) -> anyhow::Result<()> {
        self.layout.write_kubeconfig(file, user, who)
    }

    /// A serving certificate for a node that the cluster's authority signed.
    ///
    /// # Errors
    /// When a host is neither a name nor an address.
    pub fn serving_certificate(&self, name: &str, hosts: &[&str]) -> anyhow::Result<Pair> {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.layout.authority.server(&format!("system:node:{name}"), hosts)
    }

    /// A client that may do anything.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// A client of somebody else.
    ///
    /// # Errors
    /// When the credentials cannot be read.
    pub fn client(&self, who: &Credentials) -> anyhow::Result<Client> {
        Client::new(
            Arc::clone(&self.machine),
            self.layout.endpoint(Component::ApiServer).0,
            self.authority(),
            Some(who),
        )
    }

    /// Runs kubectl as somebody who may do anything, and returns what it wrote.
    ///
    /// # Errors
    /// When it fails; the error carries what it says.
    pub async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = self.machine.command(&self.tools.kubectl);
        command
            .arg("--kubeconfig")
            .arg(self.admin_kubeconfig())
            .args(args)
            // It keeps what it learnt of an API server under the home directory.
            .env("HOME", self.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let machine = Arc::clone(&self.machine);
        let run = move || machine.spawn(command).and_then(Child::wait_with_output);
        let output = tokio::task::spawn_blocking(run).await?.context("cannot run kubectl")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {} ended with {}: {}", args.join(" "), output.status, said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The file with a component's log, over all its runs.
    pub fn log_file(&self, component: Component) -> PathBuf {
        self.layout.log(component)
    }

    /// The end of a component's log.
    fn log_tail(&self, component: Component) -> String {
        const LINES: usize = 15;
        let text = std::fs::read(self.layout.log(component)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<Component, Process>> {
        // A test that panicked meanwhile has failed anyway; the processes are still ours to end.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // The store last, so that nobody complains in the meantime.
        let mut processes = std::mem::take(&mut *self.processes());
        while let Some((_, process)) = processes.pop_last() {
            drop(process);
        }
    }
}
