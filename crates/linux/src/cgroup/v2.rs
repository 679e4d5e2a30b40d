//! Cgroup v2: one hierarchy; a controller reaches a cgroup only when every cgroup above hands it
//! down.

use std::collections::BTreeSet;
use std::path::Path;

use rubelet_node_resources::{
    CgroupValues, DEFAULT_CFS_PERIOD_MICROS, PageSize, cpu_weight_from_shares,
};

use super::file_system::{
    CgroupError, create_directory, hugepage_limits, is_gone, pids_max, read, write,
};

/// Controllers that Kubernetes needs in each cgroup, where the kernel offers them.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];

/// Controllers that a cgroup can use.
pub(super) fn controllers(directory: &Path) -> Result<BTreeSet<String>, CgroupError> {
    let content = read(&directory.join("cgroup.controllers"))?;
    Ok(content.split_whitespace().map(str::to_owned).collect())
}

pub(super) fn exists(root: &Path, directory: &Path) -> Result<bool, CgroupError> {
    let present = match controllers(directory) {
        Ok(present) => present,
        Err(CgroupError::Read { source, .. }) if is_gone(&source) => return Ok(false),
        Err(error) => return Err(error),
    };
    let offered = controllers(root)?;
    Ok(NEEDED
        .iter()
        .filter(|controller| offered.contains(**controller))
        .all(|controller| present.contains(*controller)))
}

pub(super) fn ensure(root: &Path, elements: &[&str]) -> Result<(), CgroupError> {
    let offered = controllers(root)?;
    let mut directory = root.to_owned();
    for element in elements {
        hand_down(&directory, &offered)?;
        directory.push(element);
        create_directory(&directory)?;
    }
    Ok(())
}

/// Lets the children of `directory` use every controller that the kernel offers. Those that it
/// refuses one by one (they are busy elsewhere, for instance real-time processes with `cpu`) are
/// left out: a value that needs one fails then, and says so.
fn hand_down(directory: &Path, offered: &BTreeSet<String>) -> Result<(), CgroupError> {
    let file = "cgroup.subtree_control";
    let enabled: BTreeSet<String> =
        read(&directory.join(file))?.split_whitespace().map(str::to_owned).collect();
    let missing: Vec<String> =
        offered.difference(&enabled).map(|controller| format!("+{controller}")).collect();
    if missing.is_empty() || write(directory, file, &missing.join(" ")).is_ok() {
        return Ok(());
    }
    for controller in &missing {
        if let Err(error) = write(directory, file, controller) {
            tracing::debug!(cgroup = %directory.display(), %error, "controller not handed down");
        }
    }
    Ok(())
}

pub(super) fn apply(
    root: &Path,
    directory: &Path,
    values: &CgroupValues,
    page_sizes: &[PageSize],
) -> Result<(), CgroupError> {
    if let Some(shares) = values.cpu_shares {
        write(directory, "cpu.weight", &cpu_weight_from_shares(shares).to_string())?;
    }
    if let Some(value) = cpu_max(values) {
        write(directory, "cpu.max", &value)?;
    }
    if let Some(limit) = values.memory_limit.filter(|limit| *limit != 0) {
        let value = if limit < 0 { "max".to_owned() } else { limit.to_string() };
        write(directory, "memory.max", &value)?;
    }
    if let Some(limit) = values.pids_limit {
        write(directory, "pids.max", &pids_max(limit))?;
    }
    if let Some(cpus) = &values.cpuset_cpus {
        write(directory, "cpuset.cpus", cpus)?;
    }
    let hugepages = hugepage_limits(values, page_sizes);
    if !hugepages.is_empty() && controllers(root)?.contains("hugetlb") {
        for (size, limit) in hugepages {
            write(directory, &format!("hugetlb.{size}.max"), &limit.to_string())?;
            let reservations = format!("hugetlb.{size}.rsvd.max");
            if directory.join(&reservations).exists() {
                write(directory, &reservations, &limit.to_string())?;
            }
        }
    }
    for (file, value) in &values.unified {
        let is_file_name = file.contains('.') && !file.starts_with('.') && !file.contains('/');
        if !is_file_name {
            return Err(CgroupError::InvalidName(file.clone()));
        }
        write(directory, file, value)?;
    }
    Ok(())
}

/// `cpu.max`: quota, or `max`, and period; none when neither is given.
fn cpu_max(values: &CgroupValues) -> Option<String> {
    let quota = values.cpu_quota.filter(|quota| *quota != 0);
    let period = values.cpu_period.filter(|period| *period != 0);
    if quota.is_none() && period.is_none() {
        return None;
    }
    let period = period.unwrap_or(DEFAULT_CFS_PERIOD_MICROS);
    Some(match quota.filter(|quota| *quota > 0) {
        Some(quota) => format!("{quota} {period}"),
        None => format!("max {period}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_and_period_in_one_file() {
        for (quota, period, expected) in [
            (None, None, None),
            (Some(0), None, None),
            (Some(50_000), Some(100_000), Some("50000 100000")),
            (Some(50_000), None, Some("50000 100000")),
            (Some(-1), Some(10_000), Some("max 10000")),
            (Some(0), Some(10_000), Some("max 10000")),
        ] {
            let values =
                CgroupValues { cpu_quota: quota, cpu_period: period, ..CgroupValues::default() };
            assert_eq!(cpu_max(&values).as_deref(), expected);
        }
    }
}
