//! What must be true of a node and its kubelet at any moment. The names are those of the invariants
//! in `docs/architecture.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kubelet::KubeletView;
use rubelet_cri::{Rpc, v1};
use rubelet_pod_lifecycle::{Stage, StopCause};
use rubelet_pod_status::statuses_equal;
use rubelet_types::{
    ContainerKind, RestartPolicy, container_restarts_after, find_container, is_terminal_phase,
    pod_ref, pod_restart_policy, termination_grace_seconds,
};

use crate::ledger::{Ledger, SEEN_WITHIN, is_ready, restart_counts, short};
use crate::pods::{LIVENESS, Origin, POST_START, STARTUP};

/// A kubelet that is not troubled has begun with a pod within this time.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);
/// A kubelet that is not troubled has done with a pod so long after its grace, at the latest.
const GONE_WITHIN: Duration = Duration::from_secs(90);
/// The API server is told within this time what the kubelet holds true, once it can be.
const REPORTED_WITHIN: Duration = Duration::from_secs(15);
/// With so many slow starts at once others may have to wait: work is bounded.
const MANY_SLOW_STARTS: usize = 4;

impl Ledger {
    /// I2: nothing is created or started for a pod that is on its way out.
    pub(crate) fn check_creation(&mut self, rpc: Rpc, uid: &str) {
        let now = self.clock.now();
        match self.stage_of(uid) {
            Some(Stage::Syncing) => {}
            // The call was on its way at the moment when the pod was stopped.
            Some(Stage::Terminating { since, .. }) if since >= now => {}
            // A kubelet died, and what it sent last arrives.
            None if self.view.is_none() => {}
            stage => self.violation(format!("I2: {rpc} for {uid} in stage {stage:?}")),
        }
    }

    /// Why one may ask a running container to stop.
    pub(crate) fn has_cause(&self, id: &str) -> bool {
        let Some(instance) = self.instances.get(id) else { return true };
        let uid = &instance.pod;
        if self.stage_of(uid).is_none_or(|stage| stage.is_stopping()) {
            return true;
        }
        let Some(record) = self.pods.get(uid) else { return true };
        let image = find_container(&record.pod, &instance.name)
            .and_then(|spec| spec.container.image.clone())
            .unwrap_or_default();
        if image != instance.image || record.changed.contains(&instance.name) {
            return true;
        }
        if [LIVENESS, STARTUP, POST_START].iter().any(|command| instance.failed.contains(*command))
        {
            return true;
        }
        let Some(runtime) = &self.runtime else { return true };
        let inventory = runtime.inventory();
        let sandboxes = inventory.sandboxes.iter().filter(|sandbox| sandbox.pod_uid == *uid);
        let ready = sandboxes.clone().filter(|s| s.state == v1::PodSandboxState::SandboxReady);
        if ready.clone().count() != 1 {
            return true;
        }
        let home = inventory.containers.iter().find(|c| c.id == id).map(|c| &c.sandbox_id);
        if ready.clone().next().map(|sandbox| &sandbox.id) != home {
            return true;
        }
        let twins = inventory.instances(uid, &instance.name);
        twins.filter(|twin| twin.state == v1::ContainerState::ContainerRunning).count() > 1
    }

    /// A container that rests is not started again, and none beside one that runs.
    pub(crate) fn check_start(&mut self, id: &str, uid: &str, name: &str) {
        let Some(record) = self.pods.get(uid) else { return };
        let Some(spec) = find_container(&record.pod, name) else { return };
        let policy = pod_restart_policy(&record.pod);
        let Some(runtime) = &self.runtime else { return };
        let inventory = runtime.inventory();
        let Some(own) = inventory.containers.iter().find(|container| container.id == id) else {
            return;
        };
        let mut problems = Vec::new();
        for other in inventory.instances(uid, name).filter(|other| other.id != id) {
            let Some(instance) = self.instances.get(&other.id) else { continue };
            // What ran in an earlier sandbox says nothing about init containers and sidecars.
            let same_sandbox = other.sandbox_id == own.sandbox_id;
            if spec.kind == ContainerKind::Init && !same_sandbox {
                continue;
            }
            let Some(code) = instance.exit_code else { continue };
            let restarts = container_restarts_after(policy, spec.kind, &spec.container, code, None);
            let was_stopped = instance.stop_began.is_some();
            if !restarts && !was_stopped && policy != RestartPolicy::Always {
                problems.push(format!(
                    "{name} of {uid} is started again after it ended with {code}, policy {policy:?}"
                ));
            }
        }
        for problem in problems {
            self.violation(problem);
        }
    }

