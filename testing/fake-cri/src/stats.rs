//! Statistics: what the simulated processes have used.

use rubelet_cri::v1;
use tonic::Status;

use crate::FakeRuntime;
use crate::state::{Container, Sandbox, State, selected};

/// Metric of each running container: when it was started.
const START_TIME: &str = "container_start_time_seconds";

fn value(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

fn container_stats(container: &Container, now: i64) -> v1::ContainerStats {
    let running = u64::from(container.is_running());
    let memory = running * container.script.memory_bytes;
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: container.id.clone(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: Some(v1::CpuUsage {
            timestamp: now,
            usage_core_nano_seconds: value(container.cpu_nanoseconds(now)),
            usage_nano_cores: value(running * container.script.cpu_milli * 1_000_000),
            psi: None,
        }),
        memory: Some(v1::MemoryUsage {
            timestamp: now,
            working_set_bytes: value(memory),
            usage_bytes: value(memory),
            rss_bytes: value(memory),
            ..Default::default()
        }),
        writable_layer: Some(v1::FilesystemUsage {
            timestamp: now,
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: crate::image_service::STORE.to_owned(),
            }),
            used_bytes: value(0),
            inodes_used: value(0),
        }),
        swap: None,
        io: None,
    }
}

fn sandbox_stats(state: &State, sandbox: &Sandbox, now: i64) -> v1::PodSandboxStats {
    let of_sandbox = state.containers.values().filter(|c| c.sandbox_id == sandbox.id);
    let (mut cpu_nanoseconds, mut nano_cores, mut memory, mut processes) = (0, 0, 0, 0);
    let mut containers = Vec::new();
    for container in of_sandbox {
        cpu_nanoseconds += container.cpu_nanoseconds(now);
        if container.is_running() {
            nano_cores += container.script.cpu_milli * 1_000_000;
            memory += container.script.memory_bytes;
            processes += 1;
            containers.push(container_stats(container, now));
        }
    }
    v1::PodSandboxStats {
        attributes: Some(v1::PodSandboxAttributes {
            id: sandbox.id.clone(),
            metadata: sandbox.config.metadata.clone(),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
        }),
        linux: Some(v1::LinuxPodSandboxStats {
            cpu: Some(v1::CpuUsage {
                timestamp: now,
                usage_core_nano_seconds: value(cpu_nanoseconds),
                usage_nano_cores: value(nano_cores),
                psi: None,
            }),
            memory: Some(v1::MemoryUsage {
                timestamp: now,
                working_set_bytes: value(memory),
                usage_bytes: value(memory),
                rss_bytes: value(memory),
                ..Default::default()
            }),
            network: None,
            process: Some(v1::ProcessUsage { timestamp: now, process_count: value(processes) }),
            containers,
            io: None,
        }),
        windows: None,
    }
}

impl FakeRuntime {
    fn with_now<T>(&self, read: impl FnOnce(&State, i64) -> T) -> T {
        let mut state = self.shared.state();
        let now = state.tick(self.shared.options.clock.now());
        read(&state, now)
    }

    pub(crate) fn stats_of_container(&self, id: &str) -> Result<v1::ContainerStats, Status> {
        self.with_now(|state, now| Ok(container_stats(state.container(id)?, now)))
    }

    pub(crate) fn stats_of_containers(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Vec<v1::ContainerStats> {
        let filter = filter.unwrap_or_default();
        self.with_now(|state, now| {
            let matching = state.containers.values().filter(|container| {
                container.is_running()
                    && container.id.starts_with(&filter.id)
                    && container.sandbox_id.starts_with(&filter.pod_sandbox_id)
                    && selected(&container.config.labels, &filter.label_selector)
            });
            matching.map(|container| container_stats(container, now)).collect()
        })
    }

    pub(crate) fn stats_of_sandbox(&self, id: &str) -> Result<v1::PodSandboxStats, Status> {
        self.with_now(|state, now| Ok(sandbox_stats(state, state.sandbox(id)?, now)))
    }

    pub(crate) fn stats_of_sandboxes(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Vec<v1::PodSandboxStats> {
        let filter = filter.unwrap_or_default();
        self.with_now(|state, now| {
            let matching = state.sandboxes.values().filter(|sandbox| {
                sandbox.ready
                    && sandbox.id.starts_with(&filter.id)
                    && selected(&sandbox.config.labels, &filter.label_selector)
            });
            matching.map(|sandbox| sandbox_stats(state, sandbox, now)).collect()
        })
    }

    pub(crate) fn metric_descriptors(&self) -> Vec<v1::MetricDescriptor> {
        vec![v1::MetricDescriptor {
            name: START_TIME.to_owned(),
            help: "Start time of the container since unix epoch in seconds".to_owned(),
            label_keys: ["id", "name"].map(str::to_owned).to_vec(),
        }]
    }

    pub(crate) fn pod_metrics(&self) -> Vec<v1::PodSandboxMetrics> {
        self.with_now(|state, now| {
            let metrics = |container: &Container| v1::ContainerMetrics {
                container_id: container.id.clone(),
                metrics: vec![v1::Metric {
                    name: START_TIME.to_owned(),
                    timestamp: now,
                    metric_type: v1::MetricType::Gauge.into(),
                    label_values: vec![container.id.clone(), container.name().to_owned()],
                    value: value(u64::try_from(container.started_at).unwrap_or(0) / 1_000_000_000),
                }],
            };
            let pods = state.sandboxes.values().filter(|sandbox| sandbox.ready);
            pods.map(|sandbox| v1::PodSandboxMetrics {
                pod_sandbox_id: sandbox.id.clone(),
                metrics: Vec::new(),
                container_metrics: state
                    .containers
                    .values()
                    .filter(|c| c.sandbox_id == sandbox.id && c.is_running())
                    .map(metrics)
                    .collect(),
            })
            .collect()
        })
    }
}
