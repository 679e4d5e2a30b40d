//! How far the resizes of pods are, as their conditions tell.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_types::PodUid;

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

/// Why a resize is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingReason {
    /// It may be later.
    Deferred,
    /// It never will be.
    Infeasible,
}

impl PendingReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Progress {
    pending: Option<PodCondition>,
    in_progress: Option<PodCondition>,
}

/// The resizes under way; of a pod that is not resized nothing is held.
#[derive(Debug, Default)]
pub(crate) struct ResizeProgress(Mutex<HashMap<PodUid, Progress>>);

fn condition(
    type_: &str,
    before: Option<&PodCondition>,
    reason: &str,
    message: &str,
    generation: i64,
    now: Timestamp,
) -> PodCondition {
    let reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
    let since = before
        .filter(|before| before.reason == reason)
        .and_then(|before| before.last_transition_time.clone());
    PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason,
        message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        observed_generation: Some(generation),
        last_probe_time: None,
        last_transition_time: Some(since.unwrap_or(Time(now))),
    }
}

impl ResizeProgress {
    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Progress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The conditions of a pod, for its status.
    pub(crate) fn conditions(&self, uid: &PodUid) -> Vec<PodCondition> {
        match self.lock().get(uid) {
            Some(Progress { pending, in_progress }) => {
                pending.iter().chain(in_progress).cloned().collect()
            }
            None => Vec::new(),
        }
    }

    /// What an earlier kubelet told of the pod goes on.
    pub(crate) fn take_over(&self, uid: &PodUid, pod: &Pod) {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        for told in conditions {
            let mut told = told.clone();
            told.last_probe_time = None;
            match told.type_.as_str() {
                PENDING => self.lock().entry(uid.clone()).or_default().pending = Some(told),
                IN_PROGRESS => self.lock().entry(uid.clone()).or_default().in_progress = Some(told),
                _ => {}
            }
        }
    }

    /// The resize that `generation` of the pod asks for is not granted. Answers whether that is new.
    pub(crate) fn set_pending(
        &self,
        uid: &PodUid,
        reason: PendingReason,
        message: &str,
        generation: i64,
        now: Timestamp,
    ) -> bool {
        let mut all = self.lock();
        let pending = &mut all.entry(uid.clone()).or_default().pending;
        let new = condition(PENDING, pending.as_ref(), reason.as_str(), message, generation, now);
        let is_new = pending.as_ref().is_none_or(|before| {
            (&before.reason, before.observed_generation) != (&new.reason, new.observed_generation)
        });
        *pending = Some(new);
        is_new
    }

    /// The pod waits for nothing any more. Answers whether it was deferred.
    pub(crate) fn clear_pending(&self, uid: &PodUid) -> bool {
        let mut all = self.lock();
        let Some(progress) = all.get_mut(uid) else { return false };
        let was_deferred = progress.pending.take().is_some_and(|pending| is_deferred(&pending));
        if progress.in_progress.is_none() {
            all.remove(uid);
        }
        was_deferred
    }

    /// Since when a resize of the pod is deferred.
    pub(crate) fn deferred_since(&self, uid: &PodUid) -> Option<Timestamp> {
        let all = self.lock();
        let pending = all.get(uid)?.pending.as_ref().filter(|pending| is_deferred(pending))?;
        pending.last_transition_time.as_ref().map(|time| time.0)
    }

    /// The resize of this generation will not be granted, and need not be asked for again.
    pub(crate) fn is_infeasible(&self, uid: &PodUid, generation: i64) -> bool {
        self.lock().get(uid).and_then(|progress| progress.pending.as_ref()).is_some_and(|pending| {
            !is_deferred(pending) && pending.observed_generation == Some(generation)
        })
    }

    /// The pod was granted what its `generation` asks for.
    pub(crate) fn begin(&self, uid: &PodUid, generation: i64, now: Timestamp) {
        let mut all = self.lock();
        let progress = all.entry(uid.clone()).or_default();
        progress.pending = None;
        progress.in_progress = Some(condition(IN_PROGRESS, None, "", "", generation, now));
    }

    /// What the pod was granted is not in force. A failure that was told stays told.
    pub(crate) fn go_on(&self, uid: &PodUid, generation: i64, now: Timestamp) {
        let mut all = self.lock();
        let in_progress = &mut all.entry(uid.clone()).or_default().in_progress;
        in_progress.get_or_insert_with(|| condition(IN_PROGRESS, None, "", "", generation, now));
    }

