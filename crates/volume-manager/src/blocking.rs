//! File operations off the executor: one at a time per pod, a bounded number at once, and none of
//! them waits for one that hangs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rubelet_types::PodUid;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, Semaphore};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout, timeout_at};

/// An operation that takes longer gives its place to another. It still holds its pod's turn, so
/// there are never more threads stuck than there are pods.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// The operation did not end in time. If it was begun it goes on, and keeps its pod's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

#[derive(Debug)]
pub(crate) struct PodOperations {
    turns: Mutex<HashMap<PodUid, Weak<AsyncMutex<()>>>>,
    places: Semaphore,
}

impl PodOperations {
    /// At most `at_once` operations run side by side, those that hang aside.
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            turns: Mutex::default(),
            places: Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)),
        }
    }

    /// Runs `operation` when the pod's earlier ones have ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        pod: &PodUid,
        limit: Duration,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TimedOut> {
        let deadline = Instant::now() + limit;
        let turn = timeout_at(deadline, self.turn(pod).lock_owned()).await.map_err(|_| TimedOut)?;
        self.run_in_turn(turn, deadline, operation).await
    }

    /// Runs `operation` unless another one of the pod is running; none if so.
    pub(crate) async fn try_run<T: Send + 'static>(
        &self,
        pod: &PodUid,
        limit: Duration,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, TimedOut>> {
        let turn = self.turn(pod).try_lock_owned().ok()?;
        Some(self.run_in_turn(turn, Instant::now() + limit, operation).await)
    }

    async fn run_in_turn<T: Send + 'static>(
        &self,
        turn: OwnedMutexGuard<()>,
        deadline: Instant,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TimedOut> {
        let place = timeout_at(deadline, self.places.acquire()).await.map_err(|_| TimedOut)?.ok();
        // The turn goes with the thread: it ends with the operation, not with who waits for it.
        let mut running = tokio::task::spawn_blocking(move || {
            let result = operation();
            drop(turn);
            result
        });
        if let Ok(ended) = timeout(HANGS_AFTER, &mut running).await {
            return result_of(ended);
        }
        drop(place);
        result_of(timeout_at(deadline, running).await.map_err(|_| TimedOut)?)
    }

    fn turn(&self, pod: &PodUid) -> Arc<AsyncMutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(pod).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(pod.clone(), Arc::downgrade(&turn));
        turn
    }
}

/// If the operation panicked, so does who waits for it. It is cancelled only when the whole runtime
/// is about to end.
fn result_of<T>(ended: Result<T, JoinError>) -> Result<T, TimedOut> {
    ended.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => TimedOut,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinHandle;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(120);

    fn spawn<T: Send + 'static>(
        operations: &Arc<PodOperations>,
        pod: &'static str,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Result<T, TimedOut>> {
        let operations = operations.clone();
        tokio::spawn(async move { operations.run(&pod.into(), LIMIT, operation).await })
    }

    #[tokio::test]
    async fn operations_of_one_pod_follow_each_other() {
        let operations = Arc::new(PodOperations::new(8));
        let (release, released) = mpsc::channel::<()>();
        let (log, logged) = mpsc::channel();
        let first_log = log.clone();
        let first = spawn(&operations, "a", move || {
            released.recv().unwrap();
            first_log.send("first").unwrap();
        });
        tokio::task::yield_now().await;
        let second = spawn(&operations, "a", move || log.send("second").unwrap());
        spawn(&operations, "b", || ()).await.unwrap().unwrap();
        assert!(operations.try_run(&"a".into(), LIMIT, || ()).await.is_none());
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
        assert_eq!(logged.iter().collect::<Vec<_>>(), ["first", "second"]);
    }

    #[tokio::test]
    async fn who_stops_waiting_does_not_end_the_turn() {
        let operations = Arc::new(PodOperations::new(8));
        let (release, released) = mpsc::channel::<()>();
        let (start, started) = tokio::sync::oneshot::channel();
        let hung = spawn(&operations, "a", move || {
            start.send(()).unwrap();
            let _ = released.recv();
        });
        started.await.unwrap();
        hung.abort();
        assert!(hung.await.unwrap_err().is_cancelled());
        assert!(operations.try_run(&"a".into(), LIMIT, || ()).await.is_none());
        release.send(()).unwrap();
        operations.run(&"a".into(), LIMIT, || ()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_gives_its_place_away_and_keeps_its_turn() {
        let operations = Arc::new(PodOperations::new(1));
        let (release, released) = mpsc::channel::<()>();
        let (start, started) = tokio::sync::oneshot::channel();
        let hung = spawn(&operations, "a", move || {
            start.send(()).unwrap();
            let _ = released.recv();
        });
        started.await.unwrap();
        // Paused time stands still while a blocking thread runs, so it is moved by hand.
        let other = spawn(&operations, "b", || "done");
        tokio::task::yield_now().await;
        assert!(!other.is_finished());
        tokio::time::advance(HANGS_AFTER).await;
        assert_eq!(other.await.unwrap(), Ok("done"));
        tokio::time::advance(LIMIT).await;
        assert_eq!(hung.await.unwrap(), Err(TimedOut));
        assert!(operations.try_run(&"a".into(), LIMIT, || ()).await.is_none());
        release.send(()).unwrap();
        assert_eq!(spawn(&operations, "a", || "next").await.unwrap(), Ok("next"));
    }
}
