use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::credentials::credential::ObjectCoordinates;
use crate::credentials::docker_config::DockerConfig;

/// So many answers of one provider are kept. Beyond, those that end first are given up.
const MAX_ENTRIES: usize = 1000;

/// For what credentials hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CacheScope {
    /// For one image: its registry and path.
    Image(String),
    /// For everything of a registry.
    Registry(String),
    /// For everything that the provider is asked for.
    Global,
}

/// For whom credentials hold, if not for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AccountKey {
    pub(super) coordinates: ObjectCoordinates,
    pub(super) annotations: BTreeMap<String, String>,
    /// Set if they hold as long as that token is in use.
    pub(super) token_hash: Option<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CacheKey {
    pub(super) scope: CacheScope,
    pub(super) account: Option<AccountKey>,
}

/// Credentials that a provider gave, until they end.
#[derive(Debug, Default)]
pub(super) struct CredentialCache(HashMap<CacheKey, (DockerConfig, Instant)>);

impl CredentialCache {
    pub(super) fn get(&self, key: &CacheKey, now: Instant) -> Option<DockerConfig> {
        let (config, ends) = self.0.get(key)?;
        (now <= *ends).then(|| config.clone())
    }

    /// Keeps credentials; all that have ended are forgotten, so that nothing has to be cleaned up at
    /// other times.
    pub(super) fn insert(
        &mut self,
        key: CacheKey,
        config: DockerConfig,
        lasts: Duration,
        now: Instant,
    ) {
        /// What lasts longer than anybody can wait for.
        const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

        self.0.retain(|_, (_, ends)| now <= *ends);
        self.0.insert(key, (config, now + lasts.min(FOREVER)));
        while self.0.len() > MAX_ENTRIES {
            let next = self.0.iter().min_by_key(|(_, (_, ends))| *ends);
            let Some(next) = next.map(|(key, _)| key.clone()) else { return };
            self.0.remove(&next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(image: usize) -> CacheKey {
        CacheKey { scope: CacheScope::Image(image.to_string()), account: None }
    }

    #[test]
    fn credentials_are_kept_until_they_end_and_never_too_many() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut cache = CredentialCache::default();
        cache.insert(key(0), DockerConfig::new(), second, now);
        assert!(cache.get(&key(0), now + second).is_some());
        assert!(cache.get(&key(0), now + second * 2).is_none());
        assert!(cache.get(&key(1), now).is_none());
        cache.insert(key(1), DockerConfig::new(), Duration::MAX, now + second * 2);
        assert_eq!(cache.0.len(), 1);
        for image in 0..2000 {
            cache.insert(key(10 + image), DockerConfig::new(), second * 60, now + second * 3);
        }
        assert_eq!(cache.0.len(), MAX_ENTRIES);
        assert!(cache.get(&key(1), now + second * 3).is_some(), "it ends last");
    }
}
