//! Mounts of a container.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, VolumeMount};
use rubelet_cri::v1;

use crate::security::is_privileged;
use crate::user_namespace::UserNamespace;

/// A mount of a container whose source is ready on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedMount {
    /// Where it is on the node; empty if the source is an image.
    pub host_path: String,
    /// Where the container sees it.
    pub container_path: String,
    /// It cannot be written through.
    pub read_only: bool,
    /// Mounts beneath it cannot either.
    pub recursive_read_only: bool,
    /// `mountPropagation`.
    pub propagation: v1::MountPropagation,
    /// The runtime relabels it, where SELinux is on.
    pub selinux_relabel: bool,
    /// The source, if it is an image volume's.
    pub image: Option<ImageMount>,
}

/// The source of a mount that the runtime takes out of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageMount {
    /// The image as the spec names it.
    pub user_specified_image: String,
    /// Its reference in the runtime.
    pub image_ref: String,
    /// The path within the image; empty for all of it.
    pub sub_path: String,
}

/// A volume mount that cannot be made as its container asks for it; becomes
/// `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// `recursiveReadOnly` of a mount that can be written through.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive \
         read-only mode, but it is not read-only"
    )]
    RecursiveOfWritable {
        /// The volume.
        volume: String,
    },
    /// `recursiveReadOnly` of a mount whose mounts beneath come and go.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive \
         read-only mode, but it is not compatible with propagation {propagation:?}"
    )]
    RecursiveWithPropagation {
        /// The volume.
        volume: String,
        /// `mountPropagation`.
        propagation: String,
    },
    /// `recursiveReadOnly: Enabled`, and the runtime cannot.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive \
         read-only mode, but it is not supported by the runtime"
    )]
    RecursiveUnsupported {
        /// The volume.
        volume: String,
    },
    /// A `recursiveReadOnly` that does not exist.
    #[error(
        "failed to resolve recursive read-only mode: unknown recursive read-only mode {mode:?}"
    )]
    UnknownRecursiveMode {
        /// What was given.
        mode: String,
    },
    /// A `mountPropagation` that does not exist.
    #[error("invalid MountPropagation mode: {mode:?}")]
    UnknownPropagation {
        /// What was given.
        mode: String,
    },
    /// What a container mounts would appear on the node, and it is not privileged.
    #[error(
        "Bidirectional mount propagation is available only to privileged containers (container \
         {container:?}, volume {volume:?})"
    )]
    BidirectionalUnprivileged {
        /// The container.
        container: String,
        /// The volume.
        volume: String,
    },
}

/// The mount that `mount` of `container` asks for, of a volume (or a subPath of it) that is ready
/// at `host_path`. SELinux relabelling is the caller's to add: it knows the volume.
///
/// # Errors
///
/// The modes contradict each other, the runtime cannot carry them out, or an unprivileged
/// container wants its mounts to appear on the node.
pub fn prepare_mount(
    mount: &VolumeMount,
    container: &Container,
    host_path: &Path,
    volume_read_only: bool,
    runtime_supports_rro: bool,
) -> Result<PreparedMount, MountError> {
    let container_path = if mount.mount_path.starts_with('/') {
        mount.mount_path.clone()
    } else {
        format!("/{}", mount.mount_path)
    };
    Ok(PreparedMount {
        host_path: host_path.to_string_lossy().into_owned(),
        container_path,
        propagation: propagation(mount, container)?,
        recursive_read_only: recursive_read_only(mount, runtime_supports_rro)?,
        read_only: mount.read_only.unwrap_or(false) || volume_read_only,
        selinux_relabel: false,
        image: None,
    })
}

fn propagation(
    mount: &VolumeMount,
    container: &Container,
) -> Result<v1::MountPropagation, MountError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(v1::MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(v1::MountPropagation::PropagationHostToContainer),
        // The API refuses it; nothing else stands between a static pod and the node's mounts.
        Some("Bidirectional") if !is_privileged(container) => {
            Err(MountError::BidirectionalUnprivileged {
                container: container.name.clone(),
                volume: mount.name.clone(),
            })
        }
        Some("Bidirectional") => Ok(v1::MountPropagation::PropagationBidirectional),
        Some(other) => Err(MountError::UnknownPropagation { mode: other.to_owned() }),
    }
}

fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, MountError> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let volume = mount.name.clone();
    if mount.read_only != Some(true) {
        return Err(MountError::RecursiveOfWritable { volume });
    }
    if let Some(propagation) = mount.mount_propagation.as_deref()
        && propagation != "None"
    {
        let propagation = propagation.to_owned();
        return Err(MountError::RecursiveWithPropagation { volume, propagation });
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(MountError::RecursiveUnsupported { volume }),
        other => Err(MountError::UnknownRecursiveMode { mode: other.to_owned() }),
    }
}

