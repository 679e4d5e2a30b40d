use std::fmt;

use rubelet_types::Quantity;

/// A huge page size in bytes.
///
/// Displayed in the kernel's cgroup notation (`2MB`, `1GB`), which CRI uses too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(pub u64);

const RESOURCE_PREFIX: &str = "hugepages-";

impl PageSize {
    /// The page size that a resource such as `hugepages-2Mi` names; none for any other resource.
    pub fn from_resource_name(resource: &str) -> Option<Self> {
        let quantity: Quantity = resource.strip_prefix(RESOURCE_PREFIX)?.parse().ok()?;
        u64::try_from(quantity.value()).ok().filter(|bytes| *bytes > 0).map(Self)
    }

    /// The resource name of this size: `hugepages-2Mi`.
    pub fn resource_name(self) -> String {
        let bytes = i64::try_from(self.0).unwrap_or(i64::MAX);
        format!("{RESOURCE_PREFIX}{}", Quantity::from_bytes(bytes))
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut amount = self.0;
        let mut unit = "B";
        for next in ["KB", "MB", "GB", "TB", "PB"] {
            if amount < 1024 || !amount.is_multiple_of(1024) {
                break;
            }
            amount /= 1024;
            unit = next;
        }
        write!(f, "{amount}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_both_notations() {
        for (bytes, cgroup, resource) in [
            (64 << 10, "64KB", "hugepages-64Ki"),
            (2 << 20, "2MB", "hugepages-2Mi"),
            (512 << 20, "512MB", "hugepages-512Mi"),
            (1 << 30, "1GB", "hugepages-1Gi"),
        ] {
            let size = PageSize(bytes);
            assert_eq!(size.to_string(), cgroup);
            assert_eq!(size.resource_name(), resource);
            assert_eq!(PageSize::from_resource_name(resource), Some(size));
        }
    }

    #[test]
    fn other_resources_are_no_page_sizes() {
        for resource in ["memory", "hugepages-", "hugepages-x", "hugepages-0", "hugepages--1"] {
            assert_eq!(PageSize::from_resource_name(resource), None, "{resource}");
        }
    }
}
