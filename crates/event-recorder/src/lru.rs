use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// A map that forgets what was not touched for longest, once it holds `capacity` entries.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    capacity: usize,
    entries: HashMap<K, (u64, V)>,
    /// When each key was last touched, as a running number.
    touched: BTreeMap<u64, K>,
    last: u64,
}

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, entries: HashMap::new(), touched: BTreeMap::new(), last: 0 }
    }

    /// The value of `key`, made by `make` if there is none. Counts as a touch.
    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.last += 1;
        let touch = self.last;
        if let Some((before, _)) = self.entries.get(&key) {
            self.touched.remove(before);
        } else if self.entries.len() >= self.capacity
            && let Some((_, oldest)) = self.touched.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.touched.insert(touch, key);
        let entry = self.entries.entry(key).or_insert_with(|| (touch, make()));
        entry.0 = touch;
        &mut entry.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_touched_for_longest_goes_first() {
        let mut lru = Lru::new(2);
        *lru.get_or_insert_with('a', || 0) = 1;
        *lru.get_or_insert_with('b', || 0) = 2;
        assert_eq!(*lru.get_or_insert_with('a', || 0), 1);
        *lru.get_or_insert_with('c', || 0) = 3;
        assert_eq!(*lru.get_or_insert_with('a', || 0), 1);
        assert_eq!(*lru.get_or_insert_with('b', || 0), 0, "b made room for c");
        assert_eq!((lru.entries.len(), lru.touched.len()), (2, 2));
    }
}
