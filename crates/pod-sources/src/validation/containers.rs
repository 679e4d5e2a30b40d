use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerResizePolicy, ContainerRestartRule, EphemeralContainer,
    PodSpec,
};

use super::error::{Errors, FieldPath};
use super::spec::PodContext;
use super::{environment, handlers, mounts, resources, security, syntax, text};

const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

pub(super) fn validate_all(
    spec: &PodSpec,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let regular_path = at.child("containers");
    if spec.containers.is_empty() {
        errors.required(&regular_path, "");
    }
    let mut names = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let at = regular_path.index(index);
        validate_common(container, pod, &at, errors);
        validate_unique_name(&container.name, &mut names, &at, errors);
        handlers::validate_lifecycle_and_probes(container, pod, &at, errors);
        validate_restart_policy(container, &at, errors);
        validate_host_ports(container, &mut host_ports, &at, errors);
    }
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let at = at.child("initContainers").index(index);
        validate_common(container, pod, &at, errors);
        validate_unique_name(&container.name, &mut names, &at, errors);
        // Init containers run one by one: only the ports of a single one can collide.
        validate_host_ports(container, &mut BTreeSet::new(), &at, errors);
        validate_restart_policy(container, &at, errors);
        if text(&container.restart_policy) == "Always" {
            handlers::validate_lifecycle_and_probes(container, pod, &at, errors);
        } else {
            forbid_sidecar_fields(container, &at, errors);
        }
    }
    let targets = names.clone();
    for (index, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let at = at.child("ephemeralContainers").index(index);
        validate_ephemeral(container, &targets, &at, errors);
        validate_unique_name(&container.name, &mut names, &at, errors);
    }
}

fn validate_common(
    container: &Container,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let name = &container.name;
    if name.is_empty() {
        errors.required(&at.child("name"), "");
    } else {
        errors.invalid_each(&at.child("name"), name, syntax::dns_label(name));
    }
    validate_image(text(&container.image), &at.child("image"), errors);
    validate_termination_message_policy(
        text(&container.termination_message_policy),
        &at.child("terminationMessagePolicy"),
        errors,
    );
    validate_pull_policy(text(&container.image_pull_policy), &at.child("imagePullPolicy"), errors);
    let ports = container.ports.as_deref().unwrap_or_default();
    validate_ports(ports, &at.child("ports"), errors);
    environment::validate(container, pod, at, errors);
    mounts::validate(container, pod, at, errors);
    if let Some(resources) = &container.resources {
        resources::validate(
            resources,
            resources::Holder::Container,
            &pod.claims,
            &at.child("resources"),
            errors,
        );
    }
    validate_resize_policy(
        container.resize_policy.as_deref().unwrap_or_default(),
        pod.restart_policy,
        &at.child("resizePolicy"),
        errors,
    );
    security::validate_container(
        container.security_context.as_ref(),
        pod.shares_host_users,
        &at.child("securityContext"),
        errors,
    );
}

fn validate_image(image: &str, at: &FieldPath, errors: &mut Errors) {
    if image.is_empty() {
        errors.required(at, "");
    } else if image.trim() != image {
        errors.invalid(at, image, "must not have leading or trailing whitespace");
    }
}

fn validate_unique_name<'a>(
    name: &'a str,
    names: &mut BTreeSet<&'a str>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    if !name.is_empty() && !names.insert(name) {
        errors.duplicate(&at.child("name"), name);
    }
}

fn validate_termination_message_policy(policy: &str, at: &FieldPath, errors: &mut Errors) {
    match policy {
        "" => errors.required(at, ""),
        "File" | "FallbackToLogsOnError" => {}
        other => errors.not_supported(at, other, &["File", "FallbackToLogsOnError"]),
    }
}

/// `imagePullPolicy`, and `pullPolicy` of an image volume.
pub(super) fn validate_pull_policy(policy: &str, at: &FieldPath, errors: &mut Errors) {
    match policy {
        "" => errors.required(at, ""),
        "Always" | "IfNotPresent" | "Never" => {}
        other => errors.not_supported(at, other, &["Always", "IfNotPresent", "Never"]),
    }
}

