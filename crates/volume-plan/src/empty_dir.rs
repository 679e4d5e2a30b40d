use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use rubelet_types::{
    ContainerKind, QosClass, Quantity, ResourceAmounts, container_limits, container_requests,
    containers, pod_limits, pod_qos_class,
};

use crate::VolumeSpecError;

/// Where the contents of an emptyDir live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EmptyDirMedium {
    /// A directory on the disk of the kubelet's root.
    Disk,
    /// A tmpfs.
    Memory {
        /// Its size in bytes; none leaves the kernel's default of half of the memory.
        size_bytes: Option<u64>,
    },
    /// A hugetlbfs.
    HugePages {
        /// Size of one page in bytes.
        page_size_bytes: u64,
        /// The medium names the page size (`HugePages-2Mi`), so a mount of another size is wrong.
        exact: bool,
    },
}

/// An emptyDir volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyDirVolume {
    /// Where its contents live.
    pub medium: EmptyDirMedium,
    /// `sizeLimit`: eviction enforces it for every medium.
    pub size_limit: Option<Quantity>,
}

const HUGE_PAGES: &str = "HugePages";

impl EmptyDirVolume {
    pub(crate) fn from_spec(
        source: &EmptyDirVolumeSource,
        pod: &Pod,
        allocatable_memory: Option<u64>,
    ) -> Result<Self, VolumeSpecError> {
        let size_limit =
            source.size_limit.as_ref().and_then(|limit| Quantity::try_from(limit).ok());
        let medium = match source.medium.as_deref().unwrap_or_default() {
            "" => EmptyDirMedium::Disk,
            "Memory" => EmptyDirMedium::Memory {
                size_bytes: compute_tmpfs_size(
                    size_limit,
                    pod_memory_limit(pod),
                    allocatable_memory,
                ),
            },
            medium if medium == HUGE_PAGES || medium.starts_with("HugePages-") => {
                EmptyDirMedium::HugePages {
                    page_size_bytes: huge_page_size(medium, pod)?,
                    exact: medium != HUGE_PAGES,
                }
            }
            medium => return Err(VolumeSpecError::Medium { medium: medium.to_owned() }),
        };
        Ok(Self { medium, size_limit })
    }

    /// The medium of a memory volume that has no limit of its own.
    pub(crate) fn in_memory(pod: &Pod, allocatable_memory: Option<u64>) -> EmptyDirMedium {
        EmptyDirMedium::Memory {
            size_bytes: compute_tmpfs_size(None, pod_memory_limit(pod), allocatable_memory),
        }
    }
}

/// The smallest of those bounds that are known and positive.
fn compute_tmpfs_size(
    size_limit: Option<Quantity>,
    pod_limit: Option<u64>,
    allocatable: Option<u64>,
) -> Option<u64> {
    let size_limit = size_limit.and_then(|limit| u64::try_from(limit.value()).ok());
    [size_limit, pod_limit, allocatable].into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// The memory limit of the pod's cgroup: there is one only when nobody in the pod is unlimited.
fn pod_memory_limit(pod: &Pod) -> Option<u64> {
    let limits = |resources: &ResourceAmounts| resources.memory_bytes() > 0;
    let pod_level = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref())
        .is_some_and(|resources| limits(&ResourceAmounts::from_api(resources.limits.as_ref())));
    let all_declare = containers(pod)
        .filter(|spec| spec.kind != ContainerKind::Ephemeral)
        .all(|spec| limits(&container_limits(&spec.container)));
    let limited = pod_qos_class(pod) != QosClass::BestEffort && (pod_level || all_declare);
    limited.then(|| u64::try_from(pod_limits(pod).memory_bytes()).ok()).flatten()
}

/// The page size of a huge page medium: the one it names, or for `HugePages` the only one that the
/// pod asks for. Either must be asked for.
fn huge_page_size(medium: &str, pod: &Pod) -> Result<u64, VolumeSpecError> {
    let requested = requested_page_sizes(pod);
    let not_requested = || VolumeSpecError::HugePagesNotRequested { medium: medium.to_owned() };
    if let Some(named) = medium.strip_prefix("HugePages-") {
        let size = page_size(named)
            .ok_or_else(|| VolumeSpecError::HugePageSize { medium: medium.to_owned() })?;
        return requested.contains(&size).then_some(size).ok_or_else(not_requested);
    }
    let mut sizes = requested.into_iter();
    let size = sizes.next().ok_or_else(not_requested)?;
    if sizes.next().is_some() {
        return Err(VolumeSpecError::SeveralHugePageSizes { medium: medium.to_owned() });
    }
    Ok(size)
}

