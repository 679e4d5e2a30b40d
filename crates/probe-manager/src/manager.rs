use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_container_http::ProbeOutcome;
use rubelet_metrics::{Collector, Desc, Exposition};
use rubelet_types::{
    Clock, ContainerId, ContainerKind, EventObject, EventRecorder, PodRef, PodSnapshot, PodUid,
    ProbeKind, ProbeResult, ProbeUpdate, containers, is_terminal_phase, pod_ref,
};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info};

use crate::metrics::{self, DurationHistogram, ProbeMetrics};
use crate::probe_state::{CarriedOver, Next, ObservedInstance, ProbeSettings, ProbeState};
use crate::prober::{ProbeJob, ProbePort, needs_pod_ip, probe_of};
use crate::schedule::Schedule;
use crate::updates::{ProbeUpdates, UpdateSender, updates};

/// How many probes over the network are in flight at once.
const NETWORK_IN_FLIGHT: usize = 256;

/// How many commands are in flight at once. Each is a process of the runtime and one of the
/// container; those that hang hold their place until their time-out and nobody else's.
const EXEC_IN_FLIGHT: usize = 64;

/// How often an attempt that errors is made.
const ATTEMPTS: usize = 3;

/// All probes of all pods. Cheap to clone; the probes stop when the last clone is gone.
pub struct ProbeManager<P> {
    inner: Arc<Inner<P>>,
    _stop: Arc<DropGuard>,
}

impl<P> Clone for ProbeManager<P> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), _stop: self._stop.clone() }
    }
}

impl<P> fmt::Debug for ProbeManager<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeManager").field("pods", &self.inner.pods().pods.len()).finish()
    }
}

struct Inner<P> {
    prober: P,
    clock: Clock,
    events: EventRecorder,
    kubelet_started: Instant,
    updates: UpdateSender,
    network: Semaphore,
    exec: Semaphore,
    stop: CancellationToken,
    /// One lock for everything: it is held for microseconds, and never across an await.
    pods: Mutex<Pods>,
}

#[derive(Default)]
struct Pods {
    pods: HashMap<PodUid, PodProbes>,
    /// What earlier runs knew, by container.
    carried: HashMap<PodUid, HashMap<String, CarriedOver>>,
    /// Tells a task from the one it replaced.
    last_task: u64,
}

struct PodProbes {
    pod: Arc<Pod>,
    reference: PodRef,
    ip: String,
    probes: BTreeMap<ProbeKey, ContainerProbe>,
}

/// A probe within its pod.
type ProbeKey = (String, ProbeKind);

/// One probe: what it knows, when it is due, and the task that waits for that.
struct ContainerProbe {
    state: ProbeState,
    schedule: Schedule,
    due: Instant,
    /// Probe at once, once.
    triggered: bool,
    is_exec: bool,
    needs_pod_ip: bool,
    field_path: String,
    task: Option<ProbeTask>,
    successful: u64,
    failed: u64,
    durations: DurationHistogram,
}

/// The task of a probe that has something to do.
struct ProbeTask {
    number: u64,
    look_again: Arc<Notify>,
    _stop: DropGuard,
}

/// Where a task belongs.
#[derive(Clone)]
struct TaskKey {
    pod: PodUid,
    probe: ProbeKey,
    number: u64,
}

/// What a task does next.
enum Step {
    /// It is not needed any more.
    End,
    SleepUntil(Instant),
    Probe(Attempt),
}

struct Attempt {
    job: ProbeJob,
    due: Instant,
    is_exec: bool,
    event_object: EventObject,
}

impl<P: ProbePort> ProbeManager<P> {
    /// A manager without pods, and the changes it will report.
    ///
    /// `kubelet_started` is when the kubelet started: until one period after that, the first
    /// probes of a pod are spread at random over their period. Nothing runs before the first
    /// [`Self::set_pod`], which needs a tokio runtime around it.
    pub fn new(
        prober: P,
        clock: Clock,
        events: EventRecorder,
        kubelet_started: Instant,
    ) -> (Self, ProbeUpdates) {
        let (sender, receiver) = updates();
        let stop = CancellationToken::new();
        let inner = Arc::new(Inner {
            prober,
            clock,
            events,
            kubelet_started,
            updates: sender,
            network: Semaphore::new(NETWORK_IN_FLIGHT),
            exec: Semaphore::new(EXEC_IN_FLIGHT),
            stop: stop.clone(),
            pods: Mutex::default(),
        });
        (Self { inner, _stop: Arc::new(stop.drop_guard()) }, receiver)
    }

