use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSpec, SeccompProfile, SecurityContext, Sysctl,
    WindowsSecurityContextOptions,
};

use super::error::{Errors, FieldPath};
use super::{all_containers, syntax, text};

const MAX_APPARMOR_PROFILE: usize = 4095;
const MAX_ID: i64 = i32::MAX as i64;

pub(super) fn validate_pod(spec: &PodSpec, spec_path: &FieldPath, errors: &mut Errors) {
    validate_host_process(spec, spec_path, errors);
    validate_os(spec, spec_path, errors);
    let Some(context) = &spec.security_context else { return };
    let at = spec_path.child("securityContext");
    for (name, id) in [
        ("fsGroup", context.fs_group),
        ("runAsUser", context.run_as_user),
        ("runAsGroup", context.run_as_group),
    ] {
        validate_id(id, &at.child(name), errors);
    }
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        validate_id(Some(*group), &at.child("supplementalGroups").index(index), errors);
    }
    let sysctls = context.sysctls.as_deref().unwrap_or_default();
    validate_sysctls(sysctls, spec, &at.child("sysctls"), errors);
    for (name, value, supported) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["MountOption", "Recursive"]),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !supported.contains(value)) {
            errors.not_supported(&at.child(name), value, &supported);
        }
    }
    validate_seccomp(context.seccomp_profile.as_ref(), &at.child("seccompProfile"), errors);
    validate_app_armor(context.app_armor_profile.as_ref(), &at.child("appArmorProfile"), errors);
    validate_windows(context.windows_options.as_ref(), &at.child("windowsOptions"), errors);
}

