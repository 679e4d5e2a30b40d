use std::time::Duration;

use rubelet_config::{GoDuration, KubeletConfiguration};

use crate::connection::ProxyEnvironment;
use crate::rate_limit::RateLimit;

/// How to speak to the API server.
#[derive(Clone, Debug)]
pub struct ApiServerOptions {
    /// The `User-Agent` of every request.
    pub user_agent: String,
    /// Limit of the general lane; nothing is no limit.
    pub general: Option<RateLimit>,
    /// Limit of the lane for events.
    pub events: Option<RateLimit>,
    /// How long a heartbeat may take, all its tries together.
    pub heartbeat_timeout: Duration,
    /// How long one try of any other request may take.
    pub request_timeout: Duration,
    /// Offer HTTP/2. Upstream leaves it out when `DISABLE_HTTP2` is set.
    pub http2: bool,
    /// What the environment says about proxies; a `proxy-url` of the kubeconfig goes before it.
    pub proxies: ProxyEnvironment,
}

/// One try of a request that is no heartbeat.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// What client-go takes for a QPS and a burst of 0.
const CLIENT_GO_DEFAULT: RateLimit = RateLimit { qps: 5.0, burst: 10 };

impl ApiServerOptions {
    /// Upstream's three clients: limits from the configuration, heartbeats without a limit and with
    /// the shorter of `nodeStatusUpdateFrequency` and the lease's duration as their timeout.
    ///
    /// `contentType` is not looked at: what is sent and accepted is always JSON.
    pub fn from_configuration(
        configuration: &KubeletConfiguration,
        user_agent: impl Into<String>,
    ) -> Self {
        let seconds = i64::from(configuration.node_lease_duration_seconds);
        let heartbeat = configuration
            .node_status_update_frequency
            .min(GoDuration::from_secs(seconds))
            .max(GoDuration::from_secs(1));
        Self {
            user_agent: user_agent.into(),
            general: Some(RateLimit {
                qps: positive(configuration.kube_api_qps).map_or(CLIENT_GO_DEFAULT.qps, f64::from),
                burst: positive(configuration.kube_api_burst).unwrap_or(CLIENT_GO_DEFAULT.burst),
            }),
            events: positive(configuration.event_record_qps).map(|qps| RateLimit {
                qps: f64::from(qps),
                burst: positive(configuration.event_burst).unwrap_or(CLIENT_GO_DEFAULT.burst),
            }),
            heartbeat_timeout: heartbeat.as_duration(),
            request_timeout: REQUEST_TIMEOUT,
            http2: true,
            proxies: ProxyEnvironment::default(),
        }
    }
}

fn positive(number: i32) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_upstreams() {
        let options =
            ApiServerOptions::from_configuration(&KubeletConfiguration::default(), "kubelet/v1");
        assert_eq!(options.general, Some(RateLimit { qps: 50.0, burst: 100 }));
        assert_eq!(options.events, Some(RateLimit { qps: 50.0, burst: 100 }));
        assert_eq!(options.heartbeat_timeout, Duration::from_secs(10));
        assert_eq!(options.user_agent, "kubelet/v1");
    }

    #[test]
    fn limits_are_as_configured() {
        let configuration = KubeletConfiguration {
            kube_api_qps: 7,
            kube_api_burst: 8,
            event_record_qps: 9,
            event_burst: 11,
            node_status_update_frequency: GoDuration::from_secs(3),
            ..KubeletConfiguration::default()
        };
        let options = ApiServerOptions::from_configuration(&configuration, "");
        assert_eq!(options.general, Some(RateLimit { qps: 7.0, burst: 8 }));
        assert_eq!(options.events, Some(RateLimit { qps: 9.0, burst: 11 }));
        assert_eq!(options.heartbeat_timeout, Duration::from_secs(3));
    }

    #[test]
    fn nothing_means_unlimited_for_events_and_client_gos_default_for_the_rest() {
        let configuration = KubeletConfiguration {
            kube_api_qps: 0,
            kube_api_burst: 0,
            event_record_qps: 0,
            node_lease_duration_seconds: 4,
            ..KubeletConfiguration::default()
        };
        let options = ApiServerOptions::from_configuration(&configuration, "");
        assert_eq!(options.general, Some(RateLimit { qps: 5.0, burst: 10 }));
        assert_eq!(options.events, None);
        assert_eq!(options.heartbeat_timeout, Duration::from_secs(4));
    }
}
