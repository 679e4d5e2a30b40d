//! Which log is meant by who asks for one, and which logs may grow.

use std::sync::Arc;

use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};
use rubelet_container_logs::{LogError, LogOptions, LogReader, RunningContainer, Streams};
use rubelet_cri::CriClient;
use rubelet_cri::observe::{ListedContainerState, RelistByPod};
use rubelet_server::{
    ContainerLogs, ContainerLogsError, LogBytes, LogStream, LogTarget, LogsSince, PodLogOptions,
};
use rubelet_status_manager::StatusManager;
use rubelet_types::{Clock, ContainerId, NodePaths, error_chain, find_container, pod_ref, reasons};
use tokio_util::sync::CancellationToken;

use crate::pods::DesiredPods;

/// Finds the container instance that is meant, and has its log read.
#[derive(Debug)]
pub(crate) struct KubeletLogs {
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) statuses: StatusManager,
    pub(crate) reader: LogReader<CriClient>,
    pub(crate) clock: Clock,
    /// The gate `PodLogsQuerySplitStreams`.
    pub(crate) split_streams: bool,
    /// Followers do not hold up the end of the kubelet.
    pub(crate) stop: CancellationToken,
}

impl ContainerLogs for KubeletLogs {
    fn open_log(
        &self,
        target: LogTarget,
        options: PodLogOptions,
    ) -> BoxFuture<'_, Result<LogBytes, ContainerLogsError>> {
        self.open(target, options).boxed()
    }
}

impl KubeletLogs {
    async fn open(
        &self,
        target: LogTarget,
        options: PodLogOptions,
    ) -> Result<LogBytes, ContainerLogsError> {
        let LogTarget { namespace, pod: pod_name, container } = target;
        let Some(pod) = self.desired.by_name(&namespace, &pod_name) else {
            return Err(ContainerLogsError::NoPod { pod: pod_name });
        };
        if find_container(&pod, &container).is_none() {
            return Err(ContainerLogsError::NoContainer { container, pod: pod_name });
        }
        let streams = wanted_streams(options.stream, self.split_streams)?;
        let known = self.statuses.status(&pod_ref(&pod).uid);
        // Before the first decision about it, there is what the API server knows.
        let status = known.as_ref().map(|known| &known.status).or(pod.status.as_ref());
        let nothing = PodStatus::default();
        let status = status.unwrap_or(&nothing);
        let container_id = choose_instance(status, &pod_name, &container, options.previous)
            .map_err(ContainerLogsError::NoLog)?;
        let id = container_id.split_once("://").map_or(container_id, |(_, id)| id);
        let log_options = LogOptions {
            follow: options.follow,
            timestamps: options.timestamps,
            tail_lines: options.tail_lines,
            limit_bytes: options.limit_bytes,
            since: options.since.map(|since| moment(since, self.clock.now())),
            streams,
        };
        let opened = self.reader.open(&ContainerId::new(id), log_options).await;
        let log = opened.map_err(|error| {
            tracing::debug!(
                error = error_chain(&error),
                containerID = container_id,
                "Could not open a container log"
            );
            ContainerLogsError::NoLog(match error {
                LogError::Unknown { .. } => {
                    format!("unable to retrieve container logs for {container_id}")
                }
                error => error_chain(&error),
            })
        })?;
        Ok(self.until_stopped(log))
    }

    fn until_stopped(
        &self,
        log: impl Stream<Item = Result<bytes::Bytes, LogError>> + Send + 'static,
    ) -> LogBytes {
        let stop = self.stop.clone();
        let log = log.map(|piece| {
            piece.map_err(|error| {
                tracing::warn!(error = error_chain(&error), "A container log breaks off");
                Box::from(error)
            })
        });
        let break_off = stream::once(async move { stop.is_cancelled() })
            .filter(|is_stopped| ready(*is_stopped))
            .map(|_| Err(Box::from("the kubelet is shutting down")));
        log.take_until(self.stop.clone().cancelled_owned()).chain(break_off).boxed()
    }
}

