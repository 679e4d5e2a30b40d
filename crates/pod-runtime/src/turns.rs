//! Whose turn it is to have the runtime start something.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// After so many containers in a row a sandbox that waits has its turn.
const CONTAINERS_IN_A_ROW: usize = 3;

/// What is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// A pod that has nothing yet.
    Sandbox,
    /// Goes before sandboxes: what was begun is brought to its end before more is begun, so that of
    /// many pods at once the first ones run early and not all of them at the end, and so that few
    /// of them are half made at any time.
    Container,
}

/// Gives a number of turns, to each of two kinds in the order in which they came.
#[derive(Debug)]
pub(crate) struct StartTurns(Arc<Mutex<Turns>>);

#[derive(Debug)]
struct Turns {
    free: usize,
    containers: VecDeque<oneshot::Sender<Turn>>,
    sandboxes: VecDeque<oneshot::Sender<Turn>>,
    in_a_row: usize,
}

/// The right to have the runtime start something, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Mutex<Turns>>>);

impl StartTurns {
    /// At most `at_once` turns at the same time.
    pub(crate) fn new(at_once: usize) -> Self {
        Self(Arc::new(Mutex::new(Turns {
            free: at_once.max(1),
            containers: VecDeque::new(),
            sandboxes: VecDeque::new(),
            in_a_row: 0,
        })))
    }

    /// Waits for a turn. Whoever is dropped while waiting takes nobody's place.
    pub(crate) async fn wait(&self, start: Start) -> Turn {
        loop {
            let waiting = {
                let mut turns = lock(&self.0);
                if turns.free > 0 {
                    turns.free -= 1;
                    return Turn(Some(self.0.clone()));
                }
                let (give, waiting) = oneshot::channel();
                match start {
                    Start::Sandbox => turns.sandboxes.push_back(give),
                    Start::Container => turns.containers.push_back(give),
                }
                waiting
            };
            // Those that give live as long as `self`.
            if let Ok(turn) = waiting.await {
                return turn;
            }
        }
    }
}

impl Turns {
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        if self.in_a_row < CONTAINERS_IN_A_ROW
            && let Some(container) = self.containers.pop_front()
        {
            self.in_a_row += 1;
            return Some(container);
        }
        self.in_a_row = 0;
        self.sandboxes.pop_front().or_else(|| self.containers.pop_front())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        let mut turns = lock(&shared);
        while let Some(next) = turns.next() {
            match next.send(Turn(Some(shared.clone()))) {
                Ok(()) => return,
                // Nobody waits there any more; the turn has to go on, and not to be given back here.
                Err(mut turn) => turn.0 = None,
            }
        }
        turns.free += 1;
    }
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    /// Lets those wait that `who` names (`s1` a sandbox, `c1` a container), one after the other, and
    /// tells in which order they have the only turn.
    async fn order(who: &[&'static str]) -> Vec<&'static str> {
        let turns = Arc::new(StartTurns::new(1));
        let first = turns.wait(Start::Sandbox).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = JoinSet::new();
        for name in who.iter().copied() {
            let (turns, served) = (turns.clone(), served.clone());
            let start = if name.starts_with('s') { Start::Sandbox } else { Start::Container };
            waiting.spawn(async move {
                let turn = turns.wait(start).await;
                served.lock().unwrap().push(name);
                tokio::task::yield_now().await;
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        assert!(served.lock().unwrap().is_empty());
        drop(first);
        waiting.join_all().await;
        served.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn containers_go_first_and_each_kind_in_its_order() {
        assert_eq!(order(&["s1", "s2", "c1", "s3", "c2"]).await, ["c1", "c2", "s1", "s2", "s3"]);
    }

    #[tokio::test]
    async fn containers_without_end_do_not_keep_sandboxes_out() {
        let who = ["s1", "s2", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
        let expected = ["c1", "c2", "c3", "s1", "c4", "c5", "c6", "s2", "c7"];
        assert_eq!(order(&who).await, expected);
    }

    #[tokio::test]
    async fn who_gives_up_takes_nobodys_turn() {
        let turns = Arc::new(StartTurns::new(1));
        let first = turns.wait(Start::Container).await;
        let wait = |turns: Arc<StartTurns>| {
            tokio::spawn(async move { turns.wait(Start::Container).await })
        };
        let gives_up = wait(turns.clone());
        tokio::task::yield_now().await;
        let patient = wait(turns.clone());
        tokio::task::yield_now().await;
        gives_up.abort();
        assert!(gives_up.await.unwrap_err().is_cancelled());
        drop(first);
        let turn = patient.await.unwrap();
        // It was given to somebody who is gone before taking it.
        let late = wait(turns.clone());
        tokio::task::yield_now().await;
        drop(turn);
        late.abort();
        let _ = late.await;
        drop(turns.wait(Start::Sandbox).await);
        assert_eq!(lock(&turns.0).free, 1);
    }

    #[tokio::test]
    async fn there_are_as_many_turns_as_were_said() {
        let turns = StartTurns::new(2);
        let both = [turns.wait(Start::Sandbox).await, turns.wait(Start::Container).await];
        let third = turns.wait(Start::Container);
        tokio::pin!(third);
        assert!(is_pending(&mut third).await);
        drop(both);
        drop(third.await);
        assert_eq!(lock(&turns.0).free, 2);
    }

    async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
        tokio::select! {
            biased;
            _ = future => false,
            () = tokio::task::yield_now() => true,
        }
    }
}