    /// Nobody is killed before the time is over that it was promised.
    pub(crate) fn check_grace(&mut self, id: &str, uid: &str, name: &str) {
        let now = self.wall.elapsed();
        let (Some(instance), Some(record)) = (self.instances.get(id), self.pods.get(uid)) else {
            return;
        };
        if record.muddled {
            return;
        }
        let spec_grace = termination_grace_seconds(&record.pod);
        let liveness_grace = find_container(&record.pod, name)
            .and_then(|spec| {
                let probe = spec.container.liveness_probe.clone()?;
                probe.termination_grace_period_seconds
            })
            .filter(|_| instance.failed.contains(LIVENESS));
        let promised = match self.stage_of(uid) {
            Some(Stage::Terminating { grace_seconds, cause, .. }) => {
                let asked = record.pod.metadata.deletion_grace_period_seconds;
                let least = match cause {
                    StopCause::Orphaned => 1,
                    _ => asked.unwrap_or(spec_grace).max(1),
                };
                let was_forced = record.origin == Origin::Api
                    && !record.wanted
                    && record.pod.metadata.deletion_timestamp.is_some();
                let least = if was_forced { 1 } else { least.min(grace_seconds) };
                // A stop that was begun before goes on.
                liveness_grace.unwrap_or(least).min(least)
            }
            _ => liveness_grace.unwrap_or(spec_grace).min(spec_grace),
        };
        let began = [instance.stop_began, record.stop_began].into_iter().flatten().min();
        let had = began.map_or(0, |began| now.saturating_sub(began).as_millis());
        if had + 10 < u128::try_from(promised).unwrap_or(0) * 1000 {
            self.violation(format!(
                "{name} ({}) of {uid} is killed {had} ms after it was asked to stop, \
                 {promised} s were promised",
                short(id)
            ));
        }
    }

    pub(crate) fn check(&mut self) {
        if let Some(runtime) = &self.runtime {
            for violation in runtime.violations() {
                self.violation(format!("I9: {violation}"));
            }
        }
        self.check_full_names();
        let Some(view) = self.view.clone() else { return };
        self.check_stages(&view);
        self.check_statuses(&view);
        self.check_progress(&view);
        self.check_reported(&view);
    }

    /// The object of a pod goes last.
    pub(crate) fn check_gone(&mut self, uid: &str) {
        let is_muddled = self.pods.get(uid).is_none_or(|record| record.muddled);
        if !is_muddled && self.running_pods().contains(uid) {
            self.violation(format!("the object of {uid} is gone, and a container runs"));
        }
    }

