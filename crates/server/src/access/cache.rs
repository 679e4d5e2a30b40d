//! Answers of the API server that are kept in mind for a while.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;

use super::ReviewError;

/// How many answers are kept in mind. Who asks for more pushes out those that end first.
const MAX_ANSWERS: usize = 2048;

/// What stands for a question, so that no token is kept.
pub(super) type Key = [u8; 32];

/// Makes keys that nobody outside of this process can foretell.
pub(super) struct Fingerprint(hmac::Key);

impl Default for Fingerprint {
    fn default() -> Self {
        let mut secret = [0; 32];
        // Without the system's random numbers there is no TLS either.
        if SystemRandom::new().fill(&mut secret).is_err() {
            tracing::warn!(
                "no random numbers; answers on access are kept under keys that are known"
            );
        }
        Self(hmac::Key::new(hmac::HMAC_SHA256, &secret))
    }
}

impl Fingerprint {
    /// Of a list of texts: no other list has the same.
    pub(super) fn of<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Key {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&part.len().to_be_bytes());
            context.update(part.as_bytes());
        }
        let mut key = Key::default();
        key.copy_from_slice(context.sign().as_ref());
        key
    }
}

type Review<V> = BoxFuture<'static, Result<V, ReviewError>>;
type Asked<V> = Shared<Review<V>>;

enum Entry<V: Clone> {
    /// Somebody waits for the answer.
    Asked(Asked<V>),
    Known {
        value: V,
        until: Instant,
    },
}

/// Answers by key. Of one question, no two are asked at a time; errors are not kept.
pub(super) struct ReviewCache<V: Clone>(Mutex<HashMap<Key, Entry<V>>>);

impl<V: Clone> Default for ReviewCache<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V: Clone> fmt::Debug for ReviewCache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReviewCache").finish_non_exhaustive()
    }
}

impl<V: Clone> ReviewCache<V> {
    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Entry<V>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to the question of `key`: the one that is known, the one that somebody waits for, or
    /// that of `ask`, which is kept for `keep`.
    pub(super) async fn get(
        &self,
        key: Key,
        ask: impl FnOnce() -> Review<V>,
        keep: impl Fn(&V) -> Duration,
    ) -> Result<V, ReviewError> {
        let asked = {
            let mut entries = self.entries();
            let now = Instant::now();
            match entries.get(&key) {
                Some(Entry::Known { value, until }) if *until > now => return Ok(value.clone()),
                Some(Entry::Asked(asked)) => asked.clone(),
                _ => {
                    make_room(&mut entries, now);
                    let asked = ask().shared();
                    entries.insert(key, Entry::Asked(asked.clone()));
                    asked
                }
            }
        };
        let waiting = Waiting { cache: self, key, asked };
        let answer = waiting.asked.clone().await;
        let mut entries = self.entries();
        if waiting.is_in(&entries) {
            match &answer {
                Ok(value) if !keep(value).is_zero() => {
                    let until = Instant::now() + keep(value);
                    entries.insert(key, Entry::Known { value: value.clone(), until });
                }
                _ => drop(entries.remove(&key)),
            }
        }
        drop(entries);
        answer
    }
}

/// Makes room for one more.
fn make_room<V: Clone>(entries: &mut HashMap<Key, Entry<V>>, now: Instant) {
    if entries.len() < MAX_ANSWERS {
        return;
    }
    entries.retain(|_, entry| match entry {
        Entry::Asked(_) => true,
        Entry::Known { until, .. } => *until > now,
    });
    while entries.len() >= MAX_ANSWERS {
        // What is waited for is had by those who wait.
        let until = |entry: &Entry<V>| match entry {
            Entry::Asked(_) => None,
            Entry::Known { until, .. } => Some(*until),
        };
        let first = entries.iter().min_by_key(|(_, entry)| until(entry)).map(|(key, _)| *key);
        let Some(first) = first else { return };
        entries.remove(&first);
    }
}

/// Somebody who waits for an answer. A question that nobody waits for any more is given up, so that
/// none is left half asked.
struct Waiting<'a, V: Clone> {
    cache: &'a ReviewCache<V>,
    key: Key,
    asked: Asked<V>,
}

impl<V: Clone> Waiting<'_, V> {
    fn is_in(&self, entries: &HashMap<Key, Entry<V>>) -> bool {
        matches!(entries.get(&self.key), Some(Entry::Asked(asked)) if asked.ptr_eq(&self.asked))
    }
}

