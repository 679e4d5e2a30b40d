use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use rubelet_types::{Clock, error_chain};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::within;
use crate::manager::jittered;
use crate::{NodeApi, NodeApiError, NodeApiErrorKind, NodeStatusTiming};

/// The namespace of all nodes' leases.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// A renewal that fails is repeated this often at once.
const TRIES: u32 = 5;
/// Wait after the first failure to get or create the lease; doubles from there.
const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
/// Longest of these waits.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(7);

/// Renews the node's lease, which tells the control plane that the node is alive.
#[derive(Debug)]
pub struct NodeLease<A> {
    api: Arc<A>,
    node: String,
    timing: NodeStatusTiming,
    clock: Clock,
    /// The lease as it was last written. Nobody else writes it, so that it need not be read.
    latest: Option<Lease>,
}

impl<A: NodeApi> NodeLease<A> {
    /// The lease of `node`.
    pub fn new(
        api: Arc<A>,
        node: impl Into<String>,
        timing: NodeStatusTiming,
        clock: Clock,
    ) -> Self {
        Self { api, node: node.into(), timing, clock, latest: None }
    }

    /// Renews it each quarter of its duration until cancelled: to be cancelled last, as a node that
    /// shuts down is alive until the end.
    pub async fn run(mut self, cancel: CancellationToken) {
        let renew = async {
            loop {
                self.sync().await;
                sleep(jittered(self.timing.lease_duration() / 4)).await;
            }
        };
        cancel.run_until_cancelled(renew).await;
    }

    async fn sync(&mut self) {
        if let Some(latest) = self.latest.take()
            && self.renew(latest).await
        {
            return;
        }
        let (lease, is_new) = self.ensure().await;
        if is_new {
            self.latest = Some(lease);
        } else if !self.renew(lease).await {
            tracing::error!(node = self.node, "The node's lease could not be renewed");
        }
    }

    /// Writes the lease with the time of now. False if it cannot be written as it is.
    async fn renew(&mut self, mut lease: Lease) -> bool {
        for attempt in 0..TRIES {
            lease = self.renewed(lease).await;
            let error = match within(self.deadline(), self.api.update_lease(&lease)).await {
                Ok(written) => {
                    self.latest = Some(written);
                    return true;
                }
                Err(error) => error,
            };
            tracing::warn!(node = self.node, error = error_chain(&error), "Failed to update lease");
            match error.kind {
                NodeApiErrorKind::Conflict => {
                    let (current, is_new) = self.ensure().await;
                    if is_new {
                        self.latest = Some(current);
                        return true;
                    }
                    lease = current;
                    continue;
                }
                NodeApiErrorKind::NotFound => return false,
                _ => {}
            }
            if attempt > 0 || error.kind == NodeApiErrorKind::NoAnswer {
                self.api.close_connections();
            }
        }
        false
    }

    /// Reads the lease, or creates it, until either succeeds; whether it was created.
    async fn ensure(&self) -> (Lease, bool) {
        let mut back_off = FIRST_BACK_OFF;
        loop {
            match self.get_or_create().await {
                Ok(found) => return found,
                Err(error) => tracing::warn!(
                    node = self.node,
                    error = error_chain(&error),
                    retryIn = ?back_off,
                    "Failed to ensure lease exists, will retry"
                ),
            }
            sleep(back_off).await;
            back_off = (back_off * 2).min(LONGEST_BACK_OFF);
        }
    }

    async fn get_or_create(&self) -> Result<(Lease, bool), NodeApiError> {
        match within(self.deadline(), self.api.get_lease(&self.node)).await {
            Ok(lease) => return Ok((lease, false)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        // A lease without an owner would outlive its Node.
        let owner = self.owner().await?;
        let bare = Lease {
            metadata: ObjectMeta {
                name: Some(self.node.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        let lease = self.renewed(bare).await;
        let created = within(self.deadline(), self.api.create_lease(&lease)).await?;
        Ok((created, true))
    }

    /// The lease as it is to be written now. One that still lacks its owner gets it if the Node can be
    /// read; the heartbeat goes out in any case.
    async fn renewed(&self, mut lease: Lease) -> Lease {
        let owners = lease.metadata.owner_references.get_or_insert_default();
        if owners.is_empty() {
            match self.owner().await {
                Ok(owner) => owners.push(owner),
                Err(error) => tracing::warn!(
                    node = self.node,
                    error = error_chain(&error),
                    "Failed to get node when trying to set owner ref to the node lease"
                ),
            }
        }
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.node.clone()),
            lease_duration_seconds: Some(self.timing.lease_duration_seconds),
            renew_time: Some(MicroTime(self.clock.now())),
            ..lease.spec.unwrap_or_default()
        });
        lease
    }

    async fn owner(&self) -> Result<OwnerReference, NodeApiError> {
        let node = within(self.deadline(), self.api.get_node(&self.node)).await?;
        Ok(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        })
    }

    fn deadline(&self) -> Duration {
        self.timing.request_deadline()
    }
}