fn validate_ports(ports: &[ContainerPort], at: &FieldPath, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        let name = text(&port.name);
        if !name.is_empty() {
            let faults = syntax::port_name(name);
            if faults.is_empty() && !names.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
            errors.invalid_each(&at.child("name"), name, faults);
        }
        match port.container_port {
            0 => errors.required(&at.child("containerPort"), ""),
            number => errors.invalid_each(
                &at.child("containerPort"),
                &number,
                syntax::port_number(number),
            ),
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            errors.invalid_each(&at.child("hostPort"), &number, syntax::port_number(number));
        }
        match text(&port.protocol) {
            "" => errors.required(&at.child("protocol"), ""),
            "TCP" | "UDP" | "SCTP" => {}
            other => {
                errors.not_supported(&at.child("protocol"), other, &["SCTP", "TCP", "UDP"]);
            }
        }
    }
}

fn validate_host_ports(
    container: &Container,
    taken: &mut BTreeSet<String>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(host_port) = port.host_port.filter(|number| *number != 0) else { continue };
        let address = format!("{}/{}/{host_port}", text(&port.protocol), text(&port.host_ip));
        if taken.contains(&address) {
            errors.duplicate(&at.child("ports").index(index).child("hostPort"), &address);
        }
        taken.insert(address);
    }
}

fn validate_restart_policy(container: &Container, at: &FieldPath, errors: &mut Errors) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let policy_path = at.child("restartPolicy");
    let Some(policy) = &container.restart_policy else {
        if !rules.is_empty() {
            errors.required(&policy_path, "must specify restartPolicy when restart rules are used");
        }
        return;
    };
    if !["Always", "Never", "OnFailure"].contains(&policy.as_str()) {
        errors.not_supported(&policy_path, policy, &["Always", "Never", "OnFailure"]);
    }
    validate_restart_rules(rules, &at.child("restartPolicyRules"), errors);
}

fn validate_restart_rules(rules: &[ContainerRestartRule], at: &FieldPath, errors: &mut Errors) {
    if rules.len() > MAX_RESTART_RULES {
        errors.too_many(at, rules.len(), MAX_RESTART_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = at.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        if !actions.contains(&rule.action.as_str()) {
            errors.not_supported(&at.child("action"), &rule.action, &actions);
        }
        let at = at.child("exitCodes");
        let Some(exit_codes) = &rule.exit_codes else {
            errors.required(&at, "must be specified");
            continue;
        };
        if !["In", "NotIn"].contains(&exit_codes.operator.as_str()) {
            errors.not_supported(&at.child("operator"), &exit_codes.operator, &["In", "NotIn"]);
        }
        let values = exit_codes.values.as_deref().unwrap_or_default();
        if values.len() > MAX_EXIT_CODES {
            errors.too_many(&at.child("values"), values.len(), MAX_EXIT_CODES);
        }
    }
}

fn forbid_sidecar_fields(container: &Container, at: &FieldPath, errors: &mut Errors) {
    for (name, is_set) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ] {
        if is_set {
            errors.forbidden(
                &at.child(name),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
}

fn validate_resize_policy(
    policies: &[ContainerResizePolicy],
    pod_restart_policy: &str,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let mut seen = BTreeMap::new();
    for (index, policy) in policies.iter().enumerate() {
        if seen.insert(policy.resource_name.as_str(), index).is_some() {
            errors.duplicate(&at.index(index), &policy.resource_name);
        }
        match policy.resource_name.as_str() {
            "" => errors.required(at, ""),
            "cpu" | "memory" => {}
            other => errors.not_supported(at, other, &["cpu", "memory"]),
        }
        match policy.restart_policy.as_str() {
            "" => errors.required(at, ""),
            "NotRequired" | "RestartContainer" => {}
            other => errors.not_supported(at, other, &["NotRequired", "RestartContainer"]),
        }
        if pod_restart_policy == "Never" && policy.restart_policy != "NotRequired" {
            errors.invalid(
                at,
                &policy.restart_policy,
                "must be 'NotRequired' when `restartPolicy` is 'Never'",
            );
        }
    }
}

/// Ephemeral containers are refused on creation as a whole; what is wrong beyond that is still said.
fn validate_ephemeral(
    container: &EphemeralContainer,
    others: &BTreeSet<&str>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    if container.name.is_empty() {
        errors.required(&at.child("name"), "");
    } else {
        let name = &container.name;
        errors.invalid_each(&at.child("name"), name, syntax::dns_label(name));
    }
    validate_image(text(&container.image), &at.child("image"), errors);
    let target = text(&container.target_container_name);
    if !target.is_empty() && !others.contains(target) {
        errors.not_found(&at.child("targetContainerName"), target, "");
    }
    for (name, is_set) in [
        ("ports", container.ports.as_ref().is_some_and(|list| !list.is_empty())),
        ("resources", container.resources.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ] {
        if is_set {
            errors.forbidden(&at.child(name), "cannot be set for an Ephemeral Container");
        }
    }
}
