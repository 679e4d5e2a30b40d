use std::fmt;

use rubelet_types::{PodUid, QosClass};

const SLICE_SUFFIX: &str = ".slice";
const POD_PREFIX: &str = "pod";

/// The place of a cgroup below the root of its hierarchy, as components that know no driver:
/// `kubepods`, `burstable`, `pod<uid>`.
///
/// Rendered as a directory path for the cgroupfs driver and as a slice for the systemd driver.
/// systemd reads `-` in a slice name as a step in the hierarchy, so `-` inside a component becomes
/// `_`; a component made here must not contain `_`, or the way back would be ambiguous.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupName(Vec<String>);

/// A name that cannot be a component of a cgroup name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a component of a cgroup name: it is empty, a dot element, or has '/', '_', NUL or white space"
)]
pub struct InvalidCgroupName(pub String);

impl CgroupName {
    /// The root of the hierarchy.
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// Reads a cgroupfs path such as `/kubepods/burstable`. Empty elements, `.` and `..` are
    /// skipped: a name never leads upwards.
    pub fn from_cgroupfs(path: &str) -> Self {
        Self(
            path.split('/')
                .filter(|part| !matches!(*part, "" | "." | ".."))
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Reads a slice path or a slice name; only the last element counts, since a slice name spells
    /// out its ancestors. `/kubepods.slice/kubepods-burstable.slice` is `kubepods`, `burstable`.
    pub fn from_slice(path: &str) -> Self {
        let base = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let name = base.strip_suffix(SLICE_SUFFIX).unwrap_or(base);
        Self(name.split('-').filter(|part| !part.is_empty()).map(unescape).collect())
    }

    /// The cgroup `component` directly below this one.
    ///
    /// # Errors
    /// When the component is empty, `.`, `..`, or has `/`, `_`, NUL or white space.
    pub fn child(&self, component: &str) -> Result<Self, InvalidCgroupName> {
        let unfit = |c: char| matches!(c, '/' | '_' | '\0') || c.is_whitespace();
        if component.is_empty() || matches!(component, "." | "..") || component.contains(unfit) {
            return Err(InvalidCgroupName(component.to_owned()));
        }
        let mut components = self.0.clone();
        components.push(component.to_owned());
        Ok(Self(components))
    }

    /// The parent of all pods of one class, below the cgroup of all pods (`kubepods`): guaranteed
    /// pods live directly in the latter.
    pub fn qos_tier(&self, class: QosClass) -> Self {
        let tier = match class {
            QosClass::Guaranteed => return self.clone(),
            QosClass::Burstable => "burstable",
            QosClass::BestEffort => "besteffort",
        };
        let mut components = self.0.clone();
        components.push(tier.to_owned());
        Self(components)
    }

    /// The pod's cgroup below its class's parent.
    ///
    /// # Errors
    /// When the uid cannot be part of a cgroup name.
    pub fn pod(&self, uid: &PodUid) -> Result<Self, InvalidCgroupName> {
        if uid.as_str().is_empty() {
            return Err(InvalidCgroupName(String::new()));
        }
        self.child(&format!("{POD_PREFIX}{uid}"))
    }

    /// The uid of the pod whose cgroup this is, judged by the last component.
    pub fn pod_uid(&self) -> Option<PodUid> {
        let uid = self.0.last()?.strip_prefix(POD_PREFIX)?;
        (!uid.is_empty()).then(|| PodUid::new(uid))
    }

    /// The components from the root down.
    pub fn components(&self) -> &[String] {
        &self.0
    }

    /// The cgroup above; none above the root.
    pub fn parent(&self) -> Option<Self> {
        let (_, parents) = self.0.split_last()?;
        Some(Self(parents.to_vec()))
    }

    /// This is the root of the hierarchy.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path under the cgroupfs driver: `/kubepods/burstable/pod1-2`.
    pub fn to_cgroupfs(&self) -> String {
        format!("/{}", self.0.join("/"))
    }

    /// The slice unit under the systemd driver: `kubepods-burstable-pod1_2.slice`; the root is
    /// `-.slice`.
    pub fn to_slice(&self) -> String {
        if self.0.is_empty() {
            return format!("-{SLICE_SUFFIX}");
        }
        let parts: Vec<String> = self.0.iter().map(|part| escape(part)).collect();
        format!("{}{SLICE_SUFFIX}", parts.join("-"))
    }

    /// The path of the slice in the cgroup file system:
    /// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice`.
    pub fn to_slice_path(&self) -> String {
        let mut path = String::new();
        let mut prefix = String::new();
        for part in &self.0 {
            prefix.push_str(&escape(part));
            path.push('/');
            path.push_str(&prefix);
            path.push_str(SLICE_SUFFIX);
            prefix.push('-');
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }
}

fn escape(component: &str) -> String {
    component.replace('-', "_")
}

fn unescape(component: &str) -> String {
    component.replace('_', "-")
}

impl fmt::Debug for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CgroupName({})", self.to_cgroupfs())
    }
}

impl fmt::Display for CgroupName {
    /// The driver-independent rendering, which equals the cgroupfs one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_cgroupfs())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kubepods(root: &str) -> CgroupName {
        CgroupName::from_cgroupfs(root).child("kubepods").unwrap()
    }

