//! Pods with users of their own.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, RuntimeKind};
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{start_kubelet, wait_until_ready};

/// What a runtime that has them is asked for in each case is checked beside the kubelet
/// (`tests/user_namespaces.rs`).
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "pods_with_users_of_their_own_share_none_and_see_their_volumes_as_root",
        runtimes: &[RuntimeKind::Built],
        run: pods_with_users_of_their_own_share_none_and_see_their_volumes_as_root,
    },
    Scenario {
        name: "a_pod_with_users_of_its_own_is_refused_where_the_runtime_has_none",
        runtimes: &[RuntimeKind::Debian],
        run: a_pod_with_users_of_its_own_is_refused_where_the_runtime_has_none,
    },
];

/// How many ids each such pod has.
const IDS: u64 = 65_536;

/// A pod that says how the node sees its users, and as whose it sees the files of its volumes.
fn with_own_users(name: &str) -> Value {
    let script = "touch /data/mine; cat /proc/self/uid_map /proc/self/gid_map; \
                  stat -c 'owner %u %g' /data/mine /info/name; cat /info/name; echo; echo done; \
                  exec sleep 3600";
    let mut app = busybox("app", script);
    app["volumeMounts"] = json!([
        { "name": "data", "mountPath": "/data" },
        { "name": "info", "mountPath": "/info" }
    ]);
    let name_file = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
    pod(
        name,
        json!({
            "hostUsers": false,
            "volumes": [
                { "name": "data", "emptyDir": {} },
                { "name": "info", "downwardAPI": { "items": [name_file] } }
            ],
            "containers": [app]
        }),
    )
}

/// The first id of the node that the pod uses, from what it says of itself.
fn first_id(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<u64> {
    let view = wait_until_ready(kubelet, name)?;
    let log = kubelet.wait_for_log(&view, "app", "done", WAIT)?;
    let numbers = |line: &String| -> Vec<u64> {
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let [uids, gids, mine, info, said, ..] = log.as_slice() else {
        anyhow::bail!("it said only {log:?}");
    };
    let uids = numbers(uids);
    ensure!(uids == numbers(gids), "uids {uids:?}, gids {gids}");
    let &[0, first, IDS] = uids.as_slice() else { anyhow::bail!("its ids are {uids:?}") };
    ensure!(first >= IDS && first % IDS == 0, "its ids begin at {first}");
    ensure!(numbers(mine) == [0, 0], "its own file is {mine:?}");
    ensure!(numbers(info) == [0, 0], "the downward API's file is {info:?}");
    ensure!(*said == view.name, "it reads {said:?}");
    Ok(first)
}

fn pods_with_users_of_their_own_share_none_and_see_their_volumes_as_root(
    stage: &Stage,
) -> anyhow::Result<()> {
    let mut kubelet = start_kubelet(stage, json!({}))?;
    for name in ["one", "two"] {
        kubelet.write_pod(&with_own_users(name))?;
    }
    let (one, two) = (first_id(&kubelet, "one")?, first_id(&kubelet, "two")?);
    ensure!(one != two, "both use {one}");

    // A kubelet that starts anew knows which ids are taken.
    kubelet.restart()?;
    kubelet.write_pod(&with_own_users("three"))?;
    let three = first_id(&kubelet, "three")?;
    ensure!(![one, two].contains(&three), "{three} is of another pod");
    let restarts: u64 = kubelet.pods()?.iter().map(|pod| pod.restarts()).sum();
    ensure!(restarts == 0, "{restarts} restarts");
    let file = kubelet
        .root_dir()
        .join("pods")
        .join(wait_until_ready(&kubelet, "one")?.uid)
        .join("volumes/kubernetes.io~empty-dir/data/mine");
    let on_node = std::os::unix::fs::MetadataExt::uid(
        &std::fs::metadata(&file).with_context(|| format!("no {}", file.display()))?,
    );
    ensure!(on_node == 0, "on the node the file belongs to {on_node}: its ids were not mapped");
    Ok(())
}

fn a_pod_with_users_of_its_own_is_refused_where_the_runtime_has_none(
    stage: &Stage,
) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let spec = json!({ "hostUsers": false, "containers": [busybox("app", "exec sleep 3600")] });
    kubelet.write_pod(&pod("alone", spec))?;
    let text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    kubelet.wait_for_event("alone", "FailedCreatePodSandBox", text, WAIT).map(drop)
}
