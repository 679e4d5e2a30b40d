use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rubelet_cri::{CriError, v1};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::runtime_health::{DOWN_AFTER, RuntimeHealth};
use crate::{DeviceResources, ImageFacts, NodeConditionsInput, NodePressure, RuntimeFacts};

/// Finds out whether a part of the kubelet works; the error is the text that the node shows.
type HealthCheck = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What other parts of the kubelet know about the node: each sets its own piece, at any time, and
/// node status takes all of them. What matters to the control plane wakes it at once. Cheap to clone;
/// all clones are one.
///
/// To begin with nothing runs short, there are no devices, and the runtime has yet to answer.
#[derive(Clone, Debug, Default)]
pub struct NodeInputs(Arc<Shared>);

#[derive(Default)]
struct Shared {
    known: Mutex<Known>,
    urgent: Notify,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeInputs")
    }
}

#[derive(Default)]
struct Known {
    health: RuntimeHealth,
    facts: Pieces,
    pressure: NodePressure,
    shutting_down: bool,
    storage_error: Option<String>,
    soft_requirements: Option<String>,
    checks: Vec<(&'static str, HealthCheck)>,
}

/// The pieces that go into the status as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    pub(crate) runtime: RuntimeFacts,
    pub(crate) images: Vec<ImageFacts>,
    pub(crate) devices: DeviceResources,
    pub(crate) volumes_in_use: Option<Vec<String>>,
}

impl NodeInputs {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an answer of the runtime to `Status`, as somebody gets it every 5 s: whether runtime and
    /// network are ready, handlers, features. A call that failed changes nothing by itself; 30 s
    /// without a good answer mean that the runtime is down.
    pub fn observe_runtime_status(&self, answer: Result<&v1::StatusResponse, &CriError>) {
        self.change(|known| {
            let (before, features) = (known.health.clone(), known.facts.runtime.clone());
            let now = Instant::now();
            let was_down = known.health.ready_at.is_some_and(|at| now >= at + DOWN_AFTER);
            known.health.observe(answer, &mut known.facts.runtime, now);
            let is_back = was_down && known.health.ready_at == Some(now);
            is_back || !known.health.agrees_with(&before) || known.facts.runtime != features
        });
    }

