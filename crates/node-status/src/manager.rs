use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use rubelet_types::{Clock, EventRecorder, error_chain};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::within;
use crate::conditions::is_ready;
use crate::metrics::NodeStartupMetrics;
use crate::{
    Announcements, ComputedNode, FactsSource, NodeApi, NodeApiError, NodeApiErrorKind, NodeHandle,
    NodeInputs, NodeOrigin, NodeSettings, NodeStatusTiming, PublishedNode, ReportSchedule,
    build_initial_node, compute_node, diff_needs_write, node_status_patch, reconcile_existing_node,
};

/// Wait after the first failed registration; doubles from there.
const FIRST_REGISTRATION_BACK_OFF: Duration = Duration::from_millis(100);
/// Longest of these waits.
const LONGEST_REGISTRATION_BACK_OFF: Duration = Duration::from_secs(7);
/// A status that cannot be written is tried this often at once.
const TRIES: u32 = 5;
/// Readiness is looked for this often until it was written for the first time...
const FAST_PERIOD: Duration = Duration::from_millis(100);
/// ...but not for longer.
const FAST_WINDOW: Duration = Duration::from_secs(120);
/// For so long after its start the kubelet does not take back that its node is ready: everything
/// that it needs for that has yet to be looked at.
const START_GRACE: Duration = Duration::from_secs(10);
/// Changes that follow each other are written together.
const EXTRA_WRITE_GAP: Duration = Duration::from_secs(1);

/// What node status is built from.
#[derive(Debug)]
pub struct NodeStatusParts<A> {
    /// What configuration says about the Node.
    pub settings: NodeSettings,
    /// How often it reports.
    pub timing: NodeStatusTiming,
    /// The API server, over a connection without rate limits; none for a kubelet that is alone.
    pub api: Option<Arc<A>>,
    /// Where facts come from.
    pub facts: FactsSource,
    /// What others know; the same that `facts` has.
    pub inputs: NodeInputs,
    /// The wall clock.
    pub clock: Clock,
    /// Where events go.
    pub events: EventRecorder,
}

/// Registers the node, and keeps its status in the API server true. Without an API server it keeps
/// the Node up to date for the kubelet itself.
#[derive(Debug)]
pub struct NodeStatusManager<A> {
    parts: NodeStatusParts<A>,
    published: watch::Sender<Option<PublishedNode>>,
    announcements: Announcements,
    schedule: ReportSchedule,
    /// The Node as the API server last gave it.
    latest: Option<Arc<Node>>,
    started: Instant,
    last_address_error: Option<String>,
    metrics: Arc<NodeStartupMetrics>,
}

/// What came of an attempt to bring the status up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synced {
    /// The API server has it.
    Done,
    /// It would say that the node is no longer ready, which is too early to tell.
    TooEarly,
}

impl<A: NodeApi> NodeStatusManager<A> {
    /// Builds it. Nothing is spawned and nothing read.
    pub fn new(parts: NodeStatusParts<A>) -> Self {
        let schedule = ReportSchedule::new(parts.timing.report_frequency);
        Self {
            parts,
            published: watch::Sender::new(None),
            announcements: Announcements::default(),
            schedule,
            latest: None,
            started: Instant::now(),
            last_address_error: None,
            metrics: Arc::default(),
        }
    }

    /// How long joining the cluster took.
    pub fn metrics(&self) -> Arc<NodeStartupMetrics> {
        self.metrics.clone()
    }

    /// The Node for others.
    pub fn handle(&self) -> NodeHandle {
        NodeHandle { published: self.published.subscribe() }
    }

