use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rubelet_types::PodUid;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};

use crate::manager::{StatusChanges, VersionedStatus};

/// All statuses are compared with what the sink holds, and failed writes are tried again, this often.
const REVIEW_PERIOD: Duration = Duration::from_secs(10);
/// A write that takes longer counts as failed.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// So many writes are under way at once.
const WRITES_AT_ONCE: usize = 16;

/// Who is told about statuses.
pub trait StatusSink: Send + Sync + 'static {
    /// Why a write failed.
    type Error: Error + Send + Sync + 'static;

    /// Writes `status`, and nothing if it is there already. Of one pod never two at a time. When
    /// `finished` is set and the pod's object is only waiting for that, deletes the object.
    fn write(
        &self,
        status: &VersionedStatus,
    ) -> impl Future<Output = Result<WriteOutcome, Self::Error>> + Send;

    /// What the sink holds differs from a status that it has taken before, or the object can be
    /// deleted now. Asked of every pod every 10 s: answers from memory.
    fn has_drifted(&self, status: &VersionedStatus) -> bool;
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The status is there, or there is no such object (any more).
    Written,
    /// Not possible yet, as with a static pod that has no mirror pod: to be tried again.
    Later,
    /// The object was deleted.
    Deleted,
}

/// Tells `sink` about every change until the future is dropped: at once when a status changes, a
/// second later if only details of it have, and every 10 s what failed or has drifted. Dropping it
/// gives up the writes that are under way.
pub async fn publish_statuses<S: StatusSink>(mut changes: StatusChanges, sink: Arc<S>) {
    let mut writes = JoinSet::new();
    let mut under_way: HashMap<Id, Arc<VersionedStatus>> = HashMap::new();
    let mut review = interval_at(Instant::now() + REVIEW_PERIOD, REVIEW_PERIOD);
    review.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        while under_way.len() < WRITES_AT_ONCE {
            let Some(status) = changes.take(|uid| idle(&under_way, uid)) else { break };
            let (sink, taken) = (Arc::clone(&sink), Arc::clone(&status));
            let task =
                writes.spawn(async move { timeout(WRITE_DEADLINE, sink.write(&taken)).await });
            under_way.insert(task.id(), status);
        }
        let next_due = changes.next_due();
        tokio::select! {
            () = changes.changed() => {}
            () = sleep_until(next_due.unwrap_or_else(Instant::now)), if next_due.is_some() => {}
            Some(ended) = writes.join_next_with_id() => {
                let (id, result) = match ended {
                    Ok((id, result)) => (id, Ok(result)),
                    Err(error) => (error.id(), Err(error)),
                };
                let Some(status) = under_way.remove(&id) else { continue };
                let (uid, version) = (&status.pod.uid, status.version);
                match result {
                    Ok(Ok(Ok(WriteOutcome::Written))) => changes.written(uid, version),
                    Ok(Ok(Ok(WriteOutcome::Deleted))) => changes.forget(uid),
                    Ok(Ok(Ok(WriteOutcome::Later))) => {}
                    Ok(Ok(Err(error))) => {
                        let error: &dyn Error = &error;
                        tracing::warn!(pod = %status.pod, version, error, "writing a pod status");
                    }
                    Ok(Err(_)) => {
                        tracing::warn!(
                            pod = %status.pod, version, "writing a pod status took too long"
                        );
                    }
                    Err(error) => {
                        let error: &dyn Error = &error;
                        tracing::error!(pod = %status.pod, version, error, "writing a pod status");
                    }
                }
            }
            _ = review.tick() => {
                changes.review(|uid| idle(&under_way, uid), |status| sink.has_drifted(status));
            }
        }
    }
}

fn idle(under_way: &HashMap<Id, Arc<VersionedStatus>>, uid: &PodUid) -> bool {
    under_way.values().all(|status| status.pod.uid != *uid)
}
