//! Effective security of sandboxes and containers.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile,
    SecurityContext,
};
use rubelet_cri::v1;
use rubelet_types::{ContainerId, NodePaths, is_host_network, labels};

use crate::container_config::ImageUser;
use crate::user_namespace::UserNamespace;

/// A security setting that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// `runAsNonRoot`, and the spec says uid 0.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsUserIsRoot {
        /// The pod, as messages name it.
        pod: String,
        /// The container.
        container: String,
    },
    /// `runAsNonRoot`, and the image says uid 0 or nothing.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})"
    )]
    ImageRunsAsRoot {
        /// The pod, as messages name it.
        pod: String,
        /// The container.
        container: String,
    },
    /// `runAsNonRoot`, and the image names a user that only its own files can resolve.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is \
         non-root (pod: {pod:?}, container: {container})"
    )]
    ImageUserNotNumeric {
        /// The user.
        user: String,
        /// The pod, as messages name it.
        pod: String,
        /// The container.
        container: String,
    },
    /// `runAsNonRoot`, and the image says a uid that cannot be one.
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be \
         1-({max})): must be between 0 and {max}, inclusive (pod: {pod:?}, container: {container})",
        max = i32::MAX
    )]
    ImageUserInvalid {
        /// The uid.
        uid: i64,
        /// The pod, as messages name it.
        pod: String,
        /// The container.
        container: String,
    },
    /// A `Localhost` seccomp profile without a name (CVE-2023-2431).
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompProfileUnset,
    /// A `Localhost` seccomp profile outside of the directory of profiles.
    #[error("localhostProfile {profile:?} must be a relative path without \"..\"")]
    SeccompProfileOutside {
        /// What was given.
        profile: String,
    },
    /// A seccomp profile type that does not exist.
    #[error("unknown seccomp profile type: {0:?}")]
    UnknownSeccompType(String),
    /// A `Localhost` AppArmor profile without a name.
    #[error("missing localhost apparmor profile name")]
    AppArmorProfileUnset,
    /// An AppArmor profile type that does not exist.
    #[error("unknown apparmor profile type: {0:?}")]
    UnknownAppArmorType(String),
    /// A `supplementalGroupsPolicy` that does not exist.
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    UnknownGroupsPolicy(String),
    /// `hostUsers: false`, and no ids were given to the pod: the runtime cannot map them.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    NoUserNamespace,
}

fn pod_context(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec.as_ref()?.security_context.as_ref()
}

fn effective<'a, T>(
    pod: &'a Pod,
    container: &'a Container,
    of_container: impl Fn(&'a SecurityContext) -> Option<T>,
    of_pod: impl Fn(&'a PodSecurityContext) -> Option<T>,
) -> Option<T> {
    container
        .security_context
        .as_ref()
        .and_then(of_container)
        .or_else(|| pod_context(pod).and_then(of_pod))
}

pub(crate) fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|context| context.privileged).unwrap_or(false)
}

/// Refuses a container that has to run as non-root and would run as root, or might
/// (CVE-2019-11245: this has to hold at each start, also for images that are already present).
///
/// # Errors
///
/// It would run as root, or that cannot be told.
pub fn check_run_as_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
) -> Result<(), SecurityError> {
    let required =
        effective(pod, container, |c| c.run_as_non_root, |p| p.run_as_non_root).unwrap_or(false);
    if !required {
        return Ok(());
    }
    let named = || rubelet_types::pod_ref(pod).to_string();
    let user = effective(pod, container, |c| c.run_as_user, |p| p.run_as_user);
    match (user, image) {
        (Some(0), _) => {
            Err(SecurityError::RunAsUserIsRoot { pod: named(), container: container.name.clone() })
        }
        (Some(_), _) => Ok(()),
        (None, ImageUser::Uid(0) | ImageUser::Unset) => {
            Err(SecurityError::ImageRunsAsRoot { pod: named(), container: container.name.clone() })
        }
        (None, &ImageUser::Uid(uid)) if i32::try_from(uid).is_ok_and(|uid| uid > 0) => Ok(()),
        (None, &ImageUser::Uid(uid)) => Err(SecurityError::ImageUserInvalid {
            uid,
            pod: named(),
            container: container.name.clone(),
        }),
        (None, ImageUser::Name(user)) => Err(SecurityError::ImageUserNotNumeric {
            user: user.clone(),
            pod: named(),
            container: container.name.clone(),
        }),
    }
}

