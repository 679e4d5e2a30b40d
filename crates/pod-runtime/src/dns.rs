//! Name resolution of pods.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1;
use rubelet_types::is_host_network;

/// Name servers a resolver looks at.
const MAX_NAMESERVERS: usize = 3;
/// Search domains that are passed on.
const MAX_SEARCHES: usize = 32;
/// Characters of all search domains together.
const MAX_SEARCH_CHARACTERS: usize = 2048;
/// Characters of one search domain.
const MAX_DOMAIN: usize = 253;
/// What pods of a cluster get, so that service names are looked up before the world's.
const CLUSTER_OPTIONS: &str = "ndots:5";

/// The content of a resolver configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver` lines.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// The last `options` line.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads the format of resolv.conf(5). Unknown lines are skipped.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => found.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    found.searches = words
                        .filter(|domain| *domain != ".")
                        .map(|domain| domain.trim_end_matches('.').to_owned())
                        .collect();
                }
                Some("options") => found.options = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        found
    }
}

/// What the kubelet's configuration says about name resolution.
#[derive(Clone, Debug, Default)]
pub struct DnsSettings {
    /// `clusterDNS`, those that are addresses.
    pub cluster_dns: Vec<IpAddr>,
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// `resolvConf` is `""`: the node's file is not used.
    pub ignore_host: bool,
    /// The node's primary address family is IPv6.
    pub prefer_ipv6: bool,
}

/// Something about a pod's name resolution that its owner should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsWarning {
    /// `MissingClusterDNS` or `DNSConfigForming`.
    pub reason: &'static str,
    /// The text.
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    Cluster,
    Host,
    Nothing,
}

/// The resolver configuration of a pod, by its `dnsPolicy` and `dnsConfig`, and what had to be left
/// out of it.
pub fn compute_dns(
    pod: &Pod,
    settings: &DnsSettings,
    host: &ResolvConf,
) -> (v1::DnsConfig, Vec<DnsWarning>) {
    let mut warnings = Vec::new();
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|spec| spec.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let base = match policy {
        "None" => Base::Nothing,
        "ClusterFirstWithHostNet" => Base::Cluster,
        "ClusterFirst" if !is_host_network(pod) => Base::Cluster,
        _ => Base::Host,
    };
    let base = if base == Base::Cluster && settings.cluster_dns.is_empty() {
        warnings.push(DnsWarning {
            reason: "MissingClusterDNS",
            message: format!(
                "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                 {policy:?} policy. Falling back to \"Default\" policy."
            ),
        });
        Base::Host
    } else {
        base
    };
    let mut config = match base {
        Base::Nothing => ResolvConf::default(),
        Base::Cluster => cluster_config(pod, settings, host),
        Base::Host if settings.ignore_host => ResolvConf {
            servers: vec![if settings.prefer_ipv6 { "::1" } else { "127.0.0.1" }.to_owned()],
            searches: vec![".".to_owned()],
            options: Vec::new(),
        },
        Base::Host => host.clone(),
    };
    if let Some(own) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        append_new(&mut config.servers, own.nameservers.iter().flatten());
        append_new(&mut config.searches, own.searches.iter().flatten());
        for option in own.options.iter().flatten() {
            let Some(name) = option.name.as_deref() else { continue };
            config.options.retain(|known| known.split(':').next() != Some(name));
            config.options.push(match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name.to_owned(),
            });
        }
    }
    apply_limits(&mut config, &mut warnings);
    let ResolvConf { servers, searches, options } = config;
    (v1::DnsConfig { servers, searches, options }, warnings)
}

fn cluster_config(pod: &Pod, settings: &DnsSettings, host: &ResolvConf) -> ResolvConf {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let domain = &settings.cluster_domain;
    let mut searches = Vec::new();
    if !domain.is_empty() {
        searches =
            vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
    }
    append_new(&mut searches, &host.searches);
    ResolvConf {
        servers: settings.cluster_dns.iter().map(ToString::to_string).collect(),
        searches,
        options: vec![CLUSTER_OPTIONS.to_owned()],
    }
}