    /// Registers, and then keeps the status true until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let live = async {
            self.started = Instant::now();
            match self.parts.api.clone() {
                Some(api) => self.live(&*api).await,
                None => self.live_alone().await,
            }
        };
        cancel.run_until_cancelled(live).await;
    }

    /// Without an API server: the Node of the moment before is the one to go on from.
    async fn live_alone(&mut self) {
        let mut node = self.initial().await;
        loop {
            let computed = self.compute(&node).await;
            self.announce([&node].into_iter(), &computed);
            if diff_needs_write(&node, &computed) {
                self.publish(Arc::new(computed.clone()), NodeOrigin::Computed);
            }
            node = computed;
            let wait = if self.looks_for_readiness(&node) {
                FAST_PERIOD
            } else {
                self.parts.timing.update_frequency
            };
            let down_at = self.parts.inputs.runtime_down_at(Instant::now());
            tokio::select! {
                () = sleep(wait) => {}
                () = self.parts.inputs.urgent() => {}
                () = sleep_until(down_at.unwrap_or_else(Instant::now)), if down_at.is_some() => {}
            }
        }
    }

    async fn live(&mut self, api: &A) {
        if self.parts.settings.register_node {
            self.register(api).await;
        } else {
            self.initial().await;
        }
        let mut changes = api.cache_changes();
        let mut watch_ended = false;
        let mut looks_for_readiness = true;
        let mut next = Instant::now();
        let mut extra_after = next;
        let mut is_extra = false;
        loop {
            let now = Instant::now();
            let down_at = self.parts.inputs.runtime_down_at(now);
            // Every arm only looks again, and each waits for something that stays true until it was
            // seen: dropping the others loses nothing.
            let wakes = tokio::select! {
                biased;
                () = sleep_until(next) => {
                    let synced = self.sync(api).await;
                    let now = Instant::now();
                    if is_extra || synced.is_none() {
                        extra_after = now + EXTRA_WRITE_GAP;
                    }
                    next = now + jittered(self.parts.timing.update_frequency);
                    if synced == Some(Synced::TooEarly) {
                        next = next.min(self.started + START_GRACE);
                    } else if self.latest.as_ref().is_some_and(|it| is_ready(it.status.as_ref())) {
                        looks_for_readiness = false;
                    }
                    is_extra = false;
                    false
                }
                () = self.parts.inputs.urgent() => true,
                () = sleep_until(down_at.unwrap_or(now)), if down_at.is_some() => true,
                () = sleep(FAST_PERIOD), if looks_for_readiness => {
                    looks_for_readiness = self.started.elapsed() < FAST_WINDOW;
                    self.has_become_ready().await
                }
                changed = changes.changed(), if !watch_ended => {
                    watch_ended = changed.is_err();
                    self.adopt_cached(api);
                    false
                }
            };
            if wakes {
                let at = Instant::now().max(extra_after);
                is_extra |= at < next;
                next = next.min(at);
            }
        }
    }

    /// Creates the Node, or finds and corrects the one that exists, however long that takes.
    async fn register(&mut self, api: &A) {
        let mut back_off = FIRST_REGISTRATION_BACK_OFF;
        loop {
            let initial = self.initial().await;
            let name = self.parts.settings.name.clone();
            tracing::info!(node = name, "Attempting to register node");
            self.metrics.attempts(Instant::now());
            match self.try_register(api, &initial).await {
                Ok(node) => {
                    tracing::info!(node = name, "Successfully registered node");
                    self.adopt(Arc::new(node));
                    return;
                }
                Err(error) => tracing::error!(
                    node = name,
                    error = error_chain(&error),
                    retryIn = ?back_off,
                    "Unable to register node with API server"
                ),
            }
            sleep(back_off).await;
            back_off = (back_off * 2).min(LONGEST_REGISTRATION_BACK_OFF);
        }
    }

    async fn try_register(&mut self, api: &A, initial: &Node) -> Result<Node, NodeApiError> {
        let deadline = self.parts.timing.request_deadline();
        let settings = &self.parts.settings;
        match within(deadline, api.create_node(initial)).await {
            Ok(created) => {
                // It was created with everything a report says.
                self.schedule.written(self.started.elapsed(), true, rand::random());
                let uptime = self.parts.facts.uptime();
                self.metrics.registered(self.started, uptime, Instant::now());
                return Ok(created);
            }
            Err(error) => match error.kind {
                NodeApiErrorKind::AlreadyExists => {}
                // It may exist all the same.
                NodeApiErrorKind::Forbidden if !settings.registration_gets_existing_only => {}
                _ => return Err(error),
            },
        }
        let existing = within(deadline, api.get_node(&settings.name)).await?;
        tracing::info!(node = settings.name, "Node was previously registered");
        let resets = self.parts.inputs.pieces().devices.reset_at_registration;
        match reconcile_existing_node(&existing, initial, resets) {
            Some(patch) => within(deadline, api.patch_node_status(&settings.name, &patch)).await,
            None => Ok(existing),
        }
    }

    /// The Node that would be created now, which is what others see until there is a better one.
    async fn initial(&mut self) -> Node {
        let facts = self.parts.facts.gather(&self.parts.settings).await;
        let computed = build_initial_node(&self.parts.settings, &facts, self.parts.clock.now());
        let node = self.without_address_error(computed);
        if self.latest.is_none() {
            self.publish(Arc::new(node.clone()), NodeOrigin::Computed);
        }
        self.announce([&Node::default()].into_iter(), &node);
        node
    }

    /// The Node as it should be, from the one that is reported.
    async fn compute(&mut self, reported: &Node) -> Node {
        let facts = self.parts.facts.gather(&self.parts.settings).await;
        let now = self.parts.clock.now();
        let computed = compute_node(reported, &self.parts.settings, &facts, now);
        self.without_address_error(computed)
    }

    /// Logs why addresses were left as they were, each reason once.
    fn without_address_error(&mut self, computed: ComputedNode) -> Node {
        let error = computed.address_error.map(|error| error_chain(&error));
        if let Some(error) = error.as_ref().filter(|_| error != self.last_address_error) {
            tracing::error!(error, "Failed to set some node status fields");
        }
        self.last_address_error = error;
        computed.node
    }

    /// Brings the status up to date; `None` if all tries failed.
    async fn sync(&mut self, api: &A) -> Option<Synced> {
        for attempt in 0..TRIES {
            let error = match self.try_sync(api, attempt).await {
                Ok(synced) => return Some(synced),
                Err(error) => error,
            };
            tracing::error!(
                node = self.parts.settings.name,
                error = error_chain(&error),
                "Error updating node status, will retry"
            );
            // A Node that was deleted stays so until the next start.
            if error.is_not_found() && attempt > 0 {
                return None;
            }
            if attempt > 0 || error.kind == NodeApiErrorKind::NoAnswer {
                api.close_connections();
            }
        }
        tracing::error!(
            node = self.parts.settings.name,
            "Unable to update node status: update node status exceeds retry count"
        );
        None
    }

    async fn try_sync(&mut self, api: &A, attempt: u32) -> Result<Synced, NodeApiError> {
        let deadline = self.parts.timing.request_deadline();
        let name = self.parts.settings.name.clone();
        let cached = api.cached_node(&name).filter(|_| attempt == 0);
        let reported = match cached {
            Some(cached) => newer(self.latest.clone(), cached),
            None => Arc::new(within(deadline, api.get_node(&name)).await?),
        };
        let computed = self.compute(&reported).await;
        self.parts.events_of_schedulability(&mut self.announcements, &reported);

        if self.takes_back_too_early(&reported, &computed) {
            self.adopt(reported);
            return Ok(Synced::TooEarly);
        }
        let changed = diff_needs_write(&reported, &computed);
        let is_due = changed || self.schedule.is_due(self.started.elapsed());
        let patch = node_status_patch(&reported, &computed).filter(|_| is_due);
        let now_reported = match patch {
            Some(patch) => {
                let written = within(deadline, api.patch_node_status(&name, &patch)).await?;
                self.schedule.written(self.started.elapsed(), changed, rand::random());
                Arc::new(written)
            }
            None => reported.clone(),
        };
        // A write whose answer got lost is known only by what was there before it.
        let latest = self.latest.clone();
        self.announce(latest.iter().chain([&reported]).map(|before| &**before), &computed);
        if is_ready(now_reported.status.as_ref()) {
            self.metrics.ready(Instant::now());
        }
        self.adopt(now_reported);
        Ok(Synced::Done)
    }

    /// The node was ready under the kubelet before this one, nothing has happened to the machine
    /// since, and this one has hardly begun to look.
    fn takes_back_too_early(&self, reported: &Node, computed: &Node) -> bool {
        let (was, is) = (reported.status.as_ref(), computed.status.as_ref());
        let boot_id = |status: Option<&NodeStatus>| {
            status.and_then(|status| status.node_info.as_ref()).map(|info| info.boot_id.clone())
        };
        self.started.elapsed() < START_GRACE
            && is_ready(was)
            && !is_ready(is)
            && boot_id(was) == boot_id(is)
            && !self.parts.inputs.is_shutting_down()
    }

    /// The node was not ready when it was last written, and would be now. Asks nobody.
    async fn has_become_ready(&mut self) -> bool {
        let Some(latest) = self.latest.clone() else { return false };
        let computed = self.compute(&latest).await;
        let was_written = is_ready(latest.status.as_ref()) && !diff_needs_write(&latest, &computed);
        is_ready(computed.status.as_ref()) && !was_written
    }

    fn looks_for_readiness(&self, node: &Node) -> bool {
        !is_ready(node.status.as_ref()) && self.started.elapsed() < FAST_WINDOW
    }

    /// Takes over what a watch shows, if it is news.
    fn adopt_cached(&mut self, api: &A) {
        if let Some(cached) = api.cached_node(&self.parts.settings.name) {
            let node = newer(self.latest.clone(), cached);
            self.parts.events_of_schedulability(&mut self.announcements, &node);
            self.adopt(node);
        }
    }

    /// Takes over what the API server said.
    fn adopt(&mut self, node: Arc<Node>) {
        self.latest = Some(node.clone());
        self.publish(node, NodeOrigin::ApiServer);
    }

    fn publish(&self, node: Arc<Node>, origin: NodeOrigin) {
        self.published.send_if_modified(|known| {
            let is_known = known.as_ref().is_some_and(|it| it.origin == origin && it.node == node);
            if !is_known {
                *known = Some(PublishedNode { node, origin });
            }
            !is_known
        });
    }

    fn announce<'a>(&mut self, previous: impl Iterator<Item = &'a Node>, node: &Node) {
        let Some(status) = &node.status else { return };
        let unknown = NodeStatus::default();
        let previous: Vec<&NodeStatus> =
            previous.map(|before| before.status.as_ref().unwrap_or(&unknown)).collect();
        let events = self.announcements.step(&self.parts.settings.name, &previous, status);
        for event in events {
            self.parts.events.record(event);
        }
    }
}

impl<A> NodeStatusParts<A> {
    fn events_of_schedulability(&self, announcements: &mut Announcements, node: &Node) {
        if let Some(event) = announcements.schedulable(&self.settings.name, node) {
            self.events.record(event);
        }
    }
}

/// The newer of two versions of one Node; `candidate` where that cannot be told.
fn newer(known: Option<Arc<Node>>, candidate: Arc<Node>) -> Arc<Node> {
    let version = |node: &Node| -> Option<u64> {
        node.metadata.resource_version.as_deref().and_then(|version| version.parse().ok())
    };
    match known {
        Some(known)
            if known.metadata.uid == candidate.metadata.uid
                && version(&known) > version(&candidate)
                && version(&candidate).is_some() =>
        {
            known
        }
        _ => candidate,
    }
}

/// A period, up to 4 % longer, so that the nodes of a cluster do not fall into step.
pub(crate) fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 + 0.04 * rand::random::<f64>())
}
