use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rubelet_cri::{CriClient, CriOptions, Rpc, v1};
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;

use crate::FakeOptions;
use crate::faults::{Fault, Faults};
use crate::happening::{ContainerChange, Happening, SandboxChange};
use crate::images::{Pull, image};
use crate::inspect::{Inventory, Violation};
use crate::process::Signal;
use crate::script::{ExecAnswer, KILLED, Script};
use crate::server::Power;
use crate::state::{Process, State, pod_uid};

/// Events that a slow subscriber may lag behind before it loses some.
const EVENT_BACKLOG: usize = 1024;

/// Which containers a script is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptMatch {
    /// Those of this image.
    Image(String),
    /// Those of this name.
    Container(String),
    /// Those with this command and arguments.
    Command(Vec<String>),
}

/// The runtime. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct FakeRuntime {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: FakeOptions,
    state: Mutex<State>,
    /// Counts changes of the state.
    changes: watch::Sender<u64>,
    pub(crate) events: broadcast::Sender<v1::ContainerEventResponse>,
    pub(crate) faults: Faults,
    pub(crate) power: Power,
    calls: Mutex<BTreeMap<Rpc, u64>>,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `change` change the state, and wakes whoever waits for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changes.send_modify(|count| *count += 1);
        result
    }

    pub(crate) fn count_call(&self, rpc: Rpc) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry(rpc).or_default() += 1;
    }
}

impl FakeRuntime {
    /// A runtime without images, pods or sockets.
    pub fn new(options: FakeOptions) -> Self {
        let shared = Shared {
            state: Mutex::new(State::new(&options)),
            changes: watch::Sender::new(0),
            events: broadcast::Sender::new(EVENT_BACKLOG),
            faults: Faults::new(options.seed),
            power: Power::on(),
            calls: Mutex::default(),
            options,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Serves CRI on a unix socket at `path`, until a crash and again after a restart.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn serve(&self, path: impl Into<PathBuf>) -> std::io::Result<()> {
        self.shared.power.add_socket(self, path.into())
    }

    /// A client of this runtime that needs no socket.
    pub fn client(&self, options: CriOptions) -> CriClient {
        CriClient::over_channel(self.channel(), options)
    }

    // ---- What there is to run ----

    /// Puts an image of `size` bytes into the store.
    pub fn add_image(&self, name: &str, size: u64) {
        self.shared.change(|state| state.images.add(image(name, size)));
    }

    /// Puts this very image into the store.
    pub fn add_image_message(&self, image: v1::Image) {
        self.shared.change(|state| state.images.add(image));
    }

    /// What a pull of `name` does from now on. Other pulls find nothing.
    pub fn offer_image(&self, name: &str, pull: Pull) {
        self.shared.change(|state| state.images.offer(name, pull));
    }

    /// What matching containers do that are created from now on. Later scripts win.
    pub fn add_script(&self, matches: ScriptMatch, script: Script) {
        self.shared.change(|state| state.scripts.push((matches, script)));
    }

    // ---- Knobs ----

    /// The condition NetworkReady. Sandboxes with a network of their own fail without it.
    pub fn set_network_ready(&self, ready: bool) {
        self.shared.change(|state| state.network_ready = ready);
    }

    /// The condition RuntimeReady.
    pub fn set_runtime_ready(&self, ready: bool) {
        self.shared.change(|state| state.runtime_ready = ready);
    }

    /// Lets a fault wait for its call.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.inject(fault);
    }

    /// Takes all waiting faults back.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// The runtime dies: sockets and connections break, calls in flight are lost, names reserved by
    /// them are free. Containers live on, as they do under their shims.
    pub fn crash(&self) {
        self.shared.power.cut();
    }

    /// A dead runtime comes back on all its sockets.
    ///
    /// # Errors
    ///
    /// A socket cannot be made.
    pub fn restart(&self) -> std::io::Result<()> {
        self.shared.power.restore(self)
    }

    /// The machine dies and comes back: no sandbox is ready any more, and every container that ran
    /// is found ended, as containerd reports it.
    ///
    /// # Errors
    ///
    /// A socket cannot be made.
    pub fn reboot(&self) -> std::io::Result<()> {
        self.crash();
        let clock = &self.shared.options.clock;
        let (ended, stopped) = self.shared.change(|state| {
            let running = state.containers.values().filter(|container| container.is_running());
            let running: Vec<_> = running.map(|container| container.id.clone()).collect();
            for id in &running {
                if let Some(process) = state.process_of(id) {
                    // It ends below in any case; this ends its script too.
                    let _ = process.signals.try_send(Signal::Die(255));
                }
                state.set_exited_as(id, 255, "Unknown", "", clock.now());
            }
            let mut sandboxes: Vec<_> = state.sandboxes.keys().cloned().collect();
            sandboxes.retain(|id| state.stop_sandbox(id));
            (running, sandboxes)
        });
        for id in ended {
            self.tell_container(&id, ContainerChange::Exited(255));
        }
        for id in stopped {
            self.tell_sandbox(&id, SandboxChange::NotReady);
        }
        self.restart()
    }

    /// A running container's process dies and leaves `exit_code`, as if somebody on the node had
    /// killed it. False if there is no such running container.
    pub fn kill_process(&self, container_id: &str, exit_code: i32) -> bool {
        match self.process_of(container_id) {
            // A full queue of a process that survives signals would only hold more of them.
            Some(process) => process.signals.try_send(Signal::Die(exit_code)).is_ok(),
            None => false,
        }
    }

    /// A container vanishes behind everybody's back.
    pub fn lose_container(&self, container_id: &str) -> bool {
        self.kill_process(container_id, KILLED);
        let gone = self.container_changed(container_id, ContainerChange::Removed);
        let lost = self.shared.change(|state| state.remove_container(container_id));
        if lost {
            self.tell(|| gone);
        }
        lost
    }

    /// The process that holds a sandbox's namespaces dies, as if somebody on the node had killed
    /// it. The containers in it live on. False if there is no such ready sandbox.
    pub fn kill_sandbox(&self, sandbox_id: &str) -> bool {
        let killed = self.shared.change(|state| state.stop_sandbox(sandbox_id));
        if killed {
            self.tell_sandbox(sandbox_id, SandboxChange::NotReady);
            self.emit(v1::ContainerEventType::ContainerStoppedEvent, sandbox_id);
        }
        killed
    }

    /// What an exec of `command` in containers `name` answers from now on, whatever their scripts
    /// say.
    pub fn set_exec(&self, name: &str, command: &[&str], answer: ExecAnswer) {
        let key = (name.to_owned(), command.iter().map(|word| (*word).to_owned()).collect());
        self.shared.change(|state| state.execs.insert(key, answer));
    }

    /// While set, container events are lost on their way.
    pub fn set_events_lost(&self, lost: bool) {
        self.shared.change(|state| state.events_lost = lost);
    }

    // ---- Looking ----

    /// Everything it holds now.
    pub fn inventory(&self) -> Inventory {
        Inventory::of(&self.shared.state())
    }

    /// Waits until `condition` holds of what the runtime holds.
    ///
    /// # Errors
    ///
    /// It does not within `deadline`; what there is then comes back.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        condition: impl Fn(&Inventory) -> bool,
    ) -> Result<Inventory, Box<Inventory>> {
        let mut changes = self.shared.changes.subscribe();
        let waiting = async {
            loop {
                changes.mark_unchanged();
                let inventory = self.inventory();
                if condition(&inventory) {
                    return inventory;
                }
                // The sender lives as long as `self`.
                let _ = changes.changed().await;
            }
        };
        timeout(deadline, waiting).await.map_err(|_| Box::new(self.inventory()))
    }

