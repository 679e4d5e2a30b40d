//! Volumes that a node has of its own, and how containers see them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, PodView, Runtime, RuntimeKind, kill_container, wait_for};
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{
    exec, on_node, read_facts, run_pod, start_kubelet, tell, telling, wait_for_refusal,
    wait_until_ready,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "an_empty_dir_is_shared_by_its_pod_and_ends_with_it",
        runtimes: &RuntimeKind::ALL,
        run: an_empty_dir_is_shared_by_its_pod_and_ends_with_it,
    },
    Scenario {
        name: "a_host_path_is_what_its_type_says",
        runtimes: &RuntimeKind::ALL,
        run: a_host_path_is_what_its_type_says,
    },
    Scenario {
        name: "mounts_propagate_as_the_volume_mount_says",
        runtimes: &RuntimeKind::ALL,
        run: mounts_propagate_as_the_volume_mount_says,
    },
    Scenario {
        name: "a_sub_path_shows_one_part_of_a_volume_and_nothing_outside",
        runtimes: &RuntimeKind::ALL,
        run: a_sub_path_shows_one_part_of_a_volume_and_nothing_outside,
    },
    Scenario {
        name: "a_read_only_mount_is_so_as_deep_as_its_spec_says",
        runtimes: &RuntimeKind::ALL,
        run: a_read_only_mount_is_so_as_deep_as_its_spec_says,
    },
];

fn an_empty_dir_is_shared_by_its_pod_and_ends_with_it(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let runtime = stage.runtime();
    let manifest = format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: shared}}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {{name: disk, emptyDir: {{}}}}
  - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 8Mi}}}}
  - {{name: large, emptyDir: {{medium: Memory, sizeLimit: 1Gi}}}}
  containers:
  - name: writer
    image: busybox
    imagePullPolicy: Never
    command: {write}
    resources: {{limits: {{memory: 64Mi}}}}
    volumeMounts: &mounts
    - {{name: disk, mountPath: /disk}}
    - {{name: memory, mountPath: /memory}}
    - {{name: large, mountPath: /large}}
  - name: reader
    image: busybox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    resources: {{limits: {{memory: 64Mi}}}}
    volumeMounts:
    - {{name: disk, mountPath: /elsewhere, readOnly: true}}
    - {{name: memory, mountPath: /memory}}