    /// Describes a pod as it is now; running it twice is harmless. `observed` is what the runtime
    /// holds of it, `ips` are its addresses, the primary one first (those of the node for a pod on
    /// the host's network).
    ///
    /// Probes begin, learn of new instances of their containers, and end accordingly; results are
    /// up to date when it returns. A pod being deleted gives up liveness and startup as
    /// [`Self::stop_liveness_and_startup`] does; one in a terminal phase is not probed at all.
    pub fn set_pod(&self, pod: &Arc<Pod>, observed: &PodSnapshot, ips: &[String]) {
        let reference = pod_ref(pod);
        let uid = reference.uid.clone();
        let now = Instant::now();
        let mut all = self.inner.pods();
        let carried = all.carried.get(&uid).cloned().unwrap_or_default();
        let entry = all.pods.entry(uid.clone()).or_insert_with(|| PodProbes {
            pod: pod.clone(),
            reference,
            ip: String::new(),
            probes: BTreeMap::new(),
        });
        entry.ip = ips.first().cloned().unwrap_or_default();
        if entry.probes.is_empty() || !Arc::ptr_eq(&entry.pod, pod) {
            entry.pod = pod.clone();
            entry.adopt_spec(|period| self.inner.first_due(now, period));
        }
        for ((container, kind), probe) in &mut entry.probes {
            let instance = observed.newest(container).map(ObservedInstance::from);
            let carried = carried.get(container);
            let began = probe.state.observe(instance, carried);
            // A container that has just begun is made ready as soon as it can be. One that was
            // there before this kubelet keeps to the schedule.
            probe.triggered |= began && carried.is_none() && *kind == ProbeKind::Readiness;
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if is_terminal_phase(phase) {
            entry.stop(|_| true);
        } else if pod.metadata.deletion_timestamp.is_some() {
            entry.stop(|kind| kind != ProbeKind::Readiness);
        }
        self.inner.run_what_is_due(&mut all, &uid);
    }

    /// Ends liveness and startup probes of a pod that terminates. From here on they count as
    /// passed; readiness goes on until [`Self::remove_pod`], so that the pod leaves its services
    /// when its containers say so.
    pub fn stop_liveness_and_startup(&self, pod: &PodUid) {
        if let Some(entry) = self.inner.pods().pods.get_mut(pod) {
            entry.stop(|kind| kind != ProbeKind::Readiness);
        }
    }

    /// Ends all probes of a pod and forgets their results.
    pub fn remove_pod(&self, pod: &PodUid) {
        let mut all = self.inner.pods();
        all.carried.remove(pod);
        all.pods.remove(pod);
    }

    /// Ends and forgets the probes of all pods but those that `keep` names.
    pub fn retain_pods(&self, mut keep: impl FnMut(&PodUid) -> bool) {
        let mut all = self.inner.pods();
        all.pods.retain(|pod, _| keep(pod));
        all.carried.retain(|pod, _| keep(pod));
    }

    /// Tells what the status of an earlier run of the kubelet said of a container that is still
    /// the same instance. It holds until a probe settles; a startup probe that had succeeded is
    /// not run again. Best called before the pod's first [`Self::set_pod`].
    pub fn carry_over(
        &self,
        pod: &PodUid,
        container: &str,
        container_id: &ContainerId,
        ready: bool,
        started: bool,
    ) {
        let carried = CarriedOver { id: container_id.clone(), ready, started };
        let mut all = self.inner.pods();
        if let Some(entry) = all.pods.get_mut(pod) {
            for ((name, _), probe) in &mut entry.probes {
                if name == container {
                    probe.state.carry_over(&carried);
                }
            }
        }
        all.carried.entry(pod.clone()).or_default().insert(container.to_owned(), carried);
        self.inner.run_what_is_due(&mut all, pod);
    }

    /// The result of a probe for one container instance: settled, initial, or carried over.
    ///
    /// None if there is no such probe, or if the instance was not seen by [`Self::set_pod`] yet.
    /// A container is started if its startup probe is `Success` here or it has none, and ready
    /// if moreover the same is true of its readiness probe.
    pub fn result(
        &self,
        pod: &PodUid,
        container: &str,
        container_id: &ContainerId,
        kind: ProbeKind,
    ) -> Option<ProbeResult> {
        let all = self.inner.pods();
        let probe = all.pods.get(pod)?.probes.get(&(container.to_owned(), kind))?;
        probe.state.result(container_id)
    }

    /// Runs the readiness probes of a pod at once, where they can run and have not succeeded; their
    /// periods count from now on. For whoever has just computed a status that is not ready.
    pub fn trigger_readiness(&self, pod: &PodUid) {
        let mut all = self.inner.pods();
        if let Some(entry) = all.pods.get_mut(pod) {
            for ((_, kind), probe) in &mut entry.probes {
                if *kind == ProbeKind::Readiness
                    && probe.state.current_result() == Some(ProbeResult::Failure)
                {
                    probe.triggered = true;
                }
            }
        }
        self.inner.run_what_is_due(&mut all, pod);
    }

    /// What was counted of every probe that exists.
    pub fn metrics(&self) -> Vec<ProbeMetrics> {
        let all = self.inner.pods();
        let of_pod = |entry: &PodProbes| -> Vec<ProbeMetrics> {
            let probes = entry.probes.iter();
            probes
                .map(|((container, kind), probe)| ProbeMetrics {
                    pod: entry.reference.clone(),
                    container: container.clone(),
                    kind: *kind,
                    successful: probe.successful,
                    failed: probe.failed,
                    durations: probe.durations,
                })
                .collect()
        };
        all.pods.values().flat_map(of_pod).collect()
    }

    /// How many probes have a task at the moment: those that have something to do.
    pub fn active_probes(&self) -> usize {
        let all = self.inner.pods();
        let probes = all.pods.values().flat_map(|entry| entry.probes.values());
        probes.filter(|probe| probe.task.is_some()).count()
    }
}

/// What was counted of every probe that exists: its series go with the pod.
impl<P: ProbePort> Collector for ProbeManager<P> {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&metrics::PROBES, &metrics::DURATION]
    }

    fn collect(&self, to: &mut Exposition) {
        metrics::write(&self.metrics(), to);
    }
}