fn moment(since: LogsSince, now: Timestamp) -> Timestamp {
    match since {
        LogsSince::Time(time) => time,
        LogsSince::SecondsAgo(seconds) => {
            now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN)
        }
    }
}

/// The id, as statuses show it, of the instance whose log is meant: the one that runs, else the one
/// that ran last; with `previous` the one before it. The error says why there is none.
fn choose_instance<'a>(
    status: &'a PodStatus,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<&'a str, String> {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut statuses = lists.into_iter().flatten().flatten();
    let Some(found) = statuses.find(|status| status.name == container) else {
        return Err(format!("container {container:?} in pod {pod:?} is not available"));
    };
    let last = last_instance(found);
    if previous {
        let none =
            || format!("previous terminated container {container:?} in pod {pod:?} not found");
        return last.flatten().ok_or_else(none);
    }
    let is_terminated = || format!("container {container:?} in pod {pod:?} is terminated");
    let waits =
        |why: &str| Err(format!("container {container:?} in pod {pod:?} is waiting to start{why}"));
    match found.state.as_ref() {
        Some(ContainerState { running: Some(_), .. }) => found
            .container_id
            .as_deref()
            .ok_or_else(|| format!("container {container:?} in pod {pod:?} is not available")),
        Some(ContainerState { terminated: Some(terminated), .. }) => {
            let own = terminated.container_id.as_deref().filter(|id| !id.is_empty());
            own.or_else(|| last.flatten()).ok_or_else(is_terminated)
        }
        _ if last.is_some() => last.flatten().ok_or_else(is_terminated),
        Some(ContainerState { waiting: Some(waiting), .. }) => {
            match waiting.reason.as_deref().unwrap_or_default() {
                reasons::ERR_IMAGE_PULL => waits(": image can't be pulled"),
                reasons::IMAGE_PULL_BACK_OFF => waits(": trying and failing to pull image"),
                reason => waits(&format!(": {reason}")),
            }
        }
        _ => waits(" - no logs yet"),
    }
}

/// The instance before, if there was one; its id, if that is known.
fn last_instance(status: &ContainerStatus) -> Option<Option<&str>> {
    let last = status.last_state.as_ref()?.terminated.as_ref()?;
    Some(last.container_id.as_deref().filter(|id| !id.is_empty()))
}

/// The containers whose logs grow, and where the kubelet has them written.
pub(crate) fn running_containers(pods: &RelistByPod, paths: &NodePaths) -> Vec<RunningContainer> {
    let of_pod = |entry: &rubelet_cri::observe::RelistEntry| {
        let pod = entry.pod.clone();
        let running = entry.containers.iter().filter(|container| {
            container.state == ListedContainerState::Running
                && NodePaths::check_element(&container.name).is_ok()
        });
        let logs = running.map(|container| RunningContainer {
            id: container.id.clone(),
            log: paths
                .container_log_dir(&pod, &container.name)
                .join(format!("{}.log", container.attempt)),
        });
        logs.collect::<Vec<_>>()
    };
    pods.values().flat_map(of_pod).collect()
}

