//! Hands out ranges of ids to pods with `hostUsers: false`.
//!
//! The only state is the file `userns` in each pod's directory, which any kubelet on the node reads: a
//! range belongs to a pod for as long as that file is there, so it ends with the pod's directory, and
//! there is nothing to recover after a restart.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use rubelet_checkpoint::{Durability, WriteError, write_atomic};
use rubelet_types::{NodePaths, PodUid, UnsafePathElement, error_chain};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::user_namespace::{IdMapping, UserNamespace};

/// Pods get whole multiples of so many ids.
const UNIT: u32 = 65_536;
/// Name of the file in a pod's directory that says which ids it has.
const FILE: &str = "userns";
/// The user whose subordinate ids, if there are any, are those of pods.
const KUBELET_USER: &str = "kubelet";
/// Ids end here; beyond them nothing can be mapped.
const END: u64 = 1 << 32;

/// How ranges of ids are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNamespaceSettings {
    /// `userNamespaces.idsPerPod`.
    pub ids_per_pod: u32,
    /// `maxPods`: there must be ids for all of them.
    pub max_pods: u32,
}

/// A pod cannot have a user namespace.
#[derive(Debug, thiserror::Error)]
pub enum UserNamespaceError {
    /// The ids of the node for pods are unfit.
    #[error("kubelet mappings: {message}")]
    Mappings {
        /// Why.
        message: String,
    },
    /// The pod's uid leads elsewhere.
    #[error("invalid pod uid")]
    Uid(#[from] UnsafePathElement),
    /// What pods have cannot be told, so nothing can be given.
    #[error("read user namespace of a pod from {path}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A pod's file says nothing that could be understood.
    #[error("invalid user namespace mappings file {path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// All ranges are taken.
    #[error("could not find an empty slot to allocate a user namespace")]
    Exhausted,
    /// The pod's range cannot be written down.
    #[error("remember user namespace")]
    Save(#[from] WriteError),
}

/// Hands out ranges of ids. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct UserNamespaces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    paths: NodePaths,
    settings: UserNamespaceSettings,
    /// Which ids are for pods; known once it was asked for.
    ids: OnceCell<Range<u64>>,
    /// Whoever gives holds it, so that nothing is given twice.
    giving: Mutex<()>,
}

/// The form of a pod's file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl UserNamespaces {
    /// Hands out ids to the pods beneath `paths`. Reads nothing yet.
    pub fn new(paths: NodePaths, settings: UserNamespaceSettings) -> Self {
        let (ids, giving) = (OnceCell::new(), Mutex::default());
        Self { inner: Arc::new(Inner { paths, settings, ids, giving }) }
    }

    /// The ids of a pod whose directory is there: always the same as long as it is.
    ///
    /// # Errors
    /// When the node has no ids for it, or what other pods have cannot be told.
    pub async fn ensure(&self, pod: &PodUid) -> Result<UserNamespace, UserNamespaceError> {
        let settings = self.inner.settings;
        let ids = self.inner.ids.get_or_try_init(async || {
            let found = in_background(find_subordinate_ids).await?;
            check_ids(found, settings)
        });
        let ids = ids.await.map_err(|message| UserNamespaceError::Mappings { message })?.clone();
        let (inner, pod) = (self.inner.clone(), pod.clone());
        in_background(move || inner.ensure(&pod, &ids)).await
    }
}

/// Files are read and programs run where that may block.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The whole runtime is about to end.
            Err(_) => std::future::pending().await,
        },
    }
}