impl PodProbes {
    /// Makes the probes those of the spec. A probe that stays keeps all it knows.
    fn adopt_spec(&mut self, first_due: impl Fn(Duration) -> Instant) {
        let mut before = std::mem::take(&mut self.probes);
        for spec in containers(&self.pod) {
            if !matches!(spec.kind, ContainerKind::Regular | ContainerKind::Sidecar) {
                continue;
            }
            for kind in [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness] {
                let Some(probe) = probe_of(&spec.container, kind) else { continue };
                let key = (spec.container.name.clone(), kind);
                let settings = ProbeSettings::new(probe);
                let mut it = before.remove(&key).unwrap_or_else(|| {
                    let due = first_due(settings.period);
                    ContainerProbe {
                        state: ProbeState::new(kind, settings),
                        schedule: Schedule::new(due, settings.period),
                        due,
                        triggered: false,
                        is_exec: false,
                        needs_pod_ip: false,
                        field_path: spec.field_path(),
                        task: None,
                        successful: 0,
                        failed: 0,
                        durations: DurationHistogram::default(),
                    }
                });
                if it.state.settings().period != settings.period {
                    it.schedule = Schedule::new(it.due, settings.period);
                }
                it.state.set_settings(settings);
                it.is_exec = probe.exec.is_some();
                it.needs_pod_ip = needs_pod_ip(probe);
                self.probes.insert(key, it);
            }
        }
    }