"#,
        write = tell(
            "for dir in /disk /memory; do echo run >>$dir/runs; done
             stat -c 'mode=%a' /disk"
        )
    );
    let manifest = manifest.replace(" &mounts", "");
    let pod = run_pod(&kubelet, "shared", &manifest)?;
    let facts = read_facts(&kubelet, &pod, "writer")?;
    assert_eq!(&facts["mode"], "777");
    let read = |pod: &PodView, file: &str| exec(runtime, pod, "reader", &format!("cat {file}"));
    assert_eq!(read(&pod, "/elsewhere/runs")?, "run");
    assert_eq!(read(&pod, "/memory/runs")?, "run");
    let refused = exec(runtime, &pod, "reader", "touch /elsewhere/mine")?;
    assert!(refused.contains("Read-only file system"), "{refused}");
    let size = |at: &str| {
        exec(runtime, &pod, "writer", &format!("df -k {at} | awk 'NR == 2 {{ print $1, $2 }}'"))
    };
    assert_eq!(size("/memory")?, "tmpfs 8192");
    assert_eq!(size("/large")?, "tmpfs 131072", "no larger than the pod may be");
    let full = exec(runtime, &pod, "writer", "dd if=/dev/zero of=/memory/zero bs=1M count=9")?;
    assert!(full.contains("No space left on device"), "{full}");

    // A container that ends leaves its pod's volumes as they are.
    let id = &pod.container("writer").context("no status")?.id;
    assert!(kill_container(runtime.cgroup(), id) > 0);
    let pod = kubelet.wait_for_pod("shared", "running again", WAIT, |pod| {
        pod.ready && pod.container("writer").is_some_and(|writer| writer.restarts == 1)
    })?;
    wait_for("two runs", WAIT, || {
        let found = (read(&pod, "/elsewhere/runs"), read(&pod, "/memory/runs"));
        match found {
            (Ok(disk), Ok(memory)) if disk == "run\nrun" && memory == disk => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;

    let on_disk = kubelet.root_dir().join("pods").join(&pod.uid);
    assert!(on_disk.join("volumes/kubernetes.io~empty-dir/disk/runs").exists());
    kubelet.remove_manifest("shared.yaml")?;
    kubelet.wait_until_gone("shared", WAIT)?;
    wait_until_nothing_is_left(&kubelet, runtime, &pod)
}

/// Waits until no directory and no mount of the pod is there any more.
fn wait_until_nothing_is_left(
    kubelet: &KubeletProcess,
    runtime: &Runtime,
    pod: &PodView,
) -> anyhow::Result<()> {
    let dir = kubelet.root_dir().join("pods").join(&pod.uid);
    wait_for(&format!("everything of {} to be gone", pod.name), WAIT, || {
        let mounts = on_node(runtime, &format!("grep {} /proc/self/mountinfo || :", pod.uid))
            .map_err(|error| format!("{error:#}"))?;
        match (mounts.is_empty(), dir.exists()) {
            (true, false) => Ok(()),
            (_, exists) => Err(format!("directory: {exists}; mounts: {mounts}")),
        }
    })
}

/// A directory on the node for one scenario.
fn make_dir(stage: &Stage) -> anyhow::Result<PathBuf> {
    let dir = stage.runtime().dir().join(format!("of-{}", stage.kubelet_options().node_name));
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

fn a_host_path_is_what_its_type_says(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let runtime = stage.runtime();
    let dir = make_dir(stage)?;
    let at = |name: &str| dir.join(name).display().to_string();
    fs::create_dir_all(dir.join("directory"))?;
    fs::write(dir.join("file"), "of the node")?;
    let _listener = UnixListener::bind(dir.join("socket"))?;
    on_node(runtime, &format!("mknod {} b 7 99", at("block")))?;

    let volumes: Vec<(&str, String, &str)> = vec![
        ("untyped", at("directory"), ""),
        ("directory", at("directory"), "Directory"),
        ("made-directory", at("made/deep/directory"), "DirectoryOrCreate"),
        ("old-directory", at("directory"), "DirectoryOrCreate"),
        ("file", at("file"), "File"),
        ("made-file", at("made-file"), "FileOrCreate"),
        ("old-file", at("file"), "FileOrCreate"),
        ("socket", at("socket"), "Socket"),
        ("char", "/dev/null".to_owned(), "CharDevice"),
        ("block", at("block"), "BlockDevice"),
    ];
    let script = "for at in /v/*; do echo \"${at#/v/}=$(stat -c '%F' $at)\"; done";
    kubelet.write_manifest("right.yaml", &host_path_pod("right", script, &volumes))?;
    let wrong: Vec<(&str, String, &str)> = vec![
        ("directory", at("late-directory"), "Directory"),
        ("made-directory", at("late-file"), "DirectoryOrCreate"),
        ("file", at("directory"), "File"),
        ("made-file", at("directory"), "FileOrCreate"),
        ("socket", at("late-socket"), "Socket"),
        ("char", at("file"), "CharDevice"),
        ("block", "/dev/null".to_owned(), "BlockDevice"),
    ];
    fs::write(dir.join("late-file"), "")?;
    kubelet.write_manifest("wrong.yaml", &host_path_pod("wrong", "", &wrong))?;
    let late: Vec<(&str, String, &str)> = vec![
        ("directory", at("late-directory"), "Directory"),
        ("socket", at("late-socket"), "Socket"),
    ];
    kubelet.write_manifest("late.yaml", &host_path_pod("late", "", &late))?;

    let pod = wait_until_ready(&kubelet, "right")?;
    let facts = read_facts(&kubelet, &pod, "app")?;
    for (name, expected) in [
        ("untyped", "directory"),
        ("directory", "directory"),
        ("made-directory", "directory"),
        ("old-directory", "directory"),
        ("file", "regular file"),
        ("made-file", "regular empty file"),
        ("old-file", "regular file"),
        ("socket", "socket"),
        ("char", "character special file"),
        ("block", "block special file"),
    ] {
        assert_eq!(&facts[name], expected, "{name}");
    }
    let mode = |name: &str| -> anyhow::Result<u32> {
        Ok(fs::metadata(dir.join(name))?.permissions().mode() & 0o7777)
    };
    assert_eq!((mode("made/deep/directory")?, mode("made-file")?), (0o755, 0o644));
    exec(runtime, &pod, "app", "echo from the pod >/v/made-file")?;
    assert_eq!(fs::read_to_string(dir.join("made-file"))?, "from the pod\n");

    let mut told = Vec::new();
    for (name, path, _) in &wrong {
        let noun = match *name {
            "directory" | "made-directory" => "directory",
            "file" | "made-file" => "file",
            "socket" => "socket file",
            "char" => "character device",
            _ => "block device",
        };
        told.push(format!(
            "MountVolume.SetUp failed for volume \"{name}\" : hostPath type check failed: {path} \
             is not a {noun}"
        ));
    }
    for text in told {
        kubelet.wait_for_event("wrong", "FailedMount", &text, WAIT)?;
    }
    let pod = kubelet.pod("wrong")?.context("no pod")?;
    let app = pod.container("app").context("no status")?;
    assert_eq!((app.state.as_str(), app.reason.as_str()), ("waiting", "ContainerCreating"));
    assert_eq!(pod.phase, "Pending");

    // What was missing may still come.
    kubelet.wait_for_event("late", "FailedMount", "late-socket is not a socket file", WAIT)?;
    fs::create_dir(dir.join("late-directory"))?;
    let _late = UnixListener::bind(dir.join("late-socket"))?;
    wait_until_ready(&kubelet, "late")?;

    // The volumes of a pod that goes are not the pod's.
    for name in ["right", "wrong", "late"] {
        kubelet.remove_manifest(&format!("{name}.yaml"))?;
        kubelet.wait_until_gone(name, WAIT)?;
    }
    wait_until_nothing_is_left(&kubelet, runtime, &pod)?;
    assert_eq!(fs::read_to_string(dir.join("file"))?, "of the node");
    assert!(dir.join("made/deep/directory").is_dir());
    Ok(())
}

/// A pod with volumes of a name, a path and a type, each at `/v/NAME`.
fn host_path_pod(name: &str, script: &str, volumes: &[(&str, String, &str)]) -> String {
    let mounts: Vec<Value> = volumes
        .iter()
        .map(|(name, ..)| json!({ "name": name, "mountPath": format!("/v/{name}") }))
        .collect();
    let volumes: Vec<Value> = volumes
        .iter()
        .map(|(name, path, kind)| json!({ "name": name, "hostPath": { "path": path, "type": kind } }))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": volumes,
            "containers": [{
                "name": "app", "image": "busybox", "imagePullPolicy": "Never",
                "command": ["sh", "-c", telling(script)], "volumeMounts": mounts
            }]
        }
    })
    .to_string()
}