    /// What the kubelet says of a pod is at the API server soon, static pods among them.
    fn check_reported(&mut self, view: &KubeletView) {
        let Some(server) = self.server.clone() else { return };
        let now = self.wall.elapsed();
        let clear = self.unhindered.max(self.api_clear);
        let is_calm = self.hindrances.is_empty() && now > clear + REPORTED_WITHIN;
        let revision = server.revision();
        let mut texts = Vec::new();
        for pod in view.pods() {
            let (Some(uid), Some(status)) = (pod.metadata.uid, pod.status) else { continue };
            let Some(record) = self.pods.get_mut(&uid) else { continue };
            let since = match &record.said {
                Some((said, since)) if statuses_equal(said, &status) => *since,
                _ => now,
            };
            record.said = Some((status.clone(), since));
            let is_due = is_calm && now > since + REPORTED_WITHIN;
            if !is_due || record.found.replace((since, revision)) == Some((since, revision)) {
                continue;
            }
            let name = pod.metadata.name.unwrap_or_default();
            let kept = server.get::<Pod>("default", &name);
            match (record.origin, kept) {
                // Somebody has removed it by force, and the kubelet has not heard of it yet.
                (Origin::Api, None) => {}
                (Origin::Api, Some(kept)) if kept.metadata.uid.as_ref() != Some(&uid) => {}
                (Origin::Static, None) if !record.is_to_run() => {}
                (Origin::Static, None) => texts.push(format!("{uid} has no mirror pod")),
                (_, Some(kept)) => {
                    let kept = kept.status.unwrap_or_default();
                    if !statuses_equal(&kept, &status) {
                        let text = |status| serde_json::to_string(status).unwrap_or_default();
                        texts.push(format!(
                            "the API server was not told of {uid} within {:?}: it has {}, and not \
                             {}",
                            now.saturating_sub(since.max(clear)),
                            text(&kept),
                            text(&status)
                        ));
                    }
                }
            }
        }
        for text in texts {
            self.violation(text);
        }
    }

    /// The pods of which containers run.
    fn running_pods(&self) -> BTreeSet<String> {
        self.instances
            .values()
            .filter(|instance| instance.has_started && instance.exit_code.is_none())
            .map(|instance| instance.pod.clone())
            .collect()
    }

    /// I9: of one full name one pod runs.
    fn check_full_names(&mut self) {
        let mut by_name: BTreeMap<String, String> = BTreeMap::new();
        let mut texts = Vec::new();
        for uid in self.running_pods() {
            let Some(record) = self.pods.get(&uid) else { continue };
            if record.muddled {
                continue;
            }
            let name = pod_ref(&record.pod).full_name().to_string();
            if let Some(other) = by_name.insert(name.clone(), uid.clone()) {
                texts.push(format!("I9: {other} and {uid} run, and both are {name}"));
            }
        }
        for text in texts {
            self.violation(text);
        }
    }

    fn check_stages(&mut self, view: &KubeletView) {
        let mut texts = Vec::new();
        let running = self.running_pods();
        for worker in view.workers() {
            let uid = worker.pod.uid.as_str();
            let Some(record) = self.pods.get_mut(uid) else { continue };
            let before = record.stage.replace((self.life, worker.stage.clone()));
            if let Some((life, before)) = before {
                if life != self.life {
                    // Whoever did not see it leave does not see it come back.
                    record.revived = false;
                } else if worker.stage.rank() < before.rank() {
                    // Something of it came up late.
                    let is_orphan = matches!(
                        (&before, &worker.stage),
                        (
                            Stage::Finished { .. },
                            Stage::Terminating { cause: StopCause::Orphaned, .. }
                                | Stage::Terminated { cause: StopCause::Orphaned, .. }
                        )
                    );
                    if record.revived && before.is_stopping() {
                        record.begin_anew();
                    } else if !is_orphan {
                        texts.push(format!("I1: {uid} went from {before:?} to {:?}", worker.stage));
                    }
                }
                if let (
                    Stage::Terminating { grace_seconds: old, .. },
                    Stage::Terminating { grace_seconds: new, .. },
                ) = (&before, &worker.stage)
                    && life == self.life
                    && new > old
                {
                    texts.push(format!("I4: the grace of {uid} grew from {old} to {new}"));
                }
            }
            let is_over = worker.stage.rank() >= 3;
            if is_over && running.contains(uid) && !record.muddled {
                texts.push(format!("I3: {uid} is {:?} and a container runs", worker.stage));
            }
            let is_wanted = record.is_to_run();
            if let Stage::Terminating { cause: StopCause::Deleted | StopCause::Orphaned, .. } =
                &worker.stage
                && is_wanted
                && !worker.is_removed
            {
                texts.push(format!("{uid} is {:?} and a source wants it", worker.stage));
            }
        }
        for text in texts {
            self.violation(text);
        }
    }

