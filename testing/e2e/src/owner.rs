//! Who made a run directory and what outside of it belongs to it: enough to clean up after a
//! process that could not do it itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cgroups;
use crate::namespaces::{ProcessStat, kill};
use crate::wait::wait_for;

const FILE: &str = "owner.json";

/// A process, named so that a later one with the same id is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessRef {
    pid: u32,
    start_ticks: u64,
}

impl ProcessRef {
    fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_ticks: ProcessStat::read(pid)?.start_ticks })
    }

    fn is_alive(&self) -> bool {
        ProcessStat::read(self.pid)
            .is_some_and(|stat| stat.start_ticks == self.start_ticks && !stat.ended)
    }

    fn to_json(self) -> Value {
        json!({ "pid": self.pid, "start": self.start_ticks })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let pid = u32::try_from(value["pid"].as_u64()?).ok()?;
        Some(Self { pid, start_ticks: value["start"].as_u64()? })
    }
}

/// The record in a run directory.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The run directory.
    pub dir: PathBuf,
    /// The name of the cgroup at the root of each hierarchy.
    pub cgroup: String,
    /// Whether it is meant to outlive its maker.
    pub kept: bool,
    maker: ProcessRef,
    init: Option<ProcessRef>,
}

impl Owner {
    /// A record for what this process is about to make in `dir`.
    pub(crate) fn claim(dir: &Path, cgroup: &str, kept: bool) -> anyhow::Result<Self> {
        let maker =
            ProcessRef::of(std::process::id()).context("cannot read /proc: is it mounted?")?;
        let owner =
            Self { dir: dir.to_owned(), cgroup: cgroup.to_owned(), kept, maker, init: None };
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        owner.save()?;
        Ok(owner)
    }

    pub(crate) fn set_init(&mut self, pid: u32) -> anyhow::Result<()> {
        self.init = ProcessRef::of(pid);
        self.save()
    }

    fn save(&self) -> anyhow::Result<()> {
        let record = json!({
            "cgroup": self.cgroup,
            "kept": self.kept,
            "maker": self.maker.to_json(),
            "init": self.init.map(ProcessRef::to_json),
        });
        let path = self.dir.join(FILE);
        let partial = self.dir.join("owner.partial");
        fs::write(&partial, record.to_string())
            .and_then(|()| fs::rename(&partial, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads the record in `dir`, if there is a whole one.
    pub fn read(dir: &Path) -> Option<Self> {
        let record: Value = serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()?;
        let cgroup = record["cgroup"].as_str()?.to_owned();
        if !cgroup.starts_with("rubelet-") || cgroup.contains('/') {
            return None;
        }
        Some(Self {
            dir: dir.to_owned(),
            cgroup,
            kept: record["kept"].as_bool()?,
            maker: ProcessRef::from_json(&record["maker"])?,
            init: ProcessRef::from_json(&record["init"]),
        })
    }

    /// Whether its processes still run.
    pub fn is_running(&self) -> bool {
        self.init.is_some_and(|init| init.is_alive())
    }

    /// Whether the process that made it still runs.
    pub fn has_maker(&self) -> bool {
        self.maker.is_alive()
    }

    /// Sends SIGTERM to the process that made it: who takes that as Ctrl-C cleans up by itself.
    pub fn ask_maker_to_end(&self) {
        let pid = i32::try_from(self.maker.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.has_maker()) {
            // It may have gone in between.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// The id, as seen from outside, of the first process of its namespaces.
    pub fn init_pid(&self) -> Option<u32> {
        self.init.filter(ProcessRef::is_alive).map(|init| init.pid)
    }
}

/// Removes everything that belongs to a run directory, and the directory.
///
/// # Errors
/// When something does not go away; what can go is gone nevertheless.
pub fn sweep(owner: &Owner) -> anyhow::Result<()> {
    if let Some(init) = owner.init.filter(ProcessRef::is_alive) {
        kill(init.pid);
        wait_for("the namespaces to end", Duration::from_secs(60), || {
            if init.is_alive() {
                Err("the first process is still there".to_owned())
            } else {
                Ok(())
            }
        })?;
    }
    cgroups::remove(&owner.cgroup)?;
    // Mounts of the private namespace are gone with it. What is mounted below in ours is not ours.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below = owner.dir.display().to_string();
    anyhow::ensure!(
        !mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| at.starts_with(&below))),
        "{below} has mounts in it"
    );
    fs::remove_dir_all(&owner.dir).with_context(|| format!("cannot remove {below}"))
}

/// Sweeps the run directories below `run` whose makers are gone and that were not meant to stay.
///
/// # Errors
/// When one cannot be swept.
pub fn sweep_abandoned(run: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(run).into_iter().flatten().flatten() {
        let Some(owner) = Owner::read(&entry.path()) else { continue };
        let in_use = owner.maker.is_alive() || (owner.kept && owner.is_running());
        if !in_use {
            sweep(&owner).with_context(|| format!("cannot sweep {}", owner.dir.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_the_same_id_and_another_start_is_not_taken_for_it() {
        let here = ProcessRef::of(std::process::id()).expect("we run");
        assert!(here.is_alive());
        assert!(!ProcessRef { start_ticks: here.start_ticks + 1, ..here }.is_alive());
    }

    #[test]
    fn a_record_that_names_a_cgroup_of_somebody_else_is_not_believed() {
        let dir = std::env::temp_dir().join(format!("rubelet-owner-{}", std::process::id()));
        let owner = Owner::claim(&dir, "rubelet-test-1", false).expect("claimed");
        assert_eq!(Owner::read(&dir).expect("read").cgroup, owner.cgroup);
        let foreign = Owner { cgroup: "system.slice".to_owned(), ..owner };
        foreign.save().expect("saved");
        assert!(Owner::read(&dir).is_none());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
