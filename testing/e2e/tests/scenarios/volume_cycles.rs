//! Volumes that come and go, and leave nothing behind.

use std::fs;

use anyhow::Context;
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, Runtime, RuntimeKind, wait_for};
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{on_node, start_kubelet, wait_until_ready};

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "volumes_come_and_go_and_leave_nothing_behind",
    runtimes: &[RuntimeKind::Built],
    run: volumes_come_and_go_and_leave_nothing_behind,
}];

/// How many pods come and go; all of them in the number of this variable.
const CYCLES: &str = "RUBELET_VOLUME_CYCLES";
const USUAL_CYCLES: usize = 10;
const AT_ONCE: usize = 10;

/// What a node has that volumes might leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Belongings {
    mounts: usize,
    directories: usize,
    descriptors: usize,
}

impl Belongings {
    fn of(runtime: &Runtime, kubelet: &KubeletProcess) -> anyhow::Result<Self> {
        let mounts = on_node(runtime, "wc -l </proc/self/mountinfo")?;
        let fds = format!("/proc/{}/fd", kubelet.pid());
        Ok(Self {
            mounts: mounts.parse().context("no number of mounts")?,
            directories: fs::read_dir(kubelet.root_dir().join("pods"))?.count(),
            descriptors: fs::read_dir(fds)?.count(),
        })
    }
}

fn of_all_kinds(name: &str, host_path: &str) -> Value {
    let container = with(
        json!({ "volumeMounts": [
            { "name": "disk", "mountPath": "/disk" },
            { "name": "disk", "mountPath": "/part", "subPath": "part" },
            { "name": "memory", "mountPath": "/memory" },
            { "name": "memory", "mountPath": "/half", "subPath": "half" },
            { "name": "about", "mountPath": "/about" },
            { "name": "all", "mountPath": "/all" },
            { "name": "host", "mountPath": "/host" },
            { "name": "host", "mountPath": "/of-host", "subPath": name },
        ] }),
        busybox("app", "echo it >/part/file; echo it >/half/file; exec sleep 3600"),
    );
    let labels = json!([{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }]);
    let spec = json!({
        "terminationGracePeriodSeconds": 0,
        "hostNetwork": true,
        "securityContext": { "fsGroup": 2000 },
        "containers": [container],
        "volumes": [
            { "name": "disk", "emptyDir": {} },
            { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
            { "name": "about", "downwardAPI": { "items": labels } },
            { "name": "all", "projected": { "sources": [{ "downwardAPI": { "items": labels } }] } },
            { "name": "host", "hostPath": { "path": host_path, "type": "DirectoryOrCreate" } },
        ],
    });
    pod(name, spec)
}

fn volumes_come_and_go_and_leave_nothing_behind(stage: &Stage) -> anyhow::Result<()> {
    let wanted = std::env::var(CYCLES).ok().map(|text| text.parse::<usize>()).transpose()?;
    let cycles = wanted.unwrap_or(USUAL_CYCLES);
    let kubelet = start_kubelet(stage, json!({}))?;
    let runtime = stage.runtime();
    let host = runtime.dir().join(format!("host-{}", stage.kubelet_options().node_name));
    let host = host.to_str().context("a path that is no text")?.to_owned();
    let run = |round: usize| -> anyhow::Result<()> {
        let names: Vec<String> = (0..AT_ONCE).map(|index| format!("p{round}-{index}")).collect();
        names.iter().try_for_each(|name| kubelet.write_pod(&of_all_kinds(name, &host)))?;
        names.iter().try_for_each(|name| wait_until_ready(&kubelet, name).map(drop))?;
        names.iter().try_for_each(|name| kubelet.remove_pod(name))?;
        names.iter().try_for_each(|name| kubelet.wait_until_gone(name, WAIT))
    };
    // What is opened once and kept is opened before the count.
    run(0)?;
    let settled = |before: Option<&Belongings>| {
        wait_for("nothing to be left", WAIT, || {
            let now = Belongings::of(runtime, &kubelet).map_err(|error| format!("{error:#}"))?;
            let grew = before.is_some_and(|before| {
                // A connection or two may be open at any moment.
                now.mounts != before.mounts || now.descriptors > before.descriptors + 4
            });
            if now.directories == 0 && !grew {
                Ok(now)
            } else {
                Err(format!("{now:?}, {before:?}"))
            }
        })
    };
    let before = settled(None)?;
    (1..=cycles.div_ceil(AT_ONCE)).try_for_each(run)?;
    let after = settled(Some(&before))?;
    println!("{cycles} pods came and went: {before:?} before, {after:?} after");
    // What the node itself has is still there.
    let kept = fs::read_dir(&host)?.count();
    assert_eq!(kept, AT_ONCE * (cycles.div_ceil(AT_ONCE) + 1));
    Ok(())
}