    #[test]
    fn pods_of_every_class_under_both_drivers() {
        let uid = PodUid::new("5d9f-a1");
        for (root, class, cgroupfs, slice, slice_path) in [
            (
                "/",
                QosClass::Guaranteed,
                "/kubepods/pod5d9f-a1",
                "kubepods-pod5d9f_a1.slice",
                "/kubepods.slice/kubepods-pod5d9f_a1.slice",
            ),
            (
                "",
                QosClass::Burstable,
                "/kubepods/burstable/pod5d9f-a1",
                "kubepods-burstable-pod5d9f_a1.slice",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5d9f_a1.slice",
            ),
            (
                "/on/my-node/",
                QosClass::BestEffort,
                "/on/my-node/kubepods/besteffort/pod5d9f-a1",
                "on-my_node-kubepods-besteffort-pod5d9f_a1.slice",
                "/on.slice/on-my_node.slice/on-my_node-kubepods.slice\
                 /on-my_node-kubepods-besteffort.slice\
                 /on-my_node-kubepods-besteffort-pod5d9f_a1.slice",
            ),
        ] {
            let name = kubepods(root).qos_tier(class).pod(&uid).unwrap();
            assert_eq!(name.to_cgroupfs(), cgroupfs);
            assert_eq!(name.to_slice(), slice);
            assert_eq!(name.to_slice_path(), slice_path);
            assert_eq!(CgroupName::from_cgroupfs(cgroupfs), name);
            assert_eq!(CgroupName::from_slice(slice_path), name);
            assert_eq!(CgroupName::from_slice(slice), name);
            assert_eq!(name.pod_uid(), Some(uid.clone()));
        }
    }

    #[test]
    fn the_root_has_its_own_rendering() {
        let root = CgroupName::root();
        assert_eq!(root.to_cgroupfs(), "/");
        assert_eq!(root.to_slice(), "-.slice");
        assert_eq!(root.to_slice_path(), "/");
        assert_eq!(CgroupName::from_slice("-.slice"), root);
        assert_eq!(root.parent(), None);
        assert_eq!(root.pod_uid(), None);
    }

    #[test]
    fn directories_that_belong_to_no_pod() {
        for slice in ["kubepods-burstable.slice", "kubepods.slice", "kubepods-pod.slice"] {
            assert_eq!(CgroupName::from_slice(slice).pod_uid(), None, "{slice}");
        }
    }

    #[test]
    fn components_from_outside_cannot_lead_elsewhere() {
        let root = CgroupName::root();
        for component in ["", ".", "..", "a/b", "a_b", "a b", "a\0b", "a\n"] {
            assert!(root.child(component).is_err(), "{component:?}");
        }
        for uid in ["", "../x", "a/../../b", "x_y"] {
            assert!(root.pod(&PodUid::new(uid)).is_err(), "{uid:?}");
        }
        assert_eq!(CgroupName::from_cgroupfs("/../a/./../b").to_cgroupfs(), "/a/b");
    }

    proptest! {
        #[test]
        fn every_uid_comes_back_from_its_slice(uid in "[0-9a-f][0-9a-f-]{0,35}[0-9a-f]") {
            let uid = PodUid::new(uid);
            let name = kubepods("/").qos_tier(QosClass::BestEffort).pod(&uid).unwrap();
            prop_assert_eq!(CgroupName::from_slice(&name.to_slice_path()).pod_uid(), Some(uid));
        }
    }
}
