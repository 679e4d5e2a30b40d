//! The changes that take time: they run to their end even when the caller has gone, as they do in a
//! real runtime, and stop short only when the runtime dies.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rubelet_cri::{Rpc, v1};
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::FakeRuntime;
use crate::faults::{FaultAction, Moment};
use crate::happening::{ContainerChange, Happening, SandboxChange};
use crate::process::{self, ContainerLog, Signal};
use crate::script::Script;
use crate::state::{Process, State};

/// Signals a process may not have taken yet.
const PENDING_SIGNALS: usize = 8;

/// A name that is being created: free again unless the creation comes to its end.
struct Reservation<'a> {
    runtime: &'a FakeRuntime,
    id: String,
    kept: bool,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.runtime.shared.change(|state| state.release(&self.id));
        }
    }
}

impl FakeRuntime {
    /// Runs `operation` apart from the call that wants it. A dying runtime drops it, and the call
    /// never gets an answer.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let life = self.shared.power.life();
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                () = life.cancelled() => None,
                result = operation => Some(result),
            }
        });
        match task.await {
            Ok(Some(result)) => result,
            Ok(None) => std::future::pending().await,
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }

    fn arrived(&self, rpc: Rpc, subjects: &[String]) {
        self.shared.count_call(rpc);
        self.tell(|| Happening::Call { rpc, about: subjects.to_vec() });
    }

    async fn strike(&self, rpc: Rpc, moment: Moment, subjects: &[String]) -> Result<(), Status> {
        let takes = self.shared.faults.draw_latency(self.shared.options.latency / 2);
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        let crash = |back_after| self.crash_for(back_after);
        let tell = |action: &FaultAction| {
            self.tell(|| Happening::Fault {
                rpc,
                about: subjects.to_vec(),
                action: action.clone(),
            });
        };
        self.shared.faults.strike(rpc, moment, subjects, tell, crash).await
    }

    /// One call: what waits for it strikes before and after `effect`.
    pub(crate) async fn call<T>(
        &self,
        rpc: Rpc,
        subjects: Vec<String>,
        effect: impl Future<Output = Result<T, Status>>,
    ) -> Result<tonic::Response<T>, Status> {
        self.arrived(rpc, &subjects);
        self.strike(rpc, Moment::BeforeEffect, &subjects).await?;
        let answer = effect.await?;
        self.strike(rpc, Moment::AfterEffect, &subjects).await?;
        Ok(tonic::Response::new(answer))
    }

    /// Reserves a name for a new id, which keeps it if `create` succeeds.
    async fn create(
        &self,
        rpc: Rpc,
        kind: &str,
        name: &str,
        subjects: &[String],
        create: impl FnOnce(&mut State, &str) -> Result<(), Status>,
    ) -> Result<String, Status> {
        self.arrived(rpc, subjects);
        let id = self.shared.change(|state| {
            let id = state.new_id();
            state.reserve(kind, name, &id).map(|()| id)
        })?;
        let mut reservation = Reservation { runtime: self, id, kept: false };
        self.strike(rpc, Moment::BeforeEffect, subjects).await?;
        self.shared.change(|state| create(state, &reservation.id))?;
        reservation.kept = true;
        let id = reservation.id.clone();
        self.emit(v1::ContainerEventType::ContainerCreatedEvent, &id);
        Ok(id)
    }

    pub(crate) async fn do_run_sandbox(
        &self,
        request: v1::RunPodSandboxRequest,
    ) -> Result<v1::RunPodSandboxResponse, Status> {
        let v1::RunPodSandboxRequest { config, runtime_handler } = request;
        let config = config.unwrap_or_default();
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::unknown("sandbox config must include metadata"));
        };
        let v1::PodSandboxMetadata { name, uid, namespace, attempt } = metadata;
        let reserved = format!("{name}_{namespace}_{uid}_{attempt}");
        let subjects = [name, uid];
        let clock = self.shared.options.clock.clone();
        let id = self
            .create(Rpc::RunPodSandbox, "sandbox", &reserved, &subjects, |state, id| {
                state.add_sandbox(id, config, runtime_handler, clock.now())
            })
            .await?;
        self.tell_sandbox(&id, SandboxChange::Ready);
        self.emit(v1::ContainerEventType::ContainerStartedEvent, &id);
        self.strike(Rpc::RunPodSandbox, Moment::AfterEffect, &subjects).await?;
        Ok(v1::RunPodSandboxResponse { pod_sandbox_id: id })
    }

    pub(crate) async fn do_create_container(
        &self,
        request: v1::CreateContainerRequest,
    ) -> Result<v1::CreateContainerResponse, Status> {
        let v1::CreateContainerRequest { pod_sandbox_id, config, .. } = request;
        let config = config.unwrap_or_default();
        let Some(v1::ContainerMetadata { name, attempt }) = config.metadata.clone() else {
            return Err(Status::unknown("container config must include metadata"));
        };
        // The names of a sandbox and of its pod; an unknown sandbox is noticed below.
        let pod = self
            .shared
            .state()
            .sandboxes
            .get(&pod_sandbox_id)
            .and_then(|sandbox| sandbox.config.metadata.clone())
            .unwrap_or_default();
        let v1::PodSandboxMetadata { name: pod_name, uid, namespace, .. } = pod;
        let reserved = format!("{name}_{pod_name}_{namespace}_{uid}_{attempt}");
        let subjects = [name, pod_name, uid, pod_sandbox_id.clone()];
        let clock = self.shared.options.clock.clone();
        let id = self
            .create(Rpc::CreateContainer, "container", &reserved, &subjects, |state, id| {
                state.add_container(id, &pod_sandbox_id, config, &clock)
            })
            .await?;
        self.tell_container(&id, ContainerChange::Created);
        self.strike(Rpc::CreateContainer, Moment::AfterEffect, &subjects).await?;
        Ok(v1::CreateContainerResponse { container_id: id })
    }

    pub(crate) fn do_start_container(&self, id: &str) -> Result<(), Status> {
        let (script, log) = self.shared.state().check_start(id)?;
        let failed = match &script.start_error {
            Some(message) => Some(format!("failed to create containerd task: {message}")),
            None => log.open().err().map(|error| {
                let path = log.path().map(|path| path.display().to_string()).unwrap_or_default();
                format!("failed to create containerd task: failed to open log file {path}: {error}")
            }),
        };
        if let Some(message) = failed {
            let now = self.shared.options.clock.now();
            self.shared.change(|state| state.set_exited_as(id, 128, "StartError", &message, now));
            self.tell_container(id, ContainerChange::Exited(128));
            return Err(Status::unknown(message));
        }
        let (signals, receiver) = mpsc::channel(PENDING_SIGNALS);
        let (ended, watch_end) = watch::channel(false);
        let process = Process { signals, ended: watch_end };
        let now = self.shared.options.clock.now();
        self.shared.change(|state| state.set_running(id, process, now));
        self.tell_container(id, ContainerChange::Started);
        self.emit(v1::ContainerEventType::ContainerStartedEvent, id);
        self.spawn_process(id.to_owned(), script, log, receiver, ended);
        Ok(())
    }

    /// The process lives apart from the runtime, as under a shim.
    fn spawn_process(
        &self,
        id: String,
        script: Arc<Script>,
        log: Arc<ContainerLog>,
        signals: mpsc::Receiver<Signal>,
        ended: watch::Sender<bool>,
    ) {
        let runtime = self.clone();
        tokio::spawn(async move {
            let exit = process::run(&script, &log, signals).await;
            let was_running = runtime.shared.change(|state| {
                // It may have been declared dead, or have been removed, before.
                let running = state.containers.get(&id).is_some_and(|c| c.is_running());
                if running {
                    state.set_exited(&id, exit, runtime.shared.options.clock.now());
                }
                running
            });
            ended.send_replace(true);
            if was_running {
                runtime.tell_container(&id, ContainerChange::Exited(exit.code));
                runtime.emit(v1::ContainerEventType::ContainerStoppedEvent, &id);
            }
        });
    }

    /// Stops a container: the stop signal once in its life, then after `seconds` SIGKILL. A caller
    /// that goes away before that ends the waiting, and so keeps SIGKILL from being sent.
    pub(crate) async fn do_stop_container(&self, id: &str, seconds: i64) {
        let Some(mut process) = self.process_of(id) else { return };
        // Both the signal and the wait fail for a process that has ended, which is what is wanted.
        if let Ok(seconds @ 1..) = u64::try_from(seconds) {
            if self.shared.change(|state| state.note_stop_signal(id)) {
                self.tell_container(id, ContainerChange::StopSignal);
                let _ = process.signals.send(Signal::Stop).await;
            }
            let ended = process.ended.wait_for(|ended| *ended);
            if tokio::time::timeout(Duration::from_secs(seconds), ended).await.is_ok() {
                return;
            }
        }
        self.tell_container(id, ContainerChange::KillSignal);
        let _ = process.signals.send(Signal::Kill).await;
        let _ = process.ended.wait_for(|ended| *ended).await;
    }

    pub(crate) async fn do_remove_container(&self, id: &str) {
        self.do_stop_container(id, 0).await;
        let gone = self.container_changed(id, ContainerChange::Removed);
        let removed = self.shared.change(|state| {
            let sandbox_id = state.containers.get(id).map(|c| c.sandbox_id.clone());
            state.remove_container(id);
            sandbox_id
        });
        if let Some(sandbox_id) = removed {
            self.tell(|| gone);
            self.emit_about(v1::ContainerEventType::ContainerDeletedEvent, id, &sandbox_id);
        }
    }

    pub(crate) async fn do_stop_sandbox(&self, id: &str) {
        let containers = self.shared.state().containers_of(id);
        let stops = containers.iter().map(|container| self.do_stop_container(container, 0));
        futures_util::future::join_all(stops).await;
        if self.shared.change(|state| state.stop_sandbox(id)) {
            self.tell_sandbox(id, SandboxChange::NotReady);
            self.emit(v1::ContainerEventType::ContainerStoppedEvent, id);
        }
    }

    pub(crate) async fn do_remove_sandbox(&self, id: &str) {
        self.do_stop_sandbox(id).await;
        let containers = self.shared.state().containers_of(id);
        for container in containers {
            self.do_remove_container(&container).await;
        }
        let gone = self.sandbox_changed(id, SandboxChange::Removed);
        if self.shared.change(|state| state.remove_sandbox(id)) {
            self.tell(|| gone);
            self.emit_about(v1::ContainerEventType::ContainerDeletedEvent, id, id);
        }
    }
}
