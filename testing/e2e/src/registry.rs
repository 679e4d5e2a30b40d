//! A registry of images on a node's loopback.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rubelet_cri::{CriClient, CriOptions};
use serde_json::{Value, json};

use crate::cache::{Cache, Missing};
use crate::http;
use crate::runtime::Runtime;
use crate::wait::wait_for;

/// How long anything of it may take.
const WAIT: Duration = Duration::from_secs(60);
/// Debian's registry.
const REGISTRY: &str = "/usr/bin/docker-registry";
const PORT: u16 = 5000;
/// A containerd namespace that the kubelet sees nothing of.
const STAGING: &str = "staging";
const PUSHED: &str = "docker.io/library/busybox:latest";

/// [`Registry::USER`] and [`Registry::PASSWORD`] as the registry knows them: with bcrypt, and few
/// rounds of it.
const HTPASSWD: &str = "jane:$2b$05$abcdefghijklmnopqrstuuKcS.CYWVYVaLiiCKrrc0A5s3mGesJ9O\n";

/// A registry on the node's loopback, which containerd takes without TLS. It and what was pulled
/// from it are gone when it is dropped.
#[derive(Debug)]
pub struct Registry {
    runtime: Arc<Runtime>,
    dir: PathBuf,
    child: Option<Child>,
    protected: bool,
}

impl Registry {
    /// Who may pull and push when it is protected.
    pub const USER: &str = "jane";
    /// The password of [`Registry::USER`].
    pub const PASSWORD: &str = "sesame";

    /// Starts one that asks nobody who it is; `name` is its directory's.
    ///
    /// # Errors
    /// When there is no program for it or it does not answer.
    pub fn start(runtime: &Arc<Runtime>, name: &str) -> anyhow::Result<Self> {
        Self::start_with(runtime, name, false)
    }

    /// Starts one that only [`Registry::USER`] may use.
    ///
    /// # Errors
    /// When there is no program for it or it does not answer.
    pub fn start_protected(runtime: &Arc<Runtime>, name: &str) -> anyhow::Result<Self> {
        Self::start_with(runtime, name, true)
    }

    fn start_with(runtime: &Arc<Runtime>, name: &str, protected: bool) -> anyhow::Result<Self> {
        if !Path::new(REGISTRY).exists() {
            let remedy = "run `cargo xtask setup` as root";
            return Err(Missing { files: vec![REGISTRY.into()], remedy }.into());
        }
        let runtime = Arc::clone(runtime);
        let dir = runtime.dir().join(format!("registry-{name}"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut config = json!({
            "version": 0.1,
            "log": { "level": "warn" },
            "storage": { "filesystem": { "rootdirectory": dir.join("blobs") } },
            "http": { "addr": format!("127.0.0.1:{PORT}") }
        });
        if protected {
            let users = dir.join("htpasswd");
            fs::write(&users, HTPASSWD)?;
            config["auth"] = json!({ "htpasswd": { "realm": "test", "path": users } });
        }
        fs::write(dir.join("config.yml"), config.to_string())?;
        let mut registry = Self { runtime, dir, child: None, protected };
        registry.resume()?;
        let busybox = Cache::from_environment()?.images().join("busybox.tar");
        let own = registry.dir.join("busybox.tar");
        write_own_archive(&busybox, &own, name)
            .with_context(|| format!("cannot make {} of {}", own.display(), busybox.display()))?;
        let own = own.to_str().context("the directory's path is not UTF-8")?;
        registry.runtime.ctr(&["-n", STAGING, "images", "import", own])?;
        Ok(registry)
    }

    /// Starts it, after [`Registry::pause`] with all that it had.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = self.runtime.namespaces().command(REGISTRY);
        command.arg("serve").arg(self.dir.join("config.yml"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(self.runtime.namespaces().spawn(&mut command)?);
        let address = SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), PORT);
        let expected = if self.protected { 401 } else { 200 };
        wait_for("the registry to answer", WAIT, || {
            match http::get(self.runtime.namespaces(), address, "/v2/") {
                Ok((status, _)) if status == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("cannot end the registry")?;
            child.wait().context("cannot wait for the registry")?;
        }
        Ok(())
    }

    /// The name of one of its images.
    pub fn name(image: &str) -> String {
        format!("127.0.0.1:{PORT}/{image}")
    }

    /// Docker's configuration of somebody who believes in that password.
    pub fn docker_config(password: &str) -> Value {
        let login = json!({ "username": Self::USER, "password": password });
        json!({ "auths": { format!("127.0.0.1:{PORT}"): login } })
    }

    /// Puts an image into it.
    ///
    /// # Errors
    /// When it does not take it.
    pub fn push(&self, image: &str) -> anyhow::Result<()> {
        let (name, user) = (Self::name(image), format!("{}:{}", Self::USER, Self::PASSWORD));
        let mut push = vec!["-n", STAGING, "images", "push", "--plain-http"];
        if self.protected {
            push.extend(["--user", user.as_str()]);
        }
        push.extend([name.as_str(), PUSHED]);
        self.runtime.ctr(&push).map(|_| ())
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// How often it was asked what an image is.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn lookups(&self, repository: &str) -> anyhow::Result<usize> {
        let log = fs::read_to_string(self.log())?;
        let request = format!("\"HEAD /v2/{repository}/manifests/");
        Ok(log.lines().filter(|line| line.contains(&request)).count())
    }

    /// Takes away what the runtime has of it. Not over the CRI, which also takes away all other
    /// names of the same image.
    fn forget_images(&self) -> anyhow::Result<()> {
        let ours = format!("127.0.0.1:{PORT}/");
        let names = self.runtime.ctr(&["-n", "k8s.io", "images", "ls", "-q"])?;
        for name in names.lines().filter(|name| name.starts_with(&ours)) {
            self.runtime.ctr(&["-n", "k8s.io", "images", "rm", "--sync", name])?;
        }
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start an executor")?;
        let endpoint = format!("unix://{}", self.runtime.socket().display());
        let list = || {
            executor.block_on(async {
                let options = CriOptions { request_timeout: WAIT, ..CriOptions::default() };
                anyhow::Ok(
                    CriClient::connect_lazy(&endpoint, None, options)?.list_images(None).await?,
                )
            })
        };
        wait_for("the images to be gone", WAIT, || {
            let images = list().map_err(|error| format!("{error:#}"))?;
            let left = images.iter().flat_map(|image| &image.repo_tags);
            match left.into_iter().find(|name| name.starts_with(&ours)) {
                None => Ok(()),
                Some(name) => Err(name.clone()),
            }
        })
    }
}

/// Makes an image of its own, that no node has under another name: what one pod pulled is not
/// everybody's, whatever it is called.
fn write_own_archive(from: &Path, to: &Path, author: &str) -> anyhow::Result<()> {
    let mut source = tar::Archive::new(File::open(from)?);
    let mut target = tar::Builder::new(File::create(to)?);
    for entry in source.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let is_config =
            path.extension().is_some_and(|end| end == "json") && path != Path::new("manifest.json");
        let mut header = entry.header().clone();
        if is_config {
            let mut config: Value = serde_json::from_reader(&mut entry)?;
            config["author"] = json!(author);
            let config = config.to_string();
            header.set_size(config.len() as u64);
            target.append_data(&mut header, &path, config.as_bytes())?;
        } else {
            target.append_data(&mut header, &path, &mut entry)?;
        }
    }
    target.finish()?;
    Ok(())
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Err(error) = self.pause().and_then(|()| self.forget_images()) {
            eprintln!("cannot clean up the registry: {error:#}");
        }
    }
}
