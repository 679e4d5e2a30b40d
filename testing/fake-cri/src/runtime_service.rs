//! The runtime service of the protocol, on top of the runtime's own operations.

use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use rubelet_cri::{Rpc, v1};
use tokio::sync::broadcast::error::RecvError;
use tonic::{Request, Response, Status};

use crate::FakeRuntime;
use crate::happening::Happening;
use crate::state::{Container, Sandbox, selected};

type Answer<T> = Result<Response<T>, Status>;
type Parts<T> = BoxStream<'static, Result<T, Status>>;

/// Items in one part of a streamed list.
const PART: usize = 16;

impl FakeRuntime {
    /// What faults may know a sandbox by.
    pub(crate) fn sandbox_subjects(&self, id: &str) -> Vec<String> {
        let state = self.shared.state();
        let metadata = state.sandboxes.get(id).and_then(|sandbox| sandbox.config.metadata.clone());
        let names = metadata.map(|metadata| [metadata.name, metadata.uid]);
        names.into_iter().flatten().chain([id.to_owned()]).collect()
    }

    /// What faults may know a container by.
    pub(crate) fn container_subjects(&self, id: &str) -> Vec<String> {
        let (name, sandbox_id) = {
            let state = self.shared.state();
            match state.containers.get(id) {
                Some(container) => (container.name().to_owned(), container.sandbox_id.clone()),
                None => return vec![id.to_owned()],
            }
        };
        let mut subjects = self.sandbox_subjects(&sandbox_id);
        subjects.extend([id.to_owned(), name]);
        subjects
    }

    fn sandboxes_matching(&self, filter: Option<v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let filter = filter.unwrap_or_default();
        let matches = |sandbox: &&Sandbox| {
            sandbox.id.starts_with(&filter.id)
                && filter.state.is_none_or(|wanted| wanted.state == i32::from(sandbox.state()))
                && selected(&sandbox.config.labels, &filter.label_selector)
        };
        self.shared.state().sandboxes.values().filter(matches).map(Sandbox::listed).collect()
    }

    fn containers_matching(&self, filter: Option<v1::ContainerFilter>) -> Vec<v1::Container> {
        let filter = filter.unwrap_or_default();
        let matches = |container: &&Container| {
            container.id.starts_with(&filter.id)
                && container.sandbox_id.starts_with(&filter.pod_sandbox_id)
                && filter.state.is_none_or(|wanted| wanted.state == i32::from(container.state()))
                && selected(&container.config.labels, &filter.label_selector)
        };
        self.shared.state().containers.values().filter(matches).map(Container::listed).collect()
    }

    /// Answers a list in parts, where the runtime offers that.
    pub(crate) async fn in_parts<T: Clone + Send + 'static, P: Send + 'static>(
        &self,
        rpc: Rpc,
        items: impl FnOnce() -> Vec<T>,
        part: impl Fn(Vec<T>) -> P + Send + 'static,
    ) -> Answer<Parts<P>> {
        self.call(rpc, Vec::new(), async {
            if !self.shared.options.list_streaming {
                return Err(Status::unimplemented(format!("unknown method {rpc}")));
            }
            let chunks: Vec<_> = items().chunks(PART).map(<[T]>::to_vec).collect();
            Ok(stream::iter(chunks).map(move |chunk| Ok(part(chunk))).boxed())
        })
        .await
    }

    async fn exec_in(&self, request: v1::ExecSyncRequest) -> Result<v1::ExecSyncResponse, Status> {
        let (id, command) = (request.container_id.clone(), request.cmd.clone());
        let ended = self.try_exec(request).await;
        let exit_code = ended.as_ref().ok().map(|answer| answer.exit_code);
        self.tell(|| Happening::Exec { id, command, exit_code });
        ended
    }

    async fn try_exec(&self, request: v1::ExecSyncRequest) -> Result<v1::ExecSyncResponse, Status> {
        let v1::ExecSyncRequest { container_id: id, cmd, timeout } = request;
        let (script, set, mut process) = {
            let state = self.shared.state();
            let container = state.container(&id)?;
            let process = state.process_of(&id).ok_or_else(|| {
                Status::unknown(format!(
                    "failed to exec in container: container is in {} state",
                    container.state().as_str_name()
                ))
            })?;
            let set = state.execs.get(&(container.name().to_owned(), cmd.clone())).cloned();
            (container.script.clone(), set, process)
        };
        let program = cmd.first().cloned().unwrap_or_default();
        let answer = set.or_else(|| script.answer_exec(&cmd)).ok_or_else(|| {
            Status::unknown(format!(
                "failed to exec in container: failed to start exec: OCI runtime exec failed: exec \
                 failed: unable to start container process: exec: {program:?}: executable file \
                 not found in $PATH"
            ))
        })?;
        let limit = match u64::try_from(timeout) {
            Ok(seconds @ 1..) => Duration::from_secs(seconds),
            _ => Duration::MAX,
        };
        let killed = process.ended.wait_for(|ended| *ended);
        tokio::select! {
            biased;
            () = tokio::time::sleep(answer.after) => Ok(v1::ExecSyncResponse {
                stdout: answer.stdout.into_bytes(),
                stderr: answer.stderr.into_bytes(),
                exit_code: answer.exit_code,
            }),
            _ = killed => Ok(v1::ExecSyncResponse { exit_code: 137, ..Default::default() }),
            () = tokio::time::sleep(limit) => Err(Status::deadline_exceeded(format!(
                "failed to exec in container: timeout {timeout}s exceeded: context deadline \
                 exceeded"
            ))),
        }
    }

