//! What must hold in the model world after every step, and what it must come to.

use super::*;

impl World {
    /// The end that is told and whose log is read is kept.
    pub(super) fn check_removal(&self, id: &ContainerId, name: &str, keep_log: bool) {
        let kind = find_container(&self.pod, name).map(|spec| spec.kind);
        let last_end = self
            .state
            .snapshot()
            .and_then(|seen| seen.instances(name).find(|instance| instance.exit_code().is_some()));
        assert!(
            keep_log
                || kind == Some(ContainerKind::Init)
                || last_end.is_none_or(|last| last.id != *id),
            "the last end of a container is kept, with its log"
        );
    }

    /// What must hold whenever a process comes up.
    pub(super) fn check_start(&mut self, start: &ContainerStart) {
        let name = &start.name;
        let runs = self.containers.iter().any(|c| c.runs() && c.snapshot.name == *name);
        assert!(!runs, "I9: two instances of {name} run");
        let sandbox = &start.sandbox;
        self.note_started_sidecars();
        for spec in containers(&self.pod) {
            let before = &spec.container.name;
            match (spec.kind, start.kind) {
                _ if before == name => break,
                (ContainerKind::Init | ContainerKind::Sidecar, ContainerKind::Ephemeral) => {}
                (ContainerKind::Init, ContainerKind::Sidecar)
                | (ContainerKind::Sidecar, ContainerKind::Sidecar)
                    if self.regular_was_created(sandbox) => {}
                (ContainerKind::Init | ContainerKind::Sidecar, _) => assert!(
                    self.initialised.contains(&(sandbox.clone(), before.clone())),
                    "{name} starts before {before} is done in {sandbox}"
                ),
                _ => {}
            }
        }
        if start.kind == ContainerKind::Init {
            let live = self.containers.iter().any(|c| {
                c.runs()
                    && c.snapshot.sandbox_id.as_ref() == Some(sandbox)
                    && find_container(&self.pod, &c.snapshot.name)
                        .is_some_and(|spec| spec.kind == ContainerKind::Regular)
            });
            assert!(!live, "init container {name} runs again beside a live app");
        }
    }

    pub(super) fn regular_was_created(&self, sandbox: &SandboxId) -> bool {
        self.containers.iter().any(|c| {
            c.snapshot.sandbox_id.as_ref() == Some(sandbox)
                && find_container(&self.pod, &c.snapshot.name)
                    .is_some_and(|spec| spec.kind == ContainerKind::Regular)
        })
    }

    pub(super) fn note_started_sidecars(&mut self) {
        // Also of those whose end the kubelet cannot have seen yet.
        for container in
            self.containers.iter().filter(|c| c.snapshot.state != ContainerState::Created)
        {
            let name = &container.snapshot.name;
            let Some(spec) = find_container(&self.pod, name) else { continue };
            let passed = spec.container.startup_probe.is_none()
                || self.probes.0.get(&(name.clone(), ProbeKind::Startup))
                    == Some(&ProbeResult::Success);
            if spec.kind == ContainerKind::Sidecar && passed {
                let sandbox = container.snapshot.sandbox_id.clone().unwrap();
                self.initialised.insert((sandbox, name.clone()));
            }
        }
    }

    /// A container whose end was final does not come back.
    pub(super) fn check_policy(&self, start: &ContainerStart) {
        let Some(spec) = find_container(&self.pod, &start.name) else { return };
        let newest = self.containers.iter().find(|c| c.snapshot.name == start.name);
        let Some(Container { snapshot, owes_restart: false, .. }) = newest else { return };
        let ContainerState::Exited { exit_code, reason, .. } = &snapshot.state else { return };
        let same_sandbox = snapshot.sandbox_id.as_ref() == Some(&start.sandbox);
        let is_final = !container_restarts_after(
            pod_restart_policy(&self.pod),
            spec.kind,
            &spec.container,
            *exit_code,
            Some(reason),
        );
        assert!(
            !is_final || spec.kind == ContainerKind::Init && !same_sandbox,
            "{} starts again after an end that was final",
            start.name
        );
        assert!(
            !exit_restarts_all_containers(&spec.container, *exit_code)
                || spec.kind == ContainerKind::Ephemeral,
            "{} starts alone though its end restarts all",
            start.name
        );
    }