    fn check_statuses(&mut self, view: &KubeletView) {
        let mut texts = Vec::new();
        let mut lines = Vec::new();
        let (now, troubled) = (self.wall.elapsed(), self.troubled);
        let running = self.running_pods();
        let pods = view.pods();
        for (uid, record) in &mut self.pods {
            let is_shown = pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid));
            if !record.wanted && !is_shown {
                // Should it come back, it begins anew.
                record.begin_anew();
            }
        }
        for pod in pods {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let Some(record) = self.pods.get_mut(&uid) else { continue };
            let Some(status) = pod.status else { continue };
            if status.conditions.is_none() {
                continue;
            }
            let ready = is_ready(&status);
            if ready != record.ready || status.phase != record.phase {
                let phase = status.phase.as_deref().unwrap_or_default();
                lines.push(format!("= {uid}: {phase} ready={ready}"));
            }
            let is_stopping = record.stage.as_ref().is_some_and(|(_, stage)| stage.is_stopping());
            let since = now.saturating_sub(record.disturbed.max(record.troubled).max(troubled));
            if record.ready && !ready && !is_stopping && since > SEEN_WITHIN {
                texts.push(format!("{uid} is not ready any more, and nothing happened to it"));
            }
            if is_terminal_phase(record.phase.as_deref()) && record.phase != status.phase {
                texts.push(format!(
                    "I7: the phase of {uid} went from {:?} to {:?}",
                    record.phase, status.phase
                ));
            }
            let is_over = is_terminal_phase(status.phase.as_deref());
            if is_over && running.contains(&uid) && !record.muddled {
                texts.push(format!("I7: {uid} is {:?} and a container runs", status.phase));
            }
            for (name, now) in restart_counts(&status) {
                let before = record.restart_counts.insert(name.clone(), now).unwrap_or(0);
                if now < before {
                    texts.push(format!(
                        "the restart count of {name} of {uid} fell from {before} to {now}"
                    ));
                }
            }
            record.ready = ready;
            record.phase = status.phase;
        }
        for line in lines {
            self.note(line);
        }
        for text in texts {
            self.violation(text);
        }
    }

    /// I13: what hangs for one pod delays no other one. Whatever is to be done for a pod is done in
    /// time unless its own calls, or those that are about no pod, do not get through.
    fn check_progress(&mut self, view: &KubeletView) {
        let now = self.wall.elapsed();
        self.slow_starts.retain(|until| *until > now);
        if !self.hindrances.is_empty() {
            return;
        }
        let clear = self.unhindered.max(self.troubled);
        let Some(runtime) = &self.runtime else { return };
        let inventory = runtime.inventory();
        let over: BTreeSet<String> = view
            .pods()
            .into_iter()
            .filter(|pod| {
                is_terminal_phase(pod.status.as_ref().and_then(|status| status.phase.as_deref()))
            })
            .filter_map(|pod| pod.metadata.uid)
            .collect();
        let workers = view.workers();
        let mut texts = Vec::new();
        for (uid, record) in &self.pods {
            let clear = clear.max(record.troubled);
            if let Some(leaving) = record.leaving {
                let grace = record
                    .pod
                    .metadata
                    .deletion_grace_period_seconds
                    .unwrap_or_else(|| termination_grace_seconds(&record.pod));
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
                let had = now.saturating_sub(clear.max(leaving));
                if had > grace + GONE_WITHIN && !inventory.is_gone(uid) {
                    texts.push(format!("I13: {uid} is to go, and is there after {had:?}"));
                }
            } else if !record.begun && !over.contains(uid) && inventory.is_gone(uid) {
                let had = now.saturating_sub(clear.max(record.added));
                let name = pod_ref(&record.pod).full_name();
                let waits_for_another = workers
                    .iter()
                    .any(|worker| worker.pod.full_name() == name && worker.pod.uid.as_str() != uid);
                let is_crowded = self.slow_starts.len() >= MANY_SLOW_STARTS;
                if had > BEGUN_WITHIN && !waits_for_another && !is_crowded {
                    texts.push(format!("I13: nothing was begun for {uid} within {had:?}"));
                }
            }
        }
        for text in texts {
            self.violation(text);
        }
    }
}
