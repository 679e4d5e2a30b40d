//! The end of a history: nothing goes wrong any more, and the node becomes what is wanted.

use std::fmt::Write as _;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_apiserver::Verb;
use rubelet_cri::v1::{ContainerState, PodSandboxState};
use rubelet_fake_cri::Inventory;
use rubelet_pod_status::statuses_equal;
use rubelet_types::{
    ContainerKind, PodUid, RestartPolicy, container_requests, containers, is_terminal_phase,
    pod_ref, pod_restart_policy,
};

use crate::ledger::{Ledger, short};
use crate::world::World;

/// Within this everything has to be as it is wanted: the longest grace and the longest back-off have
/// passed by then.
const PATIENCE: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_secs(5);
/// A kubelet that has nothing to do is watched for this long.
const REST: Duration = Duration::from_secs(60);

/// Lets everything come to rest, and says what is not as it should be.
pub(crate) async fn settle(world: &mut World) {
    world.book.note("* nothing goes wrong any more");
    world.runtime.clear_faults();
    // What hangs in the runtime would hang for ever, with the names that it holds.
    world.crash_runtime();
    world.restart_runtime();
    world.set_network_ready(true);
    world.set_api_away(false);
    world.mend_api();
    world.runtime.set_events_lost(false);
    world.offer_remote_image();
    world.heal_commands();
    world.book.open().crash_in = None;
    if !world.is_alive() {
        world.start_kubelet();
    }
    let deadline = world.elapsed() + PATIENCE;
    let mut wrong = Vec::new();
    while world.elapsed() < deadline && !world.has_failed() {
        world.pass(PAUSE).await;
        wrong = differences(world);
        if wrong.is_empty() {
            world.book.note("* everything is as it is wanted");
            return rest(world).await;
        }
    }
    if world.has_failed() {
        return;
    }
    for text in wrong {
        world.book.violation(format!("in the end: {text}"));
    }
}

/// I5: nothing is done when nothing is to be done. I10: not even by a kubelet that starts.
async fn rest(world: &mut World) {
    let before = at_rest(world);
    let writes = writes(world, before.len());
    world.pass(REST).await;
    compare(world, &before, "without any reason");
    if world.has_failed() {
        return;
    }
    world.crash_kubelet().await;
    world.pass(PAUSE).await;
    world.start_kubelet();
    world.pass(REST / 2).await;
    compare(world, &before, "as the kubelet was started again");
    if let Some((before, after)) = writes.zip(self::writes(world, before.len()))
        && before != after
    {
        world.book.violation(format!(
            "at rest, and as the kubelet was started again, pods were written {} times",
            after - before
        ));
    }
}

/// How often pods were written at the API server, if no other pods than those `at_rest` go on.
fn writes(world: &World, at_rest: usize) -> Option<u64> {
    let server = world.api.as_server()?;
    let book = world.book.open();
    let pods = book.view.as_ref()?.pods();
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    let going_on = pods.iter().filter(|pod| !is_terminal_phase(phase(pod).as_deref())).count();
    let on = |verb, resource| server.requests(verb, resource);
    (going_on == at_rest).then(|| {
        on(Verb::Patch, "pods/status") + on(Verb::Create, "pods") + on(Verb::Delete, "pods")
    })
}

/// The pods that stay as they are, each with its status and how often something was done to it.
fn at_rest(world: &World) -> Vec<(String, Option<PodStatus>, u32)> {
    let book = world.book.open();
    let Some(view) = &book.view else { return Vec::new() };
    let inventory = world.runtime.inventory();
    let mut steady = Vec::new();
    for pod in view.pods() {
        let uid = pod.metadata.uid.unwrap_or_default();
        let Some(record) = book.pods.get(&uid) else { continue };
        // Others go on to end, and to be started again. So do those that were asked to, and nobody
        // remembers it.
        let is_ending = inventory.running(&uid).any(|container| container.stop_signal_sent);
        if record.is_steady && record.is_to_run() && record.ready && !is_ending {
            let changes = book.changes.get(&uid).copied().unwrap_or_default();
            steady.push((uid, pod.status, changes));
        }
    }
    steady
}

