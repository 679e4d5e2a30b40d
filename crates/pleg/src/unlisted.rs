use std::sync::{Mutex, MutexGuard, PoisonError};

use rubelet_cri::observe::RelistByPod;
use rubelet_types::{ContainerId, PodRef, SandboxId};
use tokio::time::Instant;

/// What has been made in the runtime since everything was last listed.
///
/// That something is gone shows by its having been in the list before. What goes before any list
/// held it would be believed to be there for ever, if the event that tells of it is lost or comes
/// before its maker knows of it. Whoever makes something therefore says so here, and the next list
/// is asked for it.
#[derive(Debug, Default)]
pub struct Unlisted {
    made: Mutex<Vec<Made>>,
}

#[derive(Debug)]
struct Made {
    pod: PodRef,
    id: String,
    at: Instant,
}

impl Unlisted {
    /// A sandbox of `pod` is there now.
    pub fn sandbox_made(&self, pod: &PodRef, id: &SandboxId) {
        self.note(pod, id.as_str());
    }

    /// A container of `pod` is there now.
    pub fn container_made(&self, pod: &PodRef, id: &ContainerId) {
        self.note(pod, id.as_str());
    }

    fn note(&self, pod: &PodRef, id: &str) {
        let made = Made { pod: pod.clone(), id: id.to_owned(), at: Instant::now() };
        self.made().push(made);
    }

    /// The pods of which something was made before the list was begun that it does not hold. What
    /// was made before that is not asked for again.
    pub(crate) fn missing_from(&self, list: &RelistByPod, begun: Instant) -> Vec<PodRef> {
        let mut missing: Vec<PodRef> = Vec::new();
        self.made().retain(|made| {
            if made.at > begun {
                return true;
            }
            let is_listed = list.get(&made.pod.uid).is_some_and(|entry| {
                entry.containers.iter().any(|container| container.id.as_str() == made.id)
                    || entry.sandboxes.iter().any(|sandbox| sandbox.id.as_str() == made.id)
            });
            if !is_listed && !missing.contains(&made.pod) {
                missing.push(made.pod.clone());
            }
            false
        });
        missing
    }

    fn made(&self) -> MutexGuard<'_, Vec<Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
