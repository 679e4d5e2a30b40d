//! What is wanted for the file of each pod, and what is being done about it. Pure.
//!
//! ```text
//!   want ──> wanted, queued ──next──> applying ──applied(ok)───> stored
//!               ^    ^                   │
//!               │    └─── a newer wish ──┤
//!            retry_failed                └─applied(failed)─> wanted, not queued
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rubelet_types::PodUid;

/// What to do with the file of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Write { contents: Arc<[u8]>, fingerprint: u128 },
    Remove,
}

/// What the file of a pod holds, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Unknown,
    Nothing,
    Contents(u128),
}

impl Change {
    fn result(&self) -> Holds {
        match self {
            Self::Write { fingerprint, .. } => Holds::Contents(*fingerprint),
            Self::Remove => Holds::Nothing,
        }
    }
}

/// What can be said of a pod's file without looking at it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It holds this, or will in a moment.
    Contents(Arc<[u8]>),
    /// It is about to be removed.
    Absent,
    /// No change is under way: what is on the disk counts. `seen` is for [`Changes::note_read`].
    OnDisk { seen: u64 },
}

#[derive(Debug)]
struct Record {
    stored: Holds,
    wanted: Option<Change>,
    queued: bool,
    applying: Option<Change>,
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    pods: HashMap<PodUid, Record>,
    queue: VecDeque<PodUid>,
    wishes: u64,
}

impl Changes {
    /// The latest wish for the pod's file; nothing happens if it is what will be there anyway.
    pub(super) fn want(&mut self, uid: &PodUid, change: Change) {
        self.wishes += 1;
        let record = self.pods.entry(uid.clone()).or_insert(Record {
            stored: Holds::Unknown,
            wanted: None,
            queued: false,
            applying: None,
        });
        let waiting = record.wanted.as_ref().or(record.applying.as_ref());
        let expected = waiting.map_or(record.stored, Change::result);
        if expected != change.result() {
            record.wanted = Some(change);
        }
        self.queue_if_due(uid);
    }

    /// Wants the files away of all pods that `keep` does not know.
    pub(super) fn remove_except(&mut self, keep: impl Fn(&PodUid) -> bool) {
        let gone: Vec<PodUid> = self.pods.keys().filter(|uid| !keep(uid)).cloned().collect();
        for uid in &gone {
            self.want(uid, Change::Remove);
        }
    }

    /// Wants the file away of a pod of which nothing else is known.
    pub(super) fn remove_unknown(&mut self, uid: &PodUid) {
        if !self.pods.contains_key(uid) {
            self.want(uid, Change::Remove);
        }
    }

    /// Takes the next change to carry out; [`Self::applied`] must follow.
    pub(super) fn next(&mut self) -> Option<(PodUid, Change)> {
        while let Some(uid) = self.queue.pop_front() {
            let Some(record) = self.pods.get_mut(&uid) else { continue };
            record.queued = false;
            match record.wanted.take() {
                // There and back again before anybody wrote.
                Some(change) if change.result() == record.stored => self.drop_if_done(&uid),
                Some(change) => {
                    record.applying = Some(change.clone());
                    return Some((uid, change));
                }
                None => {}
            }
        }
        None
    }

    /// The change that [`Self::next`] gave for this pod has been carried out, or has failed.
    pub(super) fn applied(&mut self, uid: &PodUid, ok: bool) {
        let Some(record) = self.pods.get_mut(uid) else { return };
        let Some(change) = record.applying.take() else { return };
        record.stored = if ok { change.result() } else { Holds::Unknown };
        if record.wanted.is_some() {
            self.queue_if_due(uid);
        } else if ok {
            self.drop_if_done(uid);
        } else {
            record.wanted = Some(change);
        }
    }

    /// Queues once more what has failed.
    pub(super) fn retry_failed(&mut self) {
        let pods: Vec<PodUid> = self.pods.keys().cloned().collect();
        for uid in &pods {
            self.queue_if_due(uid);
        }
    }

    /// How many pods wait for [`Self::next`].
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// What the file of the pod is going to hold.
    pub(super) fn known(&self, uid: &PodUid) -> Known {
        let change =
            self.pods.get(uid).and_then(|pod| pod.wanted.as_ref().or(pod.applying.as_ref()));
        match change {
            Some(Change::Write { contents, .. }) => Known::Contents(Arc::clone(contents)),
            Some(Change::Remove) => Known::Absent,
            None => Known::OnDisk { seen: self.wishes },
        }
    }

    /// The file held this when it was read, so that the same need not be written again. Counts only
    /// if nothing has been wanted since [`Self::known`] gave `seen`.
    pub(super) fn note_read(&mut self, uid: &PodUid, fingerprint: u128, seen: u64) {
        if self.wishes == seen && !self.pods.contains_key(uid) {
            let stored = Holds::Contents(fingerprint);
            let record = Record { stored, wanted: None, queued: false, applying: None };
            self.pods.insert(uid.clone(), record);
        }
    }

    fn queue_if_due(&mut self, uid: &PodUid) {
        if let Some(record) = self.pods.get_mut(uid)
            && record.wanted.is_some()
            && !record.queued
            && record.applying.is_none()
        {
            record.queued = true;
            self.queue.push_back(uid.clone());
        }
    }

