use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::decode::decode_pod;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/static-pod-uid")
}

fn uid_of(manifest: &[u8], origin: &ManifestOrigin, node: &str) -> String {
    match decode_pod(manifest) {
        Ok(mut manifest) => static_pod_uid(&manifest.pods.remove(0), origin, node),
        Err(error) => error.to_string(),
    }
}

/// The directory's manifests, one for every group of fields, and their uids in `uids.txt`.
#[test]
fn the_uids_of_manifests_are_those_of_the_go_kubelet() {
    let uids = fs::read_to_string(data().join("uids.txt")).unwrap();
    let mut wrong = Vec::new();
    for line in uids.lines() {
        let (expected, name) = line.split_once(' ').unwrap();
        let manifest = fs::read(data().join(name)).unwrap();
        let origin = ManifestOrigin::File(Path::new("/etc/kubernetes/manifests").join(name));
        let uid = uid_of(&manifest, &origin, "node-1");
        if uid != expected {
            wrong.push(format!("{name}: {uid}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let manifests = fs::read_dir(data()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        Path::new(&name).extension().is_some_and(|kind| kind == "yaml" || kind == "json")
    });
    assert_eq!(manifests.count(), uids.lines().count(), "uids.txt is out of date");
}

/// A random manifest, its place, and what the Go kubelet says.
#[derive(Deserialize)]
struct Answer {
    manifest: String,
    source: String,
    file: bool,
    node: String,
    uid: String,
}

#[test]
fn the_uids_of_random_pods_are_those_of_the_go_kubelet() {
    let answers = fs::read_to_string(data().join("random.jsonl")).unwrap();
    for (index, line) in answers.lines().enumerate() {
        let answer: Answer = serde_json::from_str(line).unwrap();
        let origin = if answer.file {
            ManifestOrigin::File(answer.source.into())
        } else {
            ManifestOrigin::Url(answer.source)
        };
        let uid = uid_of(answer.manifest.as_bytes(), &origin, &answer.node);
        assert_eq!(uid, answer.uid, "line {}: {}", index + 1, answer.manifest);
    }
}

#[test]
fn the_way_a_file_was_named_makes_no_difference() {
    let pod = Pod::default();
    let uid = |path: &str| static_pod_uid(&pod, &ManifestOrigin::File(path.into()), "n");
    for same in ["/m//a.yaml", "/m/./a.yaml", "/x/../m/a.yaml", "/../m/a.yaml", "/m/a.yaml/"] {
        assert_eq!(uid("/m/a.yaml"), uid(same), "{same}");
    }
    assert_ne!(uid("/m/a.yaml"), uid("/m/b.yaml"));
}

/// Nothing of this reaches a container: validation refuses such pods right after.
#[test]
fn nonsense_has_a_uid_too() {
    for cpu in ["", "x", "1e99999999", "1e-99999999", "1e2000", "9".repeat(2000).as_str(), "--1"] {
        let list = json!({"cpu": cpu});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "overhead": list,
            "resources": {"limits": list},
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1.5Gi"}, "limits": list}},
                {"name": "b", "resources": {"requests": list}},
            ],
        }}))
        .unwrap();
        let origin = ManifestOrigin::Url("http://x/".to_owned());
        assert_eq!(static_pod_uid(&pod, &origin, "n").len(), 32, "{cpu}");
    }
}
