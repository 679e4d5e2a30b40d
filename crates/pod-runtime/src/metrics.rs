use rubelet_metrics::{Counter, Desc, Metric, collector};

const HTTP_FALLBACKS: Desc = Desc::counter(
    "kubelet_lifecycle_handler_http_fallbacks_total",
    "Lifecycle hooks that asked by HTTPS, were answered by HTTP, and succeeded so.",
);
const SLEEPS_CUT_SHORT: Desc = Desc::counter(
    "kubelet_sleep_action_terminated_early_total",
    "Sleeping lifecycle hooks that ended before their time.",
);

/// What is counted of lifecycle hooks.
#[derive(Debug)]
pub struct HookMetrics {
    pub(crate) http_fallbacks: Metric<Counter>,
    pub(crate) sleeps_cut_short: Metric<Counter>,
}

collector!(HookMetrics { http_fallbacks, sleeps_cut_short });

impl Default for HookMetrics {
    fn default() -> Self {
        Self {
            http_fallbacks: Metric::new(&HTTP_FALLBACKS),
            sleeps_cut_short: Metric::new(&SLEEPS_CUT_SHORT),
        }
    }
}
