use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodDNSConfig, PodResourceClaim, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::error::{Errors, FieldPath};
use super::volumes::KnownVolumes;
use super::{containers, metadata, resources, scheduling, security, syntax, text, volumes};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
const MAX_HOSTNAME_OVERRIDE: usize = 64;

/// What the checks of a container need to know of its pod.
pub(super) struct PodContext<'a> {
    pub(super) volumes: KnownVolumes<'a>,
    pub(super) claims: BTreeSet<&'a str>,
    pub(super) restart_policy: &'a str,
    pub(super) grace_seconds: Option<i64>,
    pub(super) shares_host_users: bool,
    pub(super) os: &'a str,
}

pub(super) fn validate(spec: &PodSpec, metadata: &ObjectMeta, at: &FieldPath, errors: &mut Errors) {
    // A negative one is not refused: it counts as one second.
    if spec.termination_grace_period_seconds.is_none() {
        errors.required(&at.child("terminationGracePeriodSeconds"), "");
    }
    let claims = spec.resource_claims.as_deref().unwrap_or_default();
    let context = PodContext {
        volumes: volumes::validate(
            spec.volumes.as_deref().unwrap_or_default(),
            metadata,
            &at.child("volumes"),
            errors,
        ),
        claims: claims
            .iter()
            .map(|claim| claim.name.as_str())
            .filter(|it| !it.is_empty())
            .collect(),
        restart_policy: text(&spec.restart_policy),
        grace_seconds: spec.termination_grace_period_seconds,
        shares_host_users: spec.host_users.unwrap_or(true),
        os: spec.os.as_ref().map(|os| os.name.as_str()).unwrap_or_default(),
    };
    validate_claims(claims, &at.child("resourceClaims"), errors);
    validate_tokens(spec, &at.child("volumes"), errors);
    containers::validate_all(spec, &context, at, errors);
    resources::validate_pod_level(spec, &at.child("resources"), errors);
    validate_host_network_ports(spec, at, errors);
    validate_choices(spec, at, errors);
    validate_names(spec, at, errors);
    validate_namespaces(spec, at, errors);
    security::validate_pod(spec, at, errors);
    scheduling::validate(spec, at, errors);
    validate_dns(spec, &at.child("dnsConfig"), errors);
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let at = at.child("readinessGates").index(index).child("conditionType");
        let name = &gate.condition_type;
        errors.invalid_each(&at, name, syntax::qualified_name(name));
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let at = at.child("hostAliases").index(index);
        errors.invalid_each(&at.child("ip"), &alias.ip, syntax::ip_address(&alias.ip));
        for (index, name) in alias.hostnames.iter().flatten().enumerate() {
            let at = at.child("hostnames").index(index);
            errors.invalid_each(&at, name, syntax::dns_subdomain(name));
        }
    }
    if let Some(seconds) = spec.active_deadline_seconds {
        errors.invalid_each(
            &at.child("activeDeadlineSeconds"),
            &seconds,
            syntax::in_range(seconds, 1, i32::MAX.into()),
        );
    }
    if let Some(overhead) = &spec.overhead {
        resources::validate_list(
            overhead,
            resources::Holder::Container,
            &at.child("overhead").child("limits"),
            errors,
        );
    }
    if spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        errors.forbidden(&at.child("ephemeralContainers"), "cannot be set on create");
    }
}

fn validate_choices(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    let mut choice = |name: &str, value: &Option<String>, supported: &[&str], required: bool| {
        let at = at.child(name);
        match text(value) {
            "" if required => errors.required(&at, ""),
            "" => {}
            value if supported.contains(&value) => {}
            value => errors.not_supported(&at, value, supported),
        }
    };
    choice("restartPolicy", &spec.restart_policy, &["Always", "OnFailure", "Never"], true);
    choice(
        "dnsPolicy",
        &spec.dns_policy,
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        true,
    );
    choice(
        "preemptionPolicy",
        &spec.preemption_policy,
        &["PreemptLowerPriority", "Never"],
        spec.preemption_policy.is_some(),
    );
    if let Some(os) = &spec.os {
        let at = at.child("os");
        match os.name.as_str() {
            "" => errors.required(&at.child("name"), "cannot be empty"),
            "linux" | "windows" => {}
            other => errors.not_supported(&at, other, &["linux", "windows"]),
        }
    }
}

