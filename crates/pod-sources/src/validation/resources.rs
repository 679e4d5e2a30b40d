use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_types::{Quantity, ResourceAmounts, container_requests};

use super::error::{Errors, FieldPath};
use super::syntax;
use crate::defaults::container_totals;

type ResourceList = BTreeMap<String, ApiQuantity>;

/// Whose resources they are.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Holder {
    Container,
    Pod,
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// More may be promised than there is.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && syntax::qualified_name(&format!("requests.{name}")).is_empty()
}

fn validate_name(name: &str, holder: Holder, at: &FieldPath, errors: &mut Errors) {
    if holder == Holder::Pod {
        if !matches!(name, "cpu" | "memory") && !is_huge_pages(name) {
            errors.not_supported(at, name, &["cpu", "hugepages-", "memory"]);
        }
        return;
    }
    let faults = syntax::qualified_name(name);
    if !faults.is_empty() {
        errors.invalid_each(at, name, faults);
    } else if name.contains('/') {
        if !is_native(name) && !is_extended(name) {
            errors.invalid(at, name, "doesn't follow extended resource name standard");
        }
    } else if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_pages(name) {
        errors.invalid(at, name, "must be a standard resource for containers");
    }
}

/// Names and amounts of one list.
pub(super) fn validate_list(
    list: &ResourceList,
    holder: Holder,
    at: &FieldPath,
    errors: &mut Errors,
) {
    for (name, value) in list {
        let at = at.key(name);
        validate_name(name, holder, &at, errors);
        let amount = match Quantity::try_from(value) {
            Ok(amount) => amount,
            Err(error) => {
                errors.invalid(&at, &value.0, &error.to_string());
                continue;
            }
        };
        if amount.is_negative() {
            errors.invalid(&at, &amount.to_string(), "must be greater than or equal to 0");
        }
        if is_extended(name) && amount != Quantity::from_units(amount.value()) {
            errors.invalid(&at, &amount.to_string(), "must be an integer");
        }
        if let Some(size) = name.strip_prefix("hugepages-")
            && !is_multiple(amount, size)
        {
            let detail = format!("{amount} is not positive integer multiple of {name}");
            errors.invalid(&at, &amount.to_string(), &detail);
        }
    }
}

fn is_multiple(amount: Quantity, page_size: &str) -> bool {
    let Ok(page_size) = page_size.parse::<Quantity>() else { return false };
    let bytes = page_size.value();
    bytes > 0
        && page_size == Quantity::from_bytes(bytes)
        && amount == Quantity::from_bytes(amount.value())
        && amount.value() % bytes == 0
}

pub(super) fn validate(
    resources: &ResourceRequirements,
    holder: Holder,
    pod_claims: &BTreeSet<&str>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let empty = ResourceList::new();
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    let (limit_path, request_path) = (at.child("limits"), at.child("requests"));
    validate_list(limits, holder, &limit_path, errors);
    validate_list(requests, holder, &request_path, errors);
    for (name, request) in requests {
        let Some(limit) = limits.get(name) else {
            if !may_overcommit(name) {
                errors.required(&limit_path, "Limit must be set for non overcommitable resources");
            }
            continue;
        };
        let (Ok(amount), Ok(most)) = (Quantity::try_from(request), Quantity::try_from(limit))
        else {
            continue;
        };
        if amount != most && !may_overcommit(name) {
            let detail = format!("must be equal to {name} limit of {most}");
            errors.invalid(&request_path, &amount.to_string(), &detail);
        } else if amount > most {
            let detail = format!("must be less than or equal to {name} limit of {most}");
            errors.invalid(&request_path, &amount.to_string(), &detail);
        }
    }
    let mut names = limits.keys().chain(requests.keys());
    let has_huge_pages = names.clone().any(|name| is_huge_pages(name));
    if has_huge_pages && !names.any(|name| matches!(name.as_str(), "cpu" | "memory")) {
        errors.forbidden(at, "HugePages require cpu or memory");
    }
    let claims = resources.claims.as_deref().unwrap_or_default();
    if holder == Holder::Container {
        validate_claims(claims, pod_claims, &at.child("claims"), errors);
    } else if !claims.is_empty() {
        errors.forbidden(&at.child("claims"), "claims cannot be set for Resources at pod-level");
    }
}

fn validate_claims(
    claims: &[ResourceClaim],
    pod_claims: &BTreeSet<&str>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    // Claims named as a whole, and claims of which some request is named.
    let (mut whole, mut parts) = (BTreeSet::new(), BTreeSet::new());
    let mut requests = BTreeSet::new();
    for (index, claim) in claims.iter().enumerate() {
        let at = at.index(index);
        let name = claim.name.as_str();
        if name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        match claim.request.as_deref().filter(|request| !request.is_empty()) {
            None => {
                if whole.contains(name) || parts.contains(name) {
                    errors.duplicate(&at, name);
                }
                whole.insert(name);
            }
            Some(request) => {
                errors.invalid_each(&at.child("request"), request, syntax::dns_label(request));
                if whole.contains(name) {
                    errors.duplicate(&at, name);
                } else if !requests.insert((name, request)) {
                    errors.duplicate(&at, &format!("{name}/{request}"));
                }
                parts.insert(name);
            }
        }
        if !pod_claims.contains(name) {
            let mut detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if pod_claims.is_empty() {
                detail.push_str(" which is empty");
            } else {
                let names: Vec<&str> = pod_claims.iter().copied().take(20).collect();
                detail.push_str(": ");
                detail.push_str(&names.join(", "));
            }
            errors.not_found(&at, name, &detail);
        }
    }
}

/// `spec.resources` (KEP-2837): the pod as a whole must have room for its containers.
pub(super) fn validate_pod_level(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    let Some(resources) = &spec.resources else { return };
    validate(resources, Holder::Pod, &BTreeSet::new(), at, errors);

    let pod = Pod { spec: Some(spec.clone()), ..Pod::default() };
    let requested = ResourceAmounts::from_api(resources.requests.as_ref());
    for (name, total) in container_totals(&pod, container_requests).iter() {
        let own = requested.get(name).unwrap_or(Quantity::ZERO);
        let counts = matches!(name, "cpu" | "memory") || is_huge_pages(name);
        if counts && total > own {
            let detail =
                format!("must be greater than or equal to aggregate container requests of {total}");
            errors.invalid(&at.child("requests").key(name), &own.to_string(), &detail);
        }
    }
    let limits = ResourceAmounts::from_api(resources.limits.as_ref());
    for (index, container) in spec.containers.iter().enumerate() {
        let own = ResourceAmounts::from_api(
            container.resources.as_ref().and_then(|resources| resources.limits.as_ref()),
        );
        for (name, limit) in own.iter() {
            if let Some(most) = limits.get(name).filter(|most| limit > *most) {
                let at = at.child("containers").index(index).key(name).child("limits");
                let detail = format!("must be less than or equal to pod limits of {most}");
                errors.invalid(&at, &limit.to_string(), &detail);
            }
        }
    }
}
