//! Memory protection and throttling on cgroup v2 (feature gate MemoryQoS, KEP-2570).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use rubelet_types::{container_limits, container_requests};

pub(crate) const MEMORY_MIN: &str = "memory.min";
const MEMORY_HIGH: &str = "memory.high";
const PAGE: f64 = 4096.0;

/// `memory.min` and `memory.high` of a container. Its request is protected; between request and
/// limit (the node's allocatable memory where it has none) the kernel throttles it from the point
/// that `factor` gives.
pub(crate) fn container_memory_qos(
    container: &Container,
    factor: f64,
    allocatable_memory: i64,
) -> BTreeMap<String, String> {
    let request = container_requests(container).memory_bytes();
    let limit = container_limits(container).memory_bytes();
    let mut files = BTreeMap::new();
    if request > 0 {
        files.insert(MEMORY_MIN.to_owned(), request.to_string());
    }
    if request != limit {
        let ceiling = if limit != 0 { limit } else { allocatable_memory };
        let high = throttling_point(request, ceiling, factor);
        if ceiling > 0 && high > request {
            files.insert(MEMORY_HIGH.to_owned(), high.to_string());
        }
    }
    files
}

fn throttling_point(request: i64, ceiling: i64, factor: f64) -> i64 {
    // Memory sizes lie far below 2^53, where doubles are exact; the result is whole pages.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    {
        let (request, ceiling) = (request as f64, ceiling as f64);
        (((request + (ceiling - request) * factor) / PAGE).floor() * PAGE) as i64
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files(requests: serde_json::Value, limits: serde_json::Value) -> Vec<(String, String)> {
        let container: Container = serde_json::from_value(
            json!({"name": "c", "resources": {"requests": requests, "limits": limits}}),
        )
        .unwrap();
        container_memory_qos(&container, 0.9, 1 << 30).into_iter().collect()
    }

    fn pair(name: &str, value: i64) -> (String, String) {
        (name.to_owned(), value.to_string())
    }

    #[test]
    fn protected_up_to_the_request_and_throttled_near_the_limit() {
        let (mi, page) = (1i64 << 20, 4096i64);
        assert_eq!(
            files(json!({"memory": "100Mi"}), json!({"memory": "200Mi"})),
            [pair("memory.high", 190 * mi), pair("memory.min", 100 * mi)]
        );
        // Without a limit the node's allocatable memory takes its place.
        let high = (100 * mi + (1024 - 100) * mi / 10 * 9) / page * page;
        assert_eq!(
            files(json!({"memory": "100Mi"}), json!({})),
            [pair("memory.high", high), pair("memory.min", 100 * mi)]
        );
        // Equal request and limit: nothing to throttle.
        assert_eq!(
            files(json!({"memory": "100Mi"}), json!({"memory": "100Mi"})),
            [pair("memory.min", 100 * mi)]
        );
        assert_eq!(files(json!({}), json!({})), []);
    }
}