fn requested_page_sizes(pod: &Pod) -> BTreeSet<u64> {
    let pod_level = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref())
        .map(|resources| ResourceAmounts::from_api(resources.requests.as_ref()));
    containers(pod)
        .filter(|spec| spec.kind != ContainerKind::Ephemeral)
        .map(|spec| container_requests(&spec.container))
        .chain(pod_level)
        .flat_map(|requests| {
            requests
                .iter()
                .filter_map(|(name, _)| page_size(name.strip_prefix("hugepages-")?))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn page_size(text: &str) -> Option<u64> {
    let size = text.parse::<Quantity>().ok()?.value();
    u64::try_from(size).ok().filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const MI: u64 = 1 << 20;

    fn pod(containers: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    }

    fn medium(source: serde_json::Value, pod: &Pod, allocatable: Option<u64>) -> String {
        let source: EmptyDirVolumeSource = serde_json::from_value(source).unwrap();
        match EmptyDirVolume::from_spec(&source, pod, allocatable) {
            Ok(volume) => match volume.medium {
                EmptyDirMedium::Disk => "disk".to_owned(),
                EmptyDirMedium::Memory { size_bytes: None } => "tmpfs".to_owned(),
                EmptyDirMedium::Memory { size_bytes: Some(size) } => {
                    format!("tmpfs {}Mi", size / MI)
                }
                EmptyDirMedium::HugePages { page_size_bytes, exact } => {
                    format!("hugetlbfs {}Mi exact={exact}", page_size_bytes / MI)
                }
            },
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_memory_volume_is_as_large_as_the_tightest_bound() {
        let unlimited = pod(json!([{"name": "c"}]));
        let limited = pod(json!([
            {"name": "a", "resources": {"limits": {"memory": "100Mi"}}},
            {"name": "b", "resources": {"limits": {"memory": "50Mi"}}},
        ]));
        let half_limited = pod(json!([
            {"name": "a", "resources": {"limits": {"memory": "100Mi"}}},
            {"name": "b"},
        ]));
        for (name, pod, limit, allocatable, expected) in [
            ("sizeLimit wins", &limited, Some("10Mi"), Some(1000), "tmpfs 10Mi"),
            ("pod limit wins", &limited, Some("200Mi"), Some(1000), "tmpfs 150Mi"),
            ("pod limit alone", &limited, None, Some(1000), "tmpfs 150Mi"),
            ("allocatable wins", &limited, Some("200Mi"), Some(20), "tmpfs 20Mi"),
            ("one unlimited container", &half_limited, None, Some(1000), "tmpfs 1000Mi"),
            ("no limit", &unlimited, None, Some(1000), "tmpfs 1000Mi"),
            ("above memory (#126617)", &unlimited, Some("1Ti"), Some(1000), "tmpfs 1000Mi"),
            ("zero is no limit", &unlimited, Some("0"), Some(1000), "tmpfs 1000Mi"),
            ("nothing known", &unlimited, None, None, "tmpfs"),
        ] {
            let source = match limit {
                Some(limit) => json!({"medium": "Memory", "sizeLimit": limit}),
                None => json!({"medium": "Memory"}),
            };
            let allocatable = allocatable.map(|mebibytes: u64| mebibytes * MI);
            assert_eq!(medium(source, pod, allocatable), expected, "{name}");
        }
    }

    #[test]
    fn pod_level_limits_bound_a_memory_volume() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "resources": {"limits": {"memory": "30Mi"}},
            "containers": [{"name": "c"}],
        }}))
        .unwrap();
        assert_eq!(medium(json!({"medium": "Memory"}), &pod, Some(1000 * MI)), "tmpfs 30Mi");
    }

    #[test]
    fn huge_pages_must_be_asked_for() {
        let none = pod(json!([{"name": "c"}]));
        let one = pod(json!([{"name": "c", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}}]));
        let two = pod(json!([
            {"name": "a", "resources": {"requests": {"hugepages-2Mi": "4Mi"}}},
            {"name": "b", "resources": {"requests": {"hugepages-1Gi": "1Gi"}}},
        ]));
        for (written, pod, expected) in [
            ("HugePages", &one, "hugetlbfs 2Mi exact=false"),
            ("HugePages-2Mi", &two, "hugetlbfs 2Mi exact=true"),
            ("HugePages-1Gi", &two, "hugetlbfs 1024Mi exact=true"),
            (
                "HugePages",
                &none,
                "medium HugePages: hugePages storage requested, but there is no resource request \
                 for huge pages",
            ),
            (
                "HugePages-1Gi",
                &one,
                "medium HugePages-1Gi: hugePages storage requested, but there is no resource \
                 request for huge pages",
            ),
            (
                "HugePages",
                &two,
                "medium: HugePages can't be used if container requests multiple huge page sizes",
            ),
            ("HugePages-x", &one, "medium: HugePages-x names no huge page size"),
            ("Tape", &one, "unknown storage medium \"Tape\""),
        ] {
            assert_eq!(medium(json!({"medium": written}), pod, None), expected, "{written}");
        }
    }

    proptest! {
        #[test]
        fn a_size_never_exceeds_a_known_bound(
            size_limit in prop::option::of(1_i64..1 << 40),
            pod_limit in prop::option::of(1_u64..1 << 40),
            allocatable in prop::option::of(1_u64..1 << 40),
        ) {
            let size = compute_tmpfs_size(size_limit.map(Quantity::from_bytes), pod_limit, allocatable);
            let bounds = [size_limit.and_then(|l| u64::try_from(l).ok()), pod_limit, allocatable];
            prop_assert_eq!(size, bounds.into_iter().flatten().min());
        }
    }
}