    /// It could not be brought into force. Answers with the generation if that is new.
    pub(crate) fn fail(
        &self,
        uid: &PodUid,
        message: &str,
        generation: i64,
        now: Timestamp,
    ) -> Option<i64> {
        let mut all = self.lock();
        let in_progress = &mut all.entry(uid.clone()).or_default().in_progress;
        let before = in_progress.as_ref();
        let generation = before.and_then(|it| it.observed_generation).unwrap_or(generation);
        let new = condition(IN_PROGRESS, before, "Error", message, generation, now);
        let is_new = before != Some(&new);
        *in_progress = Some(new);
        is_new.then_some(generation)
    }

    /// All is in force. Answers with the generation of the resize that was under way.
    pub(crate) fn complete(&self, uid: &PodUid) -> Option<i64> {
        let mut all = self.lock();
        let progress = all.get_mut(uid)?;
        let done = progress.in_progress.take();
        if progress.pending.is_none() {
            all.remove(uid);
        }
        Some(done?.observed_generation.unwrap_or_default())
    }

    /// The pod ends, or is gone.
    pub(crate) fn forget(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    /// How many wait, by reason in lower case, and how many are under way.
    pub(crate) fn counts(&self) -> (BTreeMap<String, u64>, u64) {
        let (mut waiting, mut under_way) = (BTreeMap::new(), 0);
        for progress in self.lock().values() {
            if let Some(reason) = progress.pending.as_ref().and_then(|it| it.reason.as_ref()) {
                *waiting.entry(reason.to_lowercase()).or_default() += 1;
            }
            under_way += u64::from(progress.in_progress.is_some());
        }
        (waiting, under_way)
    }
}

fn is_deferred(pending: &PodCondition) -> bool {
    pending.reason.as_deref() == Some(PendingReason::Deferred.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn told(progress: &ResizeProgress) -> Vec<String> {
        let conditions = progress.conditions(&PodUid::new("u"));
        conditions
            .iter()
            .map(|it| {
                format!(
                    "{} {} {} of {} since {}",
                    it.type_,
                    it.reason.as_deref().unwrap_or("-"),
                    it.message.as_deref().unwrap_or("-"),
                    it.observed_generation.unwrap(),
                    it.last_transition_time.as_ref().unwrap().0.as_second(),
                )
            })
            .collect()
    }

    #[test]
    fn from_asking_to_having() {
        let (progress, uid) = (ResizeProgress::default(), PodUid::new("u"));
        assert!(progress.set_pending(&uid, PendingReason::Deferred, "full", 2, at(1)));
        assert!(!progress.set_pending(&uid, PendingReason::Deferred, "fuller", 2, at(2)));
        assert_eq!(told(&progress), ["PodResizePending Deferred fuller of 2 since 1"]);
        assert!(progress.set_pending(&uid, PendingReason::Deferred, "full", 3, at(3)));
        assert_eq!(progress.deferred_since(&uid), Some(at(1)));
        assert_eq!(progress.counts(), (BTreeMap::from([("deferred".to_owned(), 1)]), 0));
        assert!(progress.clear_pending(&uid));
        progress.begin(&uid, 3, at(4));
        assert_eq!(told(&progress), ["PodResizeInProgress - - of 3 since 4"]);
        assert_eq!(progress.fail(&uid, "no", 4, at(5)), Some(3));
        assert_eq!(progress.fail(&uid, "no", 4, at(6)), None);
        progress.go_on(&uid, 4, at(7));
        assert_eq!(told(&progress), ["PodResizeInProgress Error no of 3 since 5"]);
        assert!(progress.set_pending(&uid, PendingReason::Infeasible, "never", 4, at(8)));
        assert!(progress.is_infeasible(&uid, 4) && !progress.is_infeasible(&uid, 5));
        assert_eq!(progress.complete(&uid), Some(3));
        assert_eq!(told(&progress), ["PodResizePending Infeasible never of 4 since 8"]);
        assert_eq!(progress.complete(&uid), None);
        assert!(!progress.clear_pending(&uid), "it was not deferred");
        assert!(progress.lock().is_empty());
    }

    #[test]
    fn what_was_told_goes_on() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {
                "type": "PodResizePending", "status": "True", "reason": "Deferred",
                "observedGeneration": 2, "lastTransitionTime": "1970-01-01T00:00:09Z",
            },
            {"type": "PodResizeInProgress", "status": "True", "observedGeneration": 1},
        ]}}))
        .unwrap();
        let (progress, uid) = (ResizeProgress::default(), PodUid::new("u"));
        progress.take_over(&uid, &pod);
        assert_eq!(progress.deferred_since(&uid), Some(at(9)));
        assert!(!progress.set_pending(&uid, PendingReason::Deferred, "full", 2, at(10)));
        assert_eq!(progress.complete(&uid), Some(1));
    }
}
