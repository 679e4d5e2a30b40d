use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::*;

const GOOD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  creationTimestamp: null
  labels: {app: web, empty: }
  annotations:
    note: \"1\"
spec:
  hostNetwork: yes
  containers:
  - name: web
    image: nginx
    args: [--port=80, '8']
    env:
    - name: A
      value: |
        two
        lines
    ports:
    - containerPort: 80
      hostPort: 0x50
    resources:
      requests: {cpu: 1, memory: 1.5, hugepages-2Mi: 4Mi}
      limits: {cpu: 1e3, memory: }
    livenessProbe:
      httpGet: {port: http, path: /healthz}
  volumes:
  - name: v
    configMap: {name: c, defaultMode: 0644}
status: {}
";

fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old:?}");
    GOOD.replacen(old, new, 1)
}

fn text_of(result: Result<Manifest, DecodeError>) -> String {
    match result {
        Ok(manifest) => {
            let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
            let names: Vec<String> = manifest.pods.iter().map(name).collect();
            let warnings: Vec<String> = manifest.warnings.iter().map(|it| it.to_string()).collect();
            format!("pods {names:?} warnings {warnings:?}")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn yaml_values_mean_what_they_mean_to_go() {
    let manifest = decode_pod(GOOD.as_bytes()).unwrap();
    assert_eq!(manifest.warnings, []);
    let pod = &manifest.pods[0];
    let json = serde_json::to_value(pod).unwrap();
    for (pointer, expected) in [
        ("/metadata/labels/empty", serde_json::json!("")),
        ("/spec/hostNetwork", true.into()),
        ("/spec/containers/0/env/0/value", "two\nlines\n".into()),
        ("/spec/containers/0/args/1", "8".into()),
        ("/spec/containers/0/ports/0/hostPort", 80.into()),
        ("/spec/containers/0/resources/requests/cpu", "1".into()),
        ("/spec/containers/0/resources/requests/memory", "1.5".into()),
        ("/spec/containers/0/resources/limits/cpu", "1000".into()),
        ("/spec/containers/0/resources/limits/memory", "0".into()),
        ("/spec/containers/0/livenessProbe/httpGet/port", "http".into()),
        ("/spec/volumes/0/configMap/defaultMode", 0o644.into()),
    ] {
        assert_eq!(json.pointer(pointer), Some(&expected), "{pointer}");
    }
}

#[test]
fn json_and_yaml_say_the_same() {
    let from_yaml = decode_pod(GOOD.as_bytes()).unwrap();
    let json = serde_json::to_vec_pretty(&from_yaml.pods[0]).unwrap();
    assert_eq!(decode_pod(&json).unwrap().pods, from_yaml.pods);
    let flow = b"{apiVersion: v1, kind: Pod, metadata: {name: flow}}";
    assert_eq!(text_of(decode_pod(flow)), r#"pods ["flow"] warnings []"#);
}

#[test]
fn documents() {
    let minimal = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n";
    for (text, expected) in [
        (String::new(), "the manifest is empty"),
        ("# nothing\n".to_owned(), "the manifest is empty"),
        ("---\n---\n".to_owned(), "the manifest is empty"),
        (format!("\u{feff}{minimal}"), r#"pods ["a"] warnings []"#),
        (format!("---\n{minimal}"), r#"pods ["a"] warnings []"#),
        (format!("%YAML 1.1\n---\n{minimal}...\n"), r#"pods ["a"] warnings []"#),
        (format!("---\n# only a comment\n---\n{minimal}---\n"), r#"pods ["a"] warnings []"#),
        (minimal.replace('\n', "\r\n"), r#"pods ["a"] warnings []"#),
        (
            format!("{minimal}---\n{minimal}"),
            "line 5: a second document starts here, but a manifest holds exactly one",
        ),
        ("- 1\n".to_owned(), "expected an object of kind Pod, found a list"),
        ("just text".to_owned(), "expected an object of kind Pod, found the text \"just text\""),
        (
            minimal.replace("Pod", "ConfigMap"),
            "expected a v1 Pod, found apiVersion \"v1\", kind \"ConfigMap\"",
        ),
        (
            minimal.replace("v1", "apps/v1"),
            "expected a v1 Pod, found apiVersion \"apps/v1\", kind \"Pod\"",
        ),
        ("metadata: {name: a}".to_owned(), "expected a v1 Pod, found no apiVersion, no kind"),
        (
            "apiVersion: v1\nkind: PodList\n".to_owned(),
            "expected a v1 Pod, found apiVersion \"v1\", kind \"PodList\"",
        ),
        ("a\0b: c".to_owned(), "line 1: the manifest contains a NUL byte"),
    ] {
        assert_eq!(text_of(decode_pod(text.as_bytes())), expected, "{text:?}");
    }
    assert_eq!(text_of(decode_pod(b"a: b\nc: \xff\n")), "line 2: the manifest is not UTF-8 text");
    assert_eq!(
        text_of(decode_pod(&vec![b' '; MAX_MANIFEST_BYTES + 1])),
        "the manifest is larger than 10485760 bytes"
    );
}

#[test]
fn wrong_types_are_refused_with_their_place() {
    for (text, expected) in [
        (
            with("image: nginx", "image: 1.25"),
            "line 13: spec.containers[0].image: expected text, found the number 1.25 (quote it)",
        ),
        (
            with("note: \"1\"", "note: 1"),
            "line 8: metadata.annotations.note: expected text, found the number 1 (quote it)",
        ),
        (
            with("app: web", "app: yes"),
            "line 6: metadata.labels.app: expected text, found the boolean true (quote it)",
        ),
        (
            with("containerPort: 80", "containerPort: \"80\""),
            "line 21: spec.containers[0].ports[0].containerPort: expected a number, found the text \
             \"80\"",
        ),
        (
            with("containerPort: 80", "containerPort: 80.5"),
            "line 21: spec.containers[0].ports[0].containerPort: expected a whole number instead \
             of 80.5, found the number 80.5",
        ),
        (
            with("hostNetwork: yes", "hostNetwork: 'yes'"),
            "line 10: spec.hostNetwork: expected true or false, found the text \"yes\"",
        ),
        (
            with("labels: {app: web, empty: }", "labels: [a]"),
            "line 6: metadata.labels: expected a mapping, found a list",
        ),
        (
            with("args: [--port=80, '8']", "args: --port=80"),
            "line 14: spec.containers[0].args: expected a list, found the text \"--port=80\"",
        ),
        (
            with("port: http", "port: true"),
            "line 27: spec.containers[0].livenessProbe.httpGet.port: invalid type: boolean \
             `true`, expected IntOrString",
        ),
        (
            with("requests: {cpu: 1", "requests: {cpu: [1]"),
            "line 24: spec.containers[0].resources.requests.cpu: expected a quantity, found a list",
        ),
        (
            with("hostPort: 0x50", "hostPort: 99999999999"),
            "line 22: spec.containers[0].ports[0].hostPort: invalid value: integer `99999999999`, \
             expected i32",
        ),
    ] {
        assert_eq!(text_of(decode_pod(text.as_bytes())), expected);
    }
}

#[test]
fn suspicious_content_is_reported_but_used() {
    let text = with("image: nginx", "imagee: nginx\n    name: web2");
    assert_eq!(
        text_of(decode_pod(text.as_bytes())),
        r#"pods ["web"] warnings ["line 14: duplicate key \"name\"", "line 13: unknown field \"spec.containers[0].imagee\""]"#
    );
    let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b","x":{}}}"#;
    assert_eq!(
        text_of(decode_pod(json)),
        r#"pods ["b"] warnings ["duplicate key \"name\"", "unknown field \"metadata.x\""]"#
    );
}

#[test]
fn pod_lists_are_for_urls() {
    let list = br#"{"apiVersion":"v1","kind":"PodList","items":[
        {"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#;
    assert_eq!(text_of(decode_pod_or_pod_list(list)), r#"pods ["a", "b"] warnings []"#);
    assert_eq!(
        text_of(decode_pod_or_pod_list(b"apiVersion: v1\nkind: PodList\nitems: 3\n")),
        "line 3: items: expected a list, found the number 3"
    );
    assert_eq!(
        text_of(decode_pod_or_pod_list(
            b"apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: 1}\n"
        )),
        "line 4: items[0].metadata.name: expected text, found the number 1 (quote it)"
    );
    assert_eq!(
        text_of(decode_pod_or_pod_list(b"apiVersion: v1\nkind: List\nitems: []\n")),
        "expected a v1 Pod or PodList, found apiVersion \"v1\", kind \"List\""
    );
}

#[test]
fn anchors_and_merges_work() {
    let text = "\
apiVersion: v1
kind: Pod
metadata:
  name: a
  labels: &labels {app: web, tier: front}
  annotations:
    <<: *labels
    tier: back
spec:
  containers:
  - &base {name: one, image: nginx, command: [run]}
  - <<: [*base]
    name: two
";
    let pod = decode_pod(text.as_bytes()).unwrap().pods.remove(0);
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!((&*annotations["app"], &*annotations["tier"]), ("web", "back"));
    let containers = pod.spec.unwrap().containers;
    assert_eq!(containers[1].name, "two");
    assert_eq!(containers[1].image.as_deref(), Some("nginx"));
    for (text, expected) in [
        ("a: &x [*x]", "line 1: the alias stands inside of what it refers to"),
        ("a: &x {b: *x}", "line 1: the alias stands inside of what it refers to"),
        ("a:\n  <<: 3", "line 2: only a mapping can be merged with <<"),
        ("? [a]\n: b", "line 1: a key must be text"),
        ("~: b", "line 1: a key must be text"),
    ] {
        assert_eq!(text_of(decode_pod(text.as_bytes())), expected, "{text}");
    }
    assert!(matches!(decode_pod(b"a: *nowhere"), Err(DecodeError::Syntax { line: 1, .. })));
}

fn laughs(level: impl Fn(usize) -> String, levels: usize) -> String {
    let mut text = "apiVersion: v1\nkind: Pod\nx0: &a0 lol\n".to_owned();
    for index in 1..=levels {
        text.push_str(&format!("x{index}: &a{index} {}\n", level(index - 1)));
    }
    text
}

#[test]
fn bombs_are_refused_quickly() {
    let nine = |index: usize| format!("[{}]", vec![format!("*a{index}"); 9].join(","));
    let chain = |index: usize| format!("[*a{index}]");
    let merge = |index: usize| format!("{{<<: [*a{index}, *a{index}], k{index}: v}}");
    let wide = "a: &a {".to_owned()
        + &(0..5000).map(|index| format!("k{index}: v, ")).collect::<String>()
        + "}\nb:\n"
        + &"  - <<: *a\n".repeat(5000);
    for (what, text) in [
        ("billion laughs", laughs(nine, 12)),
        ("long chain of aliases", laughs(chain, 10_000)),
        ("merges of merges", laughs(merge, 2000).replace("lol", "{k: v}")),
        ("many merges of a wide mapping", wide),
        ("deep flow", "[".repeat(1_000_000)),
        ("deep mapping", "{a: ".repeat(100_000)),
        ("deep block", (0..3000).map(|level| " ".repeat(level) + "a:\n").collect()),
        ("deep block list", "- ".repeat(100_000)),
        ("deep JSON", r#"{"a":"#.repeat(100_000)),
        ("quotes", "\"".to_owned() + &"a".repeat(5_000_000)),
        ("question marks", "? ".repeat(100_000)),
        ("anchors", (0..50_000).map(|index| format!("- &a{index} x\n")).collect()),
    ] {
        let start = Instant::now();
        let result = decode_pod(text.as_bytes());
        let elapsed = start.elapsed();
        assert!(result.is_err(), "{what}");
        // Unoptimised and on a busy machine; the budget is 100 ms for an optimised build.
        assert!(elapsed < Duration::from_secs(3), "{what} took {elapsed:?}");
    }
    let error = decode_pod(laughs(nine, 12).as_bytes()).unwrap_err();
    assert!(matches!(error, DecodeError::AliasBomb { .. }), "{error}");
}

#[test]
fn a_file_that_is_cut_off_never_panics() {
    for end in 0..GOOD.len() {
        let _ = decode_pod(&GOOD.as_bytes()[..end]);
    }
    let json = serde_json::to_vec(&decode_pod(GOOD.as_bytes()).unwrap().pods[0]).unwrap();
    for end in 0..json.len() {
        assert!(decode_pod(&json[..end]).is_err(), "{end}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode_pod(&bytes);
        let _ = decode_pod_or_pod_list(&bytes);
    }

    #[test]
    fn yaml_like_text_never_panics(text in "[-a-c0-9:&*<>{}\\[\\],\"'|#!%?~ \n\t]{0,200}") {
        let _ = decode_pod(text.as_bytes());
    }

    #[test]
    fn mutated_manifests_never_panic(
        cuts in proptest::collection::vec((0usize..700, 0usize..20, "[-:{}\\[\\]&*a0 \n\"']{0,6}"), 1..6)
    ) {
        let mut text = GOOD.as_bytes().to_vec();
        for (at, length, insert) in cuts {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, insert.into_bytes());
        }
        if let Ok(manifest) = decode_pod(&text) {
            // Whatever it is by now: preparing it must not panic either.
            let policy = crate::StaticPodPolicy {
                node_name: "node".to_owned(),
                prevent_api_references: true,
            };
            let origin = crate::ManifestOrigin::Url("u".to_owned());
            for pod in manifest.pods {
                let _ = crate::prepare_static_pod(pod, &origin, &policy);
            }
        }
    }
}
