use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use jiff::{SignedDuration, Timestamp};
use rubelet_pod_lifecycle::{
    Action, ActionFailure, ActionKey, ActionOutcome, Decision, Observed, PodEvent, PodState,
    ProbeLookup, Stage, decide,
};
use rubelet_types::{Clock, ContainerId, PodRef, PodSnapshot, ProbeKind, ProbeResult};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::mailbox::{Mailbox, Outcome};
use crate::metrics::WorkerMetrics;
use crate::port::{ActionOrder, PodPort, PodReport};
use crate::registry::{RecordedDecision, RunningAction, WorkerActivity, WorkerSummary};

/// Decisions kept of each pod, for whoever asks why.
const DECISIONS_KEPT: usize = 16;
/// A decision that asks for a stage asks again at once; more rounds than stages mean a fault.
const MAX_ROUNDS: usize = 8;
/// First and longest wait after a look at the runtime that failed.
const LOOK_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A difference between the wall clock and time that is taken for a step of the clock, not for its
/// being adjusted bit by bit.
const CLOCK_STEP: SignedDuration = SignedDuration::from_secs(1);

/// What others may see of a worker.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) summary: WorkerSummary,
    pub(crate) decisions: VecDeque<RecordedDecision>,
    pub(crate) activity: WorkerActivity,
}

/// An action in flight.
struct InFlight {
    generation: u64,
    cancel: CancellationToken,
    since: Timestamp,
}

/// What all workers share.
pub(crate) struct Surroundings<P> {
    /// Carries out their actions.
    pub(crate) port: Arc<P>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<WorkerMetrics>,
}

pub(crate) struct Worker<P> {
    state: PodState,
    is_orphan: bool,
    port: Arc<P>,
    clock: Clock,
    mailbox: Arc<Mailbox>,
    published: Arc<Mutex<Published>>,
    terminated: watch::Sender<bool>,
    metrics: Arc<WorkerMetrics>,
    /// What it has begun and not ended, for its duration: when, and what it was.
    sync: Option<(Instant, &'static str)>,
    /// It has brought its pod once to where it should be.
    is_created: bool,
    running: HashMap<ActionKey, InFlight>,
    generations: u64,
    /// The tasks of starts. A runtime gives a start up that nobody waits for any more.
    starts: JoinSet<()>,
    /// The tasks of all other actions, and of looks; they end with the worker.
    tasks: JoinSet<()>,
    look: Look,
    /// What the wall clock showed when, to notice that it was set.
    last_seen: (Timestamp, Instant),
    /// What was last told, so that events are told once.
    told_waiting: Vec<(String, Timestamp)>,
    told_problem: Option<(&'static str, String)>,
}

#[derive(Debug)]
enum Look {
    Idle { failures: u32 },
    InFlight { failures: u32 },
    Failed { failures: u32, retry_at: Timestamp },
}

struct Probes<'a, P> {
    port: &'a P,
    pod: &'a PodRef,
}

impl<P: PodPort> ProbeLookup for Probes<'_, P> {
    fn result(&self, name: &str, id: &ContainerId, kind: ProbeKind) -> Option<ProbeResult> {
        self.port.probe_result(&self.pod.uid, name, id, kind)
    }
}

impl<P: PodPort> Worker<P> {
    pub(crate) fn new(
        state: PodState,
        is_orphan: bool,
        surroundings: Surroundings<P>,
        mailbox: Arc<Mailbox>,
        published: Arc<Mutex<Published>>,
        terminated: watch::Sender<bool>,
    ) -> Self {
        let Surroundings { port, clock, metrics } = surroundings;
        if !is_orphan {
            let containers = state.pod().spec.as_ref().map_or(0, |spec| spec.containers.len());
            metrics.containers.observe_count(containers);
        }
        Self {
            state,
            is_orphan,
            port,
            mailbox,
            published,
            terminated,
            metrics,
            sync: None,
            is_created: false,
            running: HashMap::new(),
            generations: 0,
            starts: JoinSet::new(),
            tasks: JoinSet::new(),
            look: Look::Idle { failures: 0 },
            last_seen: (clock.now(), Instant::now()),
            told_waiting: Vec::new(),
            told_problem: None,
            clock,
        }
    }

