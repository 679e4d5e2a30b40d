//! Name resolution of pods.

use std::net::IpAddr;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1;
use rubelet_types::{EventObject, is_host_network, pod_ref};

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
    /// The last `search` line, without trailing dots.
    pub searches: Vec<String>,
    /// All `options` lines; of one option the last value.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads the format of resolv.conf(5). Unknown lines are skipped.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            if line.trim_start().starts_with(['#', ';']) {
                continue;
            }
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => found.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    // One domain with and without its dot is one domain.
                    found.searches = words
                        .filter(|domain| *domain != ".")
                        .map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned())
                        .collect();
                }
                Some("options") => words.for_each(|option| set_option(&mut found.options, option)),
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
    /// The pod, or the node.
    pub object: EventObject,
    /// `MissingClusterDNS` or `DNSConfigForming`.
    pub reason: &'static str,
    /// The text.
    pub message: String,
}

/// What about the node's resolver file at `path` will not fit into the configuration of pods, once
/// the cluster's three domains are added; the text of the event `CheckLimitsForResolvConf`.
pub fn resolv_conf_problem(path: &Path, host: &ResolvConf, cluster_domain: &str) -> Option<String> {
    let path = path.display();
    let limit = if cluster_domain.is_empty() { MAX_SEARCHES } else { MAX_SEARCHES - 3 };
    if host.searches.len() > limit {
        Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {limit} domains!"
        ))
    } else if host.searches.iter().any(|domain| domain.len() > MAX_DOMAIN) {
        Some(format!(
            "Resolv.conf file \"{path}\" contains a search path which length is more than allowed \
             {MAX_DOMAIN} chars!"
        ))
    } else if host.searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        Some(format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed \
             {MAX_SEARCH_CHARACTERS} chars!"
        ))
    } else {
        None
    }
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
    let pod_ref = pod_ref(pod);
    let spec = pod.spec.as_ref();
    let wanted = match spec.and_then(|spec| spec.dns_policy.as_deref()) {
        Some("None") => Base::Nothing,
        Some("Default") => Base::Host,
        Some("ClusterFirstWithHostNet") => Base::Cluster,
        Some("ClusterFirst") | None if is_host_network(pod) => Base::Host,
        // What the API does not know counts as its default.
        _ => Base::Cluster,
    };
    let base = if wanted == Base::Cluster && settings.cluster_dns.is_empty() {
        const MESSAGE: &str = "kubelet does not have ClusterDNS IP configured and cannot create \
            Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        let reason = "MissingClusterDNS";
        warnings.push(DnsWarning {
            object: EventObject::Node,
            reason,
            message: MESSAGE.to_owned(),
        });
        warnings.push(DnsWarning {
            object: EventObject::Pod(pod_ref.clone()),
            reason,
            message: format!("pod: \"{pod_ref}\". {MESSAGE}"),
        });
        Base::Host
    } else {
        wanted
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
        config.servers = without_duplicates(config.servers, own.nameservers.iter().flatten());
        config.searches = without_duplicates(config.searches, own.searches.iter().flatten());
        for option in own.options.iter().flatten() {
            let Some(name) = option.name.as_deref() else { continue };
            match option.value.as_deref() {
                Some(value) if !value.is_empty() => {
                    set_option(&mut config.options, &format!("{name}:{value}"));
                }
                _ => set_option(&mut config.options, name),
            }
        }
    }
    for message in apply_limits(&mut config) {
        let object = EventObject::Pod(pod_ref.clone());
        warnings.push(DnsWarning { object, reason: "DNSConfigForming", message });
    }
    let ResolvConf { servers, searches, options } = config;
    (v1::DnsConfig { servers, searches, options }, warnings)
}

fn cluster_config(pod: &Pod, settings: &DnsSettings, host: &ResolvConf) -> ResolvConf {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let domain = &settings.cluster_domain;
    let searches = if domain.is_empty() {
        host.searches.clone()
    } else {
        let own =
            vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
        without_duplicates(own, &host.searches)
    };
    ResolvConf {
        servers: settings.cluster_dns.iter().map(ToString::to_string).collect(),
        searches,
        options: vec![CLUSTER_OPTIONS.to_owned()],
    }
}

/// Both lists one after the other, each entry where it comes first.
fn without_duplicates<'a>(
    list: Vec<String>,
    more: impl IntoIterator<Item = &'a String>,
) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for entry in list.into_iter().chain(more.into_iter().cloned()) {
        if !found.contains(&entry) {
            found.push(entry);
        }
    }
    found
}

/// Sets an option, over an earlier value of the same name.
fn set_option(options: &mut Vec<String>, option: &str) {
    let name = |option: &str| option.split(':').next().map(str::to_owned);
    match options.iter_mut().find(|known| name(known) == name(option)) {
        Some(known) => *known = option.to_owned(),
        None => options.push(option.to_owned()),
    }
}

/// Cuts what resolvers cannot take, and tells what is left.
fn apply_limits(config: &mut ResolvConf) -> Vec<String> {
    let mut messages = Vec::new();
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        messages.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    // Some versions of glibc abort on a longer one.
    config.searches.retain(|domain| domain.len() <= MAX_DOMAIN);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        config.searches.pop();
    }
    if config.searches.len() < before {
        messages.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            config.searches.join(" ")
        ));
    }
    messages
}

#[cfg(test)]
mod tests;
