use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_linux::Host;
use rubelet_linux::cgroup::CgroupFs;
use rubelet_node_resources::{
    CgroupName, CgroupValues, ContainerResourceRules, DEFAULT_CFS_PERIOD_MICROS, EvictionThreshold,
    InvalidCgroupName, LinuxResources, NodeReservations, PodCgroupRules, QosCgroupValues,
    QosReservation, SwapBehavior, check_reservations, compute_container_resources,
    compute_eviction_reservation, compute_node_reservation, compute_overhead_resources,
    compute_qos_cgroup_values, compute_reserved_cgroup_values, compute_sandbox_resources,
    container_swap_behavior,
};
use rubelet_types::{EventObject, EventRecorder, ResourceAmounts, error_chain};
use tokio::sync::Mutex;

use crate::capacity::NodeCapacity;
use crate::metrics::CgroupMetrics;
use crate::setup::{SetupError, SetupWarning, check_machine};
use crate::tree::{CgroupDriver, CgroupTree, TreeError};

const PODS_CGROUP: &str = "kubepods";
const RESYNC_PERIOD: Duration = Duration::from_secs(60);
const ENFORCED: &str = "NodeAllocatableEnforced";
const NOT_ENFORCED: &str = "FailedNodeAllocatableEnforcement";

/// `enforceNodeAllocatable` in its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// `pods`: pods together get no more than what is not reserved.
    pub pods: bool,
    /// `system-reserved`: the cgroup of system daemons gets no more than its reservation.
    pub system_reserved: bool,
    /// `kube-reserved`, likewise.
    pub kube_reserved: bool,
    /// `system-reserved-compressible`: CPU alone.
    pub system_reserved_compressible: bool,
    /// `kube-reserved-compressible`: CPU alone.
    pub kube_reserved_compressible: bool,
}

/// What configuration says about cgroups and resources.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerManagerSettings {
    /// `cgroupRoot`, a path of the cgroup file system; `/` where configuration leaves it empty and
    /// `cgroups_per_qos` is set.
    pub cgroup_root: String,
    /// `cgroupsPerQOS`: pods and tiers have cgroups.
    pub cgroups_per_qos: bool,
    /// Who makes cgroups.
    pub driver: CgroupDriver,
    /// `systemReserved`.
    pub system_reserved: ResourceAmounts,
    /// `kubeReserved`.
    pub kube_reserved: ResourceAmounts,
    /// `systemReservedCgroup`.
    pub system_reserved_cgroup: Option<String>,
    /// `kubeReservedCgroup`.
    pub kube_reserved_cgroup: Option<String>,
    /// `evictionHard` for `memory.available`.
    pub eviction_memory_available: Option<EvictionThreshold>,
    /// `evictionHard` for `nodefs.available`.
    pub eviction_nodefs_available: Option<EvictionThreshold>,
    /// `enforceNodeAllocatable`.
    pub enforce: Enforcement,
    /// `podPidsLimit`; below 1 means none.
    pub pod_pids_limit: Option<i64>,
    /// `cpuCFSQuota`.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`, microseconds.
    pub cpu_cfs_period_micros: u64,
    /// `singleProcessOOMKill`; by default only cgroup v1 kills single processes.
    pub single_process_oom_kill: Option<bool>,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
    /// `failSwapOn`.
    pub fail_swap_on: bool,
    /// `failCgroupV1`.
    pub fail_cgroup_v1: bool,
    /// `protectKernelDefaults`.
    pub protect_kernel_defaults: bool,
    /// `maxPods`.
    pub max_pods: i64,
    /// `podsPerCore`; 0 for no such bound.
    pub pods_per_core: i64,
    /// The kubelet's root directory, whose file system is the node's ephemeral storage; none when
    /// `localStorageCapacityIsolation` is off.
    pub root_directory: Option<PathBuf>,
    /// `qosReserved` for memory in percent, when feature gate QOSReserved is on.
    pub qos_reserved_memory_percent: Option<i64>,
    /// `memoryThrottlingFactor`, when feature gate MemoryQoS is on.
    pub memory_throttling_factor: Option<f64>,
    /// `kubeletCgroups`: the cgroup that the kubelet itself moves to.
    pub kubelet_cgroup: Option<String>,
}