fn mounts_propagate_as_the_volume_mount_says(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let runtime = stage.runtime();
    let dir = make_dir(stage)?.join("shared");
    let container = |name: &str, propagation: &str, privileged: bool| {
        json!({
            "name": name, "image": "busybox", "imagePullPolicy": "Never",
            "command": ["sleep", "3600"],
            "securityContext": { "privileged": privileged },
            "volumeMounts": [{
                "name": "shared", "mountPath": "/shared", "mountPropagation": propagation
            }]
        })
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mounts" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": [{
                "name": "shared", "hostPath": { "path": dir, "type": "DirectoryOrCreate" }
            }],
            "containers": [
                container("none", "None", false),
                container("down", "HostToContainer", false),
                container("both", "Bidirectional", true),
            ]
        }
    });
    let pod = run_pod(&kubelet, "mounts", &pod.to_string())?;
    let mount = |on: &str, name: &str| {
        format!("mkdir {on}/{name} && mount -t tmpfs {name} {on}/{name} && touch {on}/{name}/it")
    };
    let of_node = dir.display().to_string();
    on_node(runtime, &mount(&of_node, "of-node"))?;
    let failed = exec(runtime, &pod, "both", &mount("/shared", "of-both"))?;
    assert_eq!(failed, "", "a privileged container may mount");
    let seen = |container: &str| exec(runtime, &pod, container, "cd /shared && echo */it");
    let found = (
        seen("none")?,
        seen("down")?,
        seen("both")?,
        on_node(runtime, &format!("cd {of_node} && echo */it"))?,
    );
    // Whatever was found: these mounts must not outlive the test.
    let undo = format!("cd {of_node} && umount of-both of-node; rmdir *");
    on_node(runtime, &undo)?;
    let all = "of-both/it of-node/it";
    assert_eq!(found, ("*/it".into(), all.into(), all.into(), all.into()));
    Ok(())
}

