//! The hostname of a pod.

use k8s_openapi::api::core::v1::Pod;

/// Longest hostname the kernel takes.
const MAX_HOSTNAME: usize = 64;
/// Longest DNS label.
const MAX_LABEL: usize = 63;
/// Longest DNS name.
const MAX_SUBDOMAIN: usize = 253;

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
    characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
    '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character \
    (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The hostname and the domain that follow from a pod's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostNames {
    /// The short name, for the hosts file.
    pub(crate) short: String,
    /// `<subdomain>.<namespace>.svc.<clusterDomain>`, if the pod has a subdomain.
    pub(crate) domain: Option<String>,
    /// `setHostnameAsFQDN`.
    as_fqdn: bool,
}

/// A pod's hostname cannot be told, or cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// A field of the spec is no DNS name.
    #[error("pod {field} {value:?} is not a valid DNS {what}: {problems}")]
    Invalid {
        /// `Hostname`, `Subdomain` or `HostnameOverride`.
        field: &'static str,
        /// What was given.
        value: String,
        /// `label` or `subdomain`.
        what: &'static str,
        /// What is wrong with it.
        problems: String,
    },
    /// Nothing is left of it once it is cut to its greatest length.
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    Empty {
        /// The pod's name.
        pod: String,
        /// The name before it was cut.
        hostname: String,
    },
    /// The fully qualified name does not fit.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
         ({MAX_HOSTNAME} characters is the max, {length} characters requested)", length = fqdn.len()
    )]
    FqdnTooLong {
        /// The name.
        fqdn: String,
    },
}

impl HostNames {
    /// What the sandbox gets as hostname.
    pub(crate) fn hostname(&self) -> Result<String, HostnameError> {
        match &self.domain {
            Some(domain) if self.as_fqdn => {
                let fqdn = format!("{}.{domain}", self.short);
                if fqdn.len() > MAX_HOSTNAME {
                    return Err(HostnameError::FqdnTooLong { fqdn });
                }
                Ok(fqdn)
            }
            _ => Ok(self.short.clone()),
        }
    }
}

pub(crate) fn compute_host_names(
    pod: &Pod,
    cluster_domain: &str,
) -> Result<HostNames, HostnameError> {
    let spec = pod.spec.as_ref();
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    if let Some(name) = spec.and_then(|spec| spec.hostname_override.as_deref()) {
        check("HostnameOverride", name, "subdomain", MAX_SUBDOMAIN, is_subdomain, SUBDOMAIN_RULE)?;
        return Ok(HostNames { short: cut(name, pod_name)?, domain: None, as_fqdn: false });
    }
    let check_label = |field, name| check(field, name, "label", MAX_LABEL, is_label, LABEL_RULE);
    let own = spec.and_then(|spec| spec.hostname.as_deref()).filter(|name| !name.is_empty());
    if let Some(name) = own {
        check_label("Hostname", name)?;
    }
    let short = cut(own.unwrap_or(pod_name), pod_name)?;
    let subdomain = spec.and_then(|spec| spec.subdomain.as_deref()).filter(|name| !name.is_empty());
    if let Some(name) = subdomain {
        check_label("Subdomain", name)?;
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    Ok(HostNames {
        short,
        domain: subdomain.map(|name| format!("{name}.{namespace}.svc.{cluster_domain}")),
        as_fqdn: spec.and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or(false),
    })
}

fn check(
    field: &'static str,
    value: &str,
    what: &'static str,
    longest: usize,
    is_valid: impl FnOnce(&str) -> bool,
    rule: &str,
) -> Result<(), HostnameError> {
    let mut problems = Vec::new();
    if value.len() > longest {
        problems.push(format!("must be no more than {longest} characters"));
    }
    if !is_valid(value) {
        problems.push(rule.to_owned());
    }
    if problems.is_empty() {
        return Ok(());
    }
    let problems = problems.join(";");
    Err(HostnameError::Invalid { field, value: value.to_owned(), what, problems })
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// Pod names may be longer than a hostname, and must not end in what a hostname may not end in.
fn cut(name: &str, pod: &str) -> Result<String, HostnameError> {
    if name.len() <= MAX_LABEL {
        return Ok(name.to_owned());
    }
    let short = name[..name.floor_char_boundary(MAX_LABEL)].trim_end_matches(['-', '.']);
    if short.is_empty() {
        return Err(HostnameError::Empty { pod: pod.to_owned(), hostname: name.to_owned() });
    }
    Ok(short.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, spec: serde_json::Value) -> String {
        let mut spec = spec;
        spec["containers"] = serde_json::json!([]);
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "ns"}, "spec": spec
        }))
        .unwrap();
        let found = compute_host_names(&pod, "cluster.local")
            .and_then(|names| Ok((names.hostname()?, names.domain)));
        match found {
            Ok((hostname, Some(domain))) => format!("{hostname} in {domain}"),
            Ok((hostname, None)) => hostname,
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn hostnames() {
        for (spec, expected) in [
            (serde_json::json!({}), "web"),
            (serde_json::json!({"setHostnameAsFQDN": true}), "web"),
            (serde_json::json!({"hostname": "h", "subdomain": "s"}), "h in s.ns.svc.cluster.local"),
            (
                serde_json::json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true}),
                "h.s.ns.svc.cluster.local in s.ns.svc.cluster.local",
            ),
            (
                serde_json::json!({"hostnameOverride": "other.example", "subdomain": "s",
                    "setHostnameAsFQDN": true}),
                "other.example",
            ),
        ] {
            assert_eq!(names("web", spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn long_names_are_cut_without_a_trailing_dash_or_dot() {
        for end in ["-", ".", "-.-"] {
            let name = format!("{}{end}{}", "a".repeat(63 - end.len()), "b".repeat(20));
            assert_eq!(names(&name, serde_json::json!({})), "a".repeat(63 - end.len()));
        }
        let name = "a".repeat(63);
        assert_eq!(names(&name, serde_json::json!({})), name);
        assert_eq!(
            names(
                &format!("{name}.example"),
                serde_json::json!({"hostnameOverride":
                format!("{name}.example")})
            ),
            name
        );
    }

    #[test]
    fn a_fully_qualified_name_that_does_not_fit_is_an_error() {
        let spec = serde_json::json!({"subdomain": "s".repeat(60), "setHostnameAsFQDN": true});
        let fqdn = format!("web.{}.ns.svc.cluster.local", "s".repeat(60));
        assert_eq!(
            names("web", spec),
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too \
                 long (64 characters is the max, {} characters requested)",
                fqdn.len()
            )
        );
    }

    #[test]
    fn names_that_are_none_are_refused() {
        assert_eq!(
            names("web", serde_json::json!({"hostname": "No"})),
            format!("pod Hostname \"No\" is not a valid DNS label: {LABEL_RULE}")
        );
        assert_eq!(
            names("web", serde_json::json!({"subdomain": format!("-{}", "x".repeat(63))})),
            format!(
                "pod Subdomain \"-{}\" is not a valid DNS label: must be no more than 63 \
                 characters;{LABEL_RULE}",
                "x".repeat(63)
            )
        );
        assert_eq!(
            names("web", serde_json::json!({"hostnameOverride": "a..b"})),
            format!("pod HostnameOverride \"a..b\" is not a valid DNS subdomain: {SUBDOMAIN_RULE}")
        );
        assert_eq!(
            names(&"-".repeat(70), serde_json::json!({})),
            format!("hostname for pod \"{0}\" was invalid: \"{0}\"", "-".repeat(70))
        );
    }
}