    /// What must hold of every decision.
    pub(super) fn check(&mut self, decision: &Decision) {
        let stage = self.state.stage().clone();
        let rank = stage.rank();
        assert!(rank >= self.promises.rank, "I1");
        self.promises.rank = rank;
        if rank >= 2 {
            let creates = decision.actions.iter().any(|action| {
                matches!(
                    action,
                    Action::StartContainer(_)
                        | Action::CreateSandbox { .. }
                        | Action::PreparePod
                        | Action::MountVolumes
                )
            });
            assert!(!creates, "I2: nothing is created or started once a pod is stopped");
            for running in &self.running {
                let key = running.action.key();
                let creates = matches!(
                    key,
                    ActionKey::Start(_)
                        | ActionKey::CreateSandbox
                        | ActionKey::Prepare
                        | ActionKey::MountVolumes
                );
                assert!(
                    !creates || running.cancelled || decision.cancel.contains(&key),
                    "I2: {key} gives up"
                );
            }
        }
        let floor = self.now + std::time::Duration::from_secs(2);
        if let Stage::Terminating { grace_seconds, deadline, .. } = &stage {
            if let Some((grace_before, deadline_before)) = self.promises.grace {
                assert!(*grace_seconds <= grace_before, "I4: the grace grows");
                assert!(*deadline <= deadline_before, "I4: the deadline grows");
            }
            // It begins to count when there is something to stop that is known.
            let counts = self.state.snapshot().is_some();
            let promised = if counts { *deadline } else { Timestamp::MAX };
            self.promises.grace = Some((*grace_seconds, promised));
        }
        for action in &decision.actions {
            let (id, timeout) = match action {
                Action::RunPreStop { id, budget, .. } => (id, *budget),
                Action::StopContainer(stop) => (&stop.id, stop.timeout),
                _ => continue,
            };
            let until = self.now + timeout;
            if let Stage::Terminating { deadline, .. } = &stage {
                assert!(until <= (*deadline).max(floor), "I4: a stop outlives the grace");
            }
            let promised = self.promises.deadlines.entry(id.clone()).or_insert(until);
            assert!(until <= (*promised).max(floor), "I4: a stop outlives what was promised");
            *promised = until.min(*promised);
        }
        if let Some(Stage::Terminated { .. }) = decision.enter {
            assert!(
                !self.containers.iter().any(|c| c.runs() && !c.late),
                "I3: terminated while a container runs"
            );
            let taken_at = self.state.snapshot().map(|snapshot| snapshot.taken_at);
            assert!(taken_at >= Some(self.state.fresh_after()), "I3: on a snapshot that is old");
            assert!(self.running.is_empty(), "I3: with actions in flight");
        }
    }