impl Inner {
    fn ensure(&self, pod: &PodUid, ids: &Range<u64>) -> Result<UserNamespace, UserNamespaceError> {
        NodePaths::check_element(pod.as_str())?;
        let _giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.paths.pod_dir(pod).join(FILE);
        if let Some(mapping) = read(&file)? {
            return Ok(namespace_of(mapping));
        }
        let taken = self.taken()?;
        let length = self.settings.ids_per_pod;
        let slots = (ids.end - ids.start) / u64::from(length);
        // Files on shared volumes keep the ids of pods that are gone: they are not given again at once.
        let first_try = rand::random_range(0..slots.max(1));
        let host_id = compute_free_range(&taken, ids, length, first_try)
            .ok_or(UserNamespaceError::Exhausted)?;
        let mapping = Mapping { host_id, container_id: 0, length };
        let content = Mappings { uid_mappings: vec![mapping], gid_mappings: vec![mapping] };
        let content = serde_json::to_vec(&content).map_err(|error| UserNamespaceError::File {
            path: file.clone(),
            problem: error.to_string(),
        })?;
        write_atomic(&file, &content, Durability::Synced)?;
        Ok(namespace_of(mapping))
    }

    /// The ranges that pods have.
    fn taken(&self) -> Result<Vec<Range<u64>>, UserNamespaceError> {
        let pods = self.paths.pods_dir();
        let unreadable = |source| UserNamespaceError::Read { path: pods.clone(), source };
        let mut taken = Vec::new();
        for entry in fs::read_dir(&pods).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path().join(FILE);
            if let Some(mapping) = read(&path)? {
                let start = u64::from(mapping.host_id);
                taken.push(start..start + u64::from(mapping.length));
            }
        }
        Ok(taken)
    }
}

fn namespace_of(mapping: Mapping) -> UserNamespace {
    let Mapping { host_id, container_id, length } = mapping;
    let mappings = vec![IdMapping { host_id, container_id, length }];
    UserNamespace { uids: mappings.clone(), gids: mappings }
}

fn read(path: &Path) -> Result<Option<Mapping>, UserNamespaceError> {
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(source) => return Err(UserNamespaceError::Read { path: path.to_owned(), source }),
    };
    if content.is_empty() {
        return Ok(None);
    }
    parse(&content)
        .map(Some)
        .map_err(|problem| UserNamespaceError::File { path: path.to_owned(), problem })
}

fn parse(content: &[u8]) -> Result<Mapping, String> {
    let found: Mappings = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    match (found.uid_mappings.as_slice(), found.gid_mappings.as_slice()) {
        ([users], [groups]) if users != groups => {
            Err("GID and UID mapping should be identical".to_owned())
        }
        ([users], [_]) if users.container_id != 0 => Err("UID 0 must be mapped".to_owned()),
        ([users], [_]) if users.host_id == 0 => Err("root of the node is mapped".to_owned()),
        ([users], [_]) => Ok(*users),
        _ => Err("no more than one mapping allowed".to_owned()),
    }
}

/// The start of a range of `length` ids within `ids` that overlaps none of `taken`; the slot
/// `first_try` is looked at first, then those that follow it, around.
fn compute_free_range(
    taken: &[Range<u64>],
    ids: &Range<u64>,
    length: u32,
    first_try: u64,
) -> Option<u32> {
    let wide = u64::from(length);
    let slots = (ids.end - ids.start) / wide;
    (0..slots)
        .map(|step| ids.start + (first_try + step) % slots * wide)
        .find(|start| taken.iter().all(|range| range.end <= *start || start + wide <= range.start))
        .and_then(|start| u32::try_from(start).ok())
}

/// The ids for pods: the subordinate ids of the kubelet's user if it has some, otherwise all but those
/// that the node itself may use.
fn check_ids(
    found: Option<Range<u64>>,
    settings: UserNamespaceSettings,
) -> Result<Range<u64>, String> {
    let UserNamespaceSettings { ids_per_pod, max_pods } = settings;
    let per_pod = u64::from(ids_per_pod);
    if ids_per_pod == 0 || !ids_per_pod.is_multiple_of(UNIT) {
        return Err(format!(
            "kubelet user namespace length {ids_per_pod} is not a multiple of {UNIT}"
        ));
    }
    let ids = found.unwrap_or(per_pod..END - END % per_pod);
    let length = ids.end - ids.start;
    if !ids.start.is_multiple_of(per_pod) {
        return Err(format!(
            "kubelet user assigned ID {} is not a multiple of {per_pod}",
            ids.start
        ));
    }
    if ids.start < per_pod {
        return Err(format!(
            "kubelet user assigned ID {} must be greater or equal to {per_pod}",
            ids.start
        ));
    }
    if !length.is_multiple_of(per_pod) {
        return Err(format!(
            "kubelet user assigned IDs length {length} is not a multiple of {per_pod}"
        ));
    }
    if length / per_pod < u64::from(max_pods) {
        return Err(format!("kubelet user assigned IDs are not enough to support {max_pods} pods"));
    }
    Ok(ids)
}

