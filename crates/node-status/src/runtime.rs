//! What is asked of, and told to, the container runtime on behalf of the Node, each in a loop of its
//! own: a runtime that hangs holds up neither status nor lease.

use std::time::Duration;

use rubelet_cri::CriClient;
use tokio_util::sync::CancellationToken;

use crate::{NodeHandle, NodeInputs};

/// Images and version are asked for this often.
const FACTS_PERIOD: Duration = Duration::from_secs(30);
/// The runtime is told the pods' network again after this if it did not take it.
const POD_CIDR_RETRY: Duration = Duration::from_secs(10);

/// Keeps what `inputs` says of the runtime's images and version fresh, until cancelled. While the
/// runtime does not answer, what it said last counts.
pub async fn keep_runtime_facts(cri: CriClient, inputs: NodeInputs, cancel: CancellationToken) {
    let keep = async {
        loop {
            let (version, images) = tokio::join!(cri.version(), cri.list_images(None));
            match version {
                Ok(told) => inputs.set_runtime_version(&told.runtime_name, &told.runtime_version),
                Err(error) => tracing::debug!(%error, "The runtime does not tell its version"),
            }
            match images {
                Ok(images) => inputs.set_images(images),
                Err(error) => tracing::debug!(%error, "The runtime does not list its images"),
            }
            tokio::time::sleep(FACTS_PERIOD).await;
        }
    };
    cancel.run_until_cancelled(keep).await;
}

/// Tells the runtime which network the control plane gave the node's pods (`spec.podCIDRs`), each
/// time that changes, until cancelled.
pub async fn keep_pod_cidr(cri: CriClient, mut node: NodeHandle, cancel: CancellationToken) {
    let keep = async {
        let mut told = String::new();
        loop {
            let wanted = pod_cidrs(&node);
            if wanted.is_empty() || wanted == told {
                node.changed().await;
                continue;
            }
            match cri.update_runtime_config(&wanted).await {
                Ok(()) => {
                    tracing::info!(
                        originalPodCIDR = told,
                        newPodCIDR = wanted,
                        "Updating Pod CIDR"
                    );
                    told = wanted;
                }
                Err(error) => {
                    tracing::warn!(%error, podCIDR = wanted, "Failed to update pod CIDR");
                    tokio::time::sleep(POD_CIDR_RETRY).await;
                }
            }
        }
    };
    cancel.run_until_cancelled(keep).await;
}

fn pod_cidrs(node: &NodeHandle) -> String {
    let published = node.current();
    let cidrs = published
        .as_ref()
        .and_then(|it| it.node.spec.as_ref())
        .and_then(|spec| spec.pod_cidrs.as_deref());
    cidrs.unwrap_or_default().join(",")
}
