//! Grants resizes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_node_resources::{WaitingResize, compare_waiting_resizes};
use rubelet_types::{EventObject, PodUid, error_chain, pod_ref};

use super::PodAdmission;
use crate::admission::{Infeasible, Rejection, ResizeVerdict, decide_resize};
use crate::resize::{PendingReason, ResizeNews, Trigger, resize_message};

/// What is not granted is asked for again after this long at the latest.
const RETRY_PERIOD: Duration = Duration::from_secs(180);

impl PodAdmission {
    /// Asks again for resizes that were not granted whenever that may help, and from time to time
    /// while there are any. What an earlier kubelet left to be decided waits until all pods have come.
    pub(crate) async fn retry_resizes(&self) {
        let mut ready = self.sources_ready.clone();
        if ready.wait_for(|ready| *ready).await.is_err() {
            return;
        }
        let triggers = &self.executor.resize_triggers;
        loop {
            let period = async {
                if self.desired.resizes().is_empty() {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(RETRY_PERIOD).await;
            };
            let trigger = tokio::select! {
                trigger = triggers.pulled() => trigger,
                () = period => Some(Trigger::PeriodicRetry),
            };
            if let Some(trigger) = trigger {
                self.grant_resizes(trigger).await;
            }
        }
    }

    async fn grant_resizes(&self, trigger: Trigger) {
        if self.desired.resizes().is_empty() {
            return;
        }
        let mut leaving = self.deciding().await;
        self.decide_resizes(&mut leaving, trigger).await;
    }

    /// Decides on all resizes that wait, in their order, and tells the workers of those of which
    /// something changed.
    pub(super) async fn decide_resizes(&self, leaving: &mut HashSet<PodUid>, trigger: Trigger) {
        if !*self.sources_ready.borrow() {
            return;
        }
        let progress = &self.executor.resizes;
        let pods = self.desired.resizes();
        let mut waiting: Vec<WaitingResize<'_>> = pods
            .iter()
            .map(|(wanted, granted)| WaitingResize {
                wanted,
                granted,
                deferred_since: progress.deferred_since(&pod_ref(wanted).uid),
            })
            .collect();
        waiting.sort_by(compare_waiting_resizes);
        for resize in waiting {
            let uid = pod_ref(resize.wanted).uid;
            let generation = resize.wanted.metadata.generation.unwrap_or_default();
            if progress.is_infeasible(&uid, generation) && trigger != Trigger::PodsAdded {
                continue;
            }
            let is_news = match self.resize_verdict(leaving, &resize) {
                Ok(ResizeVerdict::Granted) => self.grant(&resize, generation, trigger).await,
                Ok(ResizeVerdict::Infeasible(Infeasible { message, detail })) => {
                    self.executor.resize_metrics.infeasible(detail);
                    let reason = PendingReason::Infeasible;
                    self.refuse(&resize, generation, reason, (reason.as_str(), message))
                }
                Ok(ResizeVerdict::Deferred(rejection)) | Err(rejection) => {
                    let why = (rejection.reason.as_str(), rejection.message.as_str());
                    self.refuse(&resize, generation, PendingReason::Deferred, why)
                }
            };
            if is_news && let Some(granted) = self.desired.granted(&uid) {
                self.workers.update(granted);
            }
        }
        self.executor.resize_triggers.reconsider();
    }

    fn resize_verdict(
        &self,
        leaving: &HashSet<PodUid>,
        resize: &WaitingResize<'_>,
    ) -> Result<ResizeVerdict, Rejection> {
        let node = self.node.last_seen();
        let manager = &self.executor.container_manager;
        let may_swap =
            |pod: &Pod, container: &Container| manager.may_swap(pod, container).unwrap_or(false);
        let rules = self.executor.allocations.rules();
        self.with_facts(leaving, resize.wanted, &node, |facts| {
            decide_resize(resize.wanted, resize.granted, rules, &may_swap, facts)
        })
    }

    async fn grant(&self, resize: &WaitingResize<'_>, generation: i64, trigger: Trigger) -> bool {
        let reference = pod_ref(resize.wanted);
        let uid = &reference.uid;
        let publish = || self.desired.grant(uid);
        if let Err(error) = self.executor.allocations.grant(resize.wanted, publish).await {
            // It stays wanted, and is asked for again.
            tracing::error!(pod = %reference, error = error_chain(&error),
                "Could not save a resize, which is not granted therefore");
            return false;
        }
        tracing::info!(pod = %reference, generation, "Pod resize granted");
        if self.executor.resizes.clear_pending(uid) {
            self.executor.resize_metrics.accepted(trigger);
        }
        self.executor.resizes.begin(uid, generation, self.executor.clock.now());
        let text = resize_message(resize.wanted, generation, ResizeNews::Started);
        self.executor.events.normal(EventObject::Pod(reference), "ResizeStarted", text);
        true
    }

    fn refuse(
        &self,
        resize: &WaitingResize<'_>,
        generation: i64,
        pending: PendingReason,
        (reason, message): (&str, &str),
    ) -> bool {
        let reference = pod_ref(resize.wanted);
        let now = self.executor.clock.now();
        let uid = &reference.uid;
        if !self.executor.resizes.set_pending(uid, pending, message, generation, now) {
            return false;
        }
        tracing::info!(pod = %reference, generation, reason, message, "Pod resize not granted");
        let news = ResizeNews::Pending { reason, message };
        let text = resize_message(resize.wanted, generation, news);
        let object = EventObject::Pod(reference);
        match pending {
            PendingReason::Deferred => {
                self.executor.events.warning(object, "ResizeDeferred", text);
            }
            PendingReason::Infeasible => {
                self.executor.events.warning(object, "ResizeInfeasible", text);
            }
        }
        true
    }

    /// The source of a pod that was let in wants it as `now`. Decides on its resources, if those are
    /// others than before.
    pub(super) async fn note_resize(
        &self,
        leaving: &mut HashSet<PodUid>,
        before: &Arc<Pod>,
        now: &Arc<Pod>,
    ) {
        if before.spec == now.spec {
            return;
        }
        let rules = self.executor.allocations.rules();
        if !self.executor.resize_metrics.asked_for(before, now, rules) {
            return;
        }
        if let Err(error) = self.executor.allocations.keep().await {
            tracing::error!(pod = %pod_ref(now), error = error_chain(&error),
                "Could not save what the pod was granted before it wanted something else");
        }
        let uid = pod_ref(now).uid;
        if self.desired.resizes().iter().any(|(wanted, _)| pod_ref(wanted).uid == uid) {
            self.decide_resizes(leaving, Trigger::PodUpdated).await;
        } else {
            // It wants again what it has.
            self.executor.resizes.clear_pending(&uid);
        }
    }
}
