//! From all that is known of a pod to why it is not running.

use rubelet_pod_lifecycle::{Stage, StopCause};
use rubelet_types::reasons;

use super::view::{Container, Observed, PodView, Volume};
use crate::pods::Standing;

/// What a container waits for that is nobody's fault.
const IN_GOOD_ORDER: [&str; 2] = [reasons::CONTAINER_CREATING, reasons::POD_INITIALIZING];

/// Says why a pod is not running, or not ready, in sentences: what holds up everything else comes
/// first. Empty for a pod that is as it should be.
pub(super) fn explain(view: &PodView) -> Vec<String> {
    let mut why = Vec::new();
    match view.admission {
        Some(Standing::Refused) => {
            let (reason, message) =
                view.status.as_ref().map_or(("", ""), |status| (&status.reason, &status.message));
            why.push(format!("The node refused the pod: {}", reasoned(reason, message)));
            return why;
        }
        Some(Standing::Expected) => {
            why.push("It is let in, and waits until other pods have made room".to_owned());
        }
        Some(Standing::Undecided) => {
            why.push("It is not decided yet whether it is let in".to_owned())
        }
        Some(Standing::Admitted) => {}
        None => why.push("No source wants the pod any more".to_owned()),
    }
    let runtime =
        [&view.runtime.not_ready, &view.runtime.network_not_ready, &view.runtime.not_listed];
    why.extend(runtime.into_iter().flatten().cloned());
    if let Observed::Error(error) = &view.observed {
        why.push(format!("The runtime does not tell what it holds of the pod: {error}"));
    }
    why.extend(stopping(view));
    let is_over = view.worker.as_ref().is_some_and(|worker| worker.stage.rank() >= 3);
    if !is_over {
        why.extend(view.volumes.iter().filter_map(volume));
        why.extend(view.containers.iter().filter_map(container));
    }
    let is_ready = view.status.as_ref().is_some_and(|status| status.is_ready);
    if why.is_empty() && !is_ready {
        // Nothing is wrong that could be pointed at: what is being done says it.
        let worker = view.worker.as_ref();
        let last = worker.and_then(|worker| worker.decisions.last());
        why.extend(last.into_iter().flat_map(|decision| decision.because.iter().cloned()));
        let unmet = view.status.iter().flat_map(|status| status.unmet_conditions.iter().cloned());
        why.extend(unmet);
    }
    if view.status.as_ref().is_some_and(|status| status.reached_api_server == Some(false)) {
        why.push("The API server has not been told its present status yet".to_owned());
    }
    why
}

fn stopping(view: &PodView) -> Option<String> {
    let (cause, how) = match &view.worker.as_ref()?.stage {
        Stage::Waiting => {
            return Some("Another static pod of its name has not ended yet".to_owned());
        }
        Stage::Syncing => return None,
        Stage::Terminating { cause, deadline, .. } => {
            (cause, format!("It is being stopped, until {deadline:.0} at the latest"))
        }
        Stage::Terminated { cause, .. } => {
            (cause, "It has ended, and what it held is being released".to_owned())
        }
        Stage::Finished { cause } => (cause, "It has ended".to_owned()),
    };
    let cause = match cause {
        StopCause::Deleted => "it was deleted, or left its source".to_owned(),
        StopCause::Completed => "all its containers are done".to_owned(),
        StopCause::DeadlineExceeded => "its activeDeadlineSeconds have passed".to_owned(),
        StopCause::Orphaned => "no source knows it".to_owned(),
        StopCause::Disrupted(disruption) => reasoned(&disruption.reason, &disruption.message),
    };
    let running = match &view.observed {
        Observed::Snapshot(snapshot) => {
            let running = snapshot.containers.iter().filter(|container| container.may_run());
            running.map(|container| container.name.as_str()).collect::<Vec<_>>().join(", ")
        }
        Observed::Error(_) => String::new(),
    };
    let running =
        if running.is_empty() { String::new() } else { format!("; still running: {running}") };
    Some(format!("{how}: {cause}{running}"))
}

fn volume(volume: &Volume) -> Option<String> {
    let error = volume.last_error.as_ref()?;
    let again = volume.retry_at.map(|at| format!("; next try at {at:.0}")).unwrap_or_default();
    Some(format!("Volume {:?} is not ready: {error}{again}", volume.name))
}

fn container(container: &Container) -> Option<String> {
    let name = &container.name;
    let said = reasoned(&container.reason, &container.message);
    let last = container.last_end.as_ref();
    let last = last.map(|last| format!("; it last {last}")).unwrap_or_default();
    match container.state {
        "waiting" if IN_GOOD_ORDER.contains(&container.reason.as_str()) => {
            let pull = container.image_pull.as_ref().filter(|pull| pull.in_flight)?;
            let before = pull.last_error.as_ref();
            let before = before.map(|error| format!("; before: {error}")).unwrap_or_default();
            Some(format!("Container {name:?} waits for its image {}{before}", container.image))
        }
        "waiting" => Some(format!("Container {name:?} waits: {said}{last}")),
        "terminated" if container.exit_code == Some(0) || container.kind == "ephemeral" => None,
        "terminated" => {
            let code = container.exit_code.map(|code| format!(" with exit code {code}"));
            Some(format!("Container {name:?} ended{}: {said}", code.unwrap_or_default()))
        }
        "running" if !container.ready && matches!(container.kind, "regular" | "sidecar") => {
            let failing = container
                .probes
                .iter()
                .filter(|probe| probe.result != "success" && probe.kind != "liveness")
                .map(|probe| match probe.result {
                    "failure" => format!("its {} probe has not passed", probe.kind),
                    _ => format!("its {} probe has no result yet", probe.kind),
                })
                .collect::<Vec<_>>();
            let failing =
                if failing.is_empty() { "not ready yet".to_owned() } else { failing.join(", ") };
            Some(format!("Container {name:?} runs, but {failing}{last}"))
        }
        _ => None,
    }
}

