//! What a container is started with, and what the runtime knows of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{PodView, RuntimeKind, kill_container, wait_for};
use rubelet_types::{ContainerId, SandboxId};
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{on_node, read_facts, run_pod, tell, telling};
use crate::runtime::with_cri;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a_container_gets_the_command_and_environment_of_its_spec",
        runtimes: &RuntimeKind::ALL,
        run: a_container_gets_the_command_and_environment_of_its_spec,
    },
    Scenario {
        name: "the_runtime_shows_the_labels_annotations_and_log_path_of_upstream",
        runtimes: &RuntimeKind::ALL,
        run: the_runtime_shows_the_labels_annotations_and_log_path_of_upstream,
    },
];

const SHOW_START: &str = r#"
echo "first=$1"; echo "second=$2"; echo "third=$3"; echo "fourth=$4"
echo "directory=$(pwd)"
env
"#;

const SHOW_STREAMS: &str = r#"
[ -t 1 ] && echo output=terminal || echo output=no-terminal
echo "input=$(readlink /proc/self/fd/0)"
"#;

fn a_container_gets_the_command_and_environment_of_its_spec(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let resource = |resource: &str, container: &str, divisor: &str| {
        let mut selector = json!({ "resource": resource });
        if !container.is_empty() {
            selector["containerName"] = json!(container);
        }
        if !divisor.is_empty() {
            selector["divisor"] = json!(divisor);
        }
        json!({ "resourceFieldRef": selector })
    };
    let value = |name: &str, value: &str| json!({ "name": name, "value": value });
    let from = |name: &str, source: Value| json!({ "name": name, "valueFrom": source });
    let environment = json!([
        value("GREETING", "hello"),
        value("WHOM", "first"),
        value("WHOM", "world"),
        value("SENTENCE", "$(GREETING), $(WHOM)"),
        value("ESCAPED", "$$(GREETING)"),
        value("TOO_EARLY", "$(LATER)"),
        value("LATER", "now"),
        from("POD", field("metadata.name")),
        from("NAMESPACE", field("metadata.namespace")),
        from("UID", field("metadata.uid")),
        from("TIER", field("metadata.labels['tier']")),
        from("NOTE", field("metadata.annotations['example.org/note']")),
        from("NODE", field("spec.nodeName")),
        from("POD_IP", field("status.podIP")),
        from("POD_IPS", field("status.podIPs")),
        from("HOST_IP", field("status.hostIP")),
        from("HOST_IPS", field("status.hostIPs")),
        from("CPU_MILLI", resource("limits.cpu", "", "1m")),
        from("CPU_UP", resource("limits.cpu", "", "")),
        from("MEMORY_MI", resource("requests.memory", "", "1Mi")),
        from("OTHERS_MEMORY", resource("limits.memory", "streams", "")),
        from("OTHERS_CPU", resource("requests.cpu", "streams", "1m")),
        from("NODES_MEMORY", resource("limits.memory", "terminal", "")),
        from("NODES_CPU", resource("limits.cpu", "terminal", "")),
    ]);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "words",
            "labels": { "tier": "front" },
            "annotations": { "example.org/note": "with \"quotes\"" }
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "words", "image": "busybox", "imagePullPolicy": "Never",
                    "command": ["sh", "-c", telling(SHOW_START), "$(GREETING)"],
                    "args": ["$(SENTENCE)", "$$(GREETING)", "$(UNKNOWN)", "a b"],
                    "workingDir": "/srv/work",
                    "env": environment,
                    "resources": {
                        "requests": { "memory": "16Mi" },
                        "limits": { "cpu": "500m", "memory": "32Mi" }
                    }
                },
                {
                    // The image's entrypoint is a shell, its user 1234.
                    "name": "image", "image": "localhost/rubelet/nonroot:1",
                    "imagePullPolicy": "Never",
                    "args": [telling("echo user=$(id -u); echo directory=$(pwd); env")]
                },
                {
                    "name": "streams", "image": "busybox", "imagePullPolicy": "Never",
                    "command": ["sh", "-c", telling(SHOW_STREAMS)],
                    "resources": { "requests": { "cpu": "10m" }, "limits": { "memory": "32Mi" } }
                },
                {
                    "name": "terminal", "image": "busybox", "imagePullPolicy": "Never",
                    "command": ["sh", "-c", telling(SHOW_STREAMS)], "stdin": true, "tty": true
                },
                {
                    "name": "input", "image": "busybox", "imagePullPolicy": "Never",
                    "command": ["sh", "-c", telling(SHOW_STREAMS)], "stdin": true
                }
            ]
        }
    });
    let pod = run_pod(&kubelet, "words", &pod.to_string())?;

    let words = read_facts(&kubelet, &pod, "words")?;
    let node = stage.kubelet_options().node_name;
    let host_ip = stage.runtime().node_address().to_string();
    let allocatable = node_memory()? - (10 << 20);
    for (name, expected) in [
        ("first", "hello, world"),
        ("second", "$(GREETING)"),
        ("third", "$(UNKNOWN)"),
        ("fourth", "a b"),
        ("directory", "/srv/work"),
        ("SENTENCE", "hello, world"),
        ("WHOM", "world"),
        ("ESCAPED", "$(GREETING)"),
        ("TOO_EARLY", "$(LATER)"),
        ("POD", &pod.name),
        ("NAMESPACE", "default"),
        ("UID", &pod.uid),
        ("TIER", "front"),
        ("NOTE", "with \"quotes\""),
        ("NODE", &node),
        ("POD_IP", &pod.ip),
        ("POD_IPS", &pod.ip),
        ("HOST_IP", &host_ip),
        ("HOST_IPS", &host_ip),
        ("CPU_MILLI", "500"),
        ("CPU_UP", "1"),
        ("MEMORY_MI", "16"),
        ("OTHERS_MEMORY", "33554432"),
        ("OTHERS_CPU", "10"),
        ("NODES_MEMORY", &allocatable.to_string()),
        ("NODES_CPU", &std::thread::available_parallelism()?.to_string()),
        ("HOSTNAME", &pod.name),
    ] {
        assert_eq!(&words[name], expected, "{name}");
    }
    assert!(words["PATH"].contains("/bin"), "the image's or the runtime's own: {}", &words["PATH"]);
    assert!(words.get("KUBERNETES_SERVICE_HOST").is_none(), "there is no cluster");

    let image = read_facts(&kubelet, &pod, "image")?;
    assert_eq!((&image["user"], &image["directory"]), ("1234", "/"));
    assert!(image.get("GREETING").is_none(), "the environment is each container's own");

    let streams = read_facts(&kubelet, &pod, "streams")?;
    assert_eq!((&streams["output"], &streams["input"]), ("no-terminal", "/dev/null"));
    let terminal = read_facts(&kubelet, &pod, "terminal")?;
    assert_eq!(&terminal["output"], "terminal");
    assert!(terminal["input"].starts_with("/dev/"), "a terminal: {}", &terminal["input"]);
    let input = read_facts(&kubelet, &pod, "input")?;
    assert_eq!(&input["output"], "no-terminal");
    assert!(input["input"].starts_with("pipe:"), "somebody may write: {}", &input["input"]);
    Ok(())
}

