//! What is kept: the objects as they are, and the changes that led there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use crate::kinds::{KINDS, Kind};

/// Changes that a watch can still be told of.
const HISTORY: usize = 10_000;

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) plural: &'static str,
    /// Empty for kinds that are in none.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) plural: &'static str,
    pub(crate) namespace: String,
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
}

/// The rest of a list that is read in pages.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) revision: u64,
    pub(crate) items: Vec<Arc<Value>>,
}

/// All there is.
#[derive(Debug)]
pub(crate) struct Storage {
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Change>,
    revision: u64,
    /// Changes up to this one are forgotten.
    forgotten: u64,
    rests: HashMap<String, Rest>,
    uids: u64,
}

impl Storage {
    pub(crate) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            revision: 1,
            forgotten: 0,
            rests: HashMap::new(),
            uids: 0,
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// A uid that no object has had.
    pub(crate) fn next_uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.uids)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).cloned()
    }

    /// Objects of one kind, in one namespace or all, in order.
    pub(crate) fn list(&self, kind: &Kind, namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.objects
            .iter()
            .filter(|(key, _)| key.plural == kind.plural)
            .filter(|(key, _)| namespace.is_none_or(|namespace| namespace == key.namespace))
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// Keeps `object` under the next revision, and gives it as it is kept.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), Arc::clone(&object));
        self.remember(key, before, Some(Arc::clone(&object)));
        object
    }

    /// Removes the object, and gives its last state.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.revision += 1;
        self.remember(key.clone(), Some(Arc::clone(&before)), None);
        Some(before)
    }

    fn remember(&mut self, key: Key, before: Option<Arc<Value>>, after: Option<Arc<Value>>) {
        let Key { plural, namespace, .. } = key;
        self.history.push_back(Change {
            revision: self.revision,
            plural,
            namespace,
            before,
            after,
        });
        while self.history.len() > HISTORY {
            if let Some(oldest) = self.history.pop_front() {
                self.forgotten = oldest.revision;
            }
        }
    }

    /// Forgets how things came to be as they are: watches that are behind have to list again.
    pub(crate) fn forget_history(&mut self) {
        self.history.clear();
        self.rests.clear();
        self.forgotten = self.revision;
    }

    /// The changes after `revision`; nothing if some are forgotten.
    pub(crate) fn changes_after(&self, revision: u64) -> Option<Vec<Change>> {
        (revision >= self.forgotten).then(|| {
            let from = self.history.partition_point(|change| change.revision <= revision);
            self.history.range(from..).cloned().collect()
        })
    }

    pub(crate) fn keep_rest(&mut self, rest: Rest) -> String {
        self.uids += 1;
        let token = format!("page-{}", self.uids);
        self.rests.insert(token.clone(), rest);
        token
    }

    pub(crate) fn rest(&self, token: &str) -> Option<Rest> {
        self.rests.get(token).cloned()
    }
}

/// The kind served under these parts of a path.
pub(crate) fn find_kind(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| (kind.group, kind.version, kind.plural) == (group, version, plural))
}