    fn stop(&mut self, which: impl Fn(ProbeKind) -> bool) {
        for ((_, kind), probe) in &mut self.probes {
            if which(*kind) {
                probe.state.stop();
                probe.task = None;
            }
        }
    }

    /// The container `name`, as instance `id`, has no startup probe, or it has succeeded.
    fn is_started(&self, name: &str) -> bool {
        let startup = self.probes.get(&(name.to_owned(), ProbeKind::Startup));
        startup.is_none_or(|probe| probe.state.current_result() == Some(ProbeResult::Success))
    }

    /// What the probe `key` has to do next.
    fn next(&self, key: &ProbeKey, probe: &ContainerProbe, clock: &Clock) -> Next {
        match probe.state.next(self.is_started(&key.0), clock.now()) {
            // Without an address there is nobody to ask; one is about to come.
            Next::Probe(_) if probe.needs_pod_ip && self.ip.is_empty() => Next::Wait,
            next => next,
        }
    }
}

impl<P> Inner<P> {
    fn pods(&self) -> MutexGuard<'_, Pods> {
        // Nothing panics while it is held, so what a panic elsewhere left is whole.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: ProbePort> Inner<P> {
    /// When a probe that comes to be at `now` is due for the first time. After a restart of the
    /// kubelet all pods come at once; their probes should not.
    fn first_due(&self, now: Instant, period: Duration) -> Instant {
        if now.saturating_duration_since(self.kubelet_started) < period {
            now + period.mul_f64(rand::random::<f64>())
        } else {
            now
        }
    }

    /// Sees to it that each probe of the pod that has something to do has a task, and that this
    /// looks again.
    fn run_what_is_due(self: &Arc<Self>, all: &mut Pods, uid: &PodUid) {
        let Pods { pods, last_task, .. } = all;
        let Some(entry) = pods.get_mut(uid) else { return };
        let now = Instant::now();
        let busy: Vec<ProbeKey> = entry
            .probes
            .iter()
            .filter(|(key, probe)| entry.next(key, probe, &self.clock) != Next::Idle)
            .map(|(key, _)| key.clone())
            .collect();
        for (key, probe) in &mut entry.probes {
            if let Some(task) = &probe.task {
                task.look_again.notify_one();
            } else if busy.contains(key) {
                *last_task += 1;
                probe.due = probe.schedule.at_or_after(now);
                let look_again = Arc::new(Notify::new());
                let stop = self.stop.child_token();
                let task = TaskKey { pod: uid.clone(), probe: key.clone(), number: *last_task };
                tokio::spawn(run(self.clone(), task, look_again.clone(), stop.clone()));
                probe.task =
                    Some(ProbeTask { number: *last_task, look_again, _stop: stop.drop_guard() });
            }
        }
    }

    /// Decides what the task `key` does next.
    fn step(&self, key: &TaskKey) -> Step {
        let mut all = self.pods();
        let now = Instant::now();
        let Some(entry) = all.pods.get_mut(&key.pod) else { return Step::End };
        let Some(probe) = entry.probes.get(&key.probe) else { return Step::End };
        if probe.task.as_ref().is_none_or(|task| task.number != key.number) {
            return Step::End;
        }
        let next = entry.next(&key.probe, probe, &self.clock);
        let (pod, reference, ip) = (entry.pod.clone(), entry.reference.clone(), entry.ip.clone());
        let Some(probe) = entry.probes.get_mut(&key.probe) else { return Step::End };
        let triggered = std::mem::take(&mut probe.triggered);
        match next {
            Next::Idle => {
                probe.task = None;
                Step::End
            }
            Next::Wait => {
                if probe.due <= now {
                    probe.due = probe.schedule.at_or_after(now + Duration::from_nanos(1));
                }
                Step::SleepUntil(probe.due)
            }
            Next::Probe(container_id) => {
                let is_ready = probe.state.current_result() == Some(ProbeResult::Success);
                if triggered && !is_ready {
                    let period = probe.state.settings().period;
                    probe.schedule = Schedule::new(now, period);
                    probe.due = now;
                }
                if probe.due > now {
                    return Step::SleepUntil(probe.due);
                }
                Step::Probe(Attempt {
                    job: ProbeJob {
                        pod,
                        container: key.probe.0.clone(),
                        kind: key.probe.1,
                        container_id,
                        pod_ip: ip,
                    },
                    due: probe.due,
                    is_exec: probe.is_exec,
                    event_object: EventObject::Container {
                        pod: reference,
                        field_path: probe.field_path.clone(),
                    },
                })
            }
        }
    }

