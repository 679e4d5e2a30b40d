use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Which of two statuses of a static pod a kubelet goes on from when it starts: `kept` is what it
/// left on the node itself, `mirrored` what the pod's mirror says.
///
/// The one that tells of the later moment. Another kubelet that had the node in between begins such a
/// pod's times anew, and leaves its word in the mirror alone; where nobody reached the API server,
/// the mirror is behind. Of two that tell of the same moment `kept` says more.
pub fn decide_earlier_status(kept: PodStatus, mirrored: PodStatus) -> PodStatus {
    if latest_moment(&mirrored) > latest_moment(&kept) { mirrored } else { kept }
}

/// The latest time in a status, in whole seconds, as the API has them; none is before all others.
fn latest_moment(status: &PodStatus) -> Option<i64> {
    let conditions = status.conditions.iter().flatten();
    let changes = conditions.filter_map(|condition| condition.last_transition_time.as_ref());
    let containers = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let states = containers.into_iter().flatten().flatten();
    let states = states.flat_map(|container| [&container.state, &container.last_state]);
    let of_states = states.flatten().flat_map(moments);
    status
        .start_time
        .iter()
        .chain(changes)
        .map(|time| time.0)
        .chain(of_states)
        .map(Timestamp::as_second)
        .max()
}

fn moments(state: &ContainerState) -> impl Iterator<Item = Timestamp> {
    let running = state.running.iter().filter_map(|state| state.started_at.as_ref());
    let ended = state.terminated.iter();
    let ended = ended.flat_map(|state| [&state.started_at, &state.finished_at]).flatten();
    running.chain(ended).map(|Time(time)| *time)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Of a pod that started and became ready, and whose container ran, at some seconds.
    fn status(start: &str, ready: &str, state: Value) -> PodStatus {
        serde_json::from_value(json!({
            "phase": "Running",
            "startTime": format!("2026-01-01T{start}Z"),
            "conditions": [{
                "type": "Ready", "status": "True",
                "lastTransitionTime": format!("2026-01-01T{ready}Z"),
            }],
            "containerStatuses": [{
                "name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": state,
            }],
        }))
        .unwrap()
    }

    fn running(since: &str) -> Value {
        json!({ "running": { "startedAt": format!("2026-01-01T{since}Z") } })
    }

    fn ended(from: &str, to: &str) -> Value {
        json!({ "terminated": {
            "exitCode": 0, "startedAt": format!("2026-01-01T{from}Z"),
            "finishedAt": format!("2026-01-01T{to}Z"),
        } })
    }

    #[test]
    fn the_status_that_tells_of_the_later_moment_goes_on() {
        let kept = || status("00:00:00", "00:00:09", running("00:00:01"));
        let empty = PodStatus::default;
        for (name, kept, mirrored, expected) in [
            ("nothing happened since", kept(), kept(), "kept"),
            (
                "another kubelet began its times anew",
                kept(),
                status("10:00:00", "10:00:00", running("00:00:01")),
                "mirrored",
            ),
            (
                "another kubelet saw it become unready",
                kept(),
                status("00:00:00", "10:00:00", running("00:00:01")),
                "mirrored",
            ),
            (
                "another kubelet started its container again",
                kept(),
                status("00:00:00", "00:00:09", running("10:00:00")),
                "mirrored",
            ),
            (
                "another kubelet saw it end",
                kept(),
                status("00:00:00", "00:00:09", ended("00:00:01", "10:00:00")),
                "mirrored",
            ),
            (
                "the API server did not hear of the end",
                status("00:00:00", "00:00:09", ended("00:00:01", "10:00:00")),
                kept(),
                "kept",
            ),
            (
                "the API has whole seconds",
                status("00:00:00.7", "00:00:09.2", running("00:00:01.1")),
                kept(),
                "kept",
            ),
            ("a mirror that nobody has written", kept(), empty(), "kept"),
            ("a file that tells nothing", empty(), kept(), "mirrored"),
            ("neither tells anything", empty(), empty(), "kept"),
        ] {
            let decided = decide_earlier_status(kept.clone(), mirrored.clone());
            let expected = if expected == "kept" { kept } else { mirrored };
            assert_eq!(decided, expected, "{name}");
        }
    }
}