    /// Names and ids of the images in the store.
    pub fn images(&self) -> Vec<v1::Image> {
        self.shared.state().images.iter().cloned().collect()
    }

    /// What happened that must never happen, since the beginning.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.state().violations.clone()
    }

    /// The pod CIDR it was told last; empty if none was.
    pub fn pod_cidr(&self) -> String {
        self.shared.state().pod_cidr.clone()
    }

    /// How often `rpc` was called, struck by a fault or not.
    pub fn calls(&self, rpc: Rpc) -> u64 {
        let calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.get(&rpc).copied().unwrap_or(0)
    }

    // ---- Telling ----

    /// Tells the observer, if there is one.
    pub(crate) fn tell(&self, happening: impl FnOnce() -> Happening) {
        if let Some(observer) = &self.shared.options.observer {
            observer.tell(&happening());
        }
    }

    pub(crate) fn tell_container(&self, id: &str, change: ContainerChange) {
        let happening = self.container_changed(id, change);
        self.tell(|| happening);
    }

    pub(crate) fn container_changed(&self, id: &str, change: ContainerChange) -> Happening {
        let state = self.shared.state();
        let container = state.containers.get(id);
        let uid = container.and_then(|container| pod_uid(&container.config.labels));
        Happening::Container {
            id: id.to_owned(),
            pod_uid: uid.unwrap_or_default().to_owned(),
            name: container.map_or("", |container| container.name()).to_owned(),
            change,
        }
    }

    pub(crate) fn tell_sandbox(&self, id: &str, change: SandboxChange) {
        let happening = self.sandbox_changed(id, change);
        self.tell(|| happening);
    }

    pub(crate) fn sandbox_changed(&self, id: &str, change: SandboxChange) -> Happening {
        let state = self.shared.state();
        let sandbox = state.sandboxes.get(id);
        let uid = sandbox.and_then(|sandbox| pod_uid(&sandbox.config.labels));
        Happening::Sandbox {
            id: id.to_owned(),
            pod_uid: uid.unwrap_or_default().to_owned(),
            change,
        }
    }

    // ---- Events ----

    /// Tells subscribers of something that happened to a container or sandbox.
    pub(crate) fn emit(&self, kind: v1::ContainerEventType, id: &str) {
        let sandbox_id = match self.shared.state().containers.get(id) {
            Some(container) => container.sandbox_id.clone(),
            None => id.to_owned(),
        };
        self.emit_about(kind, id, &sandbox_id);
    }

    /// The same for an object that may be gone already.
    pub(crate) fn emit_about(&self, kind: v1::ContainerEventType, id: &str, sandbox_id: &str) {
        if !self.shared.options.container_events {
            return;
        }
        let event = {
            let mut state = self.shared.state();
            let created_at = state.tick(self.shared.options.clock.now());
            let containers = state.containers_of(sandbox_id);
            v1::ContainerEventResponse {
                container_id: id.to_owned(),
                container_event_type: kind.into(),
                created_at,
                pod_sandbox_status: state.sandboxes.get(sandbox_id).map(|s| s.status()),
                containers_statuses: containers
                    .iter()
                    .filter_map(|id| Some(state.containers.get(id)?.status()))
                    .collect(),
            }
        };
        if self.shared.state().events_lost {
            return;
        }
        // Nobody may be listening.
        let _ = self.shared.events.send(event);
    }

    /// The process of a running container; none if it does not run.
    pub(crate) fn process_of(&self, id: &str) -> Option<Process> {
        self.shared.state().process_of(id)
    }
}