fn compare(world: &World, before: &[(String, Option<PodStatus>, u32)], why: &str) {
    let after = at_rest(world);
    for (uid, status, changes) in before {
        let Some((_, now, more)) = after.iter().find(|(other, ..)| other == uid) else {
            world.book.violation(format!("{uid} is not ready any more, {why}"));
            continue;
        };
        if more != changes {
            world.book.violation(format!("something was done to {uid}, {why}"));
        }
        let is_same = match (now, status) {
            (Some(now), Some(status)) => statuses_equal(now, status),
            (now, status) => now == status,
        };
        if !is_same {
            let text = |status| serde_json::to_string(&status).unwrap_or_default();
            world.book.violation(format!(
                "the status of {uid} changed, {why}: {} became {}",
                text(status),
                text(now)
            ));
        }
    }
}

/// What is not as it is wanted.
fn differences(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    let inventory = world.runtime.inventory();
    let book = world.book.open();
    let Some(view) = &book.view else { return vec!["there is no kubelet".to_owned()] };
    let statuses = view.pods();
    let paths = world.machine.node_paths();
    let cgroups = world.machine.pod_cgroups();
    for (uid, record) in &book.pods {
        let is_wanted = record.is_to_run();
        let directory = paths.pod_dir(&PodUid::new(uid.as_str()));
        if !is_wanted {
            if !inventory.is_gone(uid) {
                wrong.push(format!("the runtime still holds something of {uid}"));
            }
            if directory.exists() {
                wrong.push(format!("{uid} still has a directory"));
            }
            if cgroups.contains(uid) {
                wrong.push(format!("{uid} still has a cgroup"));
            }
            let logs = paths.pod_log_dir(&pod_ref(&record.pod));
            if logs.exists() {
                wrong.push(format!("{uid} still has logs"));
            }
            let status = paths.pod_statuses_dir().join(uid);
            if status.exists() {
                wrong.push(format!("{uid} still has a stored status"));
            }
            continue;
        }
        let status = statuses
            .iter()
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid))
            .and_then(|pod| pod.status.clone());
        match status {
            None => wrong.push(format!("{uid} has no status")),
            Some(status) => {
                let found = pod_differences(&book, uid, &status, &inventory);
                let is_over = is_terminal_phase(status.phase.as_deref());
                wrong.extend(found.into_iter().map(|text| format!("{uid}: {text}")));
                if is_over && directory.exists() {
                    wrong.push(format!("{uid} is over and still has a directory"));
                }
                if is_over && cgroups.contains(uid) {
                    wrong.push(format!("{uid} is over and still has a cgroup"));
                }
            }
        }
    }
    for cgroup in &cgroups {
        if !book.pods.contains_key(cgroup) {
            wrong.push(format!("there is a cgroup of the unknown pod {cgroup}"));
        }
    }
    for mount in world.mounts.mount_points() {
        let is_owned = book.pods.iter().any(|(uid, record)| {
            record.wanted && mount.to_string_lossy().contains(&format!("/{uid}/"))
        });
        if !is_owned {
            wrong.push(format!("{} is still mounted", mount.display()));
        }
    }
    wrong
}