/// `hostUsers: false`.
pub(crate) fn has_own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false)
}

/// Namespaces that follow from the pod alone.
fn pod_namespaces(
    pod: &Pod,
    user_namespace: Option<&UserNamespace>,
) -> Result<v1::NamespaceOption, SecurityError> {
    let spec = pod.spec.as_ref();
    let flag = |value: Option<bool>| value.unwrap_or(false);
    let mode = |node: bool, otherwise: v1::NamespaceMode| {
        i32::from(if node { v1::NamespaceMode::Node } else { otherwise })
    };
    let shared = flag(spec.and_then(|spec| spec.share_process_namespace));
    let users = if has_own_users(pod) {
        // Never the node's users for a pod that was promised its own.
        let (uids, gids) = user_namespace.ok_or(SecurityError::NoUserNamespace)?.cri_mappings();
        v1::UserNamespace { mode: i32::from(v1::NamespaceMode::Pod), uids, gids }
    } else {
        v1::UserNamespace { mode: i32::from(v1::NamespaceMode::Node), ..Default::default() }
    };
    Ok(v1::NamespaceOption {
        network: mode(is_host_network(pod), v1::NamespaceMode::Pod),
        ipc: mode(flag(spec.and_then(|spec| spec.host_ipc)), v1::NamespaceMode::Pod),
        pid: mode(
            flag(spec.and_then(|spec| spec.host_pid)),
            if shared { v1::NamespaceMode::Pod } else { v1::NamespaceMode::Container },
        ),
        target_id: String::new(),
        userns_options: Some(users),
    })
}

fn supplemental_groups_policy(pod: &Pod) -> Result<i32, SecurityError> {
    let policy =
        match pod_context(pod).and_then(|context| context.supplemental_groups_policy.as_deref()) {
            None | Some("Merge") => v1::SupplementalGroupsPolicy::Merge,
            Some("Strict") => v1::SupplementalGroupsPolicy::Strict,
            Some(other) => return Err(SecurityError::UnknownGroupsPolicy(other.to_owned())),
        };
    Ok(i32::from(policy))
}

fn selinux(options: Option<&SELinuxOptions>) -> Option<v1::SeLinuxOption> {
    let options = options?;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Some(v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    })
}

fn profile(kind: v1::security_profile::ProfileType, localhost_ref: String) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: i32::from(kind), localhost_ref }
}

fn seccomp_profile(
    wanted: Option<&SeccompProfile>,
    default: v1::security_profile::ProfileType,
    paths: &NodePaths,
) -> Result<v1::SecurityProfile, SecurityError> {
    use v1::security_profile::ProfileType;
    let Some(wanted) = wanted else { return Ok(profile(default, String::new())) };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, String::new())),
        "Unconfined" => Ok(profile(ProfileType::Unconfined, String::new())),
        "Localhost" => {
            let name = wanted.localhost_profile.as_deref().unwrap_or_default();
            if name.is_empty() {
                return Err(SecurityError::SeccompProfileUnset);
            }
            let outside = name.starts_with('/')
                || name.contains('\0')
                || name.split('/').any(|element| element == "..");
            if outside {
                return Err(SecurityError::SeccompProfileOutside { profile: name.to_owned() });
            }
            let path = paths.seccomp_dir().join(name);
            Ok(profile(ProfileType::Localhost, path.to_string_lossy().into_owned()))
        }
        other => Err(SecurityError::UnknownSeccompType(other.to_owned())),
    }
}

