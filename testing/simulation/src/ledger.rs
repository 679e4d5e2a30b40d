//! The book that is kept of a history: what was done, what happened, and what was wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet::KubeletView;
use rubelet_cri::{Rpc, v1};
use rubelet_fake_apiserver::FakeApiServer;
use rubelet_fake_cri::{ContainerChange, FakeRuntime, FaultAction, Happening, SandboxChange};
use rubelet_pod_lifecycle::Stage;
use rubelet_types::{
    Clock, PodUid, container_restarts_after, find_container, pod_restart_policy, reasons,
};

use tokio::sync::Notify;

use crate::machine::WallClock;
use crate::pods::{LIVENESS, Origin, POST_START, PRE_STOP, STARTUP};

/// A kubelet that is not troubled sees within this time what happened to a pod.
pub(crate) const SEEN_WITHIN: Duration = Duration::from_secs(30);
/// The longest deadline of a call, and then some.
const LONGEST_CALL: Duration = Duration::from_secs(300);
/// So many calls within no time at all are a loop that nobody ends.
const MOST_CALLS_AT_ONCE: u32 = 2000;

/// What the world knows of a pod.
#[derive(Debug)]
pub(crate) struct PodRecord {
    pub(crate) pod: Pod,
    pub(crate) origin: Origin,
    /// A source lists it.
    pub(crate) wanted: bool,
    /// Its containers run until somebody ends them, and every probe succeeds unless told to fail.
    pub(crate) is_steady: bool,
    /// When a source began to list it.
    pub(crate) added: Duration,
    /// It was to go, and is listed again: when it is gone, its life begins anew.
    pub(crate) revived: bool,
    /// Since when it is to go.
    pub(crate) leaving: Option<Duration>,
    /// Containers whose image was changed, or their resources in a way that restarts them, by name.
    pub(crate) changed: BTreeSet<String>,
    /// A call that may have its effect late was about it.
    pub(crate) muddled: bool,
    /// Until then calls about it may have hung, or have not been answered.
    pub(crate) troubled: Duration,
    /// When something last happened to it that may cost its readiness.
    pub(crate) disturbed: Duration,
    /// A sandbox was asked for.
    pub(crate) begun: bool,
    /// When its containers began to be stopped, unless one was started since.
    pub(crate) stop_began: Option<Duration>,
    /// How far the kubelet said that it was: life of the kubelet, and stage.
    pub(crate) stage: Option<(u32, Stage)>,
    pub(crate) ready: bool,
    pub(crate) phase: Option<String>,
    pub(crate) restart_counts: BTreeMap<String, i32>,
    /// The status that the kubelet holds, and since when.
    pub(crate) said: Option<(PodStatus, Duration)>,
    /// Since when the status stood that was found at the API server, and at which revision it was.
    pub(crate) found: Option<(Duration, u64)>,
}

impl PodRecord {
    /// Nothing of what was said of it counts any more.
    pub(crate) fn begin_anew(&mut self) {
        self.revived = false;
        self.ready = false;
        self.phase = None;
        self.restart_counts.clear();
    }

    /// A kubelet that starts knows of it what the API server was told, which may be less than the one
    /// before it knew.
    pub(crate) fn remembered(&mut self, status: Option<&PodStatus>) {
        self.phase = status.and_then(|status| status.phase.clone());
        self.ready = status.is_some_and(is_ready);
        self.restart_counts = status.into_iter().flat_map(restart_counts).collect();
    }

    /// A source lists it, and nobody has asked for its end.
    pub(crate) fn is_to_run(&self) -> bool {
        self.wanted && self.pod.metadata.deletion_timestamp.is_none()
    }
}

/// Whether a status says that the pod is ready.
pub(crate) fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// How often containers were started again, by a status.
pub(crate) fn restart_counts(status: &PodStatus) -> impl Iterator<Item = (String, i32)> {
    [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .map(|container| (container.name.clone(), container.restart_count))
}

/// What is known of an instance of a container.
#[derive(Debug)]
pub(crate) struct InstanceRecord {
    pub(crate) pod: String,
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) has_started: bool,
    /// When the kubelet began to stop it: its hook runs, or it has had its signal.
    pub(crate) stop_began: Option<Duration>,
    pub(crate) exit_code: Option<i32>,
    /// Probes and hooks that failed in it, or could not be run.
    pub(crate) failed: BTreeSet<String>,
}

