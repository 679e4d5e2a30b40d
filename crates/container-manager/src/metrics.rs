use rubelet_metrics::{DEFAULT_BUCKETS, Desc, Family, Histogram, collector};
use tokio::time::Instant;

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
    /// Awaits `work`, and counts how long that took.
    pub(crate) async fn time<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = T>,
    ) -> T {
        let begun = Instant::now();
        let done = work.await;
        self.duration.with([operation], |it| it.observe_duration(begun.elapsed()));
        done
    }
}