pub(super) fn validate_container(
    context: Option<&SecurityContext>,
    shares_host_users: bool,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let Some(context) = context else { return };
    validate_id(context.run_as_user, &at.child("runAsUser"), errors);
    validate_id(context.run_as_group, &at.child("runAsGroup"), errors);
    if let Some(proc_mount) = context.proc_mount.as_deref() {
        let at = at.child("procMount");
        if !["Default", "Unmasked"].contains(&proc_mount) {
            errors.not_supported(&at, proc_mount, &["Default", "Unmasked"]);
        }
        if proc_mount == "Unmasked" && shares_host_users {
            errors.invalid(&at, proc_mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    validate_seccomp(context.seccomp_profile.as_ref(), &at.child("seccompProfile"), errors);
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            errors.invalid(
                at,
                &json(context),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = context.capabilities.as_ref().and_then(|it| it.add.as_deref());
        if added.unwrap_or_default().iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            errors.invalid(
                at,
                &json(context),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` \
                 CAP_SYS_ADMIN",
            );
        }
    }
    validate_app_armor(context.app_armor_profile.as_ref(), &at.child("appArmorProfile"), errors);
    validate_windows(context.windows_options.as_ref(), &at.child("windowsOptions"), errors);
}

/// A whole object is shown as JSON, unquoted.
struct Json(String);

impl super::error::ShownValue for Json {
    fn shown(&self) -> String {
        self.0.clone()
    }
}

fn json(context: &SecurityContext) -> Json {
    Json(serde_json::to_string(context).unwrap_or_default())
}

fn validate_id(id: Option<i64>, at: &FieldPath, errors: &mut Errors) {
    if let Some(id) = id {
        errors.invalid_each(at, &id, syntax::in_range(id, 0, MAX_ID));
    }
}

fn validate_sysctls(sysctls: &[Sysctl], spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let at = at.index(index).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.required(&at, "");
        } else if !syntax::is_sysctl_name(name) {
            errors.invalid(
                &at,
                name,
                "must have at most 253 characters and match regex \
                 ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            );
        } else if !names.insert(name) {
            errors.duplicate(&at, name);
        }
        let dotted = dotted_sysctl(name);
        let of_network = dotted.starts_with("net.");
        let of_ipc = dotted.starts_with("kernel.shm")
            || dotted.starts_with("kernel.msg")
            || dotted == "kernel.sem"
            || dotted.starts_with("fs.mqueue.");
        if of_network && spec.host_network == Some(true) {
            errors.invalid(&at, name, "may not be specified when 'hostNetwork' is true");
        }
        if of_ipc && spec.host_ipc == Some(true) {
            errors.invalid(&at, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

/// If the first separator is a slash, slashes separate and dots belong to names.
fn dotted_sysctl(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

fn validate_seccomp(profile: Option<&SeccompProfile>, at: &FieldPath, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    let types = ["Localhost", "RuntimeDefault", "Unconfined"];
    match profile.type_.as_str() {
        "" => {
            errors.required(&at.child("type"), "type is required when seccompProfile is set");
        }
        type_ if types.contains(&type_) => {}
        other => errors.not_supported(&at.child("type"), other, &types),
    }
    let at = at.child("localhostProfile");
    match (&profile.localhost_profile, profile.type_.as_str()) {
        (None, "Localhost") => {
            errors.required(&at, "must be set when seccomp type is Localhost");
        }
        (Some(path), "Localhost") => {
            errors.invalid_each(&at, path, syntax::descending_path(path));
        }
        (Some(path), _) => {
            errors.invalid(&at, path, "can only be set when seccomp type is Localhost");
        }
        (None, _) => {}
    }
}

fn validate_app_armor(profile: Option<&AppArmorProfile>, at: &FieldPath, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    let name_path = at.child("localhostProfile");
    let name = profile.localhost_profile.as_deref();
    match profile.type_.as_str() {
        "Localhost" => {
            let name = name.unwrap_or_default();
            if name.trim() != name {
                errors.invalid(&name_path, name, "must not be padded with whitespace");
            } else if name.is_empty() {
                errors.required(&name_path, "must be set when AppArmor type is Localhost");
            }
            if name.len() > MAX_APPARMOR_PROFILE {
                errors.too_long(&name_path, MAX_APPARMOR_PROFILE);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if let Some(name) = name {
                errors.invalid(&name_path, name, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => {
            errors.required(&at.child("type"), "type is required when appArmorProfile is set");
        }
        other => errors.not_supported(
            &at.child("type"),
            other,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        ),
    }
}

fn validate_windows(
    options: Option<&WindowsSecurityContextOptions>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let Some(options) = options else { return };
    if let Some(name) = &options.gmsa_credential_spec_name {
        let faults = syntax::dns_subdomain(name);
        errors.invalid_each(&at.child("gmsaCredentialSpecName"), name, faults);
    }
    for (name, value) in [
        ("gmsaCredentialSpec", &options.gmsa_credential_spec),
        ("runAsUserName", &options.run_as_user_name),
    ] {
        if value.as_deref() == Some("") {
            errors.invalid(&at.child(name), "", &format!("{name} cannot be an empty string"));
        }
    }
}

fn validate_host_process(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    let host_process = |options: Option<&WindowsSecurityContextOptions>| {
        options.and_then(|options| options.host_process)
    };
    let of_pod = host_process(
        spec.security_context.as_ref().and_then(|context| context.windows_options.as_ref()),
    );
    let (mut all, mut with) = (0, 0);
    for (container, _) in all_containers(spec) {
        all += 1;
        let own =
            host_process(container.security_context.and_then(|it| it.windows_options.as_ref()));
        if own.or(of_pod) == Some(true) {
            with += 1;
        }
    }
    if with == 0 {
        return;
    }
    if with != all {
        errors.invalid(
            at,
            "",
            "If pod contains any hostProcess containers then all containers must be HostProcess \
             containers",
        );
    }
    if spec.host_network != Some(true) {
        errors.invalid(
            &at.child("hostNetwork"),
            &false,
            "hostNetwork must be true if pod contains any hostProcess containers",
        );
    }
}

/// What `spec.os` rules out.
fn validate_os(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        Some("linux") => {
            let pod = spec.security_context.as_ref().and_then(|it| it.windows_options.as_ref());
            let of_pod = pod.map(|_| at.child("securityContext"));
            let of_containers = all_containers(spec).filter_map(|(container, (list, index))| {
                container.security_context.and_then(|it| it.windows_options.as_ref())?;
                Some(at.child(list).index(index).child("securityContext"))
            });
            let places: Vec<FieldPath> = of_pod.into_iter().chain(of_containers).collect();
            for at in places {
                errors.forbidden(
                    &at.child("windowsOptions"),
                    "windows options cannot be set for a linux pod",
                );
            }
        }
        Some("windows") => validate_windows_pod(spec, at, errors),
        _ => {}
    }
}

fn validate_windows_pod(spec: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    let mut forbid = |at: &FieldPath, fields: &[(&str, bool)]| {
        for (name, is_set) in fields {
            if *is_set {
                errors.forbidden(&at.child(name), "cannot be set for a windows pod");
            }
        }
    };
    forbid(
        at,
        &[
            ("hostUsers", spec.host_users.is_some()),
            ("hostPID", spec.host_pid == Some(true)),
            ("hostIPC", spec.host_ipc == Some(true)),
            ("shareProcessNamespace", spec.share_process_namespace.is_some()),
        ],
    );
    if let Some(it) = &spec.security_context {
        forbid(
            &at.child("securityContext"),
            &[
                ("appArmorProfile", it.app_armor_profile.is_some()),
                ("seLinuxOptions", it.se_linux_options.is_some()),
                ("seccompProfile", it.seccomp_profile.is_some()),
                ("fsGroup", it.fs_group.is_some()),
                ("fsGroupChangePolicy", it.fs_group_change_policy.is_some()),
                ("sysctls", it.sysctls.as_ref().is_some_and(|list| !list.is_empty())),
                ("runAsUser", it.run_as_user.is_some()),
                ("runAsGroup", it.run_as_group.is_some()),
                ("supplementalGroups", it.supplemental_groups.is_some()),
                ("supplementalGroupsPolicy", it.supplemental_groups_policy.is_some()),
                ("seLinuxChangePolicy", it.se_linux_change_policy.is_some()),
            ],
        );
    }
    for (container, (list, index)) in all_containers(spec) {
        let Some(it) = container.security_context else { continue };
        forbid(
            &at.child(list).index(index).child("securityContext"),
            &[
                ("appArmorProfile", it.app_armor_profile.is_some()),
                ("seLinuxOptions", it.se_linux_options.is_some()),
                ("seccompProfile", it.seccomp_profile.is_some()),
                ("capabilities", it.capabilities.is_some()),
                ("readOnlyRootFilesystem", it.read_only_root_filesystem.is_some()),
                ("privileged", it.privileged.is_some()),
                ("allowPrivilegeEscalation", it.allow_privilege_escalation.is_some()),
                ("procMount", it.proc_mount.is_some()),
                ("runAsUser", it.run_as_user.is_some()),
                ("runAsGroup", it.run_as_group.is_some()),
            ],
        );
    }
}

/// Annotations of the time before the fields; they must not contradict them.
pub(super) fn validate_app_armor_annotations(
    annotations: &std::collections::BTreeMap<String, String>,
    spec: &PodSpec,
    at: &FieldPath,
    errors: &mut Errors,
) {
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return;
    }
    let of_pod = spec.security_context.as_ref().and_then(|it| it.app_armor_profile.as_ref());
    for (container, (list, index)) in all_containers(spec) {
        let own = container.security_context.and_then(|it| it.app_armor_profile.as_ref());
        let Some(profile) = own.or(of_pod) else { continue };
        let key = format!("{}{}", rubelet_types::labels::APPARMOR_PREFIX, container.name);
        let Some(annotation) = annotations.get(&key) else { continue };
        let at = at.child(list).index(index).child("securityContext").child("appArmorProfile");
        let agrees = match profile.type_.as_str() {
            "Unconfined" => annotation == "unconfined",
            "RuntimeDefault" => annotation == "runtime/default",
            "Localhost" => match annotation.strip_prefix("localhost/") {
                Some(name) if name == text(&profile.localhost_profile) => true,
                Some(_) => {
                    errors.forbidden(
                        &at.child("localhostProfile"),
                        "apparmor profile in annotation and field must match",
                    );
                    true
                }
                None => false,
            },
            _ => true,
        };
        if !agrees {
            errors.forbidden(&at.child("type"), "apparmor type in annotation and field must match");
        }
    }
}
