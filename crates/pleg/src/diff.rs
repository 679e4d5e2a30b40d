use std::collections::BTreeMap;

use rubelet_cri::observe::{ListedContainerState, RelistByPod, RelistEntry};
use rubelet_types::{PodRef, PodUid, SandboxState};

/// What happened to a container or a sandbox between two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerChange {
    /// It runs now.
    Started,
    /// It ran, or was created, and ended.
    Died,
    /// It is in another state, such as created.
    Changed,
    /// It is gone from the runtime.
    Removed,
}

/// One object's state, sandboxes and containers alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectState {
    Running,
    Exited,
    Other,
}

fn objects(entry: Option<&RelistEntry>) -> BTreeMap<&str, ObjectState> {
    let Some(entry) = entry else { return BTreeMap::new() };
    let sandboxes = entry.sandboxes.iter().map(|sandbox| {
        let state = match sandbox.state {
            SandboxState::Ready => ObjectState::Running,
            SandboxState::NotReady => ObjectState::Exited,
        };
        (sandbox.id.as_str(), state)
    });
    let containers = entry.containers.iter().map(|container| {
        let state = match container.state {
            ListedContainerState::Running => ObjectState::Running,
            ListedContainerState::Exited => ObjectState::Exited,
            ListedContainerState::Created | ListedContainerState::Unknown => ObjectState::Other,
        };
        (container.id.as_str(), state)
    });
    sandboxes.chain(containers).collect()
}

/// The pods that differ between two lists, with what happened to their containers and sandboxes.
pub fn diff_pods(
    old: &RelistByPod,
    new: &RelistByPod,
) -> BTreeMap<PodUid, (PodRef, Vec<ContainerChange>)> {
    let mut changed = BTreeMap::new();
    for (uid, entry) in old.iter().chain(new) {
        if changed.contains_key(uid) {
            continue;
        }
        let (before, after) = (old.get(uid), new.get(uid));
        if before == after {
            continue;
        }
        changed.insert(uid.clone(), (entry.pod.clone(), diff_objects(before, after)));
    }
    changed
}

fn diff_objects(before: Option<&RelistEntry>, after: Option<&RelistEntry>) -> Vec<ContainerChange> {
    let (before, after) = (objects(before), objects(after));
    let mut changes = Vec::new();
    for (id, old_state) in &before {
        match after.get(id) {
            None => {
                if *old_state != ObjectState::Exited {
                    changes.push(ContainerChange::Died);
                }
                changes.push(ContainerChange::Removed);
            }
            Some(state) if state != old_state => changes.push(change_to(*state)),
            Some(_) => {}
        }
    }
    for (id, state) in &after {
        if !before.contains_key(id) {
            changes.push(change_to(*state));
        }
    }
    changes.sort_unstable();
    changes.dedup();
    changes
}

fn change_to(state: ObjectState) -> ContainerChange {
    match state {
        ObjectState::Running => ContainerChange::Started,
        ObjectState::Exited => ContainerChange::Died,
        ObjectState::Other => ContainerChange::Changed,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rubelet_cri::observe::{ListedContainer, ListedSandbox};
    use rubelet_types::{ContainerId, SandboxId};

    use super::*;

    /// `uid: object=state ...`, objects starting with `s` being sandboxes.
    fn list(text: &str) -> RelistByPod {
        text.split(';')
            .filter(|pod| !pod.trim().is_empty())
            .map(|pod| {
                let (uid, objects) = pod.split_once(':').unwrap();
                let pod_ref = PodRef::new(uid.trim(), "ns", "pod");
                let mut entry = RelistEntry {
                    pod: pod_ref.clone(),
                    sandboxes: Vec::new(),
                    containers: Vec::new(),
                };
                for object in objects.split_whitespace() {
                    let (id, state) = object.split_once('=').unwrap();
                    if id.starts_with('s') {
                        entry.sandboxes.push(ListedSandbox {
                            id: SandboxId::new(id),
                            state: if state == "ready" {
                                SandboxState::Ready
                            } else {
                                SandboxState::NotReady
                            },
                            created_at: Timestamp::UNIX_EPOCH,
                            attempt: 0,
                        });
                    } else {
                        entry.containers.push(ListedContainer {
                            id: ContainerId::new(id),
                            name: id.to_owned(),
                            sandbox_id: SandboxId::new("s"),
                            state: match state {
                                "running" => ListedContainerState::Running,
                                "exited" => ListedContainerState::Exited,
                                "created" => ListedContainerState::Created,
                                _ => ListedContainerState::Unknown,
                            },
                            created_at: Timestamp::UNIX_EPOCH,
                            attempt: 0,
                        });
                    }
                }
                (pod_ref.uid.clone(), entry)
            })
            .collect()
    }

    fn check(old: &str, new: &str, expected: &str) {
        let found = diff_pods(&list(old), &list(new))
            .into_iter()
            .map(|(uid, (_, changes))| format!("{uid}: {changes:?}"))
            .collect::<Vec<_>>()
            .join("; ");
        assert_eq!(found, expected, "{old} -> {new}");
    }

    #[test]
    fn changes_between_two_lists() {
        check("a: s=ready c=running", "a: s=ready c=running", "");
        check("", "a: s=ready c=running", "a: [Started]");
        check("a: s=ready c=running", "a: s=ready c=exited", "a: [Died]");
        check("a: s=ready c=running", "a: s=ready", "a: [Died, Removed]");
        check("a: s=ready c=exited", "a: s=ready", "a: [Removed]");
        check("a: s=ready", "a: s=ready c=created", "a: [Changed]");
        check("a: s=ready c=running", "", "a: [Died, Removed]");
        check("a: s=gone c=exited", "", "a: [Removed]");
        check("a: s=ready; b: s=ready", "a: s=notready; b: s=ready", "a: [Died]");
        check("a: c=running", "a: c=unknown", "a: [Changed]");
    }
}
