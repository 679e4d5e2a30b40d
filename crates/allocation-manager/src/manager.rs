use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use rubelet_checkpoint::{CheckpointError, Durability};
use rubelet_node_resources::{
    ContainerChanges, PodResources, ResizeRules, compute_container_changes, same_amounts,
    with_limits_of_pod,
};
use rubelet_types::{PodUid, error_chain, pod_ref};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};

use crate::files::{ACTUATED_FILE, ALLOCATED_FILE, ByPod, StateFile};

/// The shortest time between two writes that nobody asked for: pods often come together.
const WRITE_PAUSE: Duration = Duration::from_millis(50);
/// And this long after it could not be written.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// A disk that takes longer to save what a pod was granted does not keep its containers from starting.
const SAVE_LIMIT: Duration = Duration::from_secs(5);

/// The state of pods could not be read or saved.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// A file.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// The work was thrown away because the kubelet ends.
    #[error("the work on the states of pods was cancelled")]
    Cancelled,
}

/// Who knows the pods that were let in.
pub trait GrantedPods: Send + Sync {
    /// All that were let in and are still wanted, with the resources that they were granted.
    fn granted_pods(&self) -> Vec<Arc<Pod>>;

    /// One of them.
    fn granted_pod(&self, uid: &PodUid) -> Option<Arc<Pod>>;
}

/// The resources of a pod are not all as it was granted them.
#[derive(Clone, Debug)]
pub struct Deviation {
    /// What is in force: what its running containers were created with or changed to. Of those that
    /// do not run it means nothing.
    pub in_force: PodResources,
    /// The pod's cgroup has not got its new values.
    pub cgroup_due: bool,
    /// How often it was granted something.
    grants: u64,
    /// Containers that were created since the resize that is under way began.
    created: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct State {
    deviations: HashMap<PodUid, Deviation>,
    /// What an earlier kubelet left of pods that have not come yet.
    allocated: ByPod,
    actuated: ByPod,
    /// Pods of which the files do not tell yet.
    unsaved: HashSet<PodUid>,
    /// The files say what no spec says, and have to survive a power loss.
    matters: bool,
}

#[derive(Debug)]
struct Files {
    allocated: StateFile,
    actuated: StateFile,
}

/// What the files are to hold.
struct Contents {
    allocated: ByPod,
    actuated: ByPod,
    /// Pods of which they tell then, and did not before.
    told: HashSet<PodUid>,
    durability: Durability,
}

impl Files {
    /// What is in force comes first: it has to be known before it is not what was granted any more.
    fn save(&mut self, contents: Contents) -> Result<(), CheckpointError> {
        self.actuated.save(contents.actuated, contents.durability)?;
        self.allocated.save(contents.allocated, contents.durability)
    }
}

/// Keeps what pods were granted, and what of it is in force.
pub struct AllocationManager {
    granted: Arc<dyn GrantedPods>,
    rules: ResizeRules,
    state: Mutex<State>,
    files: Arc<AsyncMutex<Files>>,
    /// Something is to be written that nobody waits for.
    changed: Notify,
    /// Something was written.
    saved: Notify,
}

impl std::fmt::Debug for AllocationManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AllocationManager").field("state", &self.state).finish_non_exhaustive()
    }
}

impl AllocationManager {
    /// Keeps its files in the directory `root`. Does no I/O.
    pub fn new(root: &Path, rules: ResizeRules, granted: Arc<dyn GrantedPods>) -> Self {
        let files = Files {
            allocated: StateFile::new(root, ALLOCATED_FILE),
            actuated: StateFile::new(root, ACTUATED_FILE),
        };
        Self {
            granted,
            rules,
            state: Mutex::default(),
            files: Arc::new(AsyncMutex::new(files)),
            changed: Notify::new(),
            saved: Notify::new(),
        }
    }