impl Default for ContainerManagerSettings {
    /// The defaults of configuration.
    fn default() -> Self {
        Self {
            cgroup_root: "/".to_owned(),
            cgroups_per_qos: true,
            driver: CgroupDriver::Cgroupfs,
            system_reserved: ResourceAmounts::default(),
            kube_reserved: ResourceAmounts::default(),
            system_reserved_cgroup: None,
            kube_reserved_cgroup: None,
            eviction_memory_available: None,
            eviction_nodefs_available: None,
            enforce: Enforcement { pods: true, ..Enforcement::default() },
            pod_pids_limit: None,
            cpu_cfs_quota: true,
            cpu_cfs_period_micros: DEFAULT_CFS_PERIOD_MICROS,
            single_process_oom_kill: None,
            swap_behavior: SwapBehavior::NoSwap,
            fail_swap_on: true,
            fail_cgroup_v1: true,
            protect_kernel_defaults: false,
            max_pods: 110,
            pods_per_core: 0,
            root_directory: None,
            qos_reserved_memory_percent: None,
            memory_throttling_factor: None,
            kubelet_cgroup: None,
        }
    }
}

/// Something asked of the container manager failed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerManagerError {
    /// It was not started yet: try again later.
    #[error("the container manager has not been started")]
    NotStarted,
    /// A pod's uid cannot name a cgroup: permanent.
    #[error(transparent)]
    InvalidName(#[from] InvalidCgroupName),
    /// A cgroup could not be made or changed: retry.
    #[error("failed to {operation} cgroup {cgroup}")]
    Cgroup {
        /// What was to be done with it.
        operation: &'static str,
        /// The cgroup's name.
        cgroup: String,
        /// Why.
        #[source]
        source: TreeError,
    },
}

/// What [`ContainerManager::ensure_pod_cgroup`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCgroup {
    /// It was there before.
    pub existed: bool,
}

/// What is known once the machine has been looked at.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) tree: CgroupTree,
    /// The cgroup of all pods.
    pub(crate) kubepods: CgroupName,
    pub(crate) pod_rules: PodCgroupRules,
    capacity: NodeCapacity,
    allocatable: ResourceAmounts,
    reservation: ResourceAmounts,
    pods_cgroup: CgroupValues,
    container_rules: ContainerResourceRules,
}

/// What [`ContainerManager::run`] and the callers of updates share.
#[derive(Debug, Default)]
struct Applied {
    /// Values of the tiers in force, as far as is known.
    qos: Option<QosCgroupValues>,
    /// The limits of all pods together are in force.
    enforced: bool,
}

/// Keeps the cgroups of pods and answers what containers may use. Shared by reference; all methods
/// but [`Self::start`] answer with [`ContainerManagerError::NotStarted`] before it.
#[derive(Debug)]
pub struct ContainerManager {
    pub(crate) settings: ContainerManagerSettings,
    host: Host,
    recorder: EventRecorder,
    started: OnceLock<Started>,
    applied: Mutex<Applied>,
    metrics: Arc<CgroupMetrics>,
}

impl ContainerManager {
    /// A manager of the machine `host`; events about the node go to `recorder`. Does nothing yet.
    pub fn new(settings: ContainerManagerSettings, host: Host, recorder: EventRecorder) -> Self {
        Self {
            settings,
            host,
            recorder,
            started: OnceLock::new(),
            applied: Mutex::new(Applied::default()),
            metrics: Arc::default(),
        }
    }

    /// What is counted of operations on cgroups.
    pub fn metrics(&self) -> Arc<CgroupMetrics> {
        self.metrics.clone()
    }

    /// Checks the machine, makes the cgroups above pods and enforces reservations. Running pods are
    /// left alone. Warnings are returned, and recorded as events on the node.
    ///
    /// # Errors
    /// When the machine or the configuration is unfit, or cgroups cannot be made; upstream's kubelet
    /// ends then.
    pub async fn start(&self) -> Result<Vec<SetupWarning>, SetupError> {
        let cgroups = CgroupFs::detect(&self.host)?;
        let warnings = check_machine(&self.host, &cgroups, &self.settings)?;
        for warning in &warnings {
            tracing::warn!(reason = warning.reason(), "{}", warning.message());
            warning.record(&self.recorder);
        }
        let mut started = self.survey(cgroups)?;
        if self.settings.cgroups_per_qos {
            self.make_upper_cgroups(&started).await?;
            // Sure to be below the root of the hierarchy, which has no such file on cgroup v2.
            let kubepods = started.tree.path(&started.kubepods);
            started.container_rules.swap_controller_available =
                started.tree.file_system().swap_accounting(&kubepods);
        }
        self.enforce_reserved(&started).await?;
        self.move_kubelet(&started).await;
        self.started.set(started).map_err(|_| SetupError::StartedTwice)?;
        Ok(warnings)
    }