    /// The address of a stream, where there is a streaming server.
    fn streaming_url(&self, kind: &str, id: &str) -> Result<String, Status> {
        match &self.shared.options.streaming_url {
            Some(base) => Ok(format!("{base}/{kind}/{id}")),
            None => Err(Status::unavailable("the streaming server is not running")),
        }
    }
}

#[tonic::async_trait]
impl v1::runtime_service_server::RuntimeService for FakeRuntime {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        self.call(Rpc::Version, Vec::new(), async {
            let options = &self.shared.options;
            Ok(v1::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: options.name.clone(),
                runtime_version: options.version.clone(),
                runtime_api_version: options.api_version.clone(),
            })
        })
        .await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let verbose = request.into_inner().verbose;
        self.call(Rpc::Status, Vec::new(), async {
            let (runtime_ready, network_ready) = {
                let state = self.shared.state();
                (state.runtime_ready, state.network_ready)
            };
            let condition = |kind: &str, status: bool, reason: &str, message: &str| {
                let (reason, message) = if status { ("", "") } else { (reason, message) };
                v1::RuntimeCondition {
                    r#type: kind.to_owned(),
                    status,
                    reason: reason.to_owned(),
                    message: message.to_owned(),
                }
            };
            let handlers = &self.shared.options.runtime_handlers;
            let handlers = std::iter::once(String::new()).chain(handlers.iter().cloned());
            let info = verbose.then(|| ("config".to_owned(), "{}".to_owned()));
            Ok(v1::StatusResponse {
                status: Some(v1::RuntimeStatus {
                    conditions: vec![
                        condition("RuntimeReady", runtime_ready, "RuntimeNotReady", "not ready"),
                        condition(
                            "NetworkReady",
                            network_ready,
                            "NetworkPluginNotReady",
                            "Network plugin returns error: cni plugin not initialized",
                        ),
                    ],
                }),
                info: info.into_iter().collect(),
                runtime_handlers: handlers
                    .map(|name| v1::RuntimeHandler {
                        name,
                        features: Some(v1::RuntimeHandlerFeatures {
                            recursive_read_only_mounts: true,
                            user_namespaces: true,
                        }),
                    })
                    .collect(),
                features: Some(v1::RuntimeFeatures {
                    supplemental_groups_policy: true,
                    ..Default::default()
                }),
            })
        })
        .await
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        self.call(Rpc::RuntimeConfig, Vec::new(), async {
            let driver = self.shared.options.cgroup_driver;
            let driver = driver.ok_or_else(|| Status::unimplemented("unknown method"))?;
            let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
            Ok(v1::RuntimeConfigResponse { linux: Some(linux) })
        })
        .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        self.call(Rpc::UpdateRuntimeConfig, Vec::new(), async {
            let config = request.into_inner().runtime_config.unwrap_or_default();
            let pod_cidr = config.network_config.unwrap_or_default().pod_cidr;
            self.shared.change(|state| state.pod_cidr = pod_cidr);
            Ok(v1::UpdateRuntimeConfigResponse {})
        })
        .await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let runtime = self.clone();
        let request = request.into_inner();
        self.detached(async move { runtime.do_run_sandbox(request).await }).await.map(Response::new)
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let runtime = self.clone();
        self.detached(async move {
            let subjects = runtime.sandbox_subjects(&id);
            let stop = async {
                runtime.do_stop_sandbox(&id).await;
                Ok(v1::StopPodSandboxResponse {})
            };
            runtime.call(Rpc::StopPodSandbox, subjects, stop).await
        })
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let runtime = self.clone();
        self.detached(async move {
            let subjects = runtime.sandbox_subjects(&id);
            let remove = async {
                runtime.do_remove_sandbox(&id).await;
                Ok(v1::RemovePodSandboxResponse {})
            };
            runtime.call(Rpc::RemovePodSandbox, subjects, remove).await
        })
        .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<v1::UpdatePodSandboxResourcesResponse> {
        let v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id: id, overhead, resources } =
            request.into_inner();
        self.call(Rpc::UpdatePodSandboxResources, self.sandbox_subjects(&id), async {
            self.shared.change(|state| {
                state.sandbox(&id)?;
                if let Some(sandbox) = state.sandboxes.get_mut(&id) {
                    (sandbox.overhead, sandbox.resources) = (overhead, resources);
                }
                Ok(v1::UpdatePodSandboxResourcesResponse {})
            })
        })
        .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        self.call(Rpc::ListPodSandbox, Vec::new(), async {
            let items = self.sandboxes_matching(request.into_inner().filter);
            Ok(v1::ListPodSandboxResponse { items })
        })
        .await
    }

    type StreamPodSandboxesStream = Parts<v1::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        let items = || self.sandboxes_matching(request.into_inner().filter);
        self.in_parts(Rpc::StreamPodSandboxes, items, |pod_sandboxes| {
            v1::StreamPodSandboxesResponse { pod_sandboxes }
        })
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(Rpc::PodSandboxStatus, self.sandbox_subjects(&id), async {
            let status = self.shared.state().sandbox(&id)?.status();
            Ok(v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let runtime = self.clone();
        let request = request.into_inner();
        self.detached(async move { runtime.do_create_container(request).await })
            .await
            .map(Response::new)
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        let runtime = self.clone();
        self.detached(async move {
            let subjects = runtime.container_subjects(&id);
            let start = async {
                runtime.do_start_container(&id)?;
                Ok(v1::StartContainerResponse {})
            };
            runtime.call(Rpc::StartContainer, subjects, start).await
        })
        .await
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let v1::StopContainerRequest { container_id: id, timeout } = request.into_inner();
        self.call(Rpc::StopContainer, self.container_subjects(&id), async {
            self.do_stop_container(&id, timeout).await;
            Ok(v1::StopContainerResponse {})
        })
        .await
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        let runtime = self.clone();
        self.detached(async move {
            let subjects = runtime.container_subjects(&id);
            let remove = async {
                runtime.do_remove_container(&id).await;
                Ok(v1::RemoveContainerResponse {})
            };
            runtime.call(Rpc::RemoveContainer, subjects, remove).await
        })
        .await
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let v1::UpdateContainerResourcesRequest { container_id: id, linux, .. } =
            request.into_inner();
        self.call(Rpc::UpdateContainerResources, self.container_subjects(&id), async {
            self.shared.change(|state| {
                let container = state.container_mut(&id)?;
                merge_resources(&mut container.resources, linux.unwrap_or_default());
                Ok(v1::UpdateContainerResourcesResponse {})
            })
        })
        .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        let id = request.into_inner().container_id;
        self.call(Rpc::ReopenContainerLog, self.container_subjects(&id), async {
            let log = {
                let state = self.shared.state();
                let container = state.container(&id)?;
                if !container.is_running() {
                    return Err(Status::unknown("container is not running"));
                }
                container.log.clone()
            };
            log.open().map_err(|error| Status::unknown(error.to_string()))?;
            Ok(v1::ReopenContainerLogResponse {})
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        self.call(Rpc::ListContainers, Vec::new(), async {
            let containers = self.containers_matching(request.into_inner().filter);
            Ok(v1::ListContainersResponse { containers })
        })
        .await
    }

    type StreamContainersStream = Parts<v1::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        let items = || self.containers_matching(request.into_inner().filter);
        self.in_parts(Rpc::StreamContainers, items, |containers| v1::StreamContainersResponse {
            containers,
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        self.call(Rpc::ContainerStatus, self.container_subjects(&id), async {
            let status = self.shared.state().container(&id)?.status();
            Ok(v1::ContainerStatusResponse { status: Some(status), ..Default::default() })
        })
        .await
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Answer<v1::ExecSyncResponse> {
        let request = request.into_inner();
        let mut subjects = self.container_subjects(&request.container_id);
        subjects.extend(request.cmd.iter().cloned());
        self.call(Rpc::ExecSync, subjects, self.exec_in(request)).await
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let id = request.into_inner().container_id;
        self.call(Rpc::Exec, self.container_subjects(&id), async {
            self.shared.state().container(&id)?;
            Ok(v1::ExecResponse { url: self.streaming_url("exec", &id)? })
        })
        .await
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let id = request.into_inner().container_id;
        self.call(Rpc::Attach, self.container_subjects(&id), async {
            self.shared.state().container(&id)?;
            Ok(v1::AttachResponse { url: self.streaming_url("attach", &id)? })
        })
        .await
    }

    async fn port_forward(
        &self,
        request: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(Rpc::PortForward, self.sandbox_subjects(&id), async {
            self.shared.state().sandbox(&id)?;
            Ok(v1::PortForwardResponse { url: self.streaming_url("portforward", &id)? })
        })
        .await
    }

    async fn checkpoint_container(
        &self,
        _: Request<v1::CheckpointContainerRequest>,
    ) -> Answer<v1::CheckpointContainerResponse> {
        Err(Status::unimplemented("method CheckpointContainer not implemented"))
    }

    async fn checkpoint_pod(
        &self,
        _: Request<v1::CheckpointPodRequest>,
    ) -> Answer<v1::CheckpointPodResponse> {
        Err(Status::unimplemented("method CheckpointPod not implemented"))
    }

    async fn restore_pod(
        &self,
        _: Request<v1::RestorePodRequest>,
    ) -> Answer<v1::RestorePodResponse> {
        Err(Status::unimplemented("method RestorePod not implemented"))
    }

    type GetContainerEventsStream = Parts<v1::ContainerEventResponse>;

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        self.call(Rpc::GetContainerEvents, Vec::new(), async {
            if !self.shared.options.container_events {
                return Err(Status::unimplemented("method GetContainerEvents not implemented"));
            }
            let receiver = self.shared.events.subscribe();
            let events = stream::unfold(receiver, |mut receiver| async move {
                loop {
                    match receiver.recv().await {
                        Ok(event) => return Some((Ok(event), receiver)),
                        // A subscriber that lags loses events and is not told, as in real runtimes.
                        Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => return None,
                    }
                }
            });
            Ok(events.boxed())
        })
        .await
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Answer<v1::ContainerStatsResponse> {
        let id = request.into_inner().container_id;
        self.call(Rpc::ContainerStats, self.container_subjects(&id), async {
            Ok(v1::ContainerStatsResponse { stats: Some(self.stats_of_container(&id)?) })
        })
        .await
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        self.call(Rpc::ListContainerStats, Vec::new(), async {
            let stats = self.stats_of_containers(request.into_inner().filter);
            Ok(v1::ListContainerStatsResponse { stats })
        })
        .await
    }

    type StreamContainerStatsStream = Parts<v1::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        let items = || self.stats_of_containers(request.into_inner().filter);
        self.in_parts(Rpc::StreamContainerStats, items, |container_stats| {
            v1::StreamContainerStatsResponse { container_stats }
        })
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(Rpc::PodSandboxStats, self.sandbox_subjects(&id), async {
            Ok(v1::PodSandboxStatsResponse { stats: Some(self.stats_of_sandbox(&id)?) })
        })
        .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        self.call(Rpc::ListPodSandboxStats, Vec::new(), async {
            let stats = self.stats_of_sandboxes(request.into_inner().filter);
            Ok(v1::ListPodSandboxStatsResponse { stats })
        })
        .await
    }

    type StreamPodSandboxStatsStream = Parts<v1::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        let items = || self.stats_of_sandboxes(request.into_inner().filter);
        self.in_parts(Rpc::StreamPodSandboxStats, items, |pod_sandbox_stats| {
            v1::StreamPodSandboxStatsResponse { pod_sandbox_stats }
        })
        .await
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Answer<v1::ListMetricDescriptorsResponse> {
        self.call(Rpc::ListMetricDescriptors, Vec::new(), async {
            Ok(v1::ListMetricDescriptorsResponse { descriptors: self.metric_descriptors() })
        })
        .await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Answer<v1::ListPodSandboxMetricsResponse> {
        self.call(Rpc::ListPodSandboxMetrics, Vec::new(), async {
            Ok(v1::ListPodSandboxMetricsResponse { pod_metrics: self.pod_metrics() })
        })
        .await
    }

    type StreamPodSandboxMetricsStream = Parts<v1::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        self.in_parts(
            Rpc::StreamPodSandboxMetrics,
            || self.pod_metrics(),
            |pod_sandbox_metrics| v1::StreamPodSandboxMetricsResponse { pod_sandbox_metrics },
        )
        .await
    }
}

/// Takes over what `update` sets; what is 0 or empty in it stays.
fn merge_resources(current: &mut v1::LinuxContainerResources, update: v1::LinuxContainerResources) {
    fn set<T: Default + PartialEq>(current: &mut T, update: T) {
        if update != T::default() {
            *current = update;
        }
    }
    set(&mut current.cpu_period, update.cpu_period);
    set(&mut current.cpu_quota, update.cpu_quota);
    set(&mut current.cpu_shares, update.cpu_shares);
    set(&mut current.memory_limit_in_bytes, update.memory_limit_in_bytes);
    set(&mut current.oom_score_adj, update.oom_score_adj);
    set(&mut current.cpuset_cpus, update.cpuset_cpus);
    set(&mut current.cpuset_mems, update.cpuset_mems);
    set(&mut current.hugepage_limits, update.hugepage_limits);
    set(&mut current.memory_swap_limit_in_bytes, update.memory_swap_limit_in_bytes);
    current.unified.extend(update.unified);
}