/// The book.
pub(crate) struct Ledger {
    pub(crate) wall: WallClock,
    pub(crate) clock: Clock,
    pub(crate) runtime: Option<FakeRuntime>,
    /// The API server, if the node has a cluster.
    pub(crate) server: Option<FakeApiServer>,
    /// From then on nothing is left of what was wrong with the API server.
    pub(crate) api_clear: Duration,
    /// For so long requests may suffer after what is wrong with the API server now is mended.
    pub(crate) api_lingers: Duration,
    pub(crate) lines: Vec<String>,
    pub(crate) violations: Vec<String>,
    pub(crate) is_verbose: bool,
    pub(crate) pods: BTreeMap<String, PodRecord>,
    pub(crate) instances: BTreeMap<String, InstanceRecord>,
    /// The kubelet that lives, and its number.
    pub(crate) view: Option<KubeletView>,
    pub(crate) life: u32,
    /// Until then calls of the kubelet that are about no pod may have hung, or have not been answered.
    pub(crate) troubled: Duration,
    /// What keeps the kubelet from making any progress now, and since when.
    pub(crate) hindrances: BTreeMap<Hindrance, Duration>,
    /// When the last hindrance was gone.
    pub(crate) unhindered: Duration,
    /// Until when each start of something that hangs or takes long may occupy the kubelet.
    pub(crate) slow_starts: Vec<Duration>,
    /// Dies at the so many-th call from now.
    pub(crate) crash_in: Option<u32>,
    pub(crate) crash_due: bool,
    /// How many calls there were at this moment.
    calls_at: (Duration, u32),
    /// Calls that change something, about each pod.
    pub(crate) changes: BTreeMap<String, u32>,
}

/// What the world does to a node so that nothing goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hindrance {
    KubeletGone,
    RuntimeDown,
    NetworkDown,
    ApiServerAway,
    ApiServerFails,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("violations", &self.violations).finish_non_exhaustive()
    }
}

/// A handle to the book.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    ledger: Arc<Mutex<Ledger>>,
    /// Somebody has to look at once.
    urgent: Arc<Notify>,
}

impl Book {
    pub(crate) fn new(wall: WallClock, is_verbose: bool) -> Self {
        let ledger = Ledger {
            clock: wall.clock(),
            wall,
            runtime: None,
            server: None,
            api_clear: Duration::ZERO,
            api_lingers: Duration::ZERO,
            lines: Vec::new(),
            violations: Vec::new(),
            is_verbose,
            pods: BTreeMap::new(),
            instances: BTreeMap::new(),
            view: None,
            life: 0,
            troubled: Duration::ZERO,
            hindrances: BTreeMap::from([(Hindrance::KubeletGone, Duration::ZERO)]),
            unhindered: Duration::ZERO,
            slow_starts: Vec::new(),
            crash_in: None,
            crash_due: false,
            calls_at: (Duration::ZERO, 0),
            changes: BTreeMap::new(),
        };
        Self { ledger: Arc::new(Mutex::new(ledger)), urgent: Arc::default() }
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_runtime(&self, runtime: FakeRuntime) {
        self.open().runtime = Some(runtime);
    }

    pub(crate) fn note(&self, line: impl Into<String>) {
        self.open().note(line);
    }

    pub(crate) fn violation(&self, text: impl Into<String>) {
        self.open().violation(text);
    }

    pub(crate) fn happened(&self, happening: &Happening) {
        let is_urgent = {
            let mut ledger = self.open();
            ledger.happened(happening);
            ledger.crash_due || !ledger.violations.is_empty()
        };
        if is_urgent {
            self.urgent.notify_one();
        }
    }

    /// Waits until somebody has to look at once.
    pub(crate) async fn urgent(&self) {
        self.urgent.notified().await;
    }

    pub(crate) fn hinder(&self, by: Hindrance) {
        let mut ledger = self.open();
        let now = ledger.wall.elapsed();
        ledger.hindrances.entry(by).or_insert(now);
    }

    pub(crate) fn unhinder(&self, by: Hindrance) {
        self.open().unhinder(by);
    }

    /// Checks what the kubelet says against what is.
    pub(crate) fn check(&self) {
        self.open().check();
    }
}

pub(crate) fn short(id: &str) -> &str {
    if id.len() == 64 { &id[..8] } else { id }
}

impl Ledger {
    pub(crate) fn note(&mut self, line: impl Into<String>) {
        let at = self.wall.elapsed().as_millis();
        let line = format!("{:>6}.{:03} {}", at / 1000, at % 1000, line.into());
        if self.is_verbose {
            show(&line);
        }
        self.lines.push(line);
    }