/// All memory of the machine, in bytes.
fn node_memory() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes: u64 = total
        .and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
        .context("no MemTotal")?;
    Ok(kilobytes * 1024)
}

fn the_runtime_shows_the_labels_annotations_and_log_path_of_upstream(
    stage: &Stage,
) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let runtime = stage.runtime();
    let manifest = format!(
        r#"
apiVersion: v1
kind: Pod
metadata:
  name: known
  labels: {{app: web}}
  annotations: {{example.org/note: kept}}
spec:
  terminationGracePeriodSeconds: 7
  containers:
  - name: app
    image: docker.io/library/busybox:latest
    imagePullPolicy: Never
    command: {command}
    terminationMessagePath: /dev/message
    terminationMessagePolicy: FallbackToLogsOnError
    ports: [{{name: web, containerPort: 8080}}]
    lifecycle: {{preStop: {{exec: {{command: ["true"]}}}}}}
"#,
        command = tell("echo run; echo problem >&2; trap 'exit 0' TERM")
    );
    let pod = run_pod(&kubelet, "known", &manifest)?;
    read_facts(&kubelet, &pod, "app")?;
    check_sandbox(stage, &pod)?;
    check_container(stage, &pod, 0)?;

    // The log: one directory of the pod, in it one of each container, in it a file of each run.
    let pod_dir = kubelet.pod_logs().join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid));
    let mode = |path: &Path| -> anyhow::Result<u32> {
        Ok(fs::metadata(path)
            .with_context(|| format!("no {}", path.display()))?
            .permissions()
            .mode()
            & 0o7777)
    };
    assert_eq!((mode(&pod_dir)?, mode(&pod_dir.join("app"))?), (0o755, 0o755));
    let log = fs::read_to_string(pod_dir.join("app/0.log"))?;
    let streams: Vec<Vec<&str>> =
        log.lines().map(|line| line.splitn(4, ' ').skip(1).collect()).collect();
    assert!(streams.contains(&vec!["stdout", "F", "run"]), "{log}");
    assert!(streams.contains(&vec!["stderr", "F", "problem"]), "{log}");
    let link =
        |id: &str| format!("/var/log/containers/{}_{}_app-{id}.log", pod.name, pod.namespace);
    let first = pod.container("app").context("no status of app")?.id.clone();
    let target = on_node(runtime, &format!("readlink {}", link(&first)))?;
    assert_eq!(target, pod_dir.join("app/0.log").display().to_string());

    // A second run has a file, a number and a link of its own.
    assert!(kill_container(runtime.cgroup(), &first) > 0, "the container has processes");
    let again = kubelet.wait_for_pod("known", "running again", WAIT, |pod| {
        pod.container("app").is_some_and(|app| app.restarts == 1 && app.is_running())
    })?;
    check_container(stage, &again, 1)?;
    let second = again.container("app").context("no status of app")?.id.clone();
    wait_for("a link to the second log", WAIT, || {
        let target = on_node(runtime, &format!("readlink {}", link(&second)))
            .map_err(|error| format!("{error:#}"))?;
        let expected = pod_dir.join("app/1.log").display().to_string();
        if target == expected { Ok(()) } else { Err(target) }
    })?;

    // Nothing of it stays when the pod goes.
    kubelet.remove_manifest("known.yaml")?;
    kubelet.wait_until_gone("known", WAIT)?;
    wait_for("the logs to be gone", WAIT, || {
        let links = on_node(runtime, "ls /var/log/containers").map_err(|e| format!("{e:#}"))?;
        match (links.contains(&pod.name), pod_dir.exists()) {
            (false, false) => Ok(()),
            (_, dir) => Err(format!("the links are {links:?}, the directory exists: {dir}")),
        }
    })
}