    /// Works until nothing is left of the pod (true) or the kubelet shuts down (false).
    ///
    /// Boxed, because a future keeps what is moved into it once for each future around it: of a
    /// worker by value there were six in each pod's task, and nine kilobytes.
    pub(crate) async fn run(mut self: Box<Self>, finished: impl Fn(&PodRef)) -> bool {
        let mut told_finished = false;
        loop {
            let delivery = self.mailbox.take();
            if delivery.shutdown {
                self.finish_starts().await;
                return false;
            }
            self.notice_clock_set();
            let begun = Instant::now();
            let is_update =
                delivery.before.iter().any(|event| matches!(event, PodEvent::Updated(_)));
            self.take_in(delivery);
            let wake_at = self.step();
            self.time_sync(begun, is_update);
            self.publish_activity(wake_at);
            if self.state.stage().rank() >= 3 {
                self.terminated.send_replace(true);
            }
            if self.state.stage().rank() == 4 && !told_finished {
                told_finished = true;
                finished(self.state.pod_ref());
            }
            if self.state.can_be_forgotten() {
                return true;
            }
            self.wait(wake_at).await;
        }
    }

    /// A sync lasts until all that it began has ended.
    fn time_sync(&mut self, begun: Instant, is_update: bool) {
        let operation = match self.state.stage() {
            Stage::Terminating { .. } => "kill",
            Stage::Terminated { .. } | Stage::Finished { .. } => "terminated",
            Stage::Waiting | Stage::Syncing if !self.is_created => "create",
            Stage::Waiting | Stage::Syncing if is_update => "update",
            Stage::Waiting | Stage::Syncing => "sync",
        };
        if self.running.is_empty() && matches!(self.state.stage(), Stage::Waiting) {
            return;
        }
        let sync = self.sync.take().unwrap_or((begun, operation));
        if !self.running.is_empty() {
            self.sync = Some(sync);
            return;
        }
        self.is_created = true;
        let (begun, operation) = sync;
        self.metrics.duration.with([operation], |it| it.observe_duration(begun.elapsed()));
    }

    /// Ends what is under way, and waits for what would be lost by that: a container that is just
    /// being started would have to be started again, or, if its policy is never to restart, fail.
    async fn finish_starts(&mut self) {
        for action in self.running.values() {
            action.cancel.cancel();
        }
        self.tasks.abort_all();
        while self.starts.join_next().await.is_some() {}
    }

    async fn wait(&mut self, wake_at: Option<Timestamp>) {
        // What has ended has told so through the mailbox.
        while self.tasks.try_join_next().is_some() {}
        while self.starts.try_join_next().is_some() {}
        let Some(wake_at) = wake_at else { return self.mailbox.notified().await };
        let delay = Duration::try_from(wake_at.duration_since(self.clock.now()))
            .unwrap_or(Duration::ZERO)
            // Timers have millisecond grain: to wake just before the moment would spin.
            + Duration::from_millis(1);
        tokio::select! {
            () = self.mailbox.notified() => {}
            () = tokio::time::sleep(delay) => {}
        }
    }

    /// Whatever waits for a moment goes on to wait as long as it meant to when the wall clock is set.
    fn notice_clock_set(&mut self) {
        let (wall, now) = (self.clock.now(), Instant::now());
        let (wall_before, before) = std::mem::replace(&mut self.last_seen, (wall, now));
        let passed = SignedDuration::try_from(now.duration_since(before));
        let by = wall.duration_since(wall_before) - passed.unwrap_or(SignedDuration::ZERO);
        if by.abs() >= CLOCK_STEP {
            tracing::info!(pod = %self.state.pod_ref(), by = %by, "The wall clock was set");
            self.state.apply(PodEvent::ClockSet(by), wall);
            if let Look::Failed { retry_at, .. } = &mut self.look {
                *retry_at = wall;
            }
        }
    }

