use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rubelet_metrics::{Collector, Desc, Exposition, Family, Gauge, Histogram, Metric, collector};
use rubelet_volume_plan::{VolumeAction, VolumePlugin};

use crate::manager::Inner;

const BUCKETS: &[f64] =
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
const OPERATIONS: Desc = Desc::histogram(
    "storage_operation_duration_seconds",
    "How long operations on volumes took, and whether they succeeded.",
    BUCKETS,
)
.with(&["migrated", "operation_name", "status", "volume_plugin"]);
const TOTAL: Desc = Desc::histogram(
    "volume_operation_total_seconds",
    "From the first wish for a pod's volumes until one of them was set up, failures included.",
    BUCKETS,
)
.with(&["operation_name", "plugin_name"]);
const ORPHANS: Desc = Desc::gauge(
    "kubelet_orphan_pod_cleaned_volumes",
    "Orphaned pods on disk that the last clean-up found.",
);
const ORPHANS_LEFT: Desc = Desc::gauge(
    "kubelet_orphan_pod_cleaned_volumes_errors",
    "Orphaned pods on disk that the last clean-up could not remove.",
);

/// What is counted of operations on volumes.
#[derive(Debug)]
pub struct VolumeMetrics {
    operations: Family<4, Histogram>,
    total: Family<2, Histogram>,
    pub(crate) orphans: Metric<Gauge>,
    pub(crate) orphans_left: Metric<Gauge>,
}

collector!(VolumeMetrics { operations, total, orphans, orphans_left });

impl Default for VolumeMetrics {
    fn default() -> Self {
        Self {
            operations: Family::new(&OPERATIONS),
            total: Family::new(&TOTAL),
            orphans: Metric::new(&ORPHANS),
            orphans_left: Metric::new(&ORPHANS_LEFT),
        }
    }
}

impl VolumeMetrics {
    /// A volume was set up, or was not.
    pub(crate) fn set_up(&self, plugin: VolumePlugin, is_block: bool, took: Duration, done: bool) {
        self.operation(plugin, if is_block { "map_volume" } else { "volume_mount" }, took, done);
    }

    /// A step of taking a pod's volumes down has ended. Those that are no volume's do not count.
    pub(crate) fn took_down(&self, action: &VolumeAction, took: Duration, done: bool) {
        match action {
            VolumeAction::TearDownDirectory { plugin, .. }
            | VolumeAction::Unmount { plugin, .. } => {
                self.operation(*plugin, "volume_unmount", took, done);
            }
            VolumeAction::RemoveDeviceLink { plugin, .. } => {
                self.operation(*plugin, "unmap_volume", took, done);
            }
            VolumeAction::SetUp(_)
            | VolumeAction::RemoveSubPath(_)
            | VolumeAction::RemoveEmptyDirectory { .. } => {}
        }
    }

    fn operation(&self, plugin: VolumePlugin, name: &str, took: Duration, done: bool) {
        let status = if done { "success" } else { "fail-unknown" };
        // Nothing in-tree that was moved to a driver exists here any more.
        let labels = ["false", name, status, plugin.name()];
        self.operations.with(labels, |it| it.observe_duration(took));
    }

    /// A volume is ready, this long after its pod was first wanted.
    pub(crate) fn ready(&self, plugin: VolumePlugin, took: Duration) {
        let labels = ["overall_volume_mount", plugin.name()];
        self.total.with(labels, |it| it.observe_duration(took));
    }
}

const VOLUMES: Desc = Desc::gauge(
    "volume_manager_total_volumes",
    "Volumes that pods want (desired_state_of_world), and that are set up (actual_state_of_world).",
)
.with(&["plugin_name", "state"]);

/// Counts the volumes that there are.
#[derive(Debug)]
pub(crate) struct VolumeCounts(pub(crate) Arc<Inner>);

impl Collector for VolumeCounts {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&VOLUMES]
    }

    fn collect(&self, to: &mut Exposition) {
        let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (plugin, is_ready) in self.0.memory.volumes() {
            let name = plugin.name();
            *counts.entry((name, "desired_state_of_world")).or_default() += 1;
            *counts.entry((name, "actual_state_of_world")).or_default() += u64::from(is_ready);
        }
        let mut samples = to.family(&VOLUMES);
        for ((plugin, state), count) in counts {
            samples.count(&[plugin, state], count);
        }
    }
}