/// A reason and a message as one text; whichever there is.
fn reasoned(reason: &str, message: &str) -> String {
    match (reason, message) {
        ("", "") => "no reason was given".to_owned(),
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use rubelet_pod_workers::RecordedDecision;
    use rubelet_types::{PodRef, PodSnapshot};

    use super::*;
    use crate::why::view::{ImagePull, Probe, Runtime, Status, Worker};

    fn view() -> PodView {
        let at = "2026-11-30T14:40:31Z".parse().unwrap();
        let pod = PodRef::new("uid", "ns", "web");
        let decision = RecordedDecision {
            at,
            stage: Stage::Syncing,
            because: vec!["the sandbox is being made".to_owned()],
            actions: Vec::new(),
        };
        PodView {
            pod: pod.clone(),
            asked_at: at,
            why: Vec::new(),
            source: Some("api".to_owned()),
            admission: Some(Standing::Admitted),
            worker: Some(Worker {
                stage: Stage::Syncing,
                is_removed: false,
                is_orphan: false,
                actions: Vec::new(),
                wakes_at: None,
                decisions: vec![decision],
            }),
            runtime: Runtime::default(),
            observed: Observed::Snapshot(Box::new(PodSnapshot::empty(pod, at))),
            volumes: Vec::new(),
            containers: vec![container("waiting", reasons::CONTAINER_CREATING, "")],
            status: Some(Status {
                phase: "Pending".to_owned(),
                reason: String::new(),
                message: String::new(),
                unmet_conditions: Vec::new(),
                is_ready: false,
                version: 1,
                reached_api_server: Some(true),
            }),
        }
    }

    fn container(state: &'static str, reason: &str, message: &str) -> Container {
        Container {
            name: "app".to_owned(),
            image: "registry/app:1".to_owned(),
            kind: "regular",
            state,
            reason: reason.to_owned(),
            message: message.to_owned(),
            exit_code: None,
            restart_count: 0,
            ready: false,
            last_end: None,
            id: None,
            image_pull: None,
            probes: Vec::new(),
        }
    }

    fn with_container(container: Container) -> PodView {
        PodView { containers: vec![container], ..view() }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let pulling = ImagePull { in_flight: true, last_error: None, retry_at: None };
        let probe = |kind, result| Probe { kind, result };
        let crashed = Container {
            last_end: Some("ended with exit code 3 (Error)".to_owned()),
            ..container("waiting", "CrashLoopBackOff", "back-off 10s")
        };
        let unready = Container {
            probes: vec![probe("startup", "success"), probe("readiness", "failure")],
            ..container("running", "", "")
        };
        let failed = Container { exit_code: Some(3), ..container("terminated", "Error", "") };
        let missing = Volume {
            name: "settings".to_owned(),
            is_ready: false,
            host_path: None,
            last_error: Some("configmap \"x\" not found".to_owned()),
            retry_at: None,
        };
        let mut refused = view();
        refused.admission = Some(Standing::Refused);
        if let Some(status) = &mut refused.status {
            status.reason = "OutOfcpu".to_owned();
            status.message = "Node didn't have enough resource: cpu".to_owned();
        }
        let mut no_network = view();
        no_network.runtime.network_not_ready = Some("network not ready: no CNI".to_owned());
        let mut untold = view();
        if let Some(status) = &mut untold.status {
            status.is_ready = true;
            status.reached_api_server = Some(false);
        }
        let mut well = view();
        if let Some(status) = &mut well.status {
            status.is_ready = true;
        }
        let image = "waits: ImagePullBackOff: Back-off pulling image";
        for (view, expected) in [
            (view(), vec!["the sandbox is being made"]),
            (well, vec![]),
            (
                refused,
                vec!["The node refused the pod: OutOfcpu: Node didn't have enough resource: cpu"],
            ),
            (no_network, vec!["network not ready: no CNI"]),
            (untold, vec!["The API server has not been told its present status yet"]),
            (
                PodView { volumes: vec![missing], ..view() },
                vec!["Volume \"settings\" is not ready: configmap \"x\" not found"],
            ),
            (
                with_container(container("waiting", "ImagePullBackOff", "Back-off pulling image")),
                vec![&format!("Container \"app\" {image}")],
            ),
            (
                with_container(Container {
                    image_pull: Some(pulling),
                    ..container("waiting", reasons::CONTAINER_CREATING, "")
                }),
                vec!["Container \"app\" waits for its image registry/app:1"],
            ),
            (
                with_container(crashed),
                vec![
                    "Container \"app\" waits: CrashLoopBackOff: back-off 10s; it last ended with \
                     exit code 3 (Error)",
                ],
            ),
            (with_container(failed), vec!["Container \"app\" ended with exit code 3: Error"]),
            (
                with_container(unready),
                vec!["Container \"app\" runs, but its readiness probe has not passed"],
            ),
        ] {
            assert_eq!(explain(&view), expected, "{view:?}");
        }
    }

    #[test]
    fn what_keeps_a_pod_from_ending_is_named() {
        let mut view = view();
        let deadline = "2026-11-30T14:41:01Z".parse().unwrap();
        if let Some(worker) = &mut view.worker {
            worker.stage = Stage::Terminating {
                since: view.asked_at,
                grace_seconds: 30,
                deadline,
                cause: StopCause::Deleted,
            };
        }
        let expected = "It is being stopped, until 2026-11-30T14:41:01Z at the latest: it was \
                        deleted, or left its source";
        assert_eq!(explain(&view), [expected]);
    }
}
