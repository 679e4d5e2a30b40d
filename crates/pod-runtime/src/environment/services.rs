//! Variables that tell containers where services are.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};

/// The one service of namespace `default` that every pod is told of.
const MASTER_SERVICE: &str = "kubernetes";

/// The variables of all services that a pod of `namespace` is told of: the API server always, those
/// of its own namespace with `enableServiceLinks`.
pub(super) fn service_variables(
    services: &[Arc<Service>],
    namespace: &str,
    links: bool,
) -> Vec<(String, String)> {
    let mut chosen: BTreeMap<&str, (&str, &ServiceSpec)> = BTreeMap::new();
    for service in services {
        let (Some(name), Some(spec)) = (service.metadata.name.as_deref(), service.spec.as_ref())
        else {
            continue;
        };
        let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !matches!(*ip, "" | "None")) else {
            continue;
        };
        let home = service.metadata.namespace.as_deref().unwrap_or_default();
        if home == "default" && name == MASTER_SERVICE {
            chosen.entry(name).or_insert((ip, spec));
        } else if home == namespace && links {
            chosen.insert(name, (ip, spec));
        }
    }
    let mut variables = Vec::new();
    for (name, (ip, spec)) in chosen {
        add_service(&mut variables, &variable_name(name), ip, spec);
    }
    variables
}

fn add_service(variables: &mut Vec<(String, String)>, prefix: &str, ip: &str, spec: &ServiceSpec) {
    let mut put = |name: String, value: String| variables.push((name, value));
    put(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    let ports = spec.ports.as_deref().unwrap_or_default();
    if let Some(first) = ports.first() {
        put(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    }
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            put(format!("{prefix}_SERVICE_PORT_{}", variable_name(name)), port.port.to_string());
        }
    }
    // The form of Docker's container links, which old images read.
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    for (index, port) in ports.iter().enumerate() {
        let protocol =
            port.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        let number = port.port;
        let url = format!("{}://{host}:{number}", protocol.to_lowercase());
        if index == 0 {
            put(format!("{prefix}_PORT"), url.clone());
        }
        let of_port = format!("{prefix}_PORT_{number}_{}", protocol.to_uppercase());
        put(of_port.clone(), url);
        put(format!("{of_port}_PROTO"), protocol.to_lowercase());
        put(format!("{of_port}_PORT"), number.to_string());
        put(format!("{of_port}_ADDR"), ip.to_owned());
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services() -> Vec<Arc<Service>> {
        serde_json::from_value(serde_json::json!([
            {"metadata": {"name": "kubernetes", "namespace": "default"},
             "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}},
            {"metadata": {"name": "my-db", "namespace": "ns"},
             "spec": {"clusterIP": "fd00::1", "ports": [
                {"port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]}},
            {"metadata": {"name": "headless", "namespace": "ns"},
             "spec": {"clusterIP": "None", "ports": [{"port": 1}]}},
            {"metadata": {"name": "foreign", "namespace": "other"},
             "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 1}]}}
        ]))
        .unwrap()
    }

    fn variables(namespace: &str, links: bool) -> Vec<String> {
        service_variables(&services(), namespace, links)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    const KUBERNETES: [&str; 8] = [
        "KUBERNETES_SERVICE_HOST=10.96.0.1",
        "KUBERNETES_SERVICE_PORT=443",
        "KUBERNETES_SERVICE_PORT_HTTPS=443",
        "KUBERNETES_PORT=tcp://10.96.0.1:443",
        "KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443",
        "KUBERNETES_PORT_443_TCP_PROTO=tcp",
        "KUBERNETES_PORT_443_TCP_PORT=443",
        "KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1",
    ];

    #[test]
    fn the_api_server_is_always_told() {
        assert_eq!(variables("ns", false), KUBERNETES);
        assert_eq!(variables("default", false), KUBERNETES);
    }

    #[test]
    fn services_of_the_namespace_are_told_with_links() {
        let found = variables("ns", true);
        assert_eq!(found[..8], KUBERNETES);
        assert_eq!(
            found[8..],
            [
                "MY_DB_SERVICE_HOST=fd00::1",
                "MY_DB_SERVICE_PORT=53",
                "MY_DB_SERVICE_PORT_DNS_TCP=53",
                "MY_DB_PORT=udp://[fd00::1]:53",
                "MY_DB_PORT_53_UDP=udp://[fd00::1]:53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_ADDR=fd00::1",
                "MY_DB_PORT_53_TCP=tcp://[fd00::1]:53",
                "MY_DB_PORT_53_TCP_PROTO=tcp",
                "MY_DB_PORT_53_TCP_PORT=53",
                "MY_DB_PORT_53_TCP_ADDR=fd00::1",
            ]
        );
    }
}