    /// Which resources can be changed.
    pub fn rules(&self) -> ResizeRules {
        self.rules
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what an earlier kubelet left. Before the first pod is let in.
    ///
    /// # Errors
    ///
    /// A file is there and cannot be read: what pods were promised is not known, and no pod should
    /// be let in.
    pub async fn load(&self) -> Result<(), AllocationError> {
        let files = self.files().await;
        let read = |files: &mut Files| Ok((files.allocated.load()?, files.actuated.load()?));
        let (_, (allocated, actuated)) = blocking(files, read).await?;
        let mut state = self.state();
        (state.allocated, state.actuated) = (allocated, actuated);
        Ok(())
    }

    /// A pod comes, and perhaps an earlier kubelet had it. Answers the pod with the resources that it
    /// was granted then, if its spec has others.
    ///
    /// Of containers that the files do not name, everything granted is in force: without a resize
    /// there is nothing else it could be.
    pub fn claim(&self, pod: &Pod) -> Option<Pod> {
        let uid = pod_ref(pod).uid;
        let mut state = self.state();
        let allocated = state.allocated.remove(uid.as_str());
        let actuated = state.actuated.remove(uid.as_str());
        let other = allocated.and_then(|mut allocated| {
            if allocated.pod_level.is_none() {
                allocated.pod_level = pod.spec.as_ref().and_then(|spec| spec.resources.clone());
            }
            allocated.applied_to(pod, self.rules)
        });
        let granted = other.as_ref().unwrap_or(pod);
        if let Some(actuated) = actuated {
            let mut in_force = PodResources::of(granted, self.rules);
            in_force.pod_level = actuated.pod_level.or(in_force.pod_level);
            for (name, resources) in &mut in_force.containers {
                if let Some(actuated) = actuated.containers.get(name) {
                    resources.clone_from(actuated);
                }
            }
            if !self.is_in_force(granted, &in_force) {
                let deviation =
                    Deviation { in_force, cgroup_due: true, grants: 0, created: BTreeSet::new() };
                state.deviations.insert(uid, deviation);
            }
        }
        state.matters |= other.is_some() || !state.deviations.is_empty();
        other
    }

    fn is_in_force(&self, granted: &Pod, in_force: &PodResources) -> bool {
        let pod_level = granted.spec.as_ref().and_then(|spec| spec.resources.clone());
        let [wanted, actual] =
            [&pod_level, &in_force.pod_level].map(|it| it.clone().unwrap_or_default());
        same_amounts(&wanted, &actual)
            && compute_container_changes(granted, in_force, self.rules)
                == ContainerChanges::default()
    }

    /// A pod was let in. The files will say so in a moment, and before a container of it is created.
    pub fn let_in(&self, uid: &PodUid) {
        self.state().unsaved.insert(uid.clone());
        self.changed.notify_one();
    }

    /// Some pod wants something else than it was granted. From now on what it was granted is known
    /// from here alone, and so it is saved, should that not have been done yet.
    ///
    /// # Errors
    ///
    /// It could not be saved: the next life would take what is wanted for granted.
    pub async fn keep(&self) -> Result<(), AllocationError> {
        self.state().matters = true;
        self.flush().await
    }

    /// The pod `wanted` is granted what its spec names. When that is on the disk, `publish` makes it
    /// known; nothing here sees the pod between what it was and what it is then.
    ///
    /// # Errors
    ///
    /// It could not be saved, and is not granted.
    pub async fn grant(
        &self,
        wanted: &Pod,
        publish: impl FnOnce() + Send,
    ) -> Result<(), AllocationError> {
        let uid = pod_ref(wanted).uid;
        let files = self.files().await;
        let mut contents = {
            let mut state = self.state();
            state.matters = true;
            self.contents(&state)
        };
        let resources = PodResources::of(wanted, self.rules);
        contents.allocated.insert(uid.to_string(), resources);
        let told = contents.told.clone();
        // Nobody writes before it is published.
        let (_files, ()) = blocking(files, move |files| files.save(contents)).await?;
        self.note_saved(&told);
        let mut state = self.state();
        if let Some(before) = self.granted.granted_pod(&uid) {
            let deviation = state.deviations.entry(uid).or_insert_with(|| Deviation {
                in_force: PodResources::of(&before, self.rules),
                cgroup_due: true,
                grants: 0,
                created: BTreeSet::new(),
            });
            deviation.cgroup_due = true;
            deviation.grants += 1;
        }
        publish();
        Ok(())
    }

    /// What of a pod is not as it was granted.
    pub fn deviation(&self, uid: &PodUid) -> Option<Deviation> {
        self.state().deviations.get(uid).cloned()
    }

    /// Something of the pod is not as it was granted.
    pub fn deviates(&self, uid: &PodUid) -> bool {
        self.state().deviations.contains_key(uid)
    }

    /// A resize of the pod begins. Answers from where.
    pub fn begin(&self, uid: &PodUid) -> Option<Deviation> {
        let mut state = self.state();
        let deviation = state.deviations.get_mut(uid)?;
        deviation.created.clear();
        Some(deviation.clone())
    }

    /// A running container has these resources now.
    pub fn container_changed(&self, uid: &PodUid, name: &str, resources: &ResourceRequirements) {
        if let Some(deviation) = self.state().deviations.get_mut(uid)
            && !deviation.created.contains(name)
        {
            deviation.in_force.containers.insert(name.to_owned(), resources.clone());
        }
    }

    /// The resize of `pod` that was begun at `begun` has come to its end: its cgroup and all its
    /// running containers are as its spec names it.
    pub async fn finish(&self, pod: &Pod, begun: &Deviation) {
        let uid = pod_ref(pod).uid;
        {
            let mut state = self.state();
            let granted = self.granted.granted_pod(&uid);
            let Some(deviation) = state.deviations.get_mut(&uid) else { return };
            let done = PodResources::of(pod, self.rules);
            deviation.in_force.pod_level = done.pod_level;
            for (name, resources) in done.containers {
                if !deviation.created.contains(&name) {
                    deviation.in_force.containers.insert(name, resources);
                }
            }
            deviation.cgroup_due &= deviation.grants != begun.grants;
            let in_force = &deviation.in_force;
            let is_over = granted.is_none_or(|granted| self.is_in_force(&granted, in_force));
            if is_over && !deviation.cgroup_due {
                state.deviations.remove(&uid);
            }
        }
        self.save_in_force().await;
    }

    /// The container `name` is about to be created, with the resources that the spec of `pod` names.
    pub async fn creating(&self, pod: &Arc<Pod>, name: &str) {
        let uid = pod_ref(pod).uid;
        if tokio::time::timeout(SAVE_LIMIT, self.until_saved(&uid)).await.is_err() {
            tracing::warn!(pod = %pod_ref(pod), "What the pod was granted is still not saved");
        }
        {
            let mut state = self.state();
            let Some(granted) = self.granted.granted_pod(&uid) else { return };
            let is_known = state.deviations.contains_key(&uid);
            if !is_known && Arc::ptr_eq(pod, &granted) {
                return;
            }
            let resources = PodResources::of(pod, self.rules).containers.remove(name);
            let Some(resources) = resources else { return };
            let deviation = state.deviations.entry(uid.clone()).or_insert_with(|| Deviation {
                in_force: PodResources::of(&granted, self.rules),
                cgroup_due: false,
                grants: 0,
                created: BTreeSet::new(),
            });
            deviation.created.insert(name.to_owned());
            let before = deviation.in_force.containers.insert(name.to_owned(), resources.clone());
            let is_new = before.is_none_or(|before| !same_amounts(&before, &resources));
            if !deviation.cgroup_due && self.is_in_force(&granted, &deviation.in_force) {
                state.deviations.remove(&uid);
            }
            if !is_new {
                return;
            }
            state.matters = true;
        }
        self.save_in_force().await;
    }

    /// Returns when the files tell of the pod: before its first container there is nothing that they
    /// would have to tell, and usually it takes longer to make the sandbox.
    async fn until_saved(&self, uid: &PodUid) {
        loop {
            let saved = self.saved.notified();
            tokio::pin!(saved);
            saved.as_mut().enable();
            if !self.state().unsaved.contains(uid) {
                return;
            }
            saved.await;
        }
    }

    fn note_saved(&self, told: &HashSet<PodUid>) {
        if !told.is_empty() {
            self.state().unsaved.retain(|uid| !told.contains(uid));
            self.saved.notify_waiters();
        }
    }

    /// Nothing is left of the pod.
    pub fn forget(&self, uid: &PodUid) {
        let mut state = self.state();
        state.deviations.remove(uid);
        state.unsaved.remove(uid);
    }

    /// Forgets what an earlier kubelet left of pods that are not among these, once all that are
    /// wanted have come.
    pub fn retain(&self, keep: &HashSet<PodUid>) {
        let mut state = self.state();
        if state.allocated.is_empty() && state.actuated.is_empty() {
            return;
        }
        let is_kept = |uid: &String| keep.contains(&PodUid::new(uid));
        state.allocated.retain(|uid, _| is_kept(uid));
        state.actuated.retain(|uid, _| is_kept(uid));
    }

    /// Writes, for as long as it is polled, what nobody waits for.
    pub async fn run(&self) {
        loop {
            self.changed.notified().await;
            while let Err(error) = self.flush().await {
                tracing::warn!(
                    error = error_chain(&error),
                    "Could not save what pods were granted"
                );
                tokio::time::sleep(RETRY_DELAY).await;
            }
            tokio::time::sleep(WRITE_PAUSE).await;
        }
    }

    /// Writes what is not written yet.
    ///
    /// # Errors
    ///
    /// It could not be saved.
    pub async fn flush(&self) -> Result<(), AllocationError> {
        let files = self.files().await;
        let contents = self.contents(&self.state());
        let told = contents.told.clone();
        blocking(files, move |files| files.save(contents)).await?;
        self.note_saved(&told);
        Ok(())
    }

    /// Saves what is in force. If that fails the next life does again what was done.
    async fn save_in_force(&self) {
        let files = self.files().await;
        let actuated = self.actuated(&self.state());
        let save = |files: &mut Files| files.actuated.save(actuated, Durability::Synced);
        let saved = blocking(files, save).await;
        if let Err(error) = saved {
            tracing::warn!(error = error_chain(&error), "Could not save what is in force of pods");
            self.changed.notify_one();
        }
    }

    /// What the files are to hold. Made by whoever has them, lest something older is written later.
    fn contents(&self, state: &State) -> Contents {
        Contents {
            allocated: self.allocated(state),
            actuated: self.actuated(state),
            told: state.unsaved.clone(),
            durability: if state.matters { Durability::Synced } else { Durability::Unsynced },
        }
    }

    fn allocated(&self, state: &State) -> ByPod {
        let mut pods = state.allocated.clone();
        for pod in self.granted.granted_pods() {
            pods.insert(pod_ref(&pod).uid.to_string(), PodResources::of(&pod, self.rules));
        }
        pods
    }

    fn actuated(&self, state: &State) -> ByPod {
        let mut pods = state.actuated.clone();
        for pod in self.granted.granted_pods() {
            let uid = pod_ref(&pod).uid;
            let resources = match state.deviations.get(&uid) {
                Some(deviation) => deviation.in_force.clone(),
                None => PodResources::of(&pod, self.rules),
            };
            pods.insert(uid.to_string(), with_limits_of_pod(resources));
        }
        pods
    }

    /// The files, for whoever writes next.
    async fn files(&self) -> OwnedMutexGuard<Files> {
        self.files.clone().lock_owned().await
    }
}

/// Works on the files where that may block.
async fn blocking<T: Send + 'static>(
    mut files: OwnedMutexGuard<Files>,
    work: impl FnOnce(&mut Files) -> Result<T, CheckpointError> + Send + 'static,
) -> Result<(OwnedMutexGuard<Files>, T), AllocationError> {
    let work = move || {
        let done = work(&mut files);
        (files, done)
    };
    let done = tokio::task::spawn_blocking(work).await;
    let (files, done) = done.map_err(|_| AllocationError::Cancelled)?;
    Ok((files, done?))
}
