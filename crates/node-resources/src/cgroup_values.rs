use std::collections::BTreeMap;

use crate::PageSize;

/// Fewest CPU shares (cgroup v1 scale) that the kernel takes.
pub const MIN_CPU_SHARES: u64 = 2;
/// Most CPU shares that the kernel takes.
pub const MAX_CPU_SHARES: u64 = 262_144;
/// Length of a CFS period unless configured otherwise, microseconds.
pub const DEFAULT_CFS_PERIOD_MICROS: u64 = 100_000;
/// Smallest CFS quota that the kernel takes, microseconds.
pub const MIN_CFS_QUOTA_MICROS: i64 = 1_000;

const SHARES_PER_CPU: u64 = 1024;
const MILLI_PER_CPU: u64 = 1000;

/// Limits and weights of one cgroup in the words of cgroup v1, which is how Kubernetes thinks of
/// them; [`cpu_weight_from_shares`] gives the v2 weight. What is `None` is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupValues {
    /// CPU shares, 2..=262144.
    pub cpu_shares: Option<u64>,
    /// CFS quota per period in microseconds; -1 for no limit.
    pub cpu_quota: Option<i64>,
    /// CFS period in microseconds.
    pub cpu_period: Option<u64>,
    /// Memory limit in bytes; -1 for no limit.
    pub memory_limit: Option<i64>,
    /// Most processes and threads; -1 for no limit.
    pub pids_limit: Option<i64>,
    /// Huge page limits in bytes by page size. When given, sizes that are missing here but exist on
    /// the node are limited to 0.
    pub hugepage_limits: Option<BTreeMap<PageSize, u64>>,
    /// CPUs in list format (`0-3`).
    pub cpuset_cpus: Option<String>,
    /// Further cgroup v2 files with their content (`memory.min`).
    pub unified: BTreeMap<String, String>,
}

/// CPU shares for `milli` thousandths of a core: 1024 per core within the kernel's range.
pub fn cpu_shares_from_milli(milli: i64) -> u64 {
    let milli = u64::try_from(milli).unwrap_or(0);
    (milli.saturating_mul(SHARES_PER_CPU) / MILLI_PER_CPU).clamp(MIN_CPU_SHARES, MAX_CPU_SHARES)
}

/// CFS quota in microseconds for `milli` thousandths of a core over `period_micros`; 0 (no limit)
/// for 0, else at least [`MIN_CFS_QUOTA_MICROS`].
pub fn cpu_quota_from_milli(milli: i64, period_micros: u64) -> i64 {
    if milli <= 0 {
        return 0;
    }
    let period = i64::try_from(period_micros).unwrap_or(i64::MAX);
    (milli.saturating_mul(period) / 1000).max(MIN_CFS_QUOTA_MICROS)
}

/// The cgroup v2 weight (1..=10000) for v1 shares (2..=262144), by the linear formula that the
/// kubelet applies to the cgroups it writes. Container runtimes use another one for theirs.
pub fn cpu_weight_from_shares(shares: u64) -> u64 {
    let shares = shares.clamp(MIN_CPU_SHARES, MAX_CPU_SHARES);
    1 + (shares - 2) * 9999 / 262_142
}

/// The v1 shares that a v2 weight stands for, by the inverse of [`cpu_weight_from_shares`]; rounding
/// makes it approximate.
pub fn cpu_shares_from_weight(weight: u64) -> u64 {
    (weight.clamp(1, 10_000) - 1) * 262_142 / 9999 + 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares() {
        for (milli, shares) in [
            (-5, 2),
            (0, 2),
            (1, 2),
            (2, 2),
            (3, 3),
            (100, 102),
            (500, 512),
            (1000, 1024),
            (1500, 1536),
            (256_000, 262_144),
            (1_000_000, 262_144),
            (i64::MAX, 262_144),
        ] {
            assert_eq!(cpu_shares_from_milli(milli), shares, "{milli}");
        }
    }

    #[test]
    fn quota() {
        for (milli, period, quota) in [
            (0, 100_000, 0),
            (-1, 100_000, 0),
            (5, 100_000, 1000),
            (9, 100_000, 1000),
            (10, 100_000, 1000),
            (20, 100_000, 2000),
            (200, 100_000, 20_000),
            (1500, 100_000, 150_000),
            (200, 10_000, 2000),
            (50, 5_000, 1000),
        ] {
            assert_eq!(cpu_quota_from_milli(milli, period), quota, "{milli} of {period}");
        }
    }

    #[test]
    fn weights() {
        for (shares, weight) in [
            (0, 1),
            (2, 1),
            (28, 1),
            (29, 2),
            (102, 4),
            (512, 20),
            (1024, 39),
            (2048, 79),
            (10_240, 391),
            (262_143, 9999),
            (262_144, 10_000),
            (u64::MAX, 10_000),
        ] {
            assert_eq!(cpu_weight_from_shares(shares), weight, "{shares}");
        }
        for (weight, shares) in [(0, 2), (1, 2), (39, 998), (10_000, 262_144)] {
            assert_eq!(cpu_shares_from_weight(weight), shares, "{weight}");
        }
    }

    proptest! {
        #[test]
        fn a_larger_request_never_weighs_less(low in 0i64..1_000_000, more in 0i64..1_000_000) {
            let weight = |milli| cpu_weight_from_shares(cpu_shares_from_milli(milli));
            prop_assert!(weight(low) <= weight(low + more));
        }

        #[test]
        fn the_weight_of_a_weight_stays_within_one(weight in 1u64..=10_000) {
            let back = cpu_weight_from_shares(cpu_shares_from_weight(weight));
            prop_assert!(weight.abs_diff(back) <= 1);
        }
    }
}