    /// Computes and publishes the pod's status as the worker's port does.
    pub(super) fn report(&mut self, decision: &Decision) {
        if self.listed {
            let stage = match decision.enter.as_ref().unwrap_or(self.state.stage()) {
                Stage::Waiting | Stage::Syncing => status::Stage::Setup,
                Stage::Terminating { .. } => status::Stage::Terminating,
                Stage::Terminated { .. } | Stage::Finished { .. } => status::Stage::Terminated,
            };
            let failure = |reason: &str, message: &str| status::StartFailure {
                reason: reason.to_owned(),
                message: message.to_owned(),
            };
            let mut failures: BTreeMap<String, status::StartFailure> = self
                .state
                .start_failures()
                .map(|(name, reason, message)| (name.to_owned(), failure(reason, message)))
                .collect();
            failures.extend(
                decision.waiting.iter().map(|waiting| {
                    (waiting.name.clone(), failure(waiting.reason, &waiting.message))
                }),
            );
            let starting: BTreeSet<String> = self.state.starting().map(str::to_owned).collect();
            let vanished: BTreeSet<String> = self.state.vanished().map(str::to_owned).collect();
            let mut pod = self.pod.clone();
            pod.status = Some(self.reported.clone());
            let node = status::NodeFacts::default();
            let input = status::StatusInput {
                snapshot: self.state.fresh_snapshot(),
                start_failures: &failures,
                starting: &starting,
                vanished: &vanished,
                stage,
                restarting_all: self.state.restarting_all(),
                ..status::StatusInput::new(&pod, &self.reported, &node, self.now)
            };
            let reported = status::compute_pod_status(&input);
            self.owed_any |= self.containers.iter().any(|c| c.owes_restart);
            match status::check_transition(&pod, &self.reported, &reported) {
                // It was stopped in order to start again, so its last end may have been final.
                Err(status::IllegalTransition::ContainerCameBack { .. }) if self.owed_any => {}
                // After a restart of the kubelet nothing tells in which sandbox it ran.
                Err(status::IllegalTransition::ContainerCameBack { container })
                    if self.pruned && container.starts_with('i') => {}
                Err(error) => panic!("the status goes where it must not: {error}"),
                Ok(()) => {}
            }
            let is_over = is_terminal_phase(reported.phase.as_deref());
            if is_over && !is_static_pod(&self.pod) {
                assert!(
                    !self.containers.iter().any(|c| c.runs() && !c.late),
                    "I7: {:?} while a container runs",
                    reported.phase
                );
                assert!(
                    stage != status::Stage::Setup,
                    "I7: {:?} while the pod goes on",
                    reported.phase
                );
            }
            self.reported = reported;
        }
    }

    /// From now on every action succeeds, the node is well, containers do what they should. Answers
    /// when the kubelet has come to rest.
    pub(in crate::tests) fn calm_down(&mut self) {
        self.trace.push("calm".to_owned());
        self.late_starts();
        self.late_effects();
        self.network = NetworkState::Ready;
        self.probes.0.clear();
        let mut looked = false;
        for _ in 0..400 {
            self.now += std::time::Duration::from_millis(1);
            for spec in containers(&self.pod) {
                let name = spec.container.name.clone();
                self.probes.0.insert((name, ProbeKind::Startup), ProbeResult::Success);
            }
            let init = self.positions(|c| {
                c.snapshot.is_running()
                    && find_container(&self.pod, &c.snapshot.name)
                        .is_some_and(|spec| spec.kind == ContainerKind::Init)
            });
            if !self.running.is_empty() {
                while !self.running.is_empty() {
                    self.finish(0, How::Success);
                }
                looked = false;
            } else if let Some(index) = init.first() {
                self.exit(*index, 0);
                looked = false;
            } else if self.forgotten && !self.snapshot().is_empty() {
                // Housekeeping finds what came up after its pod was forgotten.
                self.take_up();
                looked = false;
            } else if !looked || self.last.needs_snapshot {
                // As the relist does.
                self.look();
                looked = true;
            } else if let Some(at) = self.last.wake_at {
                self.now = self.now.max(at);
            } else {
                self.check_goal();
                return;
            }
            self.decide();
        }
        panic!("I5: it does not come to rest");
    }

