//! The hostname of a pod.

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::is_host_network;

/// Longest hostname the kernel takes.
const MAX_HOSTNAME: usize = 64;
/// Longest DNS label.
const MAX_LABEL: usize = 63;

/// The hostname and the domain that follow from a pod's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostNames {
    /// What the sandbox gets.
    pub(crate) hostname: String,
    /// The short name, for the hosts file.
    pub(crate) short: String,
    /// `<subdomain>.<namespace>.svc.<clusterDomain>`, if the pod has a subdomain.
    pub(crate) domain: Option<String>,
}

/// The fully qualified name does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
     ({MAX_HOSTNAME} characters is the max, {length} characters requested)", length = fqdn.len()
)]
pub struct FqdnTooLong {
    /// The name.
    pub fqdn: String,
}

pub(crate) fn compute_host_names(
    pod: &Pod,
    cluster_domain: &str,
) -> Result<HostNames, FqdnTooLong> {
    let spec = pod.spec.as_ref();
    let overridden = spec.and_then(|spec| spec.hostname_override.as_deref());
    if let Some(name) = overridden
        && !is_host_network(pod)
    {
        return Ok(HostNames { hostname: name.to_owned(), short: name.to_owned(), domain: None });
    }
    let own = spec.and_then(|spec| spec.hostname.as_deref()).filter(|name| !name.is_empty());
    let short = match own {
        Some(name) => name.to_owned(),
        None => truncate(pod.metadata.name.as_deref().unwrap_or_default()),
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let domain = spec
        .and_then(|spec| spec.subdomain.as_deref())
        .filter(|subdomain| !subdomain.is_empty())
        .map(|subdomain| format!("{subdomain}.{namespace}.svc.{cluster_domain}"));
    let as_fqdn = spec.and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or(false);
    let hostname = match &domain {
        Some(domain) if as_fqdn => {
            let fqdn = format!("{short}.{domain}");
            if fqdn.len() > MAX_HOSTNAME {
                return Err(FqdnTooLong { fqdn });
            }
            fqdn
        }
        _ => short.clone(),
    };
    Ok(HostNames { hostname, short, domain })
}

/// Pod names may be longer than a hostname, and must not end in what a hostname may not end in.
fn truncate(name: &str) -> String {
    let cut = name.char_indices().nth(MAX_LABEL).map_or(name.len(), |(index, _)| index);
    name[..cut].trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, spec: serde_json::Value) -> Result<(String, Option<String>), FqdnTooLong> {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "ns"}, "spec": spec
        }))
        .unwrap();
        compute_host_names(&pod, "cluster.local").map(|names| (names.hostname, names.domain))
    }

    #[test]
    fn hostnames() {
        let base = serde_json::json!({"containers": []});
        assert_eq!(names("web", base).unwrap(), ("web".to_owned(), None));
        let spec = serde_json::json!({"containers": [], "hostname": "h", "subdomain": "s"});
        let domain = Some("s.ns.svc.cluster.local".to_owned());
        assert_eq!(names("web", spec).unwrap(), ("h".to_owned(), domain.clone()));
        let spec = serde_json::json!({"containers": [], "hostname": "h", "subdomain": "s",
            "setHostnameAsFQDN": true});
        assert_eq!(names("web", spec).unwrap(), ("h.s.ns.svc.cluster.local".to_owned(), domain));
        let spec = serde_json::json!({"containers": [], "hostnameOverride": "other.example"});
        assert_eq!(names("web", spec).unwrap().0, "other.example");
    }

    #[test]
    fn long_names_are_cut_without_a_trailing_dash() {
        let name = format!("{}-{}", "a".repeat(62), "b".repeat(20));
        let found = names(&name, serde_json::json!({"containers": []})).unwrap().0;
        assert_eq!(found, "a".repeat(62));
    }

    #[test]
    fn a_fully_qualified_name_that_does_not_fit_is_an_error() {
        let spec = serde_json::json!({"containers": [], "subdomain": "s".repeat(60),
            "setHostnameAsFQDN": true});
        assert!(names("web", spec).is_err());
    }
}
