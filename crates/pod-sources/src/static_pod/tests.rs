use serde_json::{Value, json};

use super::*;
use crate::decode::decode_pod;

fn policy() -> StaticPodPolicy {
    StaticPodPolicy { node_name: "node-1".to_owned(), prevent_api_references: true }
}

fn file(path: &str) -> ManifestOrigin {
    ManifestOrigin::File(path.into())
}

fn manifest(metadata: Value, spec: Value) -> Pod {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c", "image": "nginx:1"}]);
    }
    let text = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    decode_pod(text.to_string().as_bytes()).unwrap().pods.remove(0)
}

fn prepared(pod: Pod) -> Value {
    let pod = prepare_static_pod(pod, &file("/m/a.yaml"), &policy()).unwrap();
    serde_json::to_value(pod).unwrap()
}

#[test]
fn a_manifest_becomes_a_pod_of_this_node() {
    let pod = prepared(manifest(json!({"name": "web"}), json!({})));
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    assert!(uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit()), "{uid}");
    for (pointer, expected) in [
        ("/metadata/name", json!("web-node-1")),
        ("/metadata/namespace", json!("default")),
        ("/metadata/annotations", json!({"kubernetes.io/config.hash": uid})),
        ("/spec/nodeName", json!("node-1")),
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/tolerations", json!([{"operator": "Exists", "effect": "NoExecute"}])),
        ("/status", json!({"phase": "Pending"})),
    ] {
        let lower = pod.pointer(pointer);
        assert_eq!(lower, Some(&expected), "{pointer}");
    }
}

#[test]
fn a_fixed_uid_is_kept() {
    let pod = prepared(manifest(json!({"name": "web", "uid": "my-uid"}), json!({})));
    assert_eq!(pod["metadata"]["uid"], "my-uid");
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/config.hash"], "my-uid");
}

#[test]
fn only_files_tolerate_everything() {
    let pod = manifest(json!({"name": "web"}), json!({}));
    let origin = ManifestOrigin::Url("http://x/".to_owned());
    let pod = prepare_static_pod(pod, &origin, &policy()).unwrap();
    assert_eq!(pod.spec.unwrap().tolerations, None);
    let limited = json!({"tolerations": [
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
        {"key": "k", "operator": "Exists"}]});
    let pod = prepared(manifest(json!({"name": "web"}), limited));
    assert_eq!(
        pod["spec"]["tolerations"],
        json!([{"operator": "Exists", "effect": "NoExecute"}, {"key": "k", "operator": "Exists"}])
    );
}

#[test]
fn what_only_a_live_pod_has_is_dropped() {
    let live = json!({
        "name": "web",
        "deletionTimestamp": "2024-01-01T00:00:00Z",
        "annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.seen": "y",
            "kubernetes.io/config.source": "api", "mine": "z"},
    });
    let pod = prepared(manifest(live, json!({})));
    let uid = pod["metadata"]["uid"].clone();
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"kubernetes.io/config.hash": uid, "mine": "z"})
    );
    assert_eq!(pod["metadata"].get("deletionTimestamp"), None);
}

#[test]
fn the_uid_follows_content_and_place_alone() {
    let uid = |text: &str, origin: &ManifestOrigin, node: &str| {
        let pod = decode_pod(text.as_bytes()).unwrap().pods.remove(0);
        static_pod_uid(&pod, origin, node)
    };
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: {x: '1', y: '2'}\n";
    let reordered = "# comment\nkind: Pod\nmetadata:\n  labels:\n    y: \"2\"\n    x: \"1\"\n  name: a\n\
         apiVersion: v1\n";
    let here = file("/m/a.yaml");
    let base = uid(text, &here, "n");
    assert_eq!(base, uid(reordered, &here, "n"));
    for other in [
        uid(&text.replace("'2'", "'3'"), &here, "n"),
        uid(text, &file("/m/b.yaml"), "n"),
        uid(text, &ManifestOrigin::Url("/m/a.yaml".to_owned()), "n"),
        uid(text, &here, "m"),
    ] {
        assert_ne!(base, other);
    }
}

#[test]
fn refusals_say_why() {
    let prepare =
        |pod: Pod| prepare_static_pod(pod, &file("/m/a.yaml"), &policy()).unwrap_err().to_string();
    assert_eq!(prepare(manifest(json!({}), json!({}))), "invalid pod: name is needed for the pod");
    assert_eq!(
        prepare(manifest(json!({"name": "a"}), json!({"containers": []}))),
        "invalid pod: [spec.containers: Required value]"
    );
    assert_eq!(
        prepare(manifest(json!({"name": "a"}), json!({"serviceAccountName": "s"}))),
        "static pods may not reference serviceaccounts"
    );
    let lenient = StaticPodPolicy { prevent_api_references: false, ..policy() };
    let pod = manifest(json!({"name": "a"}), json!({"serviceAccountName": "s"}));
    assert!(prepare_static_pod(pod, &file("/m/a.yaml"), &lenient).is_ok());
}

#[test]
fn names_that_leave_their_directory_are_refused() {
    for metadata in [
        json!({"name": "../../etc"}),
        json!({"name": "a", "namespace": ".."}),
        json!({"name": "a", "namespace": "a/b"}),
        json!({"name": "a", "uid": ".."}),
        json!({"name": "a", "uid": "x/../../y"}),
        json!({"name": "a", "uid": "x\ny"}),
    ] {
        let pod = manifest(metadata.clone(), json!({}));
        let error = prepare_static_pod(pod, &file("/m/a.yaml"), &policy()).unwrap_err();
        assert!(matches!(error, ManifestError::Invalid(_)), "{metadata}: {error}");
    }
    let pod = manifest(
        json!({"name": "a"}),
        json!({"containers": [{"name": "../c", "image": "i"}],
            "volumes": [{"name": "../v", "emptyDir": {}}]}),
    );
    assert!(prepare_static_pod(pod, &file("/m/a.yaml"), &policy()).is_err());
}
