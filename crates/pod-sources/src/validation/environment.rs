use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector,
    ResourceFieldSelector,
};
use rubelet_types::Quantity;

use super::error::{Errors, FieldPath};
use super::spec::PodContext;
use super::{syntax, text};

const MAX_FILE_KEY: usize = 128;

/// Fields of a pod that a variable can take its value from.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields of a pod that a file of a downward API volume can show.
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub(super) fn validate(
    container: &Container,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    for (index, env) in container.env.iter().flatten().enumerate() {
        validate_variable(env, pod, &at.child("env").index(index), errors);
    }
    let sources = container.env_from.as_deref().unwrap_or_default();
    validate_env_from(sources, &at.child("envFrom"), errors);
}

fn validate_variable(env: &EnvVar, pod: &PodContext<'_>, at: &FieldPath, errors: &mut Errors) {
    if env.name.is_empty() {
        errors.required(&at.child("name"), "");
    } else {
        errors.invalid_each(&at.child("name"), &env.name, syntax::env_name(&env.name));
    }
    let at = at.child("valueFrom");
    let Some(source) = &env.value_from else { return };
    let EnvVarSource {
        config_map_key_ref,
        field_ref,
        file_key_ref,
        resource_field_ref,
        secret_key_ref,
    } = source;
    let mut sources = 0;
    if let Some(field) = field_ref {
        sources += 1;
        validate_field_reference(field, &ENV_FIELDS, &at.child("fieldRef"), errors);
    }
    if let Some(resource) = resource_field_ref {
        sources += 1;
        validate_resource_reference(resource, false, &at.child("resourceFieldRef"), errors);
    }
    if let Some(key) = config_map_key_ref {
        sources += 1;
        validate_key(&key.name, &key.key, &at.child("configMapKeyRef"), errors);
    }
    if let Some(key) = secret_key_ref {
        sources += 1;
        validate_key(&key.name, &key.key, &at.child("secretKeyRef"), errors);
    }
    if let Some(key) = file_key_ref {
        sources += 1;
        validate_file_key(key, pod, &at.child("fileKeyRef"), errors);
    }
    if sources == 0 {
        errors.invalid(
            &at,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
             `secretKeyRef` or `fileKeyRef`",
        );
    } else if !text(&env.value).is_empty() {
        errors.invalid(&at, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(&at, "", "may not have more than one field specified at a time");
    }
}

fn validate_env_from(sources: &[EnvFromSource], at: &FieldPath, errors: &mut Errors) {
    for (index, source) in sources.iter().enumerate() {
        let item = at.index(index);
        let prefix = text(&source.prefix);
        errors.invalid_each(&item.child("prefix"), prefix, syntax::env_name(prefix));
        let names = [
            ("configMapRef", source.config_map_ref.as_ref().map(|it| it.name.as_str())),
            ("secretRef", source.secret_ref.as_ref().map(|it| it.name.as_str())),
        ];
        for (kind, name) in names {
            let Some(name) = name else { continue };
            let at = item.child(kind).child("name");
            if name.is_empty() {
                errors.required(&at, "");
            } else {
                errors.invalid_each(&at, name, syntax::dns_subdomain(name));
            }
        }
        match (&source.config_map_ref, &source.secret_ref) {
            (None, None) => {
                errors.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`");
            }
            (Some(_), Some(_)) => {
                errors.invalid(at, "", "may not have more than one field specified at a time");
            }
            _ => {}
        }
    }
}

fn validate_key(name: &str, key: &str, at: &FieldPath, errors: &mut Errors) {
    errors.invalid_each(&at.child("name"), name, syntax::dns_subdomain(name));
    if key.is_empty() {
        errors.required(&at.child("key"), "");
    } else {
        errors.invalid_each(&at.child("key"), key, syntax::config_key(key));
    }
}

fn validate_file_key(
    selector: &FileKeySelector,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let volume_path = at.child("volumeName");
    if selector.volume_name.is_empty() {
        errors.required(&volume_path, "");
    } else {
        match pod.volumes.get(selector.volume_name.as_str()) {
            None => errors.not_found(&volume_path, &selector.volume_name, ""),
            Some(volume) if volume.empty_dir.is_none() => errors.invalid(
                &volume_path,
                &selector.volume_name,
                "referenced volume must be of type emptyDir",
            ),
            Some(_) => {}
        }
    }
    if selector.path.is_empty() {
        errors.required(&at.child("path"), "");
    } else {
        let faults = syntax::unreserved_path(&selector.path);
        errors.invalid_each(&at.child("path"), &selector.path, faults);
    }
    if selector.key.is_empty() {
        errors.required(&at.child("key"), "");
    } else {
        errors.invalid_each(&at.child("key"), &selector.key, syntax::env_name(&selector.key));
        if selector.key.len() > MAX_FILE_KEY {
            errors.too_long(&at.child("key"), MAX_FILE_KEY);
        }
    }
}

/// A reference to a field of the pod, such as `metadata.labels['app']`.
pub(super) fn validate_field_reference(
    selector: &ObjectFieldSelector,
    supported: &[&str],
    at: &FieldPath,
    errors: &mut Errors,
) {
    let version = text(&selector.api_version);
    if version.is_empty() {
        return errors.required(&at.child("apiVersion"), "");
    }
    let path = selector.field_path.as_str();
    if path.is_empty() {
        return errors.required(&at.child("fieldPath"), "");
    }
    if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        return errors.invalid(&at.child("fieldPath"), path, &detail);
    }
    let subscripted = path.strip_suffix("']").and_then(|path| path.split_once("['"));
    match subscripted {
        Some(("metadata.annotations", key)) => {
            errors.invalid_each(at, key, syntax::qualified_name(&key.to_lowercase()));
        }
        Some(("metadata.labels", key)) => {
            errors.invalid_each(at, key, syntax::qualified_name(key));
        }
        Some((field, _)) => errors.invalid(at, field, "does not support subscript"),
        None if supported.contains(&path) => {}
        None => errors.not_supported(&at.child("fieldPath"), path, supported),
    }
}

/// A reference to a resource of a container, such as `limits.cpu`.
pub(super) fn validate_resource_reference(
    selector: &ResourceFieldSelector,
    needs_container: bool,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let resource = selector.resource.as_str();
    let huge_pages = ["limits.hugepages-", "requests.hugepages-"]
        .iter()
        .any(|prefix| resource.starts_with(prefix));
    if needs_container && text(&selector.container_name).is_empty() {
        errors.required(&at.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&at.child("resource"), "");
    } else if !RESOURCE_FIELDS.contains(&resource) && !huge_pages {
        errors.not_supported(&at.child("resource"), resource, &RESOURCE_FIELDS);
    }

    let at = at.child("divisor");
    let divisor = match selector.divisor.as_ref().map(Quantity::try_from) {
        None => return,
        Some(Err(error)) => {
            let value = selector.divisor.as_ref().map(|it| it.0.as_str()).unwrap_or_default();
            return errors.invalid(&at, value, &error.to_string());
        }
        Some(Ok(divisor)) if divisor.is_zero() => return,
        Some(Ok(divisor)) => divisor.to_string(),
    };
    let sizes = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let kind = resource.split_once('.').map(|(_, kind)| kind).unwrap_or_default();
    let (supported, name): (&[&str], &str) = match kind {
        "cpu" => (&["1m", "1"], "cpu"),
        "memory" => (&sizes, "memory"),
        "ephemeral-storage" => (&sizes, "local ephemeral storage"),
        _ if huge_pages => (&sizes, "hugepages"),
        _ => return,
    };
    if !supported.contains(&divisor.as_str()) {
        let list = if kind == "cpu" { "1m and 1".to_owned() } else { supported.join(", ") };
        let detail = format!("only divisor's values {list} are supported with the {name} resource");
        errors.invalid(&at, resource, &detail);
    }
}