    /// Adds a check that the node is not ready without: `<name> is not healthy: <error>`. It must
    /// not block.
    pub fn add_health_check(
        &self,
        name: &'static str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.change(|known| {
            known.checks.push((name, Box::new(check)));
            false
        });
    }

    /// Sets what runs short.
    pub fn set_pressure(&self, pressure: NodePressure) {
        self.change(|known| replace(&mut known.pressure, pressure));
    }

    /// The node is shutting down, or no longer.
    pub fn set_shutting_down(&self, shutting_down: bool) {
        self.change(|known| replace(&mut known.shutting_down, shutting_down));
    }

    /// Why storage cannot be used (the CSINode object could not be made), if so.
    pub fn set_storage_error(&self, error: Option<String>) {
        self.change(|known| replace(&mut known.storage_error, error));
    }

    /// What the node would rather have and can do without, such as `CPU hardcapping unsupported`.
    pub fn set_soft_requirements(&self, missing: Option<String>) {
        self.change(|known| replace(&mut known.soft_requirements, missing));
    }

    /// What device plugins offer.
    pub fn set_devices(&self, devices: DeviceResources) {
        self.change(|known| replace(&mut known.facts.devices, devices));
    }

    /// Unique names of the attachable volumes that are in use, sorted. Not before it is known which
    /// volumes earlier kubelets have left in use.
    pub fn set_volumes_in_use(&self, volumes: Vec<String>) {
        self.change(|known| replace(&mut known.facts.volumes_in_use, Some(volumes)));
    }

    /// The runtime's images, in any order.
    pub fn set_images(&self, images: Vec<v1::Image>) {
        let mut images: Vec<ImageFacts> = images
            .into_iter()
            .map(|image| ImageFacts {
                names: image.repo_digests.into_iter().chain(image.repo_tags).collect(),
                size: i64::try_from(image.size).unwrap_or(i64::MAX),
                id: image.id,
            })
            .collect();
        images.sort_by(|a, b| (b.size, &b.id).cmp(&(a.size, &a.id)));
        // Images come and go with pods: the next regular look is soon enough.
        self.change(|known| {
            known.facts.images = images;
            false
        });
    }

    /// The runtime's name and version, as it tells them.
    pub fn set_runtime_version(&self, name: &str, version: &str) {
        self.change(|known| {
            let runtime = &mut known.facts.runtime;
            replace(&mut runtime.name, name.to_owned())
                | replace(&mut runtime.version, Some(version.to_owned()))
        });
    }

    /// What goes into the status as it is.
    pub(crate) fn pieces(&self) -> Pieces {
        self.lock().facts.clone()
    }

    /// What the conditions are made of, at `now`.
    pub(crate) fn conditions(&self, now: Instant) -> NodeConditionsInput {
        let known = self.lock();
        let failed = known.checks.iter().filter_map(|(name, check)| {
            check().err().map(|error| format!("{name} is not healthy: {error}"))
        });
        let mut ready_errors = known.health.errors(now, failed);
        ready_errors.extend(known.storage_error.clone());
        ready_errors.extend(known.shutting_down.then(|| "node is shutting down".to_owned()));
        NodeConditionsInput {
            pressure: known.pressure,
            ready_errors,
            soft_requirements: known.soft_requirements.clone(),
        }
    }

    /// The node is shutting down.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.lock().shutting_down
    }

    /// When the runtime will count as down if it is not heard of before; none if it does already.
    pub(crate) fn runtime_down_at(&self, now: Instant) -> Option<Instant> {
        self.lock().health.ready_at.map(|at| at + DOWN_AFTER).filter(|at| *at > now)
    }

    /// Waits for a change that the control plane should hear of at once. One waits at a time.
    pub(crate) async fn urgent(&self) {
        self.0.urgent.notified().await;
    }

    /// Changes what is known; `apply` says whether that is urgent.
    fn change(&self, apply: impl FnOnce(&mut Known) -> bool) {
        let is_urgent = apply(&mut self.lock());
        if is_urgent {
            self.0.urgent.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Every change is complete before anything can panic.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets `place`; whether that changed it.
fn replace<T: PartialEq>(place: &mut T, value: T) -> bool {
    let changed = *place != value;
    *place = value;
    changed
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_woken(inputs: &NodeInputs) -> bool {
        pin!(inputs.urgent()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn changes_wake_and_repetitions_do_not() {
        let inputs = NodeInputs::new();
        assert!(!is_woken(&inputs));
        inputs.set_pressure(NodePressure { disk: true, ..NodePressure::default() });
        assert!(is_woken(&inputs));
        inputs.set_pressure(NodePressure { disk: true, ..NodePressure::default() });
        inputs.set_shutting_down(false);
        inputs.set_images(vec![v1::Image::default()]);
        assert!(!is_woken(&inputs));
        inputs.set_runtime_version("containerd", "v2.1.4");
        assert!(is_woken(&inputs));
    }

    #[test]
    fn images_are_the_largest_first_with_digests_before_tags() {
        let inputs = NodeInputs::new();
        let image = |id: &str, size: u64| v1::Image {
            id: id.to_owned(),
            repo_tags: vec![format!("{id}:1")],
            repo_digests: vec![format!("{id}@sha256:1")],
            size,
            ..v1::Image::default()
        };
        inputs.set_images(vec![image("a", 1), image("b", 3), image("c", 3)]);
        let images = inputs.pieces().images;
        let ids: Vec<&str> = images.iter().map(|image| image.id.as_str()).collect();
        assert_eq!(ids, ["c", "b", "a"]);
        assert_eq!(images[0].names, ["c@sha256:1", "c:1"]);
    }

    #[test]
    fn reasons_for_not_being_ready_stand_in_upstreams_order() {
        let inputs = NodeInputs::new();
        inputs.add_health_check("PLEG", || Err("pleg has yet to be successful".to_owned()));
        inputs.set_storage_error(Some("CSINode is not yet initialized".to_owned()));
        inputs.set_shutting_down(true);
        assert_eq!(
            inputs.conditions(Instant::now()).ready_errors,
            [
                "container runtime status check may not have completed yet",
                "PLEG is not healthy: pleg has yet to be successful",
                "network state unknown",
                "CSINode is not yet initialized",
                "node is shutting down",
            ]
        );
    }
}
