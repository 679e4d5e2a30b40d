//! Manifests: files that come, change, go and are bad, and a URL beside them.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{Diary, KubeletProcess, ManifestServer, PodView, wait_for};
use serde_json::{Value, json};

use crate::WAIT;
use crate::lifecycle::wait_until_nothing_is_left;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::on_debian(
        "a_changed_static_pod_stops_completely_before_the_new_one_starts",
        a_changed_static_pod_stops_completely_before_the_new_one_starts,
    ),
    Scenario::on_built(
        "a_manifest_removed_and_put_back_within_100_ms_always_ends_running",
        a_manifest_removed_and_put_back_within_100_ms_always_ends_running,
    ),
    Scenario::on_built(
        "bad_manifests_never_disturb_the_good_ones",
        bad_manifests_never_disturb_the_good_ones,
    ),
    Scenario::on_debian("one_file_can_be_all_manifests", one_file_can_be_all_manifests),
    Scenario::on_built(
        "pods_come_from_a_url_with_headers_beside_those_from_files",
        pods_come_from_a_url_with_headers_beside_those_from_files,
    ),
];

/// A pod whose container writes its version, and which two at once cannot be of.
fn exclusive(name: &str, diary: &Diary, version: &str) -> Value {
    let script = format!(
        "trap 'note term; sleep 0.5; note end; exit 0' TERM\n\
         alone; note start {version}; while :; do sleep 1000 & wait $!; done"
    );
    let spec = json!({
        "terminationGracePeriodSeconds": 10,
        "containers": [Diary::container("app", name, &script)],
        "volumes": [diary.volume()],
    });
    pod(name, spec)
}

/// The versions that ran, oldest first, each over before the next began.
fn versions_in_turn(diary: &Diary, name: &str) -> anyhow::Result<Vec<String>> {
    let lines = diary.lines(name)?;
    ensure!(!lines.iter().any(|line| line.ends_with("overlap")), "two at once: {lines:#?}");
    let starts = lines.iter().filter_map(|line| line[name.len() + 1..].strip_prefix("start "));
    Ok(starts.map(str::to_owned).collect())
}

fn start(stage: &Stage) -> anyhow::Result<(KubeletProcess, Diary)> {
    let kubelet = stage.start_kubelet()?;
    let diary = Diary::create(&kubelet.manifests().with_file_name("diary"))?;
    Ok((kubelet, diary))
}

fn a_changed_static_pod_stops_completely_before_the_new_one_starts(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start(stage)?;
    kubelet.write_pod(&exclusive("one", &diary, "v1"))?;
    kubelet.write_pod(&exclusive("image", &diary, "busybox"))?;
    diary.wait_for("one", "start v1", 1, WAIT)?;
    diary.wait_for("image", "start busybox", 1, WAIT)?;
    let first = kubelet.wait_for_pod("one", "ready", WAIT, |pod| pod.ready)?;

    kubelet.write_pod(&exclusive("one", &diary, "v2"))?;
    let mut other_image = exclusive("image", &diary, "nonroot");
    other_image["spec"]["containers"][0]["image"] = json!("localhost/rubelet/nonroot:1");
    kubelet.write_pod(&other_image)?;
    diary.wait_for("one", "start v2", 1, WAIT)?;
    diary.wait_for("image", "start nonroot", 1, WAIT)?;
    let second = kubelet
        .wait_for_pod("one", "ready in its new form", WAIT, |p| p.ready && p.uid != first.uid)?;
    for (pod, other) in [(&first, &second), (&second, &first)] {
        let annotations = &pod.raw["metadata"]["annotations"];
        assert_eq!(annotations["kubernetes.io/config.hash"], json!(pod.uid));
        assert_eq!(annotations["kubernetes.io/config.source"], "file");
        ensure!(pod.uid != other.uid, "another content is another pod");
    }
    assert_eq!(second.restarts(), 0, "it is a pod of its own");

    // Of many changes at once the last one counts, and it may be one that was there before.
    for version in ["v3", "v4", "v1", "v5", "v2", "v1"] {
        kubelet.write_pod(&exclusive("one", &diary, version))?;
    }
    let uid = first.uid.clone();
    kubelet.wait_for_pod("one", "ready as at first", WAIT, |pod| pod.ready && pod.uid == uid)?;
    wait_for("the last version to run", WAIT, || {
        let versions = versions_in_turn(&diary, "one").map_err(|error| format!("{error:#}"))?;
        match versions.last().map(String::as_str) {
            Some("v1") if versions.len() > 2 => Ok(()),
            _ => Err(format!("{versions:?}")),
        }
    })?;
    assert_eq!(versions_in_turn(&diary, "image")?, ["busybox", "nonroot"]);
    let of_that_name = kubelet.pods()?.into_iter().filter(|pod| pod.name == first.name).count();
    assert_eq!(of_that_name, 1);
    for name in ["one", "image"] {
        kubelet.remove_pod(name)?;
    }
    wait_until_nothing_is_left(&kubelet, WAIT)
}

