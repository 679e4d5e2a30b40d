//! The cgroup of each pod.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_linux::cgroup::CgroupError;
use rubelet_node_resources::{
    CgroupName, CgroupValues, MIN_CPU_SHARES, PodCgroupRules, compute_pod_cgroup_values,
};
use rubelet_types::{PodUid, QosClass, error_chain, pod_qos_class, pod_ref};

use crate::manager::{ContainerManager, ContainerManagerError, PodCgroup, Started};
use crate::tree::TreeError;

/// How often the processes of a cgroup are killed before its removal is given up for now.
const KILL_ATTEMPTS: u32 = 10;
/// Pause after the first attempt; it doubles each time. A killed process is usually gone at once.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

const TIERS: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

impl ContainerManager {
    /// Makes sure that the pod's cgroup exists. A new one gets the values that follow from the pod;
    /// one that is there is left as it is, since containers may run in it.
    ///
    /// # Errors
    /// When the cgroup cannot be made; nothing is left of it then.
    pub async fn ensure_pod_cgroup(&self, pod: &Pod) -> Result<PodCgroup, ContainerManagerError> {
        let started = self.started()?;
        if !self.settings.cgroups_per_qos {
            return Ok(PodCgroup { existed: true });
        }
        let name = pod_cgroup_name(started, pod)?;
        if started.tree.exists(&name).await.map_err(failed("look for", &name))? {
            return Ok(PodCgroup { existed: true });
        }
        // Perhaps a part of it: an earlier attempt ended in the middle, or a controller is new.
        let is_new = !started.tree.exists_partly(&name).await.map_err(failed("look for", &name))?;
        let values = compute_pod_cgroup_values(pod, &started.pod_rules);
        if let Err(error) = started.tree.ensure(&name, &values).await {
            // One that exists without its values would be taken for complete the next time. Nothing
            // can run in it yet, unless it was there before.
            if is_new && let Err(removal) = started.tree.destroy(&name).await {
                let error = error_chain(&removal);
                tracing::warn!(cgroup = %name, error, "unfinished cgroup stays");
            }
            return Err(failed("create", &name)(error));
        }
        Ok(PodCgroup { existed: false })
    }

    /// What the values of pods' cgroups follow from, beside the pods.
    ///
    /// # Errors
    /// Before the start.
    pub fn pod_cgroup_rules(&self) -> Result<&PodCgroupRules, ContainerManagerError> {
        Ok(&self.started()?.pod_rules)
    }

    /// Gives the existing cgroup of the pod these values, and leaves all others.
    ///
    /// # Errors
    /// When it does not exist or the kernel refuses.
    pub async fn set_pod_cgroup_values(
        &self,
        pod: &Pod,
        values: &CgroupValues,
    ) -> Result<(), ContainerManagerError> {
        let started = self.started()?;
        if !self.settings.cgroups_per_qos {
            return Ok(());
        }
        let name = pod_cgroup_name(started, pod)?;
        started.tree.update(&name, values).await.map_err(failed("update", &name))
    }