fn check_sandbox(stage: &Stage, pod: &PodView) -> anyhow::Result<()> {
    let sandbox = with_cri(stage.runtime(), |cri| async move {
        let ids: Vec<_> = cri.list_pod_sandbox(None).await?;
        anyhow::ensure!(ids.len() == 1, "there are {} sandboxes", ids.len());
        let status = cri.pod_sandbox_status(&SandboxId::new(ids[0].id.clone()), false).await?;
        status.status.context("the sandbox has no status")
    })?;
    let metadata = sandbox.metadata.context("the sandbox has no metadata")?;
    assert_eq!(
        (&metadata.name, &metadata.uid, metadata.namespace.as_str(), metadata.attempt),
        (&pod.name, &pod.uid, "default", 0)
    );
    let labels = json!({
        "app": "web",
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": pod.uid,
    });
    assert_eq!(json!(sandbox.labels), labels);
    assert_eq!(sandbox.annotations.get("example.org/note").map(String::as_str), Some("kept"));
    assert_eq!(
        sandbox.annotations.get("kubernetes.io/config.source").map(String::as_str),
        Some("file")
    );
    assert_eq!(sandbox.annotations.get("kubernetes.io/config.hash"), Some(&pod.uid));
    Ok(())
}

fn check_container(stage: &Stage, pod: &PodView, run: u32) -> anyhow::Result<()> {
    let id = ContainerId::new(pod.container("app").context("no status of app")?.id.clone());
    let answer =
        with_cri(stage.runtime(), |cri| async move { Ok(cri.container_status(&id, true).await?) })?;
    let status = answer.status.context("the container has no status")?;
    let metadata = status.metadata.context("the container has no metadata")?;
    assert_eq!((metadata.name.as_str(), metadata.attempt), ("app", run));
    assert!(status.log_path.ends_with(&format!("/app/{run}.log")), "{}", status.log_path);
    let labels = json!({
        "io.kubernetes.container.name": "app",
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": pod.uid,
    });
    assert_eq!(json!(status.labels), labels);
    let annotation = |name: &str| status.annotations.get(name).map(String::as_str);
    for (name, expected) in [
        ("io.kubernetes.container.hash", CONTAINER_HASH),
        ("io.kubernetes.container.restartCount", &run.to_string()),
        ("io.kubernetes.container.terminationMessagePath", "/dev/message"),
        ("io.kubernetes.container.terminationMessagePolicy", "FallbackToLogsOnError"),
        ("io.kubernetes.pod.terminationGracePeriod", "7"),
    ] {
        assert_eq!(annotation(name), Some(expected), "{name}");
    }
    for (name, expected) in [
        ("io.kubernetes.container.preStopHandler", json!({ "exec": { "command": ["true"] } })),
        (
            "io.kubernetes.container.ports",
            json!([{ "name": "web", "containerPort": 8080, "protocol": "TCP" }]),
        ),
    ] {
        let value: Value = serde_json::from_str(annotation(name).unwrap_or_default())
            .with_context(|| format!("{name} is no JSON"))?;
        assert_eq!(value, expected, "{name}");
    }
    Ok(())
}

/// What the Go kubelet 1.36 writes for a container `app` of the image
/// `docker.io/library/busybox:latest`.
const CONTAINER_HASH: &str = "83200b8e";
