use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rubelet_cri::v1;
use rubelet_types::Clock;
use tokio::time::Instant;

use crate::Observer;

/// What kind of runtime this one pretends to be.
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// `runtime_name`.
    pub name: String,
    /// `runtime_version`.
    pub version: String,
    /// `runtime_api_version`; anything but `v1` is a runtime that is too old or too new.
    pub api_version: String,
    /// Where its points in time come from.
    pub clock: Clock,
    /// The cgroup driver; none for a runtime that is too old to tell.
    pub cgroup_driver: Option<v1::CgroupDriver>,
    /// Whether it sends container events.
    pub container_events: bool,
    /// Whether it offers the calls that stream lists.
    pub list_streaming: bool,
    /// Names of runtime handlers besides the default one.
    pub runtime_handlers: Vec<String>,
    /// Pod addresses are counted up from the one after this.
    pub first_pod_ip: Ipv4Addr,
    /// How many pod addresses there are.
    pub pod_ips: u32,
    /// Base of the addresses that Exec, Attach and PortForward answer with; without it there is no
    /// streaming server, and they fail.
    pub streaming_url: Option<String>,
    /// How long calls take at most, half of it before their effect and half of it after. How long
    /// each of them takes comes from the seed; many take no time at all.
    pub latency: Duration,
    /// Is told everything that happens.
    pub observer: Option<Observer>,
    /// Seed of everything that is random: ids, and faults with a probability.
    pub seed: u64,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            name: "fake".to_owned(),
            version: "1.0.0".to_owned(),
            api_version: "v1".to_owned(),
            clock: tokio_clock(Clock::system().now()),
            cgroup_driver: Some(v1::CgroupDriver::Cgroupfs),
            container_events: true,
            list_streaming: true,
            runtime_handlers: Vec::new(),
            first_pod_ip: Ipv4Addr::new(10, 88, 0, 1),
            pod_ips: 1024,
            streaming_url: None,
            latency: Duration::ZERO,
            observer: None,
            seed: 1,
        }
    }
}

/// A clock that shows `start` now and then goes on with Tokio's time, paused or not.
pub fn tokio_clock(start: Timestamp) -> Clock {
    let origin = Instant::now();
    Clock::from_fn(move || {
        let elapsed = SignedDuration::try_from(origin.elapsed()).unwrap_or(SignedDuration::MAX);
        start.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    })
}