    pub(crate) fn violation(&mut self, text: impl Into<String>) {
        let text = text.into();
        if self.violations.contains(&text) {
            return;
        }
        self.note(format!("VIOLATION {text}"));
        self.violations.push(text);
    }

    pub(crate) fn add_pod(&mut self, pod: Pod, origin: Origin, is_steady: bool) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let now = self.wall.elapsed();
        match self.pods.get_mut(&uid) {
            // The same manifest again.
            Some(record) => {
                record.wanted = true;
                record.added = now;
                record.leaving = None;
                record.revived = true;
                record.begun = false;
                record.disturbed = now;
            }
            None => {
                let record = PodRecord {
                    pod,
                    origin,
                    wanted: true,
                    is_steady,
                    added: now,
                    revived: false,
                    leaving: None,
                    changed: BTreeSet::new(),
                    muddled: false,
                    troubled: Duration::ZERO,
                    disturbed: now,
                    begun: false,
                    stop_began: None,
                    stage: None,
                    ready: false,
                    phase: None,
                    restart_counts: BTreeMap::new(),
                    said: None,
                    found: None,
                };
                self.pods.insert(uid, record);
            }
        }
    }

    pub(crate) fn stage_of(&self, uid: &str) -> Option<Stage> {
        let workers = self.view.as_ref()?.workers();
        workers.into_iter().find(|worker| worker.pod.uid.as_str() == uid).map(|w| w.stage)
    }

    fn happened(&mut self, happening: &Happening) {
        match happening {
            Happening::Call { rpc, about } => self.called(*rpc, about),
            Happening::Fault { rpc, about, action } => self.struck(*rpc, about, action),
            Happening::Sandbox { id, pod_uid, change } => {
                self.note(format!("  sandbox {} of {pod_uid}: {change:?}", short(id)));
                let now = self.wall.elapsed();
                if let Some(record) = self.pods.get_mut(pod_uid) {
                    record.disturbed = now;
                    if *change == SandboxChange::Ready {
                        record.stop_began = None;
                    }
                }
            }
            Happening::Container { id, pod_uid, name, change } => {
                self.note(format!("  container {name} ({}) of {pod_uid}: {change:?}", short(id)));
                self.container_changed(id, pod_uid, name, *change);
            }
            Happening::Exec { id, command, exit_code } => {
                if *exit_code != Some(0) {
                    self.exec_failed(id, command.first().map_or("", String::as_str));
                }
            }
        }
    }

    fn uid_among(&self, about: &[String]) -> Option<String> {
        about.iter().find(|subject| self.pods.contains_key(*subject)).cloned()
    }

