//! The two files, as the Go kubelet reads and writes them.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ResourceRequirements;
use rubelet_checkpoint::{CheckpointError, CheckpointFile, Durability, Loaded};
use rubelet_node_resources::PodResources;
use rubelet_types::error_chain;
use serde::{Deserialize, Serialize};

/// What pods were granted.
pub const ALLOCATED_FILE: &str = "allocated_pods_state";
/// What is in force of it.
pub const ACTUATED_FILE: &str = "actuated_pods_state";

/// Resources of one pod, in the Go kubelet's words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct PodEntry {
    #[serde(rename = "ContainerResources", default)]
    containers: Option<BTreeMap<String, ResourceRequirements>>,
    #[serde(rename = "PodLevelResources", default)]
    pod_level: Option<ResourceRequirements>,
}

/// Resources of all pods, by uid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Contents {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, PodEntry>,
}

/// Resources of pods, by uid.
pub(crate) type ByPod = BTreeMap<String, PodResources>;

/// One of the files. It has one owner, who writes it by one save at a time.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// Of the contents as they were last read or written.
    last: Option<u64>,
    /// They would survive a power loss.
    is_synced: bool,
}

impl StateFile {
    pub(crate) fn new(root: &Path, name: &str) -> Self {
        Self { path: root.join(name), last: None, is_synced: false }
    }

    /// Reads it. One that is damaged has been set aside, and held nothing. Blocking.
    pub(crate) fn load(&mut self) -> Result<ByPod, CheckpointError> {
        let contents: Contents = match CheckpointFile::new(&self.path, Durability::Synced).load()? {
            Loaded::Missing => return Ok(ByPod::new()),
            Loaded::Value(contents) => contents,
            Loaded::Damaged(damaged) => {
                tracing::error!(
                    error = error_chain(&damaged),
                    "What pods were granted is lost: they have what their specs name"
                );
                return Ok(ByPod::new());
            }
        };
        self.last = Some(fingerprint(&contents));
        let resources = |entry: PodEntry| PodResources {
            pod_level: entry.pod_level,
            containers: entry.containers.unwrap_or_default(),
        };
        Ok(contents.entries.into_iter().map(|(uid, entry)| (uid, resources(entry))).collect())
    }

    /// Writes it, unless it holds that already. Blocking.
    pub(crate) fn save(
        &mut self,
        pods: ByPod,
        durability: Durability,
    ) -> Result<(), CheckpointError> {
        let entry = |resources: PodResources| PodEntry {
            containers: Some(resources.containers),
            pod_level: resources.pod_level,
        };
        let entries = pods.into_iter().map(|(uid, resources)| (uid, entry(resources))).collect();
        let contents = Contents { entries };
        let fingerprint = fingerprint(&contents);
        let is_safe = self.is_synced || durability == Durability::Unsynced;
        if self.last == Some(fingerprint) && is_safe {
            return Ok(());
        }
        self.last = None;
        CheckpointFile::new(&self.path, durability).save(&contents)?;
        self.last = Some(fingerprint);
        self.is_synced = durability == Durability::Synced;
        Ok(())
    }
}

fn fingerprint(contents: &Contents) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(contents).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Written by a Go kubelet 1.36.
    const FROM_GO: &str = r#"{"data":"{\"entries\":{\"u1\":{\"ContainerResources\":{\"c\":{\"limits\":{\"cpu\":\"2\"},\"requests\":{\"cpu\":\"1\"}}},\"PodLevelResources\":null}}}","checksum":0}"#;

    #[test]
    fn what_the_go_kubelet_wrote_is_read_and_written_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let mut value: serde_json::Value = serde_json::from_str(FROM_GO).unwrap();
        let data = value["data"].as_str().unwrap().to_owned();
        value["checksum"] = rubelet_checkpoint::go_string_checksum(&data).into();
        let path = dir.path().join(ALLOCATED_FILE);
        std::fs::write(&path, value.to_string()).unwrap();
        let mut file = StateFile::new(dir.path(), ALLOCATED_FILE);
        let pods = file.load().unwrap();
        let resources: ResourceRequirements =
            serde_json::from_value(json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}))
                .unwrap();
        assert_eq!(pods["u1"].containers["c"], resources);
        assert_eq!(pods["u1"].pod_level, None);

        let mut again = StateFile::new(dir.path(), ACTUATED_FILE);
        again.save(pods, Durability::Unsynced).unwrap();
        let written = std::fs::read(dir.path().join(ACTUATED_FILE)).unwrap();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&written).unwrap(), value);
    }

    #[test]
    fn the_same_is_not_written_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ALLOCATED_FILE);
        let mut file = StateFile::new(dir.path(), ALLOCATED_FILE);
        let pods = ByPod::from([("u".to_owned(), PodResources::default())]);
        file.save(pods.clone(), Durability::Unsynced).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.save(pods.clone(), Durability::Unsynced).unwrap();
        assert!(!path.exists());
        file.save(pods.clone(), Durability::Synced).unwrap();
        assert!(path.exists(), "it would not have survived a power loss");
        std::fs::remove_file(&path).unwrap();
        file.save(pods, Durability::Synced).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_file_holds_nothing_and_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(ALLOCATED_FILE), "{}").unwrap();
        let mut file = StateFile::new(dir.path(), ALLOCATED_FILE);
        assert_eq!(file.load().unwrap(), ByPod::new());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(!dir.path().join(ALLOCATED_FILE).exists());
    }
}
