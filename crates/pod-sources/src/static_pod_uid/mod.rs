//! The uid that the Go kubelet (1.36) gives a static pod, so that a node can change hands without
//! its static pods being taken for others and restarted.
//!
//! It is a 128-bit FNV-1a over a debug rendering of the pod's memory and over where the manifest
//! stands. The rendering is go-spew's `%#v` of the *internal* type `core.Pod`, after decoding,
//! defaulting and conversion, before anything of the node is put into the pod:
//!
//! ```text
//! v1 Pod --internal_form--> tree of the internal type --render--> text --FNV-1a--> uid
//!                                  layout.txt names its types, fields and their order
//! ```
//!
//! Whatever the author wrote is in it, `status` and `metadata.managedFields` too. Absent and empty
//! lists differ, and so do `1` and `1000m`. Its goldens in `tests/data/static-pod-uid` come from
//! the Go kubelet's own code (`testing/modules/static-pod-uid`).
//!
//! Where the uid is the same every time but not upstream's:
//! - Times that are not null (`creationTimestamp` and the like): Go shows its process's time zone
//!   beside them. They are rendered for a node in UTC that has `/etc/localtime`; in zones with
//!   daylight saving time upstream's own uid depends on when the kubelet was started. Fractions of
//!   a second are dropped.
//! - `fieldsV1` of a manifest in JSON: Go keeps the bytes of the file, here they are brought to the
//!   form that they have when the manifest is YAML.
//! - Quantities: `null`; exponents on bare numbers in JSON (`1e3` without quotes); more than 1000
//!   characters or powers of ten.
//! - An image that is no valid reference (`UPPER`): only Go's parser then overlooks its missing tag,
//!   which decides the default of `imagePullPolicy`.
//! - A kubelet whose feature gates `PodLevelResources` or `ImageVolume` are switched off defaults
//!   less.

mod decimal;
mod internal_form;
mod layout;
mod quantity;
mod render;

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::ManifestOrigin;

/// The uid of a static pod: 32 hexadecimal digits, the same that the Go kubelet would give it.
///
/// `pod` is as its author wrote it: nothing defaulted, nothing dropped, no uid.
pub fn static_pod_uid(pod: &Pod, origin: &ManifestOrigin, node_name: &str) -> String {
    let mut content = hashed_text(pod).into_bytes();
    match origin {
        ManifestOrigin::File(path) => {
            content.extend_from_slice(format!("host:{node_name}file:").as_bytes());
            content.extend_from_slice(clean(path).as_os_str().as_bytes());
        }
        ManifestOrigin::Url(url) => content.extend_from_slice(format!("url:{url}").as_bytes()),
    }
    format!("{:032x}", rubelet_types::fnv1a_128(&content))
}

fn hashed_text(pod: &Pod) -> String {
    render::render_pod(&internal_form::internal_form(pod))
}

/// Go joins the directory and the file's name to the shortest path that means the same.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match (component, clean.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(_))) => {
                clean.pop();
            }
            (Component::ParentDir, Some(Component::RootDir)) | (Component::CurDir, _) => {}
            (component, _) => clean.push(component),
        }
    }
    clean
}

#[cfg(test)]
mod tests;