fn append_new<'a>(list: &mut Vec<String>, more: impl IntoIterator<Item = &'a String>) {
    for entry in more {
        if !list.contains(entry) {
            list.push(entry.clone());
        }
    }
}

fn apply_limits(config: &mut ResolvConf, warnings: &mut Vec<DnsWarning>) {
    let mut warn = |message: String| {
        warnings.push(DnsWarning { reason: "DNSConfigForming", message });
    };
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        warn(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let before = config.searches.len();
    config.searches.retain(|domain| domain.len() <= MAX_DOMAIN);
    config.searches.truncate(MAX_SEARCHES);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        config.searches.pop();
    }
    if config.searches.len() < before {
        warn(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            config.searches.join(" ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> DnsSettings {
        DnsSettings {
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".to_owned(),
            ..DnsSettings::default()
        }
    }

    fn host() -> ResolvConf {
        ResolvConf::parse(
            "# comment\nnameserver 192.0.2.1 # first\nsearch old.example\nsearch example.com. .\n\
             options timeout:1\nsortlist x\n",
        )
    }

    fn dns(spec: serde_json::Value, settings: &DnsSettings) -> (String, Vec<&'static str>) {
        let mut spec = spec;
        spec["containers"] = serde_json::json!([]);
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns"}, "spec": spec
        }))
        .unwrap();
        let (config, warnings) = compute_dns(&pod, settings, &host());
        (
            format!(
                "{} | {} | {}",
                config.servers.join(" "),
                config.searches.join(" "),
                config.options.join(" ")
            ),
            warnings.iter().map(|warning| warning.reason).collect(),
        )
    }

    #[test]
    fn policies() {
        let cluster = "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local \
                       example.com | ndots:5";
        let from_host = "192.0.2.1 | example.com | timeout:1";
        for (spec, expected) in [
            (serde_json::json!({"dnsPolicy": "ClusterFirst"}), cluster),
            (serde_json::json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), from_host),
            (
                serde_json::json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
                cluster,
            ),
            (serde_json::json!({"dnsPolicy": "Default"}), from_host),
            (
                serde_json::json!({"dnsPolicy": "None", "dnsConfig": {
                    "nameservers": ["9.9.9.9"], "searches": ["a.b"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}}),
                "9.9.9.9 | a.b | ndots:2 rotate",
            ),
            (
                serde_json::json!({"dnsPolicy": "Default", "dnsConfig": {
                    "nameservers": ["192.0.2.1", "9.9.9.9"], "searches": ["example.com", "x.y"],
                    "options": [{"name": "timeout", "value": "3"}]}}),
                "192.0.2.1 9.9.9.9 | example.com x.y | timeout:3",
            ),
        ] {
            assert_eq!(dns(spec.clone(), &settings()), (expected.to_owned(), vec![]), "{spec}");
        }
    }

    #[test]
    fn without_cluster_dns_the_nodes_file_is_used_with_a_warning() {
        let settings = DnsSettings::default();
        let (config, warnings) = dns(serde_json::json!({"dnsPolicy": "ClusterFirst"}), &settings);
        assert_eq!(config, "192.0.2.1 | example.com | timeout:1");
        assert_eq!(warnings, ["MissingClusterDNS"]);
    }

    #[test]
    fn without_the_nodes_file_default_means_this_host() {
        let settings = DnsSettings { ignore_host: true, ..settings() };
        let (config, _) = dns(serde_json::json!({"dnsPolicy": "Default"}), &settings);
        assert_eq!(config, "127.0.0.1 | . | ");
    }

    #[test]
    fn limits_cut_and_warn() {
        let servers: Vec<String> = (1..6).map(|i| format!("192.0.2.{i}")).collect();
        let searches: Vec<String> = (0..40).map(|i| format!("d{i}.example")).collect();
        let (config, warnings) = dns(
            serde_json::json!({"dnsPolicy": "None",
                "dnsConfig": {"nameservers": servers, "searches": searches}}),
            &settings(),
        );
        assert!(config.starts_with("192.0.2.1 192.0.2.2 192.0.2.3 | d0.example"), "{config}");
        assert!(config.ends_with("d31.example | "), "{config}");
        assert_eq!(warnings, ["DNSConfigForming", "DNSConfigForming"]);
    }
}