    fn called(&mut self, rpc: Rpc, about: &[String]) {
        if let Some(left) = &mut self.crash_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.crash_in = None;
                self.crash_due = true;
            }
        }
        let now = self.wall.elapsed();
        let at_once = if self.calls_at.0 == now { self.calls_at.1 + 1 } else { 1 };
        self.calls_at = (now, at_once);
        if at_once == MOST_CALLS_AT_ONCE {
            self.violation(format!(
                "I5: {MOST_CALLS_AT_ONCE} calls in no time, the last was {rpc}"
            ));
        }
        if rpc == Rpc::ExecSync {
            let is_pre_stop = about.iter().any(|word| word == PRE_STOP);
            let running = about.iter().find(|id| self.is_running(id)).cloned();
            if let Some(id) = running.filter(|_| is_pre_stop) {
                self.stop_asked(rpc, &id);
            }
        }
        let is_quiet = matches!(
            rpc,
            Rpc::Version
                | Rpc::Status
                | Rpc::ListPodSandbox
                | Rpc::ListContainers
                | Rpc::PodSandboxStatus
                | Rpc::ContainerStatus
                | Rpc::ImageStatus
                | Rpc::ExecSync
                | Rpc::GetContainerEvents
        );
        if !is_quiet {
            let about: Vec<&str> = about.iter().map(|subject| short(subject)).collect();
            self.note(format!("> {rpc} {}", about.join(" ")));
        }
        let Some(uid) = self.uid_among(about) else { return };
        if !is_quiet {
            *self.changes.entry(uid.clone()).or_default() += 1;
        }
        if rpc == Rpc::RunPodSandbox
            && let Some(record) = self.pods.get_mut(&uid)
        {
            record.begun = true;
        }
        match rpc {
            Rpc::RunPodSandbox | Rpc::CreateContainer | Rpc::StartContainer => {
                self.check_creation(rpc, &uid);
            }
            Rpc::StopContainer | Rpc::RemoveContainer => {
                let running: Vec<String> =
                    about.iter().filter(|id| self.is_running(id)).cloned().collect();
                for id in running {
                    self.stop_asked(rpc, &id);
                }
            }
            Rpc::StopPodSandbox | Rpc::RemovePodSandbox => {
                let running: Vec<String> = self.running_in(about);
                let muddled = self.pods.get(&uid).is_some_and(|record| record.muddled);
                if !running.is_empty() && !muddled {
                    let names: Vec<&str> = running.iter().map(|id| short(id)).collect();
                    self.violation(format!("{rpc} of {uid} under running {}", names.join(", ")));
                }
                for id in running {
                    self.stop_asked(rpc, &id);
                }
            }
            _ => {}
        }
    }

    fn is_running(&self, id: &str) -> bool {
        self.instances
            .get(id)
            .is_some_and(|instance| instance.has_started && instance.exit_code.is_none())
    }

    /// Running containers in the sandbox that is among `about`.
    fn running_in(&self, about: &[String]) -> Vec<String> {
        let Some(runtime) = &self.runtime else { return Vec::new() };
        runtime
            .inventory()
            .containers
            .into_iter()
            .filter(|container| about.contains(&container.sandbox_id))
            .filter(|container| container.state == v1::ContainerState::ContainerRunning)
            .map(|container| container.id)
            .collect()
    }

    fn stop_asked(&mut self, rpc: Rpc, id: &str) {
        let now = self.wall.elapsed();
        let Some(instance) = self.instances.get_mut(id) else { return };
        let is_first = instance.stop_began.is_none();
        instance.stop_began.get_or_insert(now);
        let (uid, name) = (instance.pod.clone(), instance.name.clone());
        if let Some(record) = self.pods.get_mut(&uid) {
            record.disturbed = now;
            record.stop_began.get_or_insert(now);
        }
        if is_first && !self.has_cause(id) {
            self.violation(format!("{rpc} of {name} ({}) of {uid} without a cause", short(id)));
        }
    }

    fn unhinder(&mut self, by: Hindrance) {
        let Some(since) = self.hindrances.remove(&by) else { return };
        let now = self.wall.elapsed();
        self.unhindered = now;
        // What happened to a pod meanwhile, or was not seen before, is seen only now.
        for record in self.pods.values_mut() {
            if record.disturbed + SEEN_WITHIN >= since {
                record.disturbed = now;
            }
        }
    }

    /// The API server is, or becomes, as it should be.
    pub(crate) fn api_recovers(&mut self) {
        let clear = self.wall.elapsed() + std::mem::take(&mut self.api_lingers);
        self.api_clear = self.api_clear.max(clear);
    }

    /// For this long the kubelet sees less than there is.
    pub(crate) fn troubled_for(&mut self, time: Duration) {
        self.troubled = self.troubled.max(self.wall.elapsed() + time);
    }

    fn struck(&mut self, rpc: Rpc, about: &[String], action: &FaultAction) {
        let now = self.wall.elapsed();
        let lasts = match action {
            FaultAction::Error(..) => Duration::ZERO,
            FaultAction::Delay(time) => *time,
            // The longest of the deadlines of calls, and some tries.
            FaultAction::Hang => LONGEST_CALL,
            FaultAction::Crash { back_after } => {
                self.runtime_died();
                self.troubled_for(back_after.unwrap_or_default());
                Duration::ZERO
            }
        };
        match self.uid_among(about).and_then(|uid| self.pods.get_mut(&uid)) {
            // I13: it is nobody else's trouble.
            Some(record) => record.troubled = record.troubled.max(now + lasts),
            None => self.troubled_for(lasts),
        }
        let short_about: Vec<&str> = about.iter().map(|subject| short(subject)).collect();
        self.note(format!("! {rpc} {}: {action:?}", short_about.join(" ")));
        if rpc == Rpc::ExecSync {
            // Whether it counts as a failure of the probe depends on how it fails; it may.
            for id in about {
                for command in [LIVENESS, STARTUP, POST_START] {
                    self.exec_failed(id, command);
                }
            }
        }
        let is_late = !matches!(action, FaultAction::Error(..));
        let starts = matches!(rpc, Rpc::RunPodSandbox | Rpc::CreateContainer | Rpc::StartContainer);
        if starts && is_late {
            self.slow_starts.push(now + lasts);
        }
        if starts
            && is_late
            && let Some(uid) = self.uid_among(about)
            && let Some(record) = self.pods.get_mut(&uid)
        {
            record.muddled = true;
        }
    }

    fn exec_failed(&mut self, id: &str, command: &str) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        instance.failed.insert(command.to_owned());
        let (uid, now) = (instance.pod.clone(), self.wall.elapsed());
        if let Some(record) = self.pods.get_mut(&uid) {
            record.disturbed = now;
        }
    }

    /// Hooks that run in containers fail with the call that runs them.
    pub(crate) fn runtime_died(&mut self) {
        for instance in self.instances.values_mut() {
            instance.failed.insert(POST_START.to_owned());
        }
    }

    fn container_changed(&mut self, id: &str, uid: &str, name: &str, change: ContainerChange) {
        let now = self.wall.elapsed();
        if let Some(record) = self.pods.get_mut(uid) {
            record.disturbed = now;
        }
        match change {
            ContainerChange::Created => {
                let image = self
                    .runtime
                    .as_ref()
                    .and_then(|runtime| {
                        let inventory = runtime.inventory();
                        let view = inventory.containers.into_iter().find(|c| c.id == id)?;
                        Some(view.config.image?.user_specified_image)
                    })
                    .unwrap_or_default();
                let instance = InstanceRecord {
                    pod: uid.to_owned(),
                    name: name.to_owned(),
                    image,
                    has_started: false,
                    stop_began: None,
                    exit_code: None,
                    failed: BTreeSet::new(),
                };
                self.instances.insert(id.to_owned(), instance);
            }
            ContainerChange::Started => {
                self.check_start(id, uid, name);
                if let Some(instance) = self.instances.get_mut(id) {
                    instance.has_started = true;
                }
                if let Some(record) = self.pods.get_mut(uid) {
                    record.stop_began = None;
                    record.changed.remove(name);
                }
            }
            ContainerChange::StopSignal => {}
            ContainerChange::KillSignal => self.check_grace(id, uid, name),
            ContainerChange::Exited(code) => {
                if let Some(instance) = self.instances.get_mut(id) {
                    instance.exit_code = Some(code);
                }
            }
            ContainerChange::Removed => {
                self.instances.remove(id);
            }
        }
    }

    /// What the kubelet last thought of a pod, for a report.
    pub(crate) fn decisions(&self, uid: &str) -> String {
        let mut text = String::new();
        let Some(view) = &self.view else { return text };
        for decision in view.decisions(&PodUid::new(uid)) {
            let _ = writeln!(
                text,
                "      {} {:?}: {} {:?}",
                decision.at,
                decision.stage,
                decision.because.join("; "),
                decision.actions
            );
        }
        text
    }

    /// Whether an end with this exit code was the last of a container.
    pub(crate) fn is_final(&self, uid: &str, name: &str, exit_code: i32) -> bool {
        let Some(record) = self.pods.get(uid) else { return true };
        let Some(spec) = find_container(&record.pod, name) else { return true };
        let policy = pod_restart_policy(&record.pod);
        let reason = (exit_code == 137).then_some(reasons::OOM_KILLED);
        !container_restarts_after(policy, spec.kind, &spec.container, exit_code, reason)
    }
}

#[allow(clippy::print_stderr)] // This is what a person asked to see.
fn show(line: &str) {
    eprintln!("{line}");
}