/// The string form of a profile, for runtimes that do not know the message (containerd before 1.6).
fn profile_text(profile: &v1::SecurityProfile) -> String {
    match v1::security_profile::ProfileType::try_from(profile.profile_type) {
        Ok(v1::security_profile::ProfileType::RuntimeDefault) => "runtime/default".to_owned(),
        Ok(v1::security_profile::ProfileType::Localhost) => {
            format!("localhost/{}", profile.localhost_ref)
        }
        _ => "unconfined".to_owned(),
    }
}

/// The container's own, else the old annotation's (of static pods, which the API server has not
/// translated), else the pod's.
fn apparmor_profile(
    pod: &Pod,
    container: &Container,
) -> Result<Option<v1::SecurityProfile>, SecurityError> {
    use v1::security_profile::ProfileType;
    let own = container.security_context.as_ref().and_then(|own| own.app_armor_profile.as_ref());
    let of_pod = || pod_context(pod).and_then(|context| context.app_armor_profile.as_ref());
    if own.is_none()
        && let Some(annotated) = annotated_apparmor_profile(pod, container)
    {
        return Ok(Some(annotated));
    }
    let Some(AppArmorProfile { type_, localhost_profile }) = own.or_else(of_pod) else {
        return Ok(None);
    };
    match type_.as_str() {
        "RuntimeDefault" => Ok(Some(profile(ProfileType::RuntimeDefault, String::new()))),
        "Unconfined" => Ok(Some(profile(ProfileType::Unconfined, String::new()))),
        "Localhost" => match localhost_profile.as_deref() {
            Some(name) if !name.is_empty() => {
                Ok(Some(profile(ProfileType::Localhost, name.to_owned())))
            }
            _ => Err(SecurityError::AppArmorProfileUnset),
        },
        other => Err(SecurityError::UnknownAppArmorType(other.to_owned())),
    }
}

/// None also for an annotation that says nothing that is understood.
fn annotated_apparmor_profile(pod: &Pod, container: &Container) -> Option<v1::SecurityProfile> {
    use v1::security_profile::ProfileType;
    let key = format!("{}{}", labels::APPARMOR_PREFIX, container.name);
    match pod.metadata.annotations.as_ref()?.get(&key)?.as_str() {
        "runtime/default" => Some(profile(ProfileType::RuntimeDefault, String::new())),
        "unconfined" => Some(profile(ProfileType::Unconfined, String::new())),
        other => {
            let name = other.strip_prefix("localhost/")?;
            Some(profile(ProfileType::Localhost, name.to_owned()))
        }
    }
}

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

const READ_ONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What a container's security depends on beside its spec.
pub(crate) struct SecurityInputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) image: &'a ImageUser,
    pub(crate) target: Option<&'a ContainerId>,
    /// Groups that come with the pod's volumes.
    pub(crate) extra_groups: &'a [i64],
    pub(crate) user_namespace: Option<&'a UserNamespace>,
    pub(crate) seccomp_default: bool,
    pub(crate) paths: &'a NodePaths,
    /// Per-cpu files of this node that tell of other tenants' load.
    pub(crate) node_masked_paths: &'a [String],
}