fn validate_names(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    for (name, value) in [
        ("serviceAccountName", &spec.service_account_name),
        ("nodeName", &spec.node_name),
        ("priorityClassName", &spec.priority_class_name),
    ] {
        let value = text(value);
        if !value.is_empty() {
            errors.invalid_each(&at.child(name), value, syntax::dns_subdomain(value));
        }
    }
    if let Some(name) = &spec.runtime_class_name {
        errors.invalid_each(&at.child("runtimeClassName"), name, syntax::dns_subdomain(name));
    }
    for (name, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        let value = text(value);
        if !value.is_empty() {
            errors.invalid_each(&at.child(name), value, syntax::dns_label(value));
        }
    }
    if let Some(name) = &spec.hostname_override {
        let at = at.child("hostnameOverride");
        if name.len() > MAX_HOSTNAME_OVERRIDE {
            errors.too_long(&at, MAX_HOSTNAME_OVERRIDE);
        }
        errors.invalid_each(&at, name, syntax::dns_subdomain(name));
        if spec.set_hostname_as_fqdn == Some(true) {
            errors.forbidden(&at, "may not be set when `setHostnameAsFQDN` is true");
        }
        if spec.host_network == Some(true) {
            errors.forbidden(&at, "may not be set when `hostNetwork` is true");
        }
    }
}

fn validate_namespaces(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.invalid(
            &at.child("securityContext").child("shareProcessNamespace"),
            &true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    if spec.host_users != Some(false) {
        return;
    }
    for (name, shared) in
        [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)]
    {
        if shared == Some(true) {
            errors.forbidden(&at.child(name), "when `pod.Spec.HostUsers` is false");
        }
    }
}

/// With the host's network, a port of the container is a port of the host.
fn validate_host_network_ports(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    if spec.host_network != Some(true) {
        return;
    }
    for (index, container) in spec.containers.iter().enumerate() {
        for (port_index, port) in container.ports.iter().flatten().enumerate() {
            let host_port = port.host_port.unwrap_or_default();
            if host_port != port.container_port {
                let at = at.child("containers").index(index).child("ports").index(port_index);
                errors.invalid(
                    &at.child("hostPort"),
                    &host_port,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

fn validate_dns(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    let default = PodDNSConfig::default();
    let config = spec.dns_config.as_ref();
    let nameservers = config.and_then(|config| config.nameservers.as_deref()).unwrap_or_default();
    if text(&spec.dns_policy) == "None" {
        if config.is_none() {
            return errors.required(at, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if nameservers.is_empty() {
            return errors.required(
                &at.child("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
        }
    }
    let config = config.unwrap_or(&default);
    if nameservers.len() > MAX_NAMESERVERS {
        let detail = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.invalid(&at.child("nameservers"), nameservers, &detail);
    }
    for (index, address) in nameservers.iter().enumerate() {
        let at = at.child("nameservers").index(index);
        errors.invalid_each(&at, address, syntax::ip_address(address));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        let detail = format!("must not have more than {MAX_SEARCHES} search paths");
        errors.invalid(&at.child("searches"), searches, &detail);
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        let detail = format!(
            "must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the \
             search list"
        );
        errors.invalid(&at.child("searches"), searches, &detail);
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        let at = at.child("searches").index(index);
        errors.invalid_each(&at, search, syntax::dns_search(search));
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if text(&option.name).is_empty() {
            errors.required(&at.child("options").index(index), "must not be empty");
        }
    }
}

fn validate_claims(claims: &[PodResourceClaim], at: &FieldPath, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (index, claim) in claims.iter().enumerate() {
        let at = at.index(index);
        if claim.name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if !names.insert(claim.name.as_str()) {
            errors.duplicate(&at.child("name"), &claim.name);
        } else {
            errors.invalid_each(&at.child("name"), &claim.name, syntax::dns_label(&claim.name));
        }
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(_), Some(_)) => errors.invalid(
                &at,
                &claim.name,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
            (None, None) => errors.invalid(
                &at,
                &claim.name,
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            _ => {}
        }
        for (name, value) in [
            ("resourceClaimName", &claim.resource_claim_name),
            ("resourceClaimTemplateName", &claim.resource_claim_template_name),
        ] {
            if let Some(value) = value {
                errors.invalid_each(&at.child(name), value, syntax::dns_subdomain(value));
            }
        }
    }
}

/// A token is somebody's token.
fn validate_tokens(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    if !text(&spec.service_account_name).is_empty() {
        return;
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
        for (source_index, source) in sources.into_iter().flatten().enumerate() {
            if source.service_account_token.is_some() {
                let at = at.index(index).child("projected").child("sources").index(source_index);
                errors.forbidden(
                    &at.child("serviceAccountToken"),
                    "must not be specified when serviceAccountName is not set",
                );
            }
        }
    }
}

/// `spec.nodeSelector`, which is a set of labels.
pub(super) fn validate_node_selector(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    metadata::validate_labels(spec.node_selector.as_ref(), &at.child("nodeSelector"), errors);
}