/// The runtime's form of a mount. In a user namespace the mount maps ids as the pod does.
pub(crate) fn cri_mount(
    mount: &PreparedMount,
    selinux_enabled: bool,
    user_namespace: Option<&UserNamespace>,
) -> v1::Mount {
    let image = mount.image.as_ref();
    let (uid_mappings, gid_mappings) =
        user_namespace.map(UserNamespace::cri_mappings).unwrap_or_default();
    v1::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.read_only,
        recursive_read_only: mount.recursive_read_only,
        selinux_relabel: mount.selinux_relabel && selinux_enabled,
        propagation: i32::from(mount.propagation),
        uid_mappings,
        gid_mappings,
        image: image.map(|image| v1::ImageSpec {
            image: image.image_ref.clone(),
            user_specified_image: image.user_specified_image.clone(),
            ..Default::default()
        }),
        image_sub_path: image.map(|image| image.sub_path.clone()).unwrap_or_default(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(mount: serde_json::Value, privileged: bool, supports_rro: bool) -> String {
        let mut all = serde_json::json!({"name": "v", "mountPath": "/data"});
        for (key, value) in mount.as_object().unwrap() {
            all[key] = value.clone();
        }
        let mount: VolumeMount = serde_json::from_value(all).unwrap();
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "c", "securityContext": {"privileged": privileged}
        }))
        .unwrap();
        match prepare_mount(&mount, &container, Path::new("/host/v"), false, supports_rro) {
            Ok(mount) => format!(
                "{} -> {} ro={} rro={} {}",
                mount.host_path,
                mount.container_path,
                mount.read_only,
                mount.recursive_read_only,
                mount.propagation.as_str_name()
            ),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn recursive_read_only_needs_a_private_read_only_mount_and_a_runtime_that_can() {
        let rro = |mode: &str, read_only: bool, propagation: Option<&str>, supported: bool| {
            prepare(
                serde_json::json!({"recursiveReadOnly": mode, "readOnly": read_only,
                    "mountPropagation": propagation}),
                false,
                supported,
            )
        };
        let made = |recursive: bool| {
            format!("/host/v -> /data ro=true rro={recursive} PROPAGATION_PRIVATE")
        };
        let refused = "failed to resolve recursive read-only mode: volume \"v\" requested \
                       recursive read-only mode, but it is not ";
        for (mode, read_only, propagation, supported, expected) in [
            ("Disabled", true, None, true, made(false)),
            ("Enabled", true, None, true, made(true)),
            ("Enabled", true, Some("None"), true, made(true)),
            ("Enabled", true, None, false, format!("{refused}supported by the runtime")),
            ("IfPossible", true, None, true, made(true)),
            ("IfPossible", true, None, false, made(false)),
            ("IfPossible", false, None, true, format!("{refused}read-only")),
            ("Enabled", false, None, true, format!("{refused}read-only")),
            (
                "Enabled",
                true,
                Some("HostToContainer"),
                true,
                format!("{refused}compatible with propagation \"HostToContainer\""),
            ),
            (
                "Perhaps",
                true,
                None,
                true,
                "failed to resolve recursive read-only mode: unknown recursive read-only mode \
                 \"Perhaps\""
                    .to_owned(),
            ),
        ] {
            assert_eq!(rro(mode, read_only, propagation, supported), expected, "{mode}");
        }
    }

    #[test]
    fn only_privileged_containers_propagate_to_the_node() {
        let bidirectional = serde_json::json!({"mountPropagation": "Bidirectional"});
        assert_eq!(
            prepare(bidirectional.clone(), true, false),
            "/host/v -> /data ro=false rro=false PROPAGATION_BIDIRECTIONAL"
        );
        assert_eq!(
            prepare(bidirectional, false, false),
            "Bidirectional mount propagation is available only to privileged containers \
             (container \"c\", volume \"v\")"
        );
        assert_eq!(
            prepare(serde_json::json!({"mountPropagation": "HostToContainer"}), false, false),
            "/host/v -> /data ro=false rro=false PROPAGATION_HOST_TO_CONTAINER"
        );
        assert_eq!(
            prepare(serde_json::json!({"mountPropagation": "Sideways"}), false, false),
            "invalid MountPropagation mode: \"Sideways\""
        );
    }

    #[test]
    fn a_read_only_volume_stays_read_only_and_relative_paths_become_absolute() {
        let mount = VolumeMount { mount_path: "data".to_owned(), ..VolumeMount::default() };
        let made =
            prepare_mount(&mount, &Container::default(), Path::new("/v"), true, false).unwrap();
        assert!(made.read_only);
        assert_eq!(made.container_path, "/data");
    }
}
