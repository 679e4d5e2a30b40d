use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_types::PodUid;
use tokio::time::Instant;

use crate::manager::VolumeManager;

/// Why a volume is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// How the last try ended.
    pub message: String,
    /// How long until the next one; zero if it is due.
    pub retry_in: Duration,
}

impl VolumeManager {
    /// The volumes of a pod whose last set-up failed, by name. For whoever asks why a pod waits.
    pub fn failures(&self, pod: &PodUid) -> BTreeMap<String, LastFailure> {
        self.inner.memory.failures(pod, Instant::now())
    }
}