fn pod_differences(
    book: &Ledger,
    uid: &str,
    status: &PodStatus,
    inventory: &Inventory,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(record) = book.pods.get(uid) else { return wrong };
    let phase = status.phase.as_deref().unwrap_or_default();
    let ready: Vec<&str> = inventory
        .sandboxes
        .iter()
        .filter(|s| s.pod_uid == *uid && s.state == PodSandboxState::SandboxReady)
        .map(|sandbox| sandbox.id.as_str())
        .collect();
    let running = inventory.running(uid).count();
    if is_terminal_phase(Some(phase)) {
        if running > 0 || !ready.is_empty() {
            wrong.push(format!(
                "{phase}, and {running} containers run in {} sandboxes",
                ready.len()
            ));
        }
        let spec = record.pod.spec.as_ref();
        let has_deadline = spec.is_some_and(|spec| spec.active_deadline_seconds.is_some());
        if pod_restart_policy(&record.pod) == RestartPolicy::Always && !has_deadline {
            wrong.push(format!("{phase}, and it is always to be started again"));
        }
        return wrong;
    }
    if ready.len() != 1 {
        wrong.push(format!("{phase} with {} ready sandboxes", ready.len()));
    }
    let initialised =
        containers(&record.pod).filter(|spec| spec.kind == ContainerKind::Init).all(|spec| {
            let mut ends = inventory.instances(uid, &spec.container.name);
            ends.any(|instance| instance.exit_code == Some(0))
        });
    let mut all_over = true;
    for spec in containers(&record.pod) {
        let name = spec.container.name.as_str();
        let newest = inventory.instances(uid, name).last();
        let state = newest.map(|newest| (newest.state, newest.exit_code));
        let rests = match state {
            Some((ContainerState::ContainerExited, Some(code))) => book.is_final(uid, name, code),
            _ => false,
        };
        if spec.kind == ContainerKind::Regular {
            all_over &= rests;
        }
        match (spec.kind, state) {
            (_, Some((ContainerState::ContainerRunning, _))) => {
                if spec.kind == ContainerKind::Init {
                    wrong.push(format!("init container {name} still runs"));
                }
                let wanted = container_requests(&spec.container).cpu_milli();
                let shares = (wanted * 1024 / 1000).max(2);
                let given = newest.map_or(0, |newest| newest.resources.cpu_shares);
                if given != shares {
                    wrong.push(format!("{name} has {given} CPU shares and not {shares}"));
                }
            }
            // It waits for its back-off, or rests.
            (_, Some((ContainerState::ContainerExited, _))) => {}
            // What is gone of it may be gone for long; and while an init container fails, again
            // and again, nothing after it starts.
            (ContainerKind::Init, None) => {}
            (_, None) if !initialised => {}
            // It vanished, which counts as an end.
            (_, None) if has_terminated(status, name) => {}
            (_, state) => wrong.push(format!("{name} is {state:?}, phase {phase}")),
        }
    }
    if all_over {
        wrong.push(format!("all containers have ended for good, and the phase is {phase}"));
    }
    let unready: Vec<&str> = status
        .container_statuses
        .iter()
        .flatten()
        .filter(|container| {
            let runs = container.state.as_ref().is_some_and(|state| state.running.is_some());
            runs && !container.ready
        })
        .map(|container| container.name.as_str())
        .collect();
    if !unready.is_empty() {
        wrong.push(format!("{} run and are not ready", unready.join(", ")));
    }
    wrong
}

fn has_terminated(status: &PodStatus, name: &str) -> bool {
    [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .filter(|container| container.name == name)
        // Upstream shows one that vanished and is not to run again as waiting, with its last end.
        .flat_map(|container| [&container.state, &container.last_state])
        .flatten()
        .any(|state| state.terminated.is_some())
}

/// Writes down everything that helps to understand what went wrong.
pub(crate) fn report(world: &World) {
    let mut text = String::from("what there is:\n");
    let inventory = world.runtime.inventory();
    for sandbox in &inventory.sandboxes {
        let _ = writeln!(
            text,
            "    sandbox {} of {}: {:?}",
            short(&sandbox.id),
            sandbox.pod_uid,
            sandbox.state
        );
    }
    for container in &inventory.containers {
        let _ = writeln!(
            text,
            "    container {} ({}) of {}: {:?} {:?}",
            container.name,
            short(&container.id),
            container.pod_uid,
            container.state,
            container.exit_code
        );
    }
    let mut book = world.book.open();
    if let Some(view) = book.view.clone() {
        let mut workers = view.workers();
        workers.sort_by(|a, b| a.pod.uid.cmp(&b.pod.uid));
        for worker in workers {
            let _ = writeln!(text, "    worker {}: {:?}", worker.pod.uid, worker.stage);
            text.push_str(&book.decisions(worker.pod.uid.as_str()));
        }
        for pod in view.pods() {
            let status = serde_json::to_string(&pod.status).unwrap_or_default();
            let _ = writeln!(text, "    status of {}: {status}", pod_ref(&pod).uid);
        }
    }
    book.note(text);
}
