//! Pods that ask for what cannot be, and objects as large as they may be.

use anyhow::ensure;
use rubelet_e2e::PodView;
use rubelet_e2e::manifest::{busybox, with};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, id_of_app, pod};
use crate::{Ground, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    pods_that_cannot_be_say_why_and_disturb_nobody,
    objects_as_large_as_they_may_be_reach_their_pods,
];

/// A pod that cannot run, and where it says so.
struct Impossible {
    name: &'static str,
    spec: Value,
    /// The reason in its status: of the pod, or of its container's state.
    reason: &'static str,
    /// The reason of an event, and what is in its text.
    event: (&'static str, &'static str),
}

fn impossible() -> Vec<Impossible> {
    let container = |more: Value| json!({ "containers": [with(busybox("app", "exit 0"), more)] });
    let one = |name, spec, reason, event| Impossible { name, spec, reason, event };
    let sysctl = json!([{ "name": "net.core.no_such_thing", "value": "1" }]);
    let long = "x".repeat(200_000);
    vec![
        one(
            "image",
            container(json!({ "image": "Not/An:Image:At:All" })),
            "InvalidImageName",
            ("InspectFailed", "Failed to apply default image tag"),
        ),
        one(
            "command",
            container(json!({ "command": ["/no/such/file"] })),
            "StartError",
            ("Failed", "/no/such/file"),
        ),
        one(
            "variable",
            // The kernel refuses it when all is set up already: it ends like any program.
            container(json!({ "env": [{ "name": "LONG", "value": long }] })),
            "Error",
            ("BackOff", "Back-off restarting failed container app"),
        ),
        one(
            "root",
            container(json!({ "securityContext": { "runAsNonRoot": true } })),
            "CreateContainerConfigError",
            ("Failed", "container has runAsNonRoot and image will run as root"),
        ),
        one(
            "sysctl",
            with(container(json!({})), json!({ "securityContext": { "sysctls": sysctl } })),
            "SysctlForbidden",
            ("SysctlForbidden", "forbidden sysctl: \"net.core.no_such_thing\" not allowlisted"),
        ),
        one(
            "directory",
            with(
                container(json!({ "volumeMounts": [{ "name": "file", "mountPath": "/file" }] })),
                json!({ "volumes": [
                    { "name": "file", "hostPath": { "path": "/etc", "type": "File" } },
                ] }),
            ),
            "ContainerCreating",
            ("FailedMount", "hostPath type check failed: /etc is not a file"),
        ),
    ]
}

/// Every reason that a pod's status gives.
fn reasons(pod: &PodView) -> Vec<String> {
    let status = &pod.raw["status"];
    let containers = status["containerStatuses"].as_array().cloned().unwrap_or_default();
    let states = containers.iter().flat_map(|container| {
        [&container["state"], &container["lastState"]]
            .into_iter()
            .flat_map(|state| ["waiting", "terminated"].map(|kind| state[kind]["reason"].clone()))
    });
    let all = std::iter::once(status["reason"].clone()).chain(states);
    all.filter_map(|reason| reason.as_str().map(str::to_owned)).collect()
}

fn pods_that_cannot_be_say_why_and_disturb_nobody(stage: &mut Stage) -> anyhow::Result<()> {
    let good = json!({ "containers": [busybox("app", "exec sleep 3600")] });
    stage.create_pod(&pod("good", good))?;
    stage.wait_until_ready("good")?;
    let before = stage.wait_until_at_rest()?;
    let all = impossible();
    for one in &all {
        let spec = with(one.spec.clone(), json!({ "nodeName": "node-1" }));
        stage.create_pod(&pod(one.name, spec))?;
    }
    for Impossible { name, reason, event: (event, text), .. } in &all {
        let says_so = |pod: &PodView| reasons(pod).iter().any(|found| found == reason);
        stage.wait_for_pod(name, &format!("in the state {reason}"), says_so)?;
        stage.wait_for_event(name, event, text)?;
    }
    // Nobody else noticed, the kubelet least of all.
    let later = json!({ "containers": [busybox("app", "exec sleep 3600")] });
    stage.create_pod(&pod("later", later))?;
    stage.wait_until_ready("later")?;
    ensure!(stage.kubelet_mut(0).ended()?.is_none(), "the kubelet ended");
    ensure!(stage.versions()?.get("good") == before.get("good"), "the good pod was written");
    for Impossible { name, .. } in &all {
        stage.kubectl(&["delete", "pod", name, "--timeout=120s"])?;
    }
    Ok(())
}

fn objects_as_large_as_they_may_be_reach_their_pods(stage: &mut Stage) -> anyhow::Result<()> {
    // The limits are 1 MiB of data and 256 KiB of annotations.
    let (data, text) = ("x".repeat((1 << 20) - 100), "y".repeat(250_000));
    let settings = json!({ "metadata": { "name": "large" }, "data": { "key": data } });
    stage.create(&stage.path("configmaps"), &settings)?;
    let variables: Vec<Value> = (0..500)
        .map(|number| json!({ "name": format!("E{number}"), "value": "z".repeat(1000) }))
        .collect();
    let checks = "\
        [ $(wc -c </large/key) = 1048476 ] || exit 11
        [ $(wc -c </about/annotations) -gt 250000 ] || exit 12
        [ ${#E0} = 1000 ] && [ ${#E499} = 1000 ] || exit 13
        touch /tmp/seen; exec sleep 3600";
    let seen = json!({ "exec": { "command": ["test", "-e", "/tmp/seen"] }, "periodSeconds": 1 });
    let container = with(
        busybox("app", checks),
        json!({
            "env": variables,
            "readinessProbe": seen,
            "volumeMounts": [
                { "name": "large", "mountPath": "/large" },
                { "name": "about", "mountPath": "/about" },
            ],
        }),
    );
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            { "name": "large", "configMap": { "name": "large" } },
            { "name": "about", "downwardAPI": { "items": [
                { "path": "annotations", "fieldRef": { "fieldPath": "metadata.annotations" } },
            ] } },
        ],
    });
    let mut large = pod("large", spec);
    large["metadata"]["annotations"] = json!({ "example.com/text": text });
    stage.create_pod(&large)?;
    let ready = stage.wait_until_ready("large")?;

    // It is found again as it was.
    let before = stage.wait_until_at_rest()?;
    stage.kubelet_mut(0).sigkill()?;
    stage.kubelet_mut(0).start_again()?;
    stage.wait_for_renewals(3)?;
    let after = stage.wait_until_ready("large")?;
    ensure!(id_of_app(&after)? == id_of_app(&ready)?, "{}", after.raw["status"]);
    ensure!(stage.versions()?.get("large") == before.get("large"), "it was written");
    Ok(())
}