fn a_sub_path_shows_one_part_of_a_volume_and_nothing_outside(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let runtime = stage.runtime();
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: parts}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, emptyDir: {}}]
  initContainers:
  - name: prepare
    image: busybox
    imagePullPolicy: Never
    command: [sh, -c, "cd /data && mkdir dir && echo one >file && echo two >dir/deep && ln -s dir inside && ln -s /etc outside && ln -s ../.. above && ln -s dir/deep link"]
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - name: good
    image: busybox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    env:
    - {name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    volumeMounts:
    - {name: data, mountPath: /all}
    - {name: data, mountPath: /m/file, subPath: file}
    - {name: data, mountPath: /m/dir, subPath: dir}
    - {name: data, mountPath: /m/inside, subPath: inside}
    - {name: data, mountPath: /m/link, subPath: link}
    - {name: data, mountPath: /m/made, subPath: made/a/b}
    - {name: data, mountPath: /m/own, subPathExpr: "of/$(WHO)"}
    - {name: data, mountPath: /m/frozen, subPath: dir, readOnly: true}
  - name: outside
    image: busybox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    volumeMounts: [{name: data, mountPath: /m, subPath: outside}]
  - name: above
    image: busybox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    volumeMounts: [{name: data, mountPath: /m, subPath: above}]
  - name: unknown
    image: busybox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    volumeMounts: [{name: data, mountPath: /m, subPathExpr: "of/$(NOBODY)"}]
"#;
    kubelet.write_manifest("parts.yaml", manifest)?;
    let running = |name: &'static str| {
        move |pod: &PodView| pod.container(name).is_some_and(|container| container.is_running())
    };
    let pod = kubelet.wait_for_pod("parts", "running in part", WAIT, running("good"))?;
    let script = "cat /m/file /m/dir/deep /m/inside/deep /m/link; \
                  stat -c '%F' /m/made /m/own; touch /m/own/it /m/made/it; \
                  ls /all/of/*/it /all/made/a/b/it; touch /m/frozen/it";
    assert_eq!(
        exec(runtime, &pod, "good", script)?,
        format!(
            "one\ntwo\ntwo\ntwo\ndirectory\ndirectory\n/all/made/a/b/it\n/all/of/{}/it\n\
             touch: /m/frozen/it: Read-only file system",
            pod.name
        )
    );
    let reason = "CreateContainerConfigError";
    for container in ["outside", "above"] {
        let message = wait_for_refusal(&kubelet, "parts", container, reason)?;
        let text = format!(
            "failed to prepare subPath for volumeMount \"data\" of container \"{container}\""
        );
        assert_eq!(message, text);
        kubelet.wait_for_event("parts", "Failed", &format!("Error: {text}"), WAIT)?;
    }
    let message = wait_for_refusal(&kubelet, "parts", "unknown", reason)?;
    assert_eq!(message, "missing value for NOBODY");

    // A second run of the container finds the same parts.
    let id = &pod.container("good").context("no status")?.id;
    assert!(kill_container(runtime.cgroup(), id) > 0);
    let pod = kubelet.wait_for_pod("parts", "running again", WAIT, |pod| {
        pod.container("good").is_some_and(|good| good.is_running() && good.restarts == 1)
    })?;
    let script = "cat /m/file; ls /m/own /m/made";
    assert_eq!(exec(runtime, &pod, "good", script)?, "one\n/m/made:\nit\n\n/m/own:\nit");

    kubelet.remove_manifest("parts.yaml")?;
    kubelet.wait_until_gone("parts", WAIT)?;
    wait_until_nothing_is_left(&kubelet, runtime, &pod)
}

fn a_read_only_mount_is_so_as_deep_as_its_spec_says(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let runtime = stage.runtime();
    let dir = make_dir(stage)?;
    let below = dir.join("below");
    fs::create_dir(&below)?;
    on_node(runtime, &format!("mount -t tmpfs below {}", below.display()))?;
    let checked = check_depth(stage, &kubelet, &dir);
    on_node(runtime, &format!("umount -l {}", below.display()))?;
    checked
}

fn check_depth(stage: &Stage, kubelet: &KubeletProcess, dir: &Path) -> anyhow::Result<()> {
    let container = |name: &str, depth: &str| {
        json!({
            "name": name, "image": "busybox", "imagePullPolicy": "Never",
            "command": ["sleep", "3600"],
            "volumeMounts": [{
                "name": "data", "mountPath": "/data", "readOnly": true, "recursiveReadOnly": depth
            }]
        })
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "depth" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "data", "hostPath": { "path": dir } }],
            "containers": [
                container("shallow", "Disabled"),
                container("possible", "IfPossible"),
                container("deep", "Enabled"),
            ]
        }
    });
    kubelet.write_manifest("depth.yaml", &pod.to_string())?;
    let supported = stage.runtime().kind() == RuntimeKind::Built;
    let pod = kubelet.wait_for_pod("depth", "as far as it can be", WAIT, |pod| {
        let running = |name: &str| pod.container(name).is_some_and(|status| status.is_running());
        running("shallow") && running("possible") && (!supported || running("deep"))
    })?;
    let write = |container: &str| {
        exec(stage.runtime(), &pod, container, "touch /data/it; touch /data/below/it; echo end")
    };
    let top = "touch: /data/it: Read-only file system\n";
    let both = format!("{top}touch: /data/below/it: Read-only file system\nend");
    assert_eq!(write("shallow")?, format!("{top}end"));
    if supported {
        assert_eq!((write("possible")?, write("deep")?), (both.clone(), both));
        let status = |name: &str| {
            let statuses = pod.raw["status"]["containerStatuses"].as_array();
            statuses
                .into_iter()
                .flatten()
                .find(|status| status["name"] == name)
                .map(|status| status["volumeMounts"][0]["recursiveReadOnly"].clone())
        };
        assert_eq!(status("possible"), Some(json!("Enabled")));
        return Ok(());
    }
    assert_eq!(write("possible")?, format!("{top}end"));
    let message = wait_for_refusal(kubelet, "depth", "deep", "CreateContainerConfigError")?;
    assert!(message.contains("not supported"), "{message}");
    Ok(())
}