    /// Resyncs the cgroups above pods each minute, for ever: somebody else may have changed them,
    /// and limits that the kernel refused while pods used more may be accepted now.
    pub async fn run(&self, active_pods: impl Fn() -> Vec<Arc<Pod>>) {
        let mut ticks = tokio::time::interval(RESYNC_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(started) = self.started.get() else { continue };
            self.move_kubelet(started).await;
            if !self.settings.cgroups_per_qos {
                continue;
            }
            if !self.applied.lock().await.enforced {
                self.enforce_pods(started).await;
            }
            self.applied.lock().await.qos = None;
            let pods = active_pods();
            if let Err(error) = self.update_qos_cgroups(pods.iter().map(AsRef::as_ref)).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "QoS cgroups not updated");
            }
        }
    }

    /// Gives the quality of service tiers the values that follow from these pods. Cheap when nothing
    /// has changed since the last time; called for each pod that starts.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn update_qos_cgroups<'a>(
        &self,
        active_pods: impl IntoIterator<Item = &'a Pod>,
    ) -> Result<(), ContainerManagerError> {
        let started = self.started()?;
        if !self.settings.cgroups_per_qos {
            return Ok(());
        }
        let values = compute_qos_cgroup_values(
            active_pods,
            started.tree.file_system().page_sizes(),
            self.settings.qos_reserved_memory_percent.map(|memory_percent| QosReservation {
                memory_percent,
                memory_allocatable: started.allocatable.memory_bytes(),
            }),
            started.pod_rules.memory_qos,
        );
        let mut applied = self.applied.lock().await;
        if applied.qos.as_ref() == Some(&values) {
            return Ok(());
        }
        applied.qos = None;
        for (tier, values) in started.tiers(&values) {
            self.update_tier(started, &tier, values).await?;
        }
        applied.qos = Some(values);
        Ok(())
    }

    async fn update_tier(
        &self,
        started: &Started,
        tier: &CgroupName,
        values: &CgroupValues,
    ) -> Result<(), ContainerManagerError> {
        let failed = |source| ContainerManagerError::Cgroup {
            operation: "update",
            cgroup: tier.to_string(),
            source,
        };
        let Err(error) = started.tree.update(tier, values).await else { return Ok(()) };
        let Some(limit) = values.memory_limit else { return Err(failed(error)) };
        // The tier may use more than its limit already: then at least it grows no further.
        let usage = started.tree.memory_usage(tier).await.map_err(failed)?;
        let usage = i64::try_from(usage).unwrap_or(i64::MAX);
        let reachable = CgroupValues { memory_limit: Some(limit.max(usage)), ..values.clone() };
        started.tree.update(tier, &reachable).await.map_err(failed)
    }

    /// Capacity of the node: cpu, memory, huge pages, ephemeral storage, pods.
    ///
    /// # Errors
    /// Before the start.
    pub fn capacity(&self) -> Result<&ResourceAmounts, ContainerManagerError> {
        Ok(&self.started()?.capacity.capacity)
    }

    /// What of the capacity pods may ask for.
    ///
    /// # Errors
    /// Before the start.
    pub fn allocatable(&self) -> Result<&ResourceAmounts, ContainerManagerError> {
        Ok(&self.started()?.allocatable)
    }

    /// What is kept from pods: reservations and hard eviction thresholds.
    ///
    /// # Errors
    /// Before the start.
    pub fn reservation(&self) -> Result<&ResourceAmounts, ContainerManagerError> {
        Ok(&self.started()?.reservation)
    }

    /// Swap of the node, bytes.
    ///
    /// # Errors
    /// Before the start.
    pub fn swap_capacity(&self) -> Result<i64, ContainerManagerError> {
        Ok(self.started()?.capacity.swap_bytes)
    }

    /// The node uses cgroup v2.
    ///
    /// # Errors
    /// Before the start.
    pub fn uses_cgroup_v2(&self) -> Result<bool, ContainerManagerError> {
        Ok(self.started()?.tree.file_system().is_v2())
    }

    /// Resources of `container` for the runtime. `has_exclusive_cpus`: it owns its CPUs and needs no
    /// quota.
    ///
    /// # Errors
    /// Before the start.
    pub fn container_resources(
        &self,
        pod: &Pod,
        container: &Container,
        has_exclusive_cpus: bool,
    ) -> Result<LinuxResources, ContainerManagerError> {
        let rules = &self.started()?.container_rules;
        Ok(compute_container_resources(pod, container, has_exclusive_cpus, rules))
    }

    /// Whether `container` may use swap.
    ///
    /// # Errors
    /// Before the start.
    pub fn may_swap(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<bool, ContainerManagerError> {
        let rules = &self.started()?.container_rules;
        Ok(container_swap_behavior(pod, container, rules) != SwapBehavior::NoSwap)
    }

    /// Resources of the pod without its overhead, a hint for the runtime about the sandbox.
    ///
    /// # Errors
    /// Before the start.
    pub fn sandbox_resources(
        &self,
        pod: &Pod,
        has_exclusive_cpus: bool,
    ) -> Result<LinuxResources, ContainerManagerError> {
        Ok(compute_sandbox_resources(pod, has_exclusive_cpus, &self.started()?.container_rules))
    }

    /// The pod's overhead, a hint for the runtime about the sandbox.
    ///
    /// # Errors
    /// Before the start.
    pub fn sandbox_overhead(&self, pod: &Pod) -> Result<LinuxResources, ContainerManagerError> {
        Ok(compute_overhead_resources(pod, &self.started()?.container_rules))
    }

    pub(crate) fn started(&self) -> Result<&Started, ContainerManagerError> {
        self.started.get().ok_or(ContainerManagerError::NotStarted)
    }

    /// Reads the node's figures and derives everything from them that does not change.
    fn survey(&self, cgroups: CgroupFs) -> Result<Started, SetupError> {
        let settings = &self.settings;
        let capacity =
            NodeCapacity::read(&self.host, settings.root_directory.as_deref(), settings)?;
        let reservations = NodeReservations {
            system: settings.system_reserved.clone(),
            kube: settings.kube_reserved.clone(),
            eviction_hard: compute_eviction_reservation(
                settings.eviction_memory_available,
                settings.eviction_nodefs_available,
                &capacity.capacity,
            ),
        };
        check_reservations(&capacity.capacity, &reservations)?;
        let allocatable = capacity.allocatable(&reservations);
        let for_pods = capacity.pods_cgroup(&reservations, settings.enforce.pods);
        let mut pods_cgroup = compute_reserved_cgroup_values(&for_pods, false);
        let is_v2 = cgroups.is_v2();
        if is_v2 && settings.driver == CgroupDriver::Systemd {
            // Otherwise systemd does not know that the slice uses the controller, and takes it away.
            pods_cgroup.cpuset_cpus = Some(capacity.online_cpus.clone());
        }
        let tree = CgroupTree::new(cgroups, settings.driver, self.metrics.clone());
        let root = CgroupName::from_cgroupfs(&settings.cgroup_root);
        // The component is a constant without special characters.
        let kubepods = root.child(PODS_CGROUP).unwrap_or(root);
        Ok(Started {
            pod_rules: PodCgroupRules {
                cpu_cfs_quota: settings.cpu_cfs_quota,
                cpu_cfs_period_micros: settings.cpu_cfs_period_micros,
                pod_pids_limit: settings.pod_pids_limit,
                memory_qos: is_v2 && settings.memory_throttling_factor.is_some(),
            },
            container_rules: ContainerResourceRules {
                cpu_cfs_quota: settings.cpu_cfs_quota,
                cpu_cfs_period_micros: settings.cpu_cfs_period_micros,
                cgroup_v2: is_v2,
                single_process_oom_kill: settings.single_process_oom_kill.unwrap_or(!is_v2),
                memory_capacity: capacity.memory_bytes,
                memory_allocatable: allocatable.memory_bytes(),
                swap_capacity: capacity.swap_bytes,
                swap_behavior: settings.swap_behavior,
                swap_controller_available: tree.file_system().swap_accounting(&self.own_cgroup()),
                page_sizes: tree.file_system().page_sizes().to_vec(),
                memory_throttling_factor: settings.memory_throttling_factor,
            },
            reservation: compute_node_reservation(&capacity.capacity, &reservations),
            tree,
            kubepods,
            capacity,
            allocatable,
            pods_cgroup,
        })
    }

    /// The kubelet's own cgroup of version 2; the root when it cannot be told.
    fn own_cgroup(&self) -> String {
        std::fs::read_to_string(self.host.path("/proc/self/cgroup"))
            .ok()
            .and_then(|content| {
                let own = content.lines().find_map(|line| line.strip_prefix("0::"))?;
                Some(own.to_owned())
            })
            .unwrap_or_else(|| "/".to_owned())
    }

    async fn make_upper_cgroups(&self, started: &Started) -> Result<(), SetupError> {
        let kubepods = &started.kubepods;
        let failed = |cgroup: &CgroupName, source| SetupError::CreateCgroup {
            cgroup: cgroup.to_string(),
            source,
        };
        let exists = started.tree.exists(kubepods).await.map_err(|e| failed(kubepods, e))?;
        if !exists {
            let values = &started.pods_cgroup;
            started.tree.ensure(kubepods, values).await.map_err(|e| failed(kubepods, e))?;
        }
        let page_sizes = started.tree.file_system().page_sizes();
        let mut values = compute_qos_cgroup_values([], page_sizes, None, false);
        // What running pods weigh together is not known yet: what is in force stays in force.
        values.burstable.cpu_shares = None;
        for (tier, values) in started.tiers(&values).into_iter().skip(1) {
            started.tree.ensure(&tier, values).await.map_err(|e| failed(&tier, e))?;
        }
        self.enforce_pods(started).await;
        Ok(())
    }

    /// Bounds all pods together. They may use more than that already: the kernel refuses then, and
    /// it is tried again until evictions have helped.
    async fn enforce_pods(&self, started: &Started) {
        let result = started.tree.update(&started.kubepods, &started.pods_cgroup).await;
        self.applied.lock().await.enforced = result.is_ok();
        match result {
            Ok(()) => self.recorder.normal(
                EventObject::Node,
                ENFORCED,
                "Updated Node Allocatable limit across pods",
            ),
            Err(error) => {
                let cause = error_chain(&error);
                tracing::warn!(error = cause, "node allocatable not enforced");
                self.recorder.warning(
                    EventObject::Node,
                    NOT_ENFORCED,
                    format!(
                        "Failed to update Node Allocatable Limits {:?}: {cause}",
                        started.kubepods.to_string()
                    ),
                );
            }
        }
    }

    async fn enforce_reserved(&self, started: &Started) -> Result<(), SetupError> {
        let settings = &self.settings;
        let enforce = &settings.enforce;
        for (what, name, wanted, compressible_only, cgroup, reserved) in [
            (
                "System",
                "system",
                enforce.system_reserved || enforce.system_reserved_compressible,
                enforce.system_reserved_compressible,
                &settings.system_reserved_cgroup,
                &settings.system_reserved,
            ),
            (
                "Kube",
                "kube",
                enforce.kube_reserved || enforce.kube_reserved_compressible,
                enforce.kube_reserved_compressible,
                &settings.kube_reserved_cgroup,
                &settings.kube_reserved,
            ),
        ] {
            let Some(cgroup) = cgroup.as_ref().filter(|_| wanted) else { continue };
            let values = compute_reserved_cgroup_values(reserved, compressible_only);
            match enforce_existing(started, what, cgroup, &values).await {
                Ok(()) => self.recorder.normal(
                    EventObject::Node,
                    ENFORCED,
                    format!("Updated limits on {name} reserved cgroup {cgroup}"),
                ),
                Err(error) => {
                    let message = format!(
                        "Failed to enforce {what} Reserved Cgroup Limits on {cgroup:?}: {}",
                        error_chain(&error)
                    );
                    self.recorder.warning(EventObject::Node, NOT_ENFORCED, message);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Puts the kubelet where configuration wants it. Not being there harms only accounting.
    async fn move_kubelet(&self, started: &Started) {
        let Some(cgroup) = self.settings.kubelet_cgroup.clone() else { return };
        let file_system = started.tree.file_system().clone();
        let moved = tokio::task::spawn_blocking(move || {
            let pid = std::process::id();
            if !file_system.processes(&cgroup)?.contains(&pid) {
                file_system.ensure(&cgroup)?;
                file_system.add_process(&cgroup, pid)?;
            }
            Ok::<(), rubelet_linux::cgroup::CgroupError>(())
        });
        if let Ok(Err(error)) = moved.await {
            tracing::warn!(error = error_chain(&error), "kubelet not moved to its cgroup");
        }
    }
}

impl Started {
    /// The cgroups above pods with their values, the outermost first.
    fn tiers<'a>(&self, values: &'a QosCgroupValues) -> [(CgroupName, &'a CgroupValues); 3] {
        use rubelet_types::QosClass::{BestEffort, Burstable, Guaranteed};
        [
            (self.kubepods.qos_tier(Guaranteed), &values.guaranteed),
            (self.kubepods.qos_tier(Burstable), &values.burstable),
            (self.kubepods.qos_tier(BestEffort), &values.best_effort),
        ]
    }
}

async fn enforce_existing(
    started: &Started,
    what: &'static str,
    cgroup: &str,
    values: &CgroupValues,
) -> Result<(), SetupError> {
    let name = started.tree.name_of(cgroup);
    let failed = |source| SetupError::ReservedCgroup { what, cgroup: cgroup.to_owned(), source };
    if !started.tree.exists(&name).await.map_err(failed)? {
        return Err(SetupError::ReservedCgroupMissing { cgroup: cgroup.to_owned() });
    }
    started.tree.update(&name, values).await.map_err(failed)
}
