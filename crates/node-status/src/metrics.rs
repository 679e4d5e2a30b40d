use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use rubelet_metrics::{Desc, Gauge, Metric, collector};
use tokio::time::Instant;

const PRE_KUBELET: Desc = Desc::gauge(
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    "From the boot of the machine until the kubelet was started, if it made a new Node.",
);
const PRE_REGISTRATION: Desc = Desc::gauge(
    "kubelet_node_startup_pre_registration_duration_seconds",
    "From the start of the kubelet until it tried to register, if it made a new Node.",
);
const REGISTRATION: Desc = Desc::gauge(
    "kubelet_node_startup_registration_duration_seconds",
    "From the first try to register until there was a new Node.",
);
const POST_REGISTRATION: Desc = Desc::gauge(
    "kubelet_node_startup_post_registration_duration_seconds",
    "From the moment there was a new Node until it was ready.",
);
const STARTUP: Desc = Desc::gauge(
    "kubelet_node_startup_duration_seconds",
    "From the boot of the machine until its new Node was ready.",
);

/// How long a node took to join its cluster. Only a Node that is new tells; else all stay 0.
#[derive(Debug)]
pub struct NodeStartupMetrics {
    pre_kubelet: Metric<Gauge>,
    pre_registration: Metric<Gauge>,
    registration: Metric<Gauge>,
    post_registration: Metric<Gauge>,
    startup: Metric<Gauge>,
    moments: Mutex<Moments>,
}

collector!(NodeStartupMetrics {
    pre_kubelet,
    pre_registration,
    registration,
    post_registration,
    startup,
});

#[derive(Debug, Default)]
struct Moments {
    attempted: Option<Instant>,
    registered: Option<Instant>,
    /// How long the machine had been up then.
    uptime: Option<Duration>,
    was_ready: bool,
}

impl Default for NodeStartupMetrics {
    fn default() -> Self {
        Self {
            pre_kubelet: Metric::new(&PRE_KUBELET),
            pre_registration: Metric::new(&PRE_REGISTRATION),
            registration: Metric::new(&REGISTRATION),
            post_registration: Metric::new(&POST_REGISTRATION),
            startup: Metric::new(&STARTUP),
            moments: Mutex::default(),
        }
    }
}

impl NodeStartupMetrics {
    fn with(&self, change: impl FnOnce(&mut Moments)) {
        change(&mut self.moments.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The node is about to be registered. The first time counts.
    pub(crate) fn attempts(&self, now: Instant) {
        self.with(|moments| {
            moments.attempted.get_or_insert(now);
        });
    }

    /// A new Node was made by a kubelet that runs since `started`; the machine has been up for
    /// `uptime`.
    pub(crate) fn registered(&self, started: Instant, uptime: Option<Duration>, now: Instant) {
        self.with(|moments| {
            let (Some(attempted), None) = (moments.attempted, moments.registered) else { return };
            moments.registered = Some(now);
            moments.uptime = uptime;
            if let Some(uptime) = uptime {
                self.pre_kubelet.set(uptime.saturating_sub(now - started).as_secs_f64());
            }
            self.pre_registration.set(attempted.duration_since(started).as_secs_f64());
            self.registration.set(now.duration_since(attempted).as_secs_f64());
        });
    }

    /// The Node is ready.
    pub(crate) fn ready(&self, now: Instant) {
        self.with(|moments| {
            let Some(registered) = moments.registered else { return };
            if std::mem::replace(&mut moments.was_ready, true) {
                return;
            }
            let since = now.duration_since(registered);
            self.post_registration.set(since.as_secs_f64());
            if let Some(uptime) = moments.uptime {
                self.startup.set((uptime + since).as_secs_f64());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_node_tells_how_long_it_took() {
        let metrics = NodeStartupMetrics::default();
        let started = Instant::now();
        let after = |seconds| started + Duration::from_secs(seconds);
        metrics.ready(after(1));
        metrics.attempts(after(2));
        metrics.attempts(after(3));
        assert!(metrics.startup.get() < f64::EPSILON);
        metrics.registered(started, Some(Duration::from_secs(100)), after(5));
        metrics.ready(after(15));
        metrics.ready(after(25));
        let seconds = [
            &metrics.pre_kubelet,
            &metrics.pre_registration,
            &metrics.registration,
            &metrics.post_registration,
            &metrics.startup,
        ]
        .map(|gauge| gauge.get().round());
        assert!(
            seconds.iter().zip([95.0, 2.0, 3.0, 10.0, 110.0]).all(|(a, b)| a.eq(&b)),
            "{seconds:?}"
        );
    }
}
