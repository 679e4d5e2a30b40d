//! The node and the world around it, and everything that can be done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet::Invocation;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rubelet_cri::v1;
use rubelet_fake_apiserver::FakeApiServer;
use rubelet_fake_cri::{ExecAnswer, FakeOptions, FakeRuntime, Observer, Pull, ScriptMatch};
use rubelet_pod_lifecycle::Stage;
use rubelet_pod_sources::PodSource;
use rubelet_types::{EventRecorder, EventType, pod_ref, termination_grace_seconds};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::api::{self, Api};
use crate::ledger::{Book, Hindrance, short};
use crate::life::{Environment, Life};
use crate::machine::{Machine, WallClock};
use crate::mounts::{InUse, LifeMounts, NodeMounts};
use crate::pods::{
    IMAGES, LIVENESS, NewPod, Origin, POST_START, PRE_STOP, PodMaker, READINESS, REMOTE_IMAGE,
    STARTUP,
};

/// The kubelet is looked at this often.
const LOOK: Duration = Duration::from_millis(250);

pub(crate) struct World {
    pub(crate) random: StdRng,
    /// Chance of resizes: beside the other, so that what else happens is as it is without them.
    resizes: StdRng,
    pub(crate) book: Book,
    pub(crate) runtime: FakeRuntime,
    pub(crate) machine: Machine,
    pub(crate) mounts: NodeMounts,
    wall: WallClock,
    environment: Environment,
    life: Option<Life>,
    /// What manifests say.
    statics: Vec<Pod>,
    /// Manifests that were removed.
    removed: Vec<Pod>,
    static_feed: watch::Sender<Option<Vec<Pod>>>,
    pub(crate) api: Api,
    /// Up to where the API server's objects were looked at.
    api_seen: u64,
    next_pod: u32,
    next_container: u32,
    /// Containers and commands that fail now.
    failing: Vec<(String, &'static str)>,
    /// How long hooks take.
    hooks: BTreeMap<(String, &'static str), Duration>,
}

impl World {
    pub(crate) fn new(seed: u64, is_verbose: bool) -> anyhow::Result<Self> {
        let wall = WallClock::start();
        let book = Book::new(wall.clone(), is_verbose);
        let machine = Machine::new()?;
        let told = book.clone();
        let mut random = StdRng::seed_from_u64(seed);
        let latency = [0, 0, 10, 200, 2000][random.random_range(0..5)];
        let runtime = FakeRuntime::new(FakeOptions {
            clock: wall.clock(),
            seed,
            latency: Duration::from_millis(latency),
            observer: Some(Observer::new(move |happening| told.happened(happening))),
            ..FakeOptions::default()
        });
        book.set_runtime(runtime.clone());
        for image in IMAGES {
            runtime.add_image(image, 1 << 20);
        }
        let mut arguments = machine.flags();
        arguments.insert(0, "--v=2".to_owned());
        let invocation = rubelet_config::load(arguments.into_iter().map(Into::into))
            .context("the kubelet's command line")?;
        let Invocation::Run(effective) = invocation else {
            anyhow::bail!("the command line starts no kubelet")
        };
        let (statics, statics_rx) = watch::channel(Some(Vec::new()));
        let mut wanted = vec![(PodSource::File, statics_rx)];
        // Some nodes have no cluster: what they are given as pods of the API is handed over.
        let api = if random.random_bool(0.6) {
            let skew = [0, 0, 0, 1, -1, 240, -240, 3600][random.random_range(0..8)];
            let skew = SignedDuration::from_secs(skew);
            book.note(format!("* the clock of the API server is ahead by {skew:#}"));
            Api::server(wall.clock(), skew, seed)
        } else {
            let (api, heard) = Api::list();
            wanted.push((PodSource::Api, heard));
            api
        };
        book.open().server = api.as_server().cloned();
        let environment = Environment {
            effective: Arc::new(*effective),
            paths: machine.node_paths(),
            host: machine.host(),
            clock: wall.clock(),
            events: record_events(&book),
            runtime: runtime.clone(),
            book: book.clone(),
            wanted,
            server: api.as_server().cloned(),
        };
        Ok(Self {
            random,
            resizes: StdRng::seed_from_u64(!seed),
            book,
            runtime,
            machine,
            mounts: NodeMounts::default(),
            wall,
            environment,
            life: None,
            statics: Vec::new(),
            removed: Vec::new(),
            static_feed: statics,
            api,
            api_seen: 0,
            next_pod: 0,
            next_container: 0,
            failing: Vec::new(),
            hooks: BTreeMap::new(),
        })
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.book.open().violations.is_empty()
    }

    /// Lets time pass, and looks at everything meanwhile.
    pub(crate) async fn pass(&mut self, time: Duration) {
        let until = self.elapsed() + time;
        loop {
            let left = until.saturating_sub(self.elapsed());
            if left.is_zero() || self.has_failed() {
                return;
            }
            tokio::select! {
                biased;
                () = self.book.urgent() => {}
                () = sleep(left.min(LOOK)) => {}
            }
            self.look().await;
        }
    }

    /// Lets everybody have so many turns, and no time pass.
    pub(crate) async fn take_turns(&self, turns: u32) {
        for _ in 0..turns {
            // Not a plain yield: whether the file work of somebody else has ended after it would be
            // a matter of chance. There is one thread for that, and this waits in its queue.
            let _ = tokio::task::spawn_blocking(|| ()).await;
        }
    }

    async fn look(&mut self) {
        self.book.check();
        for violation in self.mounts.violations() {
            self.book.violation(violation);
        }
        self.serve_api();
        let crash_due = std::mem::take(&mut self.book.open().crash_due);
        if crash_due && self.life.is_some() {
            self.crash_kubelet().await;
            let pause = self.random.random_range(0..5000);
            sleep(Duration::from_millis(pause)).await;
            self.start_kubelet();
        }
    }

    /// What the API server does with what the kubelet reports: it keeps the statuses of pods, and an
    /// object goes when the kubelet has finished with its pod.
    fn serve_api(&mut self) {
        match &self.api {
            Api::List { is_away: true, .. } => {}
            Api::List { .. } => self.take_statuses(),
            Api::Server(_) => self.note_deletions(),
        }
    }

    fn take_statuses(&mut self) {
        let Some(view) = self.book.open().view.clone() else { return };
        let known = self.api.pods();
        for reported in view.pods() {
            let uid = reported.metadata.uid.unwrap_or_default();
            let known = known.iter().find(|pod| pod.metadata.uid.as_ref() == Some(&uid));
            if known.is_some_and(|known| known.status != reported.status) {
                self.api.change(&uid, |known| known.status = reported.status);
            }
        }
        let workers = view.workers();
        let finished = |uid: &str| {
            workers.iter().any(|worker| {
                worker.pod.uid.as_str() == uid && matches!(worker.stage, Stage::Finished { .. })
            })
        };
        let deleted = known.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
        let uids = deleted.filter_map(|pod| pod.metadata.uid.clone());
        let gone: Vec<String> = uids.filter(|uid| finished(uid)).collect();
        for uid in gone {
            self.drop_pod(&uid);
        }
    }

    /// The kubelet has removed objects of pods that it has finished with.
    fn note_deletions(&mut self) {
        let revision = self.api.as_server().map_or(0, FakeApiServer::revision);
        if std::mem::replace(&mut self.api_seen, revision) == revision {
            return;
        }
        let there: BTreeSet<String> =
            self.api.pods().into_iter().filter_map(|pod| pod.metadata.uid).collect();
        let mut book = self.book.open();
        let now = book.wall.elapsed();
        let records = book.pods.iter_mut();
        let gone: Vec<String> = records
            .filter(|(uid, record)| {
                record.origin == Origin::Api && record.wanted && !there.contains(*uid)
            })
            .map(|(uid, record)| {
                record.wanted = false;
                record.leaving.get_or_insert(now);
                uid.clone()
            })
            .collect();
        for uid in gone {
            book.note(format!("- the object of pod {uid}"));
            book.check_gone(&uid);
        }
    }

    /// The kubelet hears of what the manifests say.
    fn publish_statics(&self) {
        self.static_feed.send_replace(Some(self.statics.clone()));
    }

    /// The API server goes away, or is back. What has changed meanwhile is heard of.
    pub(crate) fn set_api_away(&mut self, is_away: bool) {
        self.book.note(format!("* the API server is away: {is_away}"));
        self.api.set_away(is_away);
        if is_away {
            self.book.hinder(Hindrance::ApiServerAway);
        } else {
            self.book.unhinder(Hindrance::ApiServerAway);
            self.book.open().api_recovers();
        }
    }

    /// Something is wrong with the API server, or happens to it.
    pub(crate) fn trouble_api(&mut self) {
        let Some(server) = self.api.as_server() else { return };
        match self.random.random_range(0..10) {
            0..=4 => {
                let trouble = api::go_wrong(server, &mut self.random);
                self.book.note(format!("* the API server: {}", trouble.what));
                self.book.hinder(Hindrance::ApiServerFails);
                let mut book = self.book.open();
                book.api_lingers = book.api_lingers.max(trouble.lingers);
            }
            5..=7 => self.mend_api(),
            _ => {
                let what = api::stumble(server, &mut self.random);
                self.book.note(format!("* the API server: {what}"));
                self.book.open().api_recovers();
            }
        }
    }

    pub(crate) fn mend_api(&mut self) {
        if let Some(server) = self.api.as_server() {
            self.book.note("* the API server does what it is asked to");
            api::mend(server);
            self.book.unhinder(Hindrance::ApiServerFails);
            self.book.open().api_recovers();
        }
    }

    // ---- The kubelet ----

    pub(crate) fn is_alive(&self) -> bool {
        self.life.is_some()
    }

    pub(crate) fn start_kubelet(&mut self) {
        if self.life.is_some() {
            return;
        }
        {
            let mut book = self.book.open();
            book.life += 1;
            let life = book.life;
            book.note(format!("* kubelet {life} starts"));
        }
        let runtime = self.runtime.clone();
        let in_use = InUse(Arc::new(move || {
            let inventory = runtime.inventory();
            let running = inventory
                .containers
                .iter()
                .filter(|c| c.state == v1::ContainerState::ContainerRunning);
            running
                .flat_map(|container| {
                    container.config.mounts.iter().map(|mount| {
                        (container.name.clone(), PathBuf::from(mount.host_path.clone()))
                    })
                })
                .collect()
        }));
        let mounts = LifeMounts::new(self.mounts.clone(), in_use);
        {
            let mut book = self.book.open();
            for pod in self.api.pods() {
                let record = pod.metadata.uid.as_ref().and_then(|uid| book.pods.get_mut(uid));
                if let Some(record) = record {
                    record.remembered(pod.status.as_ref());
                }
            }
        }
        self.api.kubelet_starts();
        self.life = Some(Life::start(self.environment.clone(), mounts));
        self.book.unhinder(Hindrance::KubeletGone);
    }

    pub(crate) async fn crash_kubelet(&mut self) {
        let Some(life) = self.life.take() else { return };
        self.book.note("* kubelet is killed");
        self.book.hinder(Hindrance::KubeletGone);
        if let Err(problem) = life.kill().await {
            self.book.violation(problem);
        }
        let mut book = self.book.open();
        book.crash_in = None;
        book.crash_due = false;
    }

    pub(crate) async fn stop_kubelet(&mut self) {
        let Some(life) = self.life.take() else { return };
        self.book.note("* kubelet is stopped");
        self.book.hinder(Hindrance::KubeletGone);
        if let Err(problem) = life.shut_down().await {
            self.book.violation(problem);
        }
    }

    // ---- The runtime and the machine ----

    pub(crate) fn crash_runtime(&self) {
        self.book.note("* runtime dies");
        self.book.hinder(Hindrance::RuntimeDown);
        self.book.open().runtime_died();
        self.runtime.crash();
    }

    pub(crate) fn restart_runtime(&self) {
        self.book.note("* runtime is back");
        self.book.open().troubled_for(Duration::ZERO);
        if let Err(error) = self.runtime.restart() {
            self.book.violation(format!("the runtime does not come back: {error}"));
        }
        self.book.unhinder(Hindrance::RuntimeDown);
    }

    pub(crate) fn set_network_ready(&self, is_ready: bool) {
        self.book.note(format!("* network ready: {is_ready}"));
        if is_ready {
            self.book.unhinder(Hindrance::NetworkDown);
        } else {
            self.book.hinder(Hindrance::NetworkDown);
        }
        self.runtime.set_network_ready(is_ready);
    }

    pub(crate) async fn reboot(&mut self) {
        self.book.note("* node reboots");
        self.crash_kubelet().await;
        self.runtime.crash();
        self.book.open().runtime_died();
        self.mounts.reboot();
        self.machine.reboot();
        let pause = self.random.random_range(1..60);
        sleep(Duration::from_secs(pause)).await;
        if let Err(error) = self.runtime.reboot() {
            self.book.violation(format!("the runtime does not come back: {error}"));
        }
        self.start_kubelet();
    }

    pub(crate) fn jump_clock(&self, by: SignedDuration) {
        self.book.note(format!("* wall clock jumps by {by:#}"));
        self.wall.jump(by);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.wall.elapsed()
    }

    // ---- Pods ----

    pub(crate) fn add_pod(&mut self, origin: Origin) -> anyhow::Result<()> {
        self.next_pod += 1;
        let name = format!("p{}", self.next_pod);
        self.add_pod_named(&name, origin)
    }

    fn add_pod_named(&mut self, name: &str, origin: Origin) -> anyhow::Result<()> {
        let uid = format!("uid-{}-{name}", self.next_pod);
        let made = PodMaker { random: &mut self.random, next_container: &mut self.next_container }
            .make(name, &uid, origin)?;
        let NewPod { pod, is_steady, scripts, failing, hooks } = made;
        for (container, script) in scripts {
            self.runtime.add_script(ScriptMatch::Container(container.clone()), script);
            for command in [LIVENESS, READINESS, STARTUP, POST_START, PRE_STOP] {
                self.set_exec(&container, command, 0, Duration::ZERO);
            }
        }
        for (container, command, takes) in hooks {
            self.hooks.insert((container.clone(), command), takes);
            self.set_exec(&container, command, 0, takes);
        }
        for (container, command) in failing {
            self.fail(&container, command);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let text = serde_json::to_string(&pod.spec)?;
        self.book.note(format!("+ {origin:?} pod {uid}: {text}"));
        self.book.open().add_pod(pod.clone(), origin, is_steady);
        match origin {
            Origin::Static => {
                self.statics.push(pod);
                self.publish_statics();
            }
            Origin::Api => self.api.add(pod),
        }
        Ok(())
    }

    /// A manifest that was removed is there again, just as it was.
    pub(crate) fn restore_pod(&mut self) {
        if self.removed.is_empty() {
            return;
        }
        let index = self.random.random_range(0..self.removed.len());
        let pod = self.removed.remove(index);
        if self.statics.iter().any(|other| other.metadata.name == pod.metadata.name) {
            return;
        }
        self.book.note(format!("+ Static pod {} again", pod_ref(&pod)));
        self.book.open().add_pod(pod.clone(), Origin::Static, false);
        self.statics.push(pod);
        self.publish_statics();
    }

    fn set_exec(&self, container: &str, command: &str, exit_code: i32, after: Duration) {
        let answer = ExecAnswer { exit_code, after, ..ExecAnswer::default() };
        self.runtime.set_exec(container, &[command], answer);
    }

    pub(crate) fn fail(&mut self, container: &str, command: &'static str) {
        self.book.note(format!("* {command} of {container} fails from now on"));
        self.set_exec(container, command, 1, Duration::ZERO);
        self.failing.push((container.to_owned(), command));
    }

    /// Whatever failed works again.
    pub(crate) fn heal_commands(&mut self) {
        for (container, command) in std::mem::take(&mut self.failing) {
            self.book.note(format!("* {command} of {container} works again"));
            let after = self.hooks.get(&(container.clone(), command)).copied().unwrap_or_default();
            self.set_exec(&container, command, 0, after);
        }
    }

    /// The source lists the pod no more.
    fn drop_pod(&mut self, uid: &str) {
        self.book.note(format!("- pod {uid}"));
        let origin = {
            let mut book = self.book.open();
            let now = book.wall.elapsed();
            let Some(record) = book.pods.get_mut(uid) else { return };
            record.wanted = false;
            record.leaving.get_or_insert(now);
            record.origin
        };
        match origin {
            Origin::Static => {
                let is_it = |pod: &mut Pod| pod.metadata.uid.as_deref() == Some(uid);
                self.removed.extend(self.statics.extract_if(.., is_it));
                self.publish_statics();
            }
            Origin::Api => self.api.remove(uid),
        }
    }

    /// A pod of those that a source lists.
    pub(crate) fn some_pod(&mut self, origin: Option<Origin>) -> Option<(String, Origin)> {
        let book = self.book.open();
        let wanted: Vec<(String, Origin)> = book
            .pods
            .iter()
            .filter(|(_, record)| record.wanted && origin.is_none_or(|o| o == record.origin))
            .map(|(uid, record)| (uid.clone(), record.origin))
            .collect();
        drop(book);
        if wanted.is_empty() {
            return None;
        }
        let index = self.random.random_range(0..wanted.len());
        Some(wanted[index].clone())
    }

    /// Removes a manifest, or asks the API to delete a pod.
    pub(crate) fn delete_pod(&mut self) {
        let Some((uid, origin)) = self.some_pod(None) else { return };
        let is_forced = origin == Origin::Api && self.random.random_bool(0.1);
        if origin == Origin::Static || is_forced {
            return self.drop_pod(&uid);
        }
        let grace =
            [None, None, Some(0), Some(1), Some(5), Some(300)][self.random.random_range(0..6)];
        let known = self.api.pods();
        let is_it = |pod: &&Pod| pod.metadata.uid.as_ref() == Some(&uid);
        let Some(known) = known.iter().find(is_it) else { return };
        let asked = grace.unwrap_or_else(|| termination_grace_seconds(known));
        let asked = known.metadata.deletion_grace_period_seconds.unwrap_or(asked).min(asked);
        if asked == 0 && self.api.as_server().is_some() {
            // The server lets go of the object at once.
            return self.drop_pod(&uid);
        }
        let now = self.environment.clock.now();
        let deleted = self.api.change(&uid, |pod| {
            pod.metadata.deletion_grace_period_seconds = Some(asked);
            pod.metadata.deletion_timestamp.get_or_insert(Time(now));
        });
        let Some(pod) = deleted else { return };
        self.book.note(format!("- pod {uid} is to be deleted, grace {asked}"));
        {
            let mut book = self.book.open();
            let now = book.wall.elapsed();
            if let Some(record) = book.pods.get_mut(&uid) {
                record.pod = pod;
                record.leaving.get_or_insert(now);
            }
        }
    }

    /// Another version of a pod.
    pub(crate) fn change_pod(&mut self) -> anyhow::Result<()> {
        let Some((uid, origin)) = self.some_pod(None) else { return Ok(()) };
        match origin {
            Origin::Static => {
                let name = self.statics.iter().find_map(|pod| {
                    let is_it = pod.metadata.uid.as_deref() == Some(&uid);
                    is_it.then(|| pod.metadata.name.clone().unwrap_or_default())
                });
                let Some(name) = name else { return Ok(()) };
                let manifest = name.trim_end_matches("-node").to_owned();
                self.drop_pod(&uid);
                self.next_pod += 1;
                self.add_pod_named(&manifest, Origin::Static)
            }
            Origin::Api => {
                self.resize_pod(&uid);
                let image = IMAGES[self.random.random_range(0..IMAGES.len())];
                let mut changed = None;
                let pod = self.api.change(&uid, |pod| {
                    let spec = pod.spec.as_mut();
                    let container = spec.map(|spec| &mut spec.containers[0]);
                    if let Some(container) = container
                        && container.image.as_deref() != Some(image)
                    {
                        container.image = Some(image.to_owned());
                        changed = Some(container.name.clone());
                    }
                });
                let Some((pod, container)) = pod.zip(changed) else { return Ok(()) };
                self.book.note(format!("~ pod {uid}: {container} is to run {image}"));
                if let Some(record) = self.book.open().pods.get_mut(&uid) {
                    record.pod = pod;
                    record.changed.insert(container);
                }
                Ok(())
            }
        }
    }

    /// Containers of a pod are to have more or less CPU. None gets its first request, nor loses its
    /// only one: the class of a pod stays.
    fn resize_pod(&mut self, uid: &str) {
        let mut changed = Vec::new();
        let random = &mut self.resizes;
        let pod = self.api.change(uid, |pod| {
            let Some(spec) = pod.spec.as_mut() else { return };
            let sidecars = spec.init_containers.iter_mut().flatten();
            let sidecars = sidecars.filter(|it| it.restart_policy.as_deref() == Some("Always"));
            for container in sidecars.chain(spec.containers.iter_mut()) {
                let requests = container.resources.as_mut().and_then(|it| it.requests.as_mut());
                if let Some(cpu) = requests.and_then(|requests| requests.get_mut("cpu"))
                    && random.random_bool(0.7)
                {
                    cpu.0 = ["10m", "20m", "40m"][random.random_range(0..3)].to_owned();
                    let restarts = container.resize_policy.is_some();
                    changed.push((container.name.clone(), cpu.0.clone(), restarts));
                }
            }
        });
        let Some(pod) = pod.filter(|_| !changed.is_empty()) else { return };
        self.book.note(format!("~ pod {uid}: is to have {changed:?}"));
        if let Some(record) = self.book.open().pods.get_mut(uid) {
            record.pod = pod;
            let restarts = changed.into_iter().filter(|(.., restarts)| *restarts);
            record.changed.extend(restarts.map(|(name, ..)| name));
        }
    }

    // ---- Containers ----

    /// A running container: its id and name.
    pub(crate) fn some_running(&mut self) -> Option<(String, String)> {
        let running: Vec<(String, String)> = self
            .runtime
            .inventory()
            .containers
            .into_iter()
            .filter(|container| container.state == v1::ContainerState::ContainerRunning)
            .map(|container| (container.id, container.name))
            .collect();
        if running.is_empty() {
            return None;
        }
        let index = self.random.random_range(0..running.len());
        Some(running[index].clone())
    }

    pub(crate) fn kill_process(&mut self) {
        let Some((id, name)) = self.some_running() else { return };
        let code = [0, 1, 137][self.random.random_range(0..3)];
        self.book.note(format!("* process of {name} ({}) is killed, exit code {code}", short(&id)));
        self.runtime.kill_process(&id, code);
    }

    pub(crate) fn lose_container(&mut self) {
        let Some((id, name)) = self.some_running() else { return };
        self.book.note(format!("* container {name} ({}) vanishes", short(&id)));
        self.runtime.lose_container(&id);
    }

    pub(crate) fn kill_sandbox(&mut self) {
        let ready: Vec<String> = self
            .runtime
            .inventory()
            .sandboxes
            .into_iter()
            .filter(|sandbox| sandbox.state == v1::PodSandboxState::SandboxReady)
            .map(|sandbox| sandbox.id)
            .collect();
        if ready.is_empty() {
            return;
        }
        let id = &ready[self.random.random_range(0..ready.len())];
        self.book.note(format!("* sandbox {} is killed", short(id)));
        self.runtime.kill_sandbox(id);
    }

    pub(crate) fn offer_remote_image(&mut self) {
        self.book.note("* the remote image can be pulled");
        let takes = Duration::from_millis(self.random.random_range(0..20_000));
        self.runtime.offer_image(REMOTE_IMAGE, Pull::brings(REMOTE_IMAGE, 1 << 24).after(takes));
    }
}

fn record_events(book: &Book) -> EventRecorder {
    let book = book.clone();
    EventRecorder::new(move |event| {
        let kind = if event.event_type == EventType::Normal { "N" } else { "W" };
        let object = match &event.object {
            rubelet_types::EventObject::Node => "node".to_owned(),
            rubelet_types::EventObject::Pod(pod) => pod.uid.to_string(),
            rubelet_types::EventObject::Container { pod, field_path } => {
                format!("{} {field_path}", pod.uid)
            }
        };
        book.note(format!("  ev {kind} {object} {}: {}", event.reason, event.message));
    })
}
