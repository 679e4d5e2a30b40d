use k8s_openapi::api::core::v1::Pod;
use rubelet_types::containers;

use crate::VolumeSpecError;

/// Where other volumes are mounted within the volume `name`, in any container: relative paths, those
/// left out that are beneath another one.
pub(super) fn nested_mount_points(pod: &Pod, name: &str) -> Result<Vec<String>, VolumeSpecError> {
    let mut nested = Vec::new();
    for spec in containers(pod) {
        let mounts = spec.container.volume_mounts.as_deref().unwrap_or_default();
        let mut all: Vec<(Vec<&str>, bool)> =
            mounts.iter().map(|mount| (elements(&mount.mount_path), mount.name == name)).collect();
        all.sort_unstable();
        for (mine, _) in all.iter().filter(|(_, is_mine)| *is_mine) {
            let mut last: Option<&[&str]> = None;
            for (other, _) in &all {
                let Some(rest) = other.strip_prefix(mine.as_slice()) else { continue };
                if rest.is_empty() || last.is_some_and(|last| rest.starts_with(last)) {
                    continue;
                }
                if rest.contains(&"..") || rest[0].starts_with("..") {
                    return Err(VolumeSpecError::NestedMountPoint { path: rest.join("/") });
                }
                last = Some(rest);
                nested.push(rest.join("/"));
            }
        }
    }
    nested.sort_unstable();
    nested.dedup();
    Ok(nested)
}

fn elements(path: &str) -> Vec<&str> {
    path.split('/').filter(|element| !matches!(*element, "" | ".")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mounts_beneath_a_volume_are_found() {
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
        let nested = |mounts: serde_json::Value| {
            let pod = serde_json::from_value(json!({"spec": {"containers": [
                {"name": "a", "volumeMounts": mounts},
                {"name": "b", "volumeMounts": [mount("v", "/b"), mount("x", "/b/of-b")]},
            ]}}))
            .unwrap();
            nested_mount_points(&pod, "v").map_err(|error| error.to_string())
        };
        let found = |paths: &[&str]| {
            let mut paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            paths.push("of-b".to_owned());
            paths.sort();
            Ok(paths)
        };
        assert_eq!(nested(json!([])), found(&[]));
        assert_eq!(
            nested(json!([
                mount("v", "/etc/app/"),
                mount("x", "/etc/app/sub//dir"),
                mount("y", "/etc/app/sub/dir/below"),
                mount("z", "/etc/app/other"),
                mount("z", "/etc/application"),
                mount("z", "/etc"),
            ])),
            found(&["other", "sub/dir"])
        );
        assert_eq!(
            nested(json!([mount("v", "/a"), mount("x", "/a/../etc")])),
            Err("invalid container mount point ../etc".to_owned())
        );
        assert_eq!(
            nested(json!([mount("v", "/a"), mount("x", "/a/..data")])),
            Err("invalid container mount point ..data".to_owned())
        );
    }
}