    /// Makes one attempt, again if it errors. Tells users what they should know. None if nothing
    /// was learned.
    async fn attempt(&self, attempt: &Attempt) -> Option<(bool, Duration)> {
        let limit = if attempt.is_exec { &self.exec } else { &self.network };
        let _place = limit.acquire().await.ok()?;
        let begun = Instant::now();
        let mut outcome = self.prober.attempt(&attempt.job).await;
        for _ in 1..ATTEMPTS {
            if !matches!(outcome, ProbeOutcome::Error { .. }) {
                break;
            }
            outcome = self.prober.attempt(&attempt.job).await;
        }
        let took = begun.elapsed();
        let kind = attempt.job.kind;
        let warn = |reason, message| {
            self.events.warning(attempt.event_object.clone(), reason, message);
        };
        debug!(
            container = %attempt.job.container, id = %attempt.job.container_id, %kind, ?outcome,
            "probed"
        );
        match outcome {
            ProbeOutcome::Success(_) => Some((true, took)),
            ProbeOutcome::Warning(output) => {
                warn("ProbeWarning", format!("{kind} probe warning: {output}"));
                Some((true, took))
            }
            ProbeOutcome::Failure(output) => {
                warn("Unhealthy", format!("{kind} probe failed: {output}"));
                Some((false, took))
            }
            ProbeOutcome::Error { state, message } => {
                let message =
                    format!("{kind} probe errored and resulted in {state} state: {message}");
                warn("Unhealthy", message);
                None
            }
        }
    }

    /// Takes over what came of an attempt.
    fn conclude(
        self: &Arc<Self>,
        key: &TaskKey,
        attempt: &Attempt,
        learned: Option<(bool, Duration)>,
    ) {
        let mut all = self.pods();
        let Some(entry) = all.pods.get_mut(&key.pod) else { return };
        let Some(probe) = entry.probes.get_mut(&key.probe) else { return };
        if probe.task.as_ref().is_none_or(|task| task.number != key.number) {
            return;
        }
        probe.due = probe.schedule.following(attempt.due, Instant::now());
        let Some((success, took)) = learned else { return };
        if success {
            probe.successful += 1;
            probe.durations.observe(took);
        } else {
            probe.failed += 1;
        }
        let id = &attempt.job.container_id;
        let Some(result) = probe.state.record(id, success) else { return };
        let (container, kind) = key.probe.clone();
        info!(pod = %entry.reference, container, %id, %kind, ?result, "probe result changed");
        if kind == ProbeKind::Startup && result == ProbeResult::Success {
            let readiness = (container.clone(), ProbeKind::Readiness);
            if let Some(readiness) = entry.probes.get_mut(&readiness) {
                readiness.triggered = true;
            }
            self.run_what_is_due(&mut all, &key.pod);
        }
        drop(all);
        self.updates.send(ProbeUpdate {
            pod: key.pod.clone(),
            container,
            container_id: id.clone(),
            kind,
            result,
        });
    }
}

/// Runs one probe for as long as it has something to do.
async fn run<P: ProbePort>(
    inner: Arc<Inner<P>>,
    key: TaskKey,
    look_again: Arc<Notify>,
    stop: CancellationToken,
) {
    loop {
        match inner.step(&key) {
            Step::End => return,
            Step::SleepUntil(due) => tokio::select! {
                () = sleep_until(due) => {}
                () = look_again.notified() => {}
                () = stop.cancelled() => return,
            },
            Step::Probe(attempt) => {
                // Boxed, so that a sleeping probe does not hold the room of one in flight.
                let learned = stop.run_until_cancelled(Box::pin(inner.attempt(&attempt))).await;
                let Some(learned) = learned else { return };
                inner.conclude(&key, &attempt, learned);
            }
        }
    }
}
