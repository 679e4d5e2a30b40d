use std::time::Duration;

use rubelet_metrics::{Counter, DEFAULT_BUCKETS, Desc, Family, Histogram, collector};

use crate::Rpc;

const OPERATIONS: Desc = Desc::counter(
    "kubelet_runtime_operations_total",
    "Calls to the container runtime, by operation.",
)
.with(&["operation_type"]);
const ERRORS: Desc = Desc::counter(
    "kubelet_runtime_operations_errors_total",
    "Calls to the container runtime that failed, by operation.",
)
.with(&["operation_type"]);
/// From 5 ms on, each two and a half times the one before, as repeated multiplication has them.
const OPERATION_BUCKETS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781_25,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];
const DURATION: Desc = Desc::histogram(
    "kubelet_runtime_operations_duration_seconds",
    "How long calls to the container runtime took, by operation.",
    OPERATION_BUCKETS,
)
.with(&["operation_type"]);
const SANDBOX_DURATION: Desc = Desc::histogram(
    "kubelet_run_podsandbox_duration_seconds",
    "How long the runtime took to run a sandbox, by handler of the runtime class.",
    DEFAULT_BUCKETS,
)
.with(&["runtime_handler"]);
const SANDBOX_ERRORS: Desc = Desc::counter(
    "kubelet_run_podsandbox_errors_total",
    "Sandboxes that the runtime could not run, by handler of the runtime class.",
)
.with(&["runtime_handler"]);

/// What is counted of calls to the runtime.
#[derive(Debug)]
pub struct RuntimeMetrics {
    operations: Family<1, Counter>,
    errors: Family<1, Counter>,
    duration: Family<1, Histogram>,
    sandbox_duration: Family<1, Histogram>,
    sandbox_errors: Family<1, Counter>,
}

collector!(RuntimeMetrics { operations, errors, duration, sandbox_duration, sandbox_errors });

impl Default for RuntimeMetrics {
    fn default() -> Self {
        Self {
            operations: Family::new(&OPERATIONS),
            errors: Family::new(&ERRORS),
            duration: Family::new(&DURATION),
            sandbox_duration: Family::new(&SANDBOX_DURATION),
            sandbox_errors: Family::new(&SANDBOX_ERRORS),
        }
    }
}

impl RuntimeMetrics {
    /// A call ended. NotFound counts as failed even where the caller takes it for success.
    pub(crate) fn record(&self, rpc: Rpc, duration: Duration, failed: bool) {
        let labels = [rpc.operation_type()];
        self.operations.with(labels, Counter::inc);
        self.duration.with(labels, |it| it.observe_duration(duration));
        if failed {
            self.errors.with(labels, Counter::inc);
        }
    }

    pub(crate) fn record_sandbox(&self, handler: &str, duration: Duration, failed: bool) {
        self.sandbox_duration.with([handler], |it| it.observe_duration(duration));
        if failed {
            self.sandbox_errors.with([handler], Counter::inc);
        }
    }
}