/// Waits until the pod is ready and its container was not told to end.
fn wait_until_it_runs(kubelet: &KubeletProcess, diary: &Diary, name: &str) -> anyhow::Result<()> {
    wait_for(&format!("{name} to run"), WAIT, || {
        let lines = diary.lines(name).map_err(|error| format!("{error:#}"))?;
        let runs = lines.last().is_some_and(|line| line.ends_with("start v1"));
        match kubelet.pod(name) {
            Ok(Some(pod)) if runs && pod.ready && pod.phase == "Running" => Ok(()),
            Ok(pod) => {
                let status = pod.map(|pod| pod.raw["status"].to_string());
                Err(format!("it wrote {lines:?}, its status is {status:?}"))
            }
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .with_context(|| format!("the kubelet's log ends with:\n{}", kubelet.log_tail(40)))?;
    versions_in_turn(diary, name).map(|_| ())
}

fn a_manifest_removed_and_put_back_within_100_ms_always_ends_running(
    stage: &Stage,
) -> anyhow::Result<()> {
    const PODS: u64 = 5;
    const ROUNDS: u64 = 4;
    let (kubelet, diary) = start(stage)?;
    let again = |index: u64| -> anyhow::Result<()> {
        let name = format!("again-{index}");
        let manifest = exclusive(&name, &diary, "v1");
        kubelet.write_pod(&manifest)?;
        for round in 0..ROUNDS {
            wait_until_it_runs(&kubelet, &diary, &name)?;
            kubelet.remove_pod(&name)?;
            // From back at once to long after the kubelet has seen it go.
            thread::sleep(Duration::from_millis(5 * (index * ROUNDS + round)));
            kubelet.write_pod(&manifest)?;
            // A bad file that it complains about shows that it has looked since.
            let marker = format!("marker-{index}-{round}.yaml");
            kubelet.write_manifest(&marker, "no manifest")?;
            wait_for("the kubelet to look", WAIT, || {
                let log = fs::read_to_string(kubelet.log_file()).unwrap_or_default();
                if log.contains(&marker) { Ok(()) } else { Err("it has not".to_owned()) }
            })?;
        }
        wait_until_it_runs(&kubelet, &diary, &name)
    };
    thread::scope(|scope| {
        let again = &again;
        let pods: Vec<_> = (0..PODS).map(|index| scope.spawn(move || again(index))).collect();
        pods.into_iter()
            .try_for_each(|pod| pod.join().unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked"))))
    })?;
    for index in 0..PODS {
        kubelet.remove_pod(&format!("again-{index}"))?;
    }
    wait_until_nothing_is_left(&kubelet, WAIT)
}

fn sleeper(name: &str) -> Value {
    pod(name, json!({ "containers": [busybox("app", "exec sleep 3600")] }))
}

fn bad_manifests_never_disturb_the_good_ones(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    kubelet.write_pod(&sleeper("good"))?;
    let good = kubelet.wait_for_pod("good", "ready", WAIT, |pod| pod.ready)?;

    let dir = kubelet.manifests();
    let whole = sleeper("half").to_string();
    let (half, rest) = whole.split_at(whole.len() / 2);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    bomb.push_str("apiVersion: v1\nkind: Pod\nmetadata: {name: bomb, labels: *a9}\n");
    let env =
        json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }]);
    let with_secret = with(busybox("app", "exec sleep 3600"), json!({ "env": env }));
    let mut bad_name = sleeper("bad-name");
    bad_name["metadata"]["name"] = json!("../../escaped");
    let mut bad_uid = sleeper("bad-uid");
    bad_uid["metadata"]["uid"] = json!("../../../escaped");
    let config_map = json!([{ "name": "v", "configMap": { "name": "c" } }]);
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("half.yaml", half.into()),
        ("empty.yaml", Vec::new()),
        ("bomb.yaml", bomb.into()),
        ("huge.yaml", format!("{{ \"a\": \"{}\" }}", "x".repeat(11 << 20)).into()),
        ("deep.yaml", "[".repeat(200_000).into()),
        ("noise.yaml", (0..=255).cycle().take(4096).collect()),
        ("kind.yaml", r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"}}"#.into()),
        ("z-duplicate.yaml", with(sleeper("good"), json!({ "metadata": { "name": "good", "labels": { "other": "one" } } })).to_string().into()),
        ("secret.yaml", pod("secret", json!({ "containers": [with_secret] })).to_string().into()),
        ("config-map.yaml", with(sleeper("config-map"), json!({ "spec": { "containers": [busybox("app", "true")], "volumes": config_map } })).to_string().into()),
        ("no-container.yaml", pod("no-container", json!({ "containers": [] })).to_string().into()),
        ("bad-name.yaml", bad_name.to_string().into()),
        ("bad-uid.yaml", bad_uid.to_string().into()),
    ];
    for (name, content) in &files {
        fs::write(dir.join(name), content).with_context(|| format!("cannot write {name}"))?;
    }
    let fifo = Command::new("mkfifo").arg(dir.join("fifo.yaml")).status()?;
    ensure!(fifo.success(), "mkfifo failed");
    fs::create_dir(dir.join("directory.yaml"))?;
    std::os::unix::fs::symlink("/nowhere", dir.join("dangling.yaml"))?;
    std::os::unix::fs::symlink("/dev/zero", dir.join("device.yaml"))?;
    fs::write(dir.join(".hidden.yaml"), sleeper("hidden").to_string())?;

    kubelet.write_pod(&sleeper("late"))?;
    kubelet.wait_for_pod("late", "ready among the bad ones", WAIT, |pod| pod.ready)?;
    for (name, _) in files.iter().filter(|(name, _)| *name != "z-duplicate.yaml") {
        wait_for(&format!("a complaint about {name}"), WAIT, || {
            let log = fs::read_to_string(kubelet.log_file()).map_err(|error| error.to_string())?;
            let told =
                |line: &str| line.contains(&format!("manifests/{name}")) && !line.starts_with('I');
            if log.lines().any(told) { Ok(()) } else { Err(kubelet.log_tail(30)) }
        })?;
    }
    kubelet.wait_for_event("good", "FailedValidation", "due to duplicate pod name", WAIT)?;
    let now = kubelet.pod("good")?.context("good is there")?;
    assert_eq!((&now.uid, now.ready, now.restarts()), (&good.uid, true, 0));
    let pods = kubelet.pods()?;
    let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    let full = |name: &str| format!("{name}-{}", stage.kubelet_options().node_name);
    assert_eq!(names, [full("good"), full("late")]);
    let usage = kubelet.usage()?;
    ensure!(usage.resident_peak < 200 << 20, "bad manifests made it take {usage:?}");

    // The half one is finished where it lies, as an editor does.
    let mut file = File::options().append(true).open(dir.join("half.yaml"))?;
    file.write_all(rest.as_bytes())?;
    drop(file);
    kubelet.wait_for_pod("half", "ready once it is whole", WAIT, |pod| pod.ready)?;
    // What stands in the way of a bad name goes, and the other one gets its turn.
    kubelet.remove_pod("good")?;
    let second = kubelet.wait_for_pod("good", "the other of that name", WAIT, |pod| {
        pod.ready && pod.uid != good.uid
    })?;
    assert_eq!(second.raw["metadata"]["labels"]["other"], "one");
    let late = kubelet.pod("late")?.context("late is there")?;
    ensure!(late.ready && late.restarts() == 0, "late was disturbed: {}", late.raw["status"]);
    ensure!(kubelet.get(10248, "/healthz")?.0 == 200, "it is not healthy");
    Ok(())
}

fn one_file_can_be_all_manifests(stage: &Stage) -> anyhow::Result<()> {
    let mut options = stage.kubelet_options();
    let file = stage.runtime().dir().join(&options.node_name).join("manifests/only.yaml");
    options.config = json!({ "staticPodPath": file });
    let kubelet = stage.start_kubelet_with(options)?;
    // The file need not be there, and its neighbours do not count.
    kubelet.write_manifest("neighbour.yaml", &sleeper("neighbour").to_string())?;
    kubelet.write_manifest("only.yaml", &sleeper("only").to_string())?;
    let first = kubelet.wait_for_pod("only", "ready", WAIT, |pod| pod.ready)?;
    // Changed where it lies, then by a rename.
    let labelled = |value: &str| {
        let labels = json!({ "metadata": { "name": "only", "labels": { "v": value } } });
        with(sleeper("only"), labels)
    };
    fs::write(&file, labelled("2").to_string())?;
    kubelet.wait_for_pod("only", "changed in place", WAIT, |pod| {
        pod.ready && pod.raw["metadata"]["labels"]["v"] == "2"
    })?;
    kubelet.write_manifest("only.yaml", &labelled("3").to_string())?;
    let third = kubelet.wait_for_pod("only", "replaced", WAIT, |pod| {
        pod.ready && pod.raw["metadata"]["labels"]["v"] == "3"
    })?;
    ensure!(third.uid != first.uid, "another content is another pod");
    assert_eq!(kubelet.pods()?.len(), 1);
    kubelet.remove_manifest("only.yaml")?;
    kubelet.wait_until_gone("only", WAIT)?;
    kubelet.write_manifest("only.yaml", &sleeper("other").to_string())?;
    kubelet.wait_for_pod("other", "ready", WAIT, |pod| pod.ready)?;
    assert_eq!(kubelet.pods()?.len(), 1);
    Ok(())
}

fn pods_come_from_a_url_with_headers_beside_those_from_files(stage: &Stage) -> anyhow::Result<()> {
    let list = |pods: &[Value]| {
        json!({ "apiVersion": "v1", "kind": "PodList", "items": pods }).to_string()
    };
    let namespaces = stage.runtime().namespaces();
    let two = list(&[sleeper("web-a"), sleeper("web-b")]);
    let server = ManifestServer::start(namespaces, 8099, &two)?;
    let mut options = stage.kubelet_options();
    options.config = json!({
        "staticPodURL": server.url(),
        "staticPodURLHeader": { "X-Token": ["first", "second"], "X-Node": ["here"] },
        "httpCheckFrequency": "500ms",
    });
    let mut kubelet = stage.start_kubelet_with(options)?;
    kubelet.write_pod(&sleeper("from-file"))?;
    let id = |pod: &PodView| pod.containers.first().map(|app| app.id.clone());
    let mut before = Vec::new();
    for (name, source) in [("web-a", "http"), ("web-b", "http"), ("from-file", "file")] {
        let pod = kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
        assert_eq!(pod.raw["metadata"]["annotations"]["kubernetes.io/config.source"], source);
        before.push(pod);
    }
    let request = server.requests().first().cloned().context("nobody asked")?;
    for header in ["x-token: first", "x-token: second", "x-node: here"] {
        ensure!(request.to_lowercase().contains(header), "{header} is missing in {request}");
    }

    // What it answers when it is ill changes nothing.
    let asked = server.requests().len();
    for (status, body) in [(500, "ill"), (404, ""), (200, "no manifest"), (200, "{\"kind\":")] {
        server.answer(status, body);
        let so_far = server.requests().len();
        wait_for("two more requests", WAIT, || match server.requests().len() {
            count if count >= so_far + 2 => Ok(()),
            count => Err(format!("{count} requests")),
        })?;
    }
    ensure!(server.requests().len() > asked);
    for pod in &before {
        let now = kubelet.pods()?.into_iter().find(|now| now.uid == pod.uid);
        let now = now.with_context(|| format!("{} is gone", pod.name))?;
        assert_eq!((id(&now), now.ready), (id(pod), true), "{}", pod.name);
    }

    // One goes, one stays, one comes.
    server.answer(200, &list(&[sleeper("web-b"), sleeper("web-c")]));
    kubelet.wait_until_gone("web-a", WAIT)?;
    kubelet.wait_for_pod("web-c", "ready", WAIT, |pod| pod.ready)?;
    let stayed = kubelet.pod("web-b")?.context("web-b is there")?;
    assert_eq!(id(&stayed), id(&before[1]));

    // A kubelet that starts without its URL keeps what came from there, and takes on the rest.
    kubelet.stop()?;
    drop(server);
    kubelet.start_again()?;
    kubelet.wait_for_pod("from-file", "ready", WAIT, |pod| pod.ready)?;
    kubelet.write_pod(&sleeper("new-file"))?;
    kubelet.wait_for_pod("new-file", "ready", WAIT, |pod| pod.ready)?;
    let back = list(&[sleeper("web-b"), sleeper("web-c")]);
    let server = ManifestServer::start(namespaces, 8099, &back)?;
    let again = kubelet.wait_for_pod("web-b", "known again", WAIT, |pod| pod.ready)?;
    assert_eq!((id(&again), again.restarts()), (id(&before[1]), 0), "it ran on");

    // A single pod is an answer, too; an empty one means that there are none.
    server.answer(200, &sleeper("web-c").to_string());
    kubelet.wait_until_gone("web-b", WAIT)?;
    server.answer(200, "");
    kubelet.wait_until_gone("web-c", WAIT)?;
    let file = kubelet.pod("from-file")?.context("it is there")?;
    assert_eq!(id(&file), id(&before[2]), "files are no concern of the URL");
    Ok(())
}