/// The subordinate ids of the kubelet's user; none if there is no such user, or no way to ask.
fn find_subordinate_ids() -> Result<Option<Range<u64>>, String> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !users.lines().any(|line| line.split(':').next() == Some(KUBELET_USER)) {
        return Ok(None);
    }
    let ask = |arguments: &[&str], kind: &str| {
        let asked = Command::new("getsubids").args(arguments).output();
        match asked {
            Ok(answer) if answer.status.success() => {
                Ok(Some(String::from_utf8_lossy(&answer.stdout).into_owned()))
            }
            Ok(answer) => Err(format!(
                "error retrieving additional {kind} for user {KUBELET_USER:?}: {}",
                answer.status
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!(
                "error retrieving additional {kind} for user {KUBELET_USER:?}: {}",
                error_chain(&error)
            )),
        }
    };
    let (users, groups) = (ask(&[KUBELET_USER], "uids")?, ask(&["-g", KUBELET_USER], "gids")?);
    if users != groups {
        return Err(format!("mismatched subuids and subgids for user {KUBELET_USER:?}"));
    }
    users.map(|text| parse_subordinate_ids(&text)).transpose()
}

/// Reads what `getsubids` prints: `0: kubelet 65536 7208960`.
fn parse_subordinate_ids(text: &str) -> Result<Range<u64>, String> {
    let text = text.trim();
    let [line] = text.lines().collect::<Vec<_>>()[..] else {
        return Err(format!("error parsing line {text:?}: it must contain only one line"));
    };
    let fields: Vec<&str> = line.split_whitespace().collect();
    let ["0:", KUBELET_USER, first, length] = fields[..] else {
        return Err(format!("invalid line {line:?}"));
    };
    let number = |text: &str| {
        text.parse::<u32>()
            .map(u64::from)
            .map_err(|error| format!("invalid line {line:?}: {error}"))
    };
    let (first, length) = (number(first)?, number(length)?);
    if first + length > END {
        return Err(format!("invalid line {line:?}: the ids end beyond {END}"));
    }
    Ok(first..first + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: UserNamespaceSettings =
        UserNamespaceSettings { ids_per_pod: UNIT, max_pods: 110 };

    struct Node {
        _temp: tempfile::TempDir,
        paths: NodePaths,
    }

    impl Node {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let paths = NodePaths::new(temp.path(), temp.path(), temp.path());
            fs::create_dir_all(paths.pods_dir()).unwrap();
            Self { _temp: temp, paths }
        }

        fn pod(&self, uid: &str) -> PodUid {
            let pod = PodUid::new(uid);
            fs::create_dir_all(self.paths.pod_dir(&pod)).unwrap();
            pod
        }

        fn give(&self, uid: &str) -> Result<UserNamespace, UserNamespaceError> {
            self.give_of(uid, &(u64::from(UNIT)..u64::from(UNIT) * 4))
        }

        fn give_of(
            &self,
            uid: &str,
            ids: &Range<u64>,
        ) -> Result<UserNamespace, UserNamespaceError> {
            let pod = self.pod(uid);
            UserNamespaces::new(self.paths.clone(), SETTINGS).inner.ensure(&pod, ids)
        }
    }

    #[test]
    fn a_range_is_its_pods_for_as_long_as_its_directory_is_there() {
        let node = Node::new();
        let given: Vec<UserNamespace> =
            ["a", "b", "c"].iter().map(|uid| node.give(uid).unwrap()).collect();
        let mut starts: Vec<u32> = given.iter().map(|users| users.uids[0].host_id).collect();
        assert_eq!(node.give("b").unwrap(), given[1], "after a restart, too");
        assert!(given.iter().all(|users| users.uids == users.gids));
        starts.sort_unstable();
        assert_eq!(starts, [UNIT, 2 * UNIT, 3 * UNIT]);
        let exhausted = node.give("d").unwrap_err();
        assert!(matches!(exhausted, UserNamespaceError::Exhausted), "{exhausted}");
        fs::remove_dir_all(node.paths.pod_dir(&PodUid::new("b"))).unwrap();
        assert_eq!(node.give("d").unwrap(), given[1]);
    }

    #[test]
    fn the_file_is_the_one_that_any_kubelet_reads() {
        let node = Node::new();
        node.give_of("a", &(u64::from(UNIT)..u64::from(UNIT) * 2)).unwrap();
        let file = node.paths.pod_dir(&PodUid::new("a")).join("userns");
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#
        );
        for (content, problem) in [
            ("{", "EOF while parsing an object at line 1 column 1"),
            (r#"{"uidMappings":[],"gidMappings":[]}"#, "no more than one mapping allowed"),
            (
                r#"{"uidMappings":[{"hostId":65536,"containerId":5,"length":65536}],
                    "gidMappings":[{"hostId":65536,"containerId":5,"length":65536}]}"#,
                "UID 0 must be mapped",
            ),
        ] {
            fs::write(&file, content).unwrap();
            // Nobody knows what is free: nothing is given, to this pod or another.
            for uid in ["a", "b"] {
                let error = node.give(uid).unwrap_err().to_string();
                assert!(error.ends_with(problem), "{error}");
            }
        }
    }

    #[test]
    fn ids_that_are_unfit_are_refused() {
        let unit = u64::from(UNIT);
        let all = |found| check_ids(found, SETTINGS);
        assert_eq!(all(None), Ok(unit..END));
        assert_eq!(all(Some(unit * 2..unit * 200)), Ok(unit * 2..unit * 200));
        for (found, expected) in [
            (1..unit * 200 + 1, "kubelet user assigned ID 1 is not a multiple of 65536"),
            (0..unit * 200, "kubelet user assigned ID 0 must be greater or equal to 65536"),
            (
                unit..unit * 200 + 1,
                "kubelet user assigned IDs length 13041665 is not a multiple of 65536",
            ),
            (unit..unit * 2, "kubelet user assigned IDs are not enough to support 110 pods"),
        ] {
            assert_eq!(all(Some(found)), Err(expected.to_owned()));
        }
        let odd = UserNamespaceSettings { ids_per_pod: 1000, ..SETTINGS };
        assert_eq!(
            check_ids(None, odd),
            Err("kubelet user namespace length 1000 is not a multiple of 65536".to_owned())
        );
    }

    #[test]
    fn what_getsubids_prints_is_read() {
        assert_eq!(parse_subordinate_ids("0: kubelet 65536 7208960\n"), Ok(65_536..7_274_496));
        for bad in [
            "",
            "0: other 65536 1",
            "0: kubelet 65536",
            "0: kubelet a 1",
            "0: kubelet 1 2\n1: kubelet 3 4",
            "0: kubelet 4294967295 2",
        ] {
            assert!(parse_subordinate_ids(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_given_overlaps_nothing(
            taken in prop::collection::vec((0_u64..40, 1_u64..4), 0..12),
            first_try in 0_u64..20,
        ) {
            let taken: Vec<Range<u64>> =
                taken.into_iter().map(|(start, length)| start..start + length).collect();
            let ids = 2..42;
            match compute_free_range(&taken, &ids, 2, first_try) {
                Some(start) => {
                    let given = u64::from(start)..u64::from(start) + 2;
                    prop_assert!(ids.start <= given.start && given.end <= ids.end);
                    let is_free = |id: u64| !taken.iter().any(|range| range.contains(&id));
                    prop_assert!(given.clone().all(is_free));
                }
                None => {
                    let is_taken = |id: &u64| taken.iter().any(|range| range.contains(id));
                    prop_assert!((2..42_u64).step_by(2).all(|start|
                        is_taken(&start) || is_taken(&(start + 1))));
                }
            }
        }
    }
}
