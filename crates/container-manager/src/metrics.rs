use std::time::Duration;

use rubelet_metrics::{DEFAULT_BUCKETS, Desc, Family, Histogram, collector};

const DURATION: Desc = Desc::histogram(
    "kubelet_cgroup_manager_duration_seconds",
    "How long it took to create, update and destroy cgroups.",
    DEFAULT_BUCKETS,
)
.with(&["operation_type"]);

/// What is counted of operations on cgroups.
#[derive(Debug)]
pub struct CgroupMetrics {
    duration: Family<1, Histogram>,
}

collector!(CgroupMetrics { duration });

impl Default for CgroupMetrics {
    fn default() -> Self {
        Self { duration: Family::new(&DURATION) }
    }
}

impl CgroupMetrics {
    pub(crate) fn took(&self, operation: &'static str, duration: Duration) {
        self.duration.with([operation], |it| it.observe_duration(duration));
    }
}