    /// The pod is as everybody wants it.
    pub(super) fn check_goal(&self) {
        let running = |name: &str| {
            self.containers.iter().filter(|c| c.runs() && c.snapshot.name == name).count()
        };
        if !self.listed {
            assert!(self.state.can_be_forgotten(), "it is removed and not gone");
            assert!(self.containers.is_empty() && self.sandboxes.is_empty(), "leftovers");
            return;
        }
        let is_deleting = self.pod.metadata.deletion_timestamp.is_some();
        if self.state.stage().rank() >= 2 || is_deleting {
            assert!(matches!(self.state.stage(), Stage::Finished { .. }), "it does not finish");
            assert!(!self.containers.iter().any(Container::runs), "finished, and something runs");
            assert!(!self.snapshot().any_sandbox_ready(), "finished, and a sandbox is ready");
            assert!(
                is_terminal_phase(self.reported.phase.as_deref()),
                "finished, and its phase is {:?}",
                self.reported.phase
            );
            return;
        }
        let runs_as_before = |names: &BTreeSet<String>| names.iter().any(|name| running(name) > 0);
        assert!(
            !self.resize.pod_cgroup
                && !runs_as_before(&self.resize.in_place)
                && !runs_as_before(&self.resize.by_restart),
            "resources are not as granted: {:?}",
            self.resize
        );
        let ready: Vec<_> =
            self.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).collect();
        assert_eq!(ready.len(), 1, "one sandbox is ready");
        let mut any_runs = false;
        for spec in containers(&self.pod) {
            let name = spec.container.name.as_str();
            let newest = self.containers.iter().find(|c| c.snapshot.name == name);
            let runs = running(name);
            assert!(runs <= 1, "{name} runs twice");
            match spec.kind {
                ContainerKind::Sidecar => assert_eq!(runs, 1, "sidecar {name} runs"),
                ContainerKind::Init => assert_eq!(runs, 0, "init container {name} is done"),
                ContainerKind::Ephemeral => assert!(newest.is_some() || self.pruned, "{name} ran"),
                ContainerKind::Regular => {
                    any_runs |= runs == 1;
                    let rests = newest.is_some_and(|c| match &c.snapshot.state {
                        ContainerState::Exited { exit_code, reason, .. } => {
                            !container_restarts_after(
                                pod_restart_policy(&self.pod),
                                spec.kind,
                                &spec.container,
                                *exit_code,
                                Some(reason),
                            )
                        }
                        // Made anew after an end that was final.
                        ContainerState::Created => true,
                        _ => false,
                    });
                    let rests = rests || newest.is_none() && self.is_reported_ended(name);
                    assert!(runs == 1 || rests, "{name} neither runs nor rests");
                    if let Some(container) = newest.filter(|c| c.runs()) {
                        let image = spec.container.image.as_deref().unwrap_or_default();
                        assert_eq!(container.snapshot.hash, container_hash(name, image));
                    }
                }
            }
            let dead = |state: fn(&ContainerSnapshot) -> bool| {
                self.containers
                    .iter()
                    .filter(|c| c.snapshot.name == name && state(&c.snapshot))
                    .count()
            };
            assert!(dead(|c| c.exit_code().is_some()) <= 1, "dead instances of {name} pile up");
            assert!(dead(|c| c.state == ContainerState::Created) <= 1, "{name} piles up");
        }
        assert!(any_runs, "a pod that goes on has a container that runs");
    }

    pub(super) fn is_reported_ended(&self, name: &str) -> bool {
        let statuses = self.reported.container_statuses.iter().flatten();
        statuses.filter(|status| status.name == name).any(|status| {
            let states = [status.state.as_ref(), status.last_state.as_ref()];
            states.into_iter().flatten().any(|state| state.terminated.is_some())
        })
    }

    /// A kubelet that starts anew beside a pod at rest changes nothing of it.
    pub(in crate::tests) fn check_restart_is_harmless(&mut self) {
        if is_static_pod(&self.pod) && (self.state.stage().rank() >= 2 || self.pruned) {
            // No status at the API server tells what has ended, so it may run again.
            return;
        }
        let before = self.snapshot();
        let status = self.reported.clone();
        let was_listed = self.listed;
        let had_failures = self.state.start_failures().next().is_some();
        self.trace.push("harmless restart".to_owned());
        self.crash(0);
        self.decide();
        self.calm_down();
        let after = self.snapshot();
        assert_eq!(before.sandboxes, after.sandboxes, "a restart touches sandboxes");
        assert_eq!(before.containers, after.containers, "a restart touches containers");
        // Why a start failed is known to one life of the kubelet alone.
        if was_listed && !is_static_pod(&self.pod) && !had_failures {
            let json = |status: &PodStatus| serde_json::to_string(status).unwrap();
            assert!(
                status::statuses_equal(&status, &self.reported),
                "a restart changes the status\n{}\n{}",
                json(&status),
                json(&self.reported)
            );
        }
    }
}