impl<V: Clone> Drop for Waiting<'_, V> {
    fn drop(&mut self) {
        let mut entries = self.cache.entries();
        // The cache's own and this one.
        let is_last = self.asked.strong_count().is_none_or(|count| count <= 2);
        if is_last && self.is_in(&entries) {
            entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    const TTL: Duration = Duration::from_secs(120);

    #[derive(Clone, Default)]
    struct Server(Arc<AtomicU32>);

    impl Server {
        fn ask(&self, answer: Result<u32, ReviewError>) -> impl FnOnce() -> Review<u32> {
            let asked = self.0.clone();
            move || {
                async move {
                    sleep(Duration::from_secs(1)).await;
                    asked.fetch_add(1, Ordering::Relaxed);
                    answer
                }
                .boxed()
            }
        }

        fn asked(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn key(text: &str) -> Key {
        let mut key = Key::default();
        key[..text.len()].copy_from_slice(text.as_bytes());
        key
    }

    fn failure() -> Result<u32, ReviewError> {
        Err(ReviewError { text: "away".to_owned(), is_passing: false, code: None })
    }

    #[test]
    fn lists_of_texts_have_fingerprints_of_their_own() {
        let fingerprint = Fingerprint::default();
        let lists: [&[&str]; 5] = [&[], &[""], &["ab"], &["a", "b"], &["a", "", "b"]];
        for (one, list) in lists.iter().enumerate() {
            for (other, another) in lists.iter().enumerate() {
                let is_same =
                    fingerprint.of(list.iter().copied()) == fingerprint.of(another.iter().copied());
                assert_eq!(is_same, one == other, "{list:?} {another:?}");
            }
        }
        let other = Fingerprint::default();
        assert_ne!(fingerprint.of(["a"]), other.of(["a"]), "another process, other keys");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_kept_for_its_time_and_an_error_not_at_all() {
        let (cache, server) = (ReviewCache::default(), Server::default());
        let get = async |answer| cache.get(key("a"), server.ask(answer), |_| TTL).await;
        assert_eq!(get(failure()).await, failure());
        assert_eq!(get(Ok(1)).await, Ok(1));
        advance(TTL - Duration::from_millis(1)).await;
        assert_eq!(get(Ok(2)).await, Ok(1));
        advance(Duration::from_millis(1)).await;
        assert_eq!(get(Ok(3)).await, Ok(3));
        assert_eq!(server.asked(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_the_same_at_once_ask_once() {
        let (cache, server) = (ReviewCache::default(), Server::default());
        let get = || cache.get(key("a"), server.ask(Ok(1)), |_| TTL);
        let answers = futures_util::future::join_all((0..100).map(|_| get())).await;
        assert!(answers.iter().all(|answer| *answer == Ok(1)));
        assert_eq!(server.asked(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_goes_on_with_those_who_stay_and_is_given_up_without_any() {
        let (cache, server) = (ReviewCache::default(), Server::default());
        let get = || cache.get(key("a"), server.ask(Ok(1)), |_| TTL);
        let soon = Duration::from_millis(100);
        // Its asker leaves, another stays.
        let (_, stayed) = tokio::join!(tokio::time::timeout(soon, get()), get());
        assert_eq!((stayed, server.asked()), (Ok(1), 1));
        let (cache, server) = (ReviewCache::default(), Server::default());
        let get = || cache.get(key("a"), server.ask(Ok(1)), |_| TTL);
        assert!(tokio::time::timeout(soon, get()).await.is_err());
        assert!(cache.entries().is_empty(), "nobody waits for it");
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_first_makes_room() {
        let (cache, server) = (ReviewCache::default(), Server::default());
        for number in 0..MAX_ANSWERS + 10 {
            let mut key = Key::default();
            key[..8].copy_from_slice(&number.to_be_bytes());
            let answer = async move { Ok(0) }.boxed();
            cache.get(key, move || answer, |_| TTL).await.unwrap();
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(cache.entries().len(), MAX_ANSWERS);
        let mut first = Key::default();
        cache.get(first, server.ask(Ok(0)), |_| TTL).await.unwrap();
        assert_eq!(server.asked(), 1, "the oldest was forgotten");
        first[..8].copy_from_slice(&(MAX_ANSWERS + 9).to_be_bytes());
        cache.get(first, server.ask(Ok(0)), |_| TTL).await.unwrap();
        assert_eq!(server.asked(), 1, "the newest is known");
    }
}
