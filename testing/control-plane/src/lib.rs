//! A real Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use rubelet_control_plane::{Cache, Component, ControlPlane, Options, Tools};
//!
//! let cache = Cache::from_environment()?;
//! let tools = Tools::find(&cache)?;
//! let control_plane = ControlPlane::start(&tools, Options::new(cache.run())).await?;
//! let node = control_plane.node("worker-1")?; // credentials of system:node:worker-1
//! println!("kubelet --kubeconfig={}", node.kubeconfig.display());
//! control_plane.kill(Component::ApiServer)?; // gone
//! control_plane.start_again(Component::ApiServer).await?; // back, same port, same data
//! # Ok(())
//! # }
//! ```
//!
//! # What it is
//!
//! As kubeadm would set it up, as far as a kubelet can tell: `Node,RBAC` authorization with the
//! `NodeRestriction` admission plugin, TLS bootstrap with a token, signed and approved certificate
//! requests, service account tokens, a client certificate for the API server's requests to kubelets,
//! a front-proxy authority. There is no encryption at rest, no audit and no fsync.
//!
//! # Isolation
//!
//! Everything listens on loopback on ports that nobody else uses, or on another [`Machine`], such as
//! a network namespace. State, certificates and logs are in one directory. The processes are killed
//! when [`ControlPlane`] is dropped, and by the kernel when the process that holds it ends in any
//! other way; the directory is removed by the drop, else by the next start.

mod bootstrap;
mod client;
mod component;
mod control_plane;
mod directory;
mod kubeconfig;
mod layout;
mod machine;
mod options;
mod pki;
mod ports;
mod process;
mod tools;

pub use client::Client;
pub use component::Component;
pub use control_plane::{ControlPlane, NodeIdentity};
pub use kubeconfig::Credentials;
pub use machine::{Machine, ThisMachine};
pub use options::{Options, Site};
pub use pki::Pair;
pub use rubelet_test_bed::{Cache, Missing};
pub use tools::{KUBERNETES_VERSION, Tools};