/// One stream alone may be asked for where the gate `PodLogsQuerySplitStreams` is on.
fn wanted_streams(
    asked: Option<LogStream>,
    may_be_split: bool,
) -> Result<Streams, ContainerLogsError> {
    match asked {
        None | Some(LogStream::All) => Ok(Streams::All),
        Some(stream) if !may_be_split => Err(ContainerLogsError::NoLog(format!(
            "unable to return the given log stream: {:?}. Please enable PodLogsQuerySplitStreams \
             feature gate in kubelet",
            stream.name()
        ))),
        Some(LogStream::Stdout) => Ok(Streams::Stdout),
        Some(LogStream::Stderr) => Ok(Streams::Stderr),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn chosen(state: Value, last: Value, previous: bool) -> Result<String, String> {
        let status = json!({ "name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "containerID": "x://now", "state": state, "lastState": last });
        let status = json!({ "containerStatuses": [status] });
        let status: PodStatus = serde_json::from_value(status).unwrap();
        choose_instance(&status, "p", "c", previous).map(str::to_owned)
    }

    #[test]
    fn one_stream_alone_is_behind_a_gate() {
        let all = [None, Some(LogStream::All), Some(LogStream::Stdout), Some(LogStream::Stderr)];
        let split = all.map(|asked| wanted_streams(asked, true).unwrap());
        assert_eq!(split, [Streams::All, Streams::All, Streams::Stdout, Streams::Stderr]);
        for asked in &all[..2] {
            assert_eq!(wanted_streams(*asked, false).unwrap(), Streams::All);
        }
        for asked in &all[2..] {
            let ContainerLogsError::NoLog(text) = wanted_streams(*asked, false).unwrap_err() else {
                panic!("another error");
            };
            assert!(
                text.ends_with("Please enable PodLogsQuerySplitStreams feature gate in kubelet")
            );
        }
    }

    #[test]
    fn the_log_is_that_of_the_instance_that_runs_or_ran_last() {
        let ended = |id: &str| json!({ "terminated": { "exitCode": 1, "containerID": id } });
        let waits = |reason: &str| json!({ "waiting": { "reason": reason } });
        let running = json!({ "running": {} });
        let none = || json!({});
        let container = "container \"c\" in pod \"p\"";
        let waiting = |why: &str| Err(format!("{container} is waiting to start{why}"));
        let no_previous = || Err(format!("previous terminated {container} not found"));
        let terminated = || Err(format!("{container} is terminated"));
        for (state, last, previous, expected) in [
            (running.clone(), none(), false, Ok("x://now".to_owned())),
            (running.clone(), ended("x://before"), false, Ok("x://now".to_owned())),
            (running.clone(), ended("x://before"), true, Ok("x://before".to_owned())),
            (running.clone(), ended(""), true, no_previous()),
            (running, none(), true, no_previous()),
            (ended("x://ended"), none(), false, Ok("x://ended".to_owned())),
            (ended(""), ended("x://before"), false, Ok("x://before".to_owned())),
            (ended(""), none(), false, terminated()),
            (waits("CrashLoopBackOff"), ended("x://before"), false, Ok("x://before".to_owned())),
            (waits("CrashLoopBackOff"), ended(""), false, terminated()),
            (waits("ContainerCreating"), none(), false, waiting(": ContainerCreating")),
            (waits("ErrImagePull"), none(), false, waiting(": image can't be pulled")),
            (
                waits("ImagePullBackOff"),
                none(),
                false,
                waiting(": trying and failing to pull image"),
            ),
            (none(), none(), false, waiting(" - no logs yet")),
            (waits("ContainerCreating"), none(), true, no_previous()),
        ] {
            assert_eq!(chosen(state.clone(), last.clone(), previous), expected, "{state} {last}");
        }
    }

    #[test]
    fn any_kind_of_container_is_found_by_its_name() {
        let status = |name: &str| {
            json!([{ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "containerID": format!("x://{name}"), "state": { "running": {} } }])
        };
        let status: PodStatus = serde_json::from_value(json!({
            "initContainerStatuses": status("init"),
            "containerStatuses": status("app"),
            "ephemeralContainerStatuses": status("debugger"),
        }))
        .unwrap();
        for name in ["init", "app", "debugger"] {
            let found = choose_instance(&status, "p", name, false).unwrap();
            assert_eq!(found, format!("x://{name}"));
        }
        assert_eq!(
            choose_instance(&status, "p", "other", false).unwrap_err(),
            "container \"other\" in pod \"p\" is not available"
        );
    }

    #[test]
    fn seconds_count_back_from_now() {
        let now: Timestamp = "2026-11-30T14:40:31Z".parse().unwrap();
        assert_eq!(moment(LogsSince::SecondsAgo(31), now).to_string(), "2026-11-30T14:40:00Z");
        assert_eq!(moment(LogsSince::SecondsAgo(i64::MAX), now), Timestamp::MIN);
    }
}