    fn drop_if_done(&mut self, uid: &PodUid) {
        if let Some(record) = self.pods.get(uid)
            && record.stored == Holds::Nothing
            && record.wanted.is_none()
            && record.applying.is_none()
        {
            self.pods.remove(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(number: u8) -> Change {
        Change::Write { contents: Arc::from([number]), fingerprint: number.into() }
    }

    fn pod(number: u8) -> PodUid {
        PodUid::new(format!("pod-{number}"))
    }

    #[test]
    fn the_latest_wish_wins_and_no_two_run_at_once_for_one_pod() {
        let mut changes = Changes::default();
        changes.want(&pod(1), write(1));
        changes.want(&pod(1), write(2));
        assert_eq!(changes.queued(), 1);
        assert_eq!(changes.next(), Some((pod(1), write(2))));

        changes.want(&pod(1), write(3));
        changes.want(&pod(1), write(4));
        assert_eq!(changes.next(), None, "one is under way");
        assert_eq!(changes.known(&pod(1)), Known::Contents(Arc::from([4])));
        changes.applied(&pod(1), true);
        assert_eq!(changes.next(), Some((pod(1), write(4))));
    }

    #[test]
    fn what_is_stored_or_on_its_way_is_not_written_again() {
        let mut changes = Changes::default();
        changes.want(&pod(1), write(1));
        let _ = changes.next();
        changes.want(&pod(1), write(1));
        changes.applied(&pod(1), true);
        changes.want(&pod(1), write(1));
        assert_eq!(changes.next(), None);

        changes.want(&pod(1), write(2));
        changes.want(&pod(1), write(1));
        assert_eq!(changes.next(), None, "there and back again");
    }

    #[test]
    fn what_failed_is_tried_again_on_the_next_save_or_when_asked() {
        for again in [
            |c: &mut Changes| c.want(&pod(1), write(1)),
            |c: &mut Changes| {
                c.retry_failed();
            },
        ] {
            let mut changes = Changes::default();
            changes.want(&pod(1), write(1));
            let _ = changes.next();
            changes.applied(&pod(1), false);
            assert_eq!(changes.next(), None, "not at once: the disk may be full");
            again(&mut changes);
            assert_eq!(changes.next(), Some((pod(1), write(1))));
        }
    }

    #[test]
    fn what_was_read_is_not_written_again_unless_something_happened_since() {
        let mut changes = Changes::default();
        let Known::OnDisk { seen } = changes.known(&pod(1)) else { panic!("no wish yet") };
        changes.note_read(&pod(1), 1, seen);
        changes.want(&pod(1), write(1));
        assert_eq!(changes.next(), None);

        let mut changes = Changes::default();
        changes.want(&pod(1), Change::Remove);
        let _ = changes.next();
        changes.applied(&pod(1), true);
        changes.note_read(&pod(1), 1, seen);
        changes.want(&pod(1), write(1));
        assert_eq!(changes.next(), Some((pod(1), write(1))));
    }

    #[test]
    fn a_removed_pod_costs_nothing() {
        let mut changes = Changes::default();
        changes.want(&pod(1), write(1));
        let _ = changes.next();
        changes.want(&pod(1), Change::Remove);
        assert_eq!(changes.known(&pod(1)), Known::Absent);
        changes.applied(&pod(1), true);
        assert_eq!(changes.next(), Some((pod(1), Change::Remove)));
        changes.applied(&pod(1), true);
        assert!(changes.pods.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Event {
        Want(u8, Option<u8>),
        Next,
        Applied(usize, bool),
        Retry,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => (0..3_u8, proptest::option::of(0..3_u8)).prop_map(|(p, n)| Event::Want(p, n)),
            3 => Just(Event::Next),
            3 => (any::<usize>(), any::<bool>()).prop_map(|(i, ok)| Event::Applied(i, ok)),
            1 => Just(Event::Retry),
        ]
    }

    proptest! {
        /// Whatever the order of wishes, writes and failures: once writes succeed, each file is as
        /// last wanted; one pod has at most one change under way; none rewrites what is there.
        #[test]
        fn files_end_as_last_wanted(events in proptest::collection::vec(event(), 0..60)) {
            let mut changes = Changes::default();
            let mut disk: HashMap<PodUid, u8> = HashMap::new();
            let mut wanted: HashMap<PodUid, Option<u8>> = HashMap::new();
            let mut running: Vec<(PodUid, Change)> = Vec::new();
            // A failed change may or may not have reached the file.
            let mut failed: Vec<PodUid> = Vec::new();

            let apply = |disk: &mut HashMap<PodUid, u8>, uid: &PodUid, change: &Change| match change {
                Change::Write { contents, .. } => disk.insert(uid.clone(), contents[0]),
                Change::Remove => disk.remove(uid),
            };
            for event in events {
                match event {
                    Event::Want(number, contents) => {
                        changes.want(&pod(number), contents.map_or(Change::Remove, write));
                        wanted.insert(pod(number), contents);
                    }
                    Event::Next => if let Some((uid, change)) = changes.next() {
                        prop_assert!(running.iter().all(|(other, _)| *other != uid));
                        if let Change::Write { contents, .. } = &change
                            && !failed.contains(&uid) {
                            prop_assert_ne!(disk.get(&uid), Some(&contents[0]));
                        }
                        running.push((uid, change));
                    },
                    Event::Applied(index, ok) => if !running.is_empty() {
                        let (uid, change) = running.swap_remove(index % running.len());
                        if ok { apply(&mut disk, &uid, &change); } else { failed.push(uid.clone()); }
                        changes.applied(&uid, ok);
                    },
                    Event::Retry => changes.retry_failed(),
                }
            }
            for (uid, change) in running {
                apply(&mut disk, &uid, &change);
                changes.applied(&uid, true);
            }
            changes.retry_failed();
            while let Some((uid, change)) = changes.next() {
                apply(&mut disk, &uid, &change);
                changes.applied(&uid, true);
            }
            for (uid, contents) in wanted {
                prop_assert_eq!(disk.get(&uid).copied(), contents);
            }
        }
    }
}