pub(crate) fn compute_container_security(
    inputs: &SecurityInputs<'_>,
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    use v1::security_profile::ProfileType;
    let (pod, container) = (inputs.pod, inputs.container);
    let own = container.security_context.as_ref();
    let seccomp = seccomp_profile(
        effective(pod, container, |c| c.seccomp_profile.as_ref(), |p| p.seccomp_profile.as_ref()),
        if inputs.seccomp_default { ProfileType::RuntimeDefault } else { ProfileType::Unconfined },
        inputs.paths,
    )?;
    let apparmor = apparmor_profile(pod, container)?;
    let unmasked = own.and_then(|own| own.proc_mount.as_deref()) == Some("Unmasked");
    let (masked_paths, readonly_paths) = if unmasked {
        (Vec::new(), Vec::new())
    } else {
        (
            MASKED_PATHS
                .iter()
                .map(|path| (*path).to_owned())
                .chain(inputs.node_masked_paths.iter().cloned())
                .collect(),
            READ_ONLY_PATHS.iter().map(|path| (*path).to_owned()).collect(),
        )
    };
    let mut namespaces = pod_namespaces(pod, inputs.user_namespace)?;
    // In a pod that shares its processes there is nothing to join.
    if let Some(target) = inputs.target
        && namespaces.pid == i32::from(v1::NamespaceMode::Container)
    {
        namespaces.pid = i32::from(v1::NamespaceMode::Target);
        namespaces.target_id = target.to_string();
    }
    let user = effective(pod, container, |c| c.run_as_user, |p| p.run_as_user);
    let (run_as_user, run_as_username) = match (user, inputs.image) {
        (Some(value), _) | (None, &ImageUser::Uid(value)) => {
            (Some(v1::Int64Value { value }), String::new())
        }
        (None, ImageUser::Name(name)) => (None, name.clone()),
        (None, ImageUser::Unset) => (Some(v1::Int64Value { value: 0 }), String::new()),
    };
    let context = pod_context(pod);
    let supplemental_groups = context
        .and_then(|context| context.fs_group)
        .into_iter()
        .chain(context.iter().flat_map(|context| own_groups(context)))
        .chain(inputs.extra_groups.iter().copied())
        .collect();
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: own.and_then(|own| own.capabilities.as_ref()).map(|capabilities| {
            v1::Capability {
                add_capabilities: capabilities.add.clone().unwrap_or_default(),
                drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
                add_ambient_capabilities: Vec::new(),
            }
        }),
        privileged: is_privileged(container),
        namespace_options: Some(namespaces),
        selinux_options: selinux(effective(
            pod,
            container,
            |c| c.se_linux_options.as_ref(),
            |p| p.se_linux_options.as_ref(),
        )),
        run_as_user,
        run_as_username,
        readonly_rootfs: own.and_then(|own| own.read_only_root_filesystem).unwrap_or(false),
        supplemental_groups,
        apparmor_profile: apparmor.as_ref().map(profile_text).unwrap_or_default(),
        seccomp_profile_path: profile_text(&seccomp),
        no_new_privs: own.and_then(|own| own.allow_privilege_escalation) == Some(false),
        run_as_group: effective(pod, container, |c| c.run_as_group, |p| p.run_as_group)
            .map(|value| v1::Int64Value { value }),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp),
        apparmor,
        supplemental_groups_policy: supplemental_groups_policy(pod)?,
    })
}

fn own_groups(context: &PodSecurityContext) -> impl Iterator<Item = i64> + '_ {
    context.supplemental_groups.iter().flatten().copied()
}

/// The sandbox always runs under the runtime's default seccomp profile. Without a pod security
/// context nothing else is set, not even the namespaces; the API never leaves it out.
pub(crate) fn compute_sandbox_security(
    pod: &Pod,
    extra_groups: &[i64],
    user_namespace: Option<&UserNamespace>,
) -> Result<v1::LinuxSandboxSecurityContext, SecurityError> {
    let seccomp = profile(v1::security_profile::ProfileType::RuntimeDefault, String::new());
    let mut security = v1::LinuxSandboxSecurityContext {
        privileged: rubelet_types::containers(pod).any(|spec| is_privileged(&spec.container)),
        seccomp_profile_path: profile_text(&seccomp),
        seccomp: Some(seccomp),
        ..Default::default()
    };
    let Some(context) = pod_context(pod) else { return Ok(security) };
    security.namespace_options = Some(pod_namespaces(pod, user_namespace)?);
    security.run_as_user = context.run_as_user.map(|value| v1::Int64Value { value });
    security.run_as_group = context.run_as_group.map(|value| v1::Int64Value { value });
    security.supplemental_groups = context
        .fs_group
        .into_iter()
        .chain(extra_groups.iter().copied())
        .chain(own_groups(context))
        .collect();
    security.supplemental_groups_policy = supplemental_groups_policy(pod)?;
    security.selinux_options = selinux(context.se_linux_options.as_ref());
    Ok(security)
}

#[cfg(test)]
mod tests;
