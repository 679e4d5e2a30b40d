//! The API server of a history, seen from the world's side: a list that a kubelet is handed, or a
//! small server that a kubelet joins.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use rand::Rng;
use rand::rngs::StdRng;
use rubelet_apiserver::Verb;
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions, Fault, FaultAction};
use rubelet_types::{Clock, is_mirror_pod};
use tokio::sync::watch;

/// What faults of a server strike: verb, resource.
const TARGETS: [(Verb, &str); 12] = [
    (Verb::List, "pods"),
    (Verb::Watch, "pods"),
    (Verb::Get, "pods"),
    (Verb::Create, "pods"),
    (Verb::Delete, "pods"),
    (Verb::Patch, "pods/status"),
    (Verb::Get, "nodes"),
    (Verb::Watch, "nodes"),
    (Verb::Create, "nodes"),
    (Verb::Patch, "nodes/status"),
    (Verb::Update, "leases"),
    (Verb::Create, "events"),
];

/// A connection on which nobody answers is given up after this, at the latest.
const DEAD_CONNECTION: Duration = Duration::from_secs(30);
/// A request that nobody answers is given up after this, at the latest.
const HUNG_REQUEST: Duration = Duration::from_secs(60);

/// What the API says.
#[derive(Debug)]
pub(crate) enum Api {
    /// Pods are handed over, and their statuses taken back, as fast as can be.
    List {
        /// All of them.
        pods: Vec<Pod>,
        /// How the kubelet hears of them.
        feed: watch::Sender<Option<Vec<Pod>>>,
        /// It hears nothing.
        is_away: bool,
    },
    /// The kubelet is a node of a cluster.
    Server(FakeApiServer),
}

impl Api {
    /// A list, and what a kubelet hears of it.
    pub(crate) fn list() -> (Self, watch::Receiver<Option<Vec<Pod>>>) {
        let (feed, heard) = watch::channel(Some(Vec::new()));
        (Self::List { pods: Vec::new(), feed, is_away: false }, heard)
    }

    /// A server whose clock is `skew` ahead of the node's.
    pub(crate) fn server(clock: Clock, skew: SignedDuration, seed: u64) -> Self {
        let ahead = Clock::from_fn(move || clock.now() + skew);
        Self::Server(FakeApiServer::new(FakeOptions { clock: ahead, seed }))
    }

    pub(crate) fn as_server(&self) -> Option<&FakeApiServer> {
        match self {
            Self::List { .. } => None,
            Self::Server(server) => Some(server),
        }
    }

    /// All pods but the mirrors of static ones.
    pub(crate) fn pods(&self) -> Vec<Pod> {
        match self {
            Self::List { pods, .. } => pods.clone(),
            Self::Server(server) => {
                let pods = server.list::<Pod>().into_iter();
                pods.filter(|pod| !is_mirror_pod(pod)).collect()
            }
        }
    }

    pub(crate) fn add(&mut self, pod: Pod) {
        match self {
            Self::List { pods, .. } => {
                pods.push(pod);
                self.tell();
            }
            Self::Server(server) => drop(server.put(&pod)),
        }
    }

    /// Changes the pod of this uid; answers how it is now.
    pub(crate) fn change(&mut self, uid: &str, change: impl FnOnce(&mut Pod)) -> Option<Pod> {
        let is_it = |pod: &Pod| pod.metadata.uid.as_deref() == Some(uid);
        match self {
            Self::List { pods, .. } => {
                let pod = pods.iter_mut().find(|pod| is_it(pod))?;
                change(pod);
                let changed = pod.clone();
                self.tell();
                Some(changed)
            }
            Self::Server(server) => {
                let mut pod = server.list::<Pod>().into_iter().find(is_it)?;
                change(&mut pod);
                Some(server.put(&pod))
            }
        }
    }

    /// Removes the pod of this uid, whatever runs of it.
    pub(crate) fn remove(&mut self, uid: &str) {
        let is_it = |pod: &Pod| pod.metadata.uid.as_deref() == Some(uid);
        match self {
            Self::List { pods, .. } => {
                pods.retain(|pod| !is_it(pod));
                self.tell();
            }
            Self::Server(server) => {
                if let Some(pod) = server.list::<Pod>().iter().find(|pod| is_it(pod)) {
                    let meta = &pod.metadata;
                    let namespace = meta.namespace.as_deref().unwrap_or_default();
                    server.remove::<Pod>(namespace, meta.name.as_deref().unwrap_or_default());
                }
            }
        }
    }

