//! What only flags say.

use std::net::IpAddr;

use super::node::is_clean_path;
use super::{Errors, names};
use crate::KubeletOptions;

/// Labels outside of the kubelet's own domains that a node may set on itself.
const WELL_KNOWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const RESERVED_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];

pub(super) fn check(options: &KubeletOptions, errors: &mut Errors) {
    node_labels(options, errors);
    node_ip(options, errors);
    let provider = &options.cloud_provider;
    errors.check(matches!(provider.as_str(), "" | "external"), "--cloud-provider", || {
        format!("{provider:?} must be empty or \"external\"; built-in cloud providers were removed")
    });
    let root = options.root_dir.to_string_lossy();
    errors.check(is_clean_path(&root), "--root-dir", || {
        format!("{root:?} must be normalized (no \"..\", no double or trailing slash)")
    });
    errors.check(
        options.image_credential_provider_config.is_some()
            == options.image_credential_provider_bin_dir.is_some(),
        "--image-credential-provider-config",
        || "and --image-credential-provider-bin-dir must be set together".to_owned(),
    );
    errors.check(
        !options.exit_on_lock_contention || options.lock_file.is_some(),
        "--exit-on-lock-contention",
        || "requires --lock-file".to_owned(),
    );
    if let Some(version) = &options.reported_version {
        let is_version = version.strip_prefix('v').is_some_and(|rest| {
            let core = rest.split(['-', '+']).next().unwrap_or(rest);
            core.split('.').count() == 3 && core.split('.').all(|part| part.parse::<u32>().is_ok())
        });
        errors.check(is_version, "--version", || {
            format!("{version:?} must be a version such as \"v1.36.0\"")
        });
    }
}

fn node_labels(options: &KubeletOptions, errors: &mut Errors) {
    let mut forbidden = Vec::new();
    for (key, value) in &options.node_labels {
        errors.check(names::is_qualified_name(key), "--node-labels", || {
            format!("{key:?} is not a valid label key")
        });
        errors.check(names::is_label_value(value), "--node-labels", || {
            format!("{value:?} is not a valid label value of {key}")
        });
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        if is_in(domain, &RESERVED_DOMAINS)
            && !is_in(domain, &OWN_DOMAINS)
            && !WELL_KNOWN_LABELS.contains(&key.as_str())
        {
            forbidden.push(key.as_str());
        }
    }
    errors.check(forbidden.is_empty(), "--node-labels", || {
        format!(
            "has unknown 'kubernetes.io' or 'k8s.io' labels: {}. In these domains the label must \
             begin with {} or be one of {}",
            forbidden.join(", "),
            OWN_DOMAINS.join(" or "),
            WELL_KNOWN_LABELS.join(", ")
        )
    });
}

/// `domain` is one of `domains` or below one.
fn is_in(domain: &str, domains: &[&str]) -> bool {
    domains.iter().any(|parent| {
        domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn node_ip(options: &KubeletOptions, errors: &mut Errors) {
    let field = "--node-ip";
    let ips = options.node_ips();
    match ips[..] {
        [] | [_] => {}
        [first, second] => {
            errors.check(first.is_ipv4() != second.is_ipv4(), field, || {
                format!("{:?} must hold one address of each family", options.node_ip)
            });
            errors.check(ips.iter().all(|ip| !ip.is_unspecified()), field, || {
                format!("{:?} must not hold 0.0.0.0 or :: in a pair", options.node_ip)
            });
        }
        _ => errors.add(field, format!("{:?} must hold at most two addresses", options.node_ip)),
    }
}

pub(super) fn warn(options: &KubeletOptions, warnings: &mut Vec<String>) {
    for part in options.node_ip.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if part.parse::<IpAddr>().is_err() {
            warnings.push(format!("--node-ip: {part:?} is no IP address and is ignored"));
        }
    }
}