    fn take_in(&mut self, delivery: crate::mailbox::Delivery) {
        let now = self.clock.now();
        for event in delivery.before {
            self.state.apply(event, now);
        }
        for Outcome { key, generation, outcome, at } in delivery.outcomes {
            if self.running.get(&key).is_some_and(|running| running.generation == generation) {
                self.running.remove(&key);
                if let ActionOutcome::Failed(failure) = &outcome {
                    tracing::info!(pod = %self.state.pod_ref(), action = ?key, reason = failure.reason,
                        error = %failure.message, "Action failed");
                }
                // Not in the future, should the clock have been set back meanwhile.
                self.state.apply(PodEvent::ActionEnded(key, outcome), at.min(now));
            }
        }
        for event in delivery.after {
            let is_look = matches!(event, PodEvent::Observed(_));
            self.state.apply(event, now);
            if is_look {
                self.looked(now);
            }
        }
        if let Some(message) = delivery.look_failed {
            let failures = match self.look {
                Look::Idle { failures }
                | Look::InFlight { failures }
                | Look::Failed { failures, .. } => failures + 1,
            };
            let delay = (LOOK_RETRY.0 * 2u32.saturating_pow(failures.min(16))).min(LOOK_RETRY.1);
            let retry_at = now.checked_add(delay).unwrap_or(Timestamp::MAX);
            tracing::warn!(pod = %self.state.pod_ref(), error = %message,
                "Could not read the pod's state from the runtime");
            self.look = Look::Failed { failures, retry_at };
        }
    }

    /// A look that came too late to be of use is repeated at once, and the next one not so fast:
    /// whatever makes looks useless must not make the worker spin.
    fn looked(&mut self, now: Timestamp) {
        let is_fresh = self.state.fresh_snapshot().is_some();
        self.look = match self.look {
            _ if is_fresh => Look::Idle { failures: 0 },
            Look::InFlight { failures: 0 } => Look::Idle { failures: 1 },
            Look::InFlight { failures } => {
                let retry_at = now.checked_add(LOOK_RETRY.0).unwrap_or(Timestamp::MAX);
                Look::Failed { failures: failures + 1, retry_at }
            }
            // It was somebody else's look.
            Look::Idle { .. } | Look::Failed { .. } => return,
        };
    }

    /// Decides and begins what is due, until nothing more is due now.
    fn step(&mut self) -> Option<Timestamp> {
        for _ in 0..MAX_ROUNDS {
            let now = self.clock.now();
            let network = self.port.network();
            let pod_ref = self.state.pod_ref().clone();
            let probes = Probes { port: &*self.port, pod: &pod_ref };
            let due = self.port.resize_due(self.state.pod());
            let observed = Observed { probes: &probes, network: &network, resize: due.as_ref() };
            let decision = decide(&self.state, &observed, now);
            self.record(&decision, now);
            for key in &decision.cancel {
                self.cancel(key, now);
            }
            for action in &decision.actions {
                self.begin(action.clone(), now);
            }
            let mut wake_at = decision.wake_at;
            if decision.needs_snapshot {
                wake_at = earlier(wake_at, self.look_if_due(now));
            }
            self.report(&decision);
            let Some(stage) = decision.enter else { return wake_at };
            tracing::info!(pod = %self.state.pod_ref(), from = ?self.state.stage(), to = ?stage,
                because = decision.because.join("; "), "Pod enters stage");
            self.state.apply(PodEvent::Entered(stage), now);
        }
        tracing::error!(pod = %self.state.pod_ref(), "Decisions did not come to rest");
        self.clock.now().checked_add(Duration::from_secs(1)).ok()
    }

    fn cancel(&mut self, key: &ActionKey, now: Timestamp) {
        if let Some(InFlight { cancel: token, .. }) = self.running.get(key) {
            tracing::debug!(pod = %self.state.pod_ref(), action = ?key, "Cancelling action");
            token.cancel();
            self.state.apply(PodEvent::ActionCancelled(key.clone()), now);
        }
    }

    fn begin(&mut self, action: Action, now: Timestamp) {
        let key = action.key();
        self.generations += 1;
        let generation = self.generations;
        let token = CancellationToken::new();
        let in_flight = InFlight { generation, cancel: token.clone(), since: now };
        self.running.insert(key.clone(), in_flight);
        let snapshot = self.state.snapshot().cloned().unwrap_or_else(|| {
            PodSnapshot::empty(self.state.pod_ref().clone(), self.state.fresh_after())
        });
        self.state.apply(PodEvent::ActionStarted(action.clone()), now);
        tracing::debug!(pod = %self.state.pod_ref(), action = ?action, "Beginning action");
        let order = ActionOrder {
            pod_ref: self.state.pod_ref().clone(),
            pod: self.state.pod().clone(),
            snapshot: Arc::new(snapshot),
            action,
        };
        let (port, mailbox, clock) = (self.port.clone(), self.mailbox.clone(), self.clock.clone());
        let is_start = matches!(key, ActionKey::Start(_) | ActionKey::CreateSandbox);
        let tasks = if is_start { &mut self.starts } else { &mut self.tasks };
        tasks.spawn(async move {
            // A panic in an action is a failed action, not a worker that waits for ever.
            let outcome = AssertUnwindSafe(port.run(order, token))
                .catch_unwind()
                .await
                .unwrap_or_else(|_| {
                    ActionOutcome::Failed(ActionFailure {
                        reason: "",
                        message: "internal error: the action panicked".to_owned(),
                        retry_at: None,
                    })
                });
            mailbox.ended(Outcome { key, generation, outcome, at: clock.now() });
        });
    }