    /// It cannot be reached, or can again. What has changed meanwhile is heard of.
    pub(crate) fn set_away(&mut self, away: bool) {
        match self {
            Self::List { is_away, .. } => *is_away = away,
            Self::Server(server) => server.set_away(away),
        }
        self.tell();
    }

    /// A kubelet that starts has heard of nothing.
    pub(crate) fn kubelet_starts(&self) {
        if let Self::List { feed, is_away: true, .. } = self {
            feed.send_replace(None);
        }
    }

    fn tell(&self) {
        if let Self::List { pods, feed, is_away: false } = self {
            feed.send_replace(Some(pods.clone()));
        }
    }
}

/// What is wrong with a server.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) what: String,
    /// For so long requests may suffer from it after it is mended.
    pub(crate) lingers: Duration,
}

/// Something is wrong with the server from now on.
pub(crate) fn go_wrong(server: &FakeApiServer, random: &mut StdRng) -> Trouble {
    let at_once = |what: &str| Trouble { what: what.to_owned(), lingers: Duration::ZERO };
    match random.random_range(0..20) {
        0..=1 => {
            server.hold_watches(true);
            at_once("watches tell nothing")
        }
        2..=3 => {
            server.set_frozen(true);
            at_once("it hangs")
        }
        4..=5 => {
            server.stick_connections();
            Trouble { what: "connections are stuck".to_owned(), lingers: DEAD_CONNECTION }
        }
        6..=7 => {
            let code = [403, 429, 500, 503, 504][random.random_range(0..5)];
            let patience = random.random_bool(0.3).then(|| random.random_range(1..30));
            let action = FaultAction::Refuse { code, retry_after: patience };
            let what = format!("every request: {action:?}");
            server.inject(Fault::on_every_request(action));
            Trouble { what, lingers: Duration::from_secs(patience.unwrap_or(0).into()) }
        }
        _ => strike_some(server, random),
    }
}

/// Requests of one kind go wrong.
fn strike_some(server: &FakeApiServer, random: &mut StdRng) -> Trouble {
    let (verb, resource) = TARGETS[random.random_range(0..TARGETS.len())];
    let (action, lingers) = match random.random_range(0..10) {
        0..=4 => {
            let code = [403, 409, 429, 500, 503][random.random_range(0..5)];
            let retry_after = random.random_bool(0.3).then_some(3);
            (FaultAction::Refuse { code, retry_after }, Duration::from_secs(3))
        }
        5..=7 => {
            let late = Duration::from_millis(random.random_range(1..20_000));
            (FaultAction::Delay(late), late)
        }
        8 => (FaultAction::Hang, HUNG_REQUEST),
        _ => (FaultAction::Break, Duration::ZERO),
    };
    let mut what = format!("{} of {resource}: {action:?}", verb.as_str());
    let mut fault = Fault::on(verb, resource, action);
    if random.random_bool(0.4) {
        fault = fault.after_effect();
        what += ", after its effect";
    }
    if random.random_bool(0.5) {
        let times = random.random_range(1..6);
        fault = fault.times(times);
        what += &format!(", {times} times");
    } else {
        fault = fault.with_probability(0.5);
        what += ", half of them";
    }
    server.inject(fault);
    Trouble { what, lingers }
}

/// Something happens to the server that it recovers from at once.
pub(crate) fn stumble(server: &FakeApiServer, random: &mut StdRng) -> &'static str {
    match random.random_range(0..3) {
        0 => {
            server.cut_watches();
            "watches are cut"
        }
        1 => {
            server.break_connections();
            "connections break"
        }
        _ => {
            server.forget_history();
            server.cut_watches();
            "its history is lost"
        }
    }
}

/// Nothing is wrong with the server any more.
pub(crate) fn mend(server: &FakeApiServer) {
    server.clear_faults();
    server.hold_watches(false);
    server.set_frozen(false);
    // What is stuck stays so: it is for the kubelet to notice.
}