    /// Memory that the pod uses, in bytes; none where pods have no cgroups.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn pod_memory_usage(&self, pod: &Pod) -> Result<Option<u64>, ContainerManagerError> {
        let started = self.started()?;
        if !self.settings.cgroups_per_qos {
            return Ok(None);
        }
        let name = pod_cgroup_name(started, pod)?;
        let usage = started.tree.memory_usage(&name).await;
        usage.map(Some).map_err(failed("read the memory usage of", &name))
    }

    /// The pod has a cgroup of its present quality of service class. When it has none although
    /// containers of it run, they run in one of another class, and must be made anew. A cgroup that
    /// merely lacks a controller is no reason for that: [`Self::ensure_pod_cgroup`] completes it.
    /// Where pods have no cgroups, nothing is ever missing.
    ///
    /// # Errors
    /// When that cannot be told.
    pub async fn pod_cgroup_exists(&self, pod: &Pod) -> Result<bool, ContainerManagerError> {
        let started = self.started()?;
        if !self.settings.cgroups_per_qos {
            return Ok(true);
        }
        let name = pod_cgroup_name(started, pod)?;
        started.tree.exists_partly(&name).await.map_err(failed("look for", &name))
    }

    /// What the runtime is told as `cgroup_parent` of the pod: a path under the cgroupfs driver, a
    /// slice under systemd, nothing where pods have no cgroups.
    ///
    /// # Errors
    /// Before the start, and when the pod's uid cannot name a cgroup.
    pub fn pod_cgroup_parent(&self, pod: &Pod) -> Result<String, ContainerManagerError> {
        let started = self.started()?;
        if !self.settings.cgroups_per_qos {
            return Ok(String::new());
        }
        Ok(started.tree.cgroup_parent(&pod_cgroup_name(started, pod)?))
    }

    /// Uids of all pods that have a cgroup, in whatever tier or hierarchy.
    ///
    /// # Errors
    /// When the tree cannot be read.
    pub async fn list_pod_cgroups(&self) -> Result<BTreeSet<PodUid>, ContainerManagerError> {
        let started = self.started()?;
        let mut uids = BTreeSet::new();
        if !self.settings.cgroups_per_qos {
            return Ok(uids);
        }
        for class in TIERS {
            let tier = started.kubepods.qos_tier(class);
            let children = started.tree.children(&tier).await.map_err(failed("list", &tier))?;
            uids.extend(children.iter().filter_map(|child| started.tree.name_of(child).pod_uid()));
        }
        Ok(uids)
    }

    /// Kills what is left in the pod's cgroups and removes them; gone already is fine.
    ///
    /// # Errors
    /// When a process does not end, or the kernel refuses: what could be removed is gone, retry for
    /// the rest.
    pub async fn destroy_pod_cgroup(&self, uid: &PodUid) -> Result<(), ContainerManagerError> {
        let started = self.started()?;
        for name in self.pod_cgroups(started, uid).await? {
            destroy(started, &name).await?;
        }
        Ok(())
    }

    /// Leaves the pod's cgroups the least CPU, while they cannot be removed yet because volumes are
    /// still mounted.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn reduce_to_minimum(&self, uid: &PodUid) -> Result<(), ContainerManagerError> {
        let started = self.started()?;
        let least = CgroupValues { cpu_shares: Some(MIN_CPU_SHARES), ..CgroupValues::default() };
        for name in self.pod_cgroups(started, uid).await? {
            match started.tree.update(&name, &least).await {
                Ok(()) => {}
                // Only a part of it is there.
                Err(TreeError::FileSystem(CgroupError::Write { source, .. }))
                    if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("reduce", &name)(error)),
            }
        }
        Ok(())
    }

    /// The cgroups that a pod has: usually one, two when it changed its class.
    async fn pod_cgroups(
        &self,
        started: &Started,
        uid: &PodUid,
    ) -> Result<Vec<CgroupName>, ContainerManagerError> {
        let mut found = Vec::new();
        if !self.settings.cgroups_per_qos {
            return Ok(found);
        }
        for class in TIERS {
            let name = started.kubepods.qos_tier(class).pod(uid)?;
            if started.tree.exists_partly(&name).await.map_err(failed("look for", &name))? {
                found.push(name);
            }
        }
        Ok(found)
    }
}

fn pod_cgroup_name(started: &Started, pod: &Pod) -> Result<CgroupName, ContainerManagerError> {
    Ok(started.kubepods.qos_tier(pod_qos_class(pod)).pod(&pod_ref(pod).uid)?)
}

/// Kills and removes until it is gone: a killed process leaves its cgroup only when it has ended.
async fn destroy(started: &Started, name: &CgroupName) -> Result<(), ContainerManagerError> {
    let mut pause = FIRST_PAUSE;
    let mut attempt = 1;
    loop {
        let killed = started.tree.kill(name).await.map_err(failed("kill", name))?;
        if killed > 0 {
            tracing::info!(cgroup = %name, killed, "left-over processes killed");
        }
        match started.tree.destroy(name).await {
            Ok(()) => return Ok(()),
            Err(TreeError::FileSystem(CgroupError::Busy { .. })) if attempt < KILL_ATTEMPTS => {}
            Err(error) => return Err(failed("remove", name)(error)),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
        attempt += 1;
    }
}

fn failed(
    operation: &'static str,
    name: &CgroupName,
) -> impl Fn(TreeError) -> ContainerManagerError + use<> {
    let cgroup = name.to_string();
    move |source| ContainerManagerError::Cgroup { operation, cgroup: cgroup.clone(), source }
}