    fn look_if_due(&mut self, now: Timestamp) -> Option<Timestamp> {
        let failures = match self.look {
            Look::InFlight { .. } => return None,
            Look::Failed { retry_at, .. } if retry_at > now => return Some(retry_at),
            Look::Idle { failures } | Look::Failed { failures, .. } => failures,
        };
        self.look = Look::InFlight { failures };
        let (port, mailbox) = (self.port.clone(), self.mailbox.clone());
        let pod = self.state.pod_ref().clone();
        self.tasks.spawn(async move {
            match AssertUnwindSafe(port.look(&pod)).catch_unwind().await {
                Ok(Ok(snapshot)) => mailbox.observed(snapshot),
                Ok(Err(message)) => mailbox.look_failed(message),
                Err(_) => mailbox.look_failed("internal error: the look panicked".to_owned()),
            }
        });
        None
    }

    fn report(&mut self, decision: &Decision) {
        let new_back_offs: Vec<&str> = decision
            .waiting
            .iter()
            .filter(|waiting| {
                !self
                    .told_waiting
                    .iter()
                    .any(|(name, until)| *name == waiting.name && *until == waiting.until)
            })
            .map(|waiting| waiting.name.as_str())
            .collect();
        let new_problem = decision
            .problem
            .as_ref()
            .filter(|problem| self.told_problem.as_ref() != Some(*problem))
            .map(|(reason, message)| (*reason, message.as_str()));
        let mut failures: Vec<_> = self.state.start_failures().collect();
        failures.extend(
            decision.waiting.iter().map(|w| (w.name.as_str(), w.reason, w.message.as_str())),
        );
        self.port.report(&PodReport {
            pod_ref: self.state.pod_ref(),
            pod: self.state.pod(),
            stage: decision.enter.as_ref().unwrap_or(self.state.stage()),
            snapshot: self.state.fresh_snapshot(),
            restarting_all: self.state.restarting_all(),
            starting: self.state.starting().collect(),
            vanished: self.state.vanished().collect(),
            failures,
            new_back_offs,
            new_problem,
            is_orphan: self.is_orphan,
        });
        self.told_waiting =
            decision.waiting.iter().map(|waiting| (waiting.name.clone(), waiting.until)).collect();
        self.told_problem.clone_from(&decision.problem);
    }

    fn publish_activity(&self, wakes_at: Option<Timestamp>) {
        let mut actions: Vec<RunningAction> = self
            .running
            .iter()
            .map(|(key, running)| RunningAction {
                action: format!("{key:?}"),
                since: running.since,
            })
            .collect();
        actions.sort_by(|a, b| (a.since, &a.action).cmp(&(b.since, &b.action)));
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.activity = WorkerActivity { actions, wakes_at };
    }

    fn record(&self, decision: &Decision, now: Timestamp) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.summary = WorkerSummary {
            pod: self.state.pod_ref().clone(),
            stage: decision.enter.as_ref().unwrap_or(self.state.stage()).clone(),
            is_removed: self.state.is_removed(),
            is_orphan: self.is_orphan,
        };
        let same = published.decisions.back().is_some_and(|last| {
            last.because == decision.because && last.stage == *self.state.stage()
        });
        if same {
            return;
        }
        if published.decisions.len() >= DECISIONS_KEPT {
            published.decisions.pop_front();
        }
        published.decisions.push_back(RecordedDecision {
            at: now,
            stage: self.state.stage().clone(),
            because: decision.because.clone(),
            actions: decision.actions.iter().map(|action| format!("{:?}", action.key())).collect(),
        });
        tracing::debug!(pod = %self.state.pod_ref(), because = decision.because.join("; "),
            actions = decision.actions.len(), "Decided");
    }
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
