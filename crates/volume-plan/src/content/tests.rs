use rubelet_types::{Quantity, ResourceAmounts};
use serde_json::{Value, json};

use super::*;
use crate::{VolumeSource, desired_volumes};

fn objects() -> ContentObjects {
    let config_map = |value: Value| Fetched::Found(serde_json::from_value(value).unwrap());
    let secret = |value: Value| Fetched::Found(serde_json::from_value(value).unwrap());
    let token = |audience: Option<&str>, expiration_seconds| TokenSpec {
        audience: audience.map(str::to_owned),
        expiration_seconds,
    };
    ContentObjects {
        trust_bundles: BTreeMap::new(),
        config_maps: BTreeMap::from([
            (
                "app".to_owned(),
                // "bin" in base64.
                config_map(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "Ymlu"}})),
            ),
            ("empty".to_owned(), config_map(json!({}))),
            ("bad".to_owned(), config_map(json!({"data": {"..x": "1"}}))),
            ("gone".to_owned(), Fetched::NotFound),
            ("far".to_owned(), Fetched::Failed("connection refused".to_owned())),
        ]),
        secrets: BTreeMap::from([
            // "s3cret" in base64.
            ("keys".to_owned(), secret(json!({"data": {"k": "czNjcmV0"}}))),
            ("gone".to_owned(), Fetched::NotFound),
        ]),
        tokens: BTreeMap::from([
            (token(None, 3600), TokenOutcome::Issued("t0ken".into())),
            (token(Some("vault"), 600), TokenOutcome::Issued("vau1t".into())),
            (
                token(Some("far"), 3600),
                TokenOutcome::Failed("failed to fetch token: connection refused".to_owned()),
            ),
            (
                token(Some("none"), 3600),
                TokenOutcome::Refused(
                    "failed to fetch token: serviceaccounts \"sa\" not found".to_owned(),
                ),
            ),
        ]),
    }
}

fn pod(volume: &Value, security: &Value) -> Pod {
    let mut volume = volume.clone();
    volume["name"] = "v".into();
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u-1", "labels": {"app": "x"}},
        "spec": {
            "securityContext": security["pod"],
            "containers": [
                {"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/m"}],
                 "securityContext": security["c"], "resources": {"limits": {"memory": "64Mi"}}},
                {"name": "d", "securityContext": security["d"]},
            ],
            "volumes": [volume],
        },
    }))
    .unwrap()
}

fn content(pod: &Pod) -> ContentVolume {
    let desired = desired_volumes(pod, Some(1 << 30), &crate::ClaimObjects::default());
    match desired.volumes.into_iter().next().map(|volume| volume.source) {
        Some(VolumeSource::Content(content)) => content,
        other => panic!("{other:?} {:?}", desired.rejected),
    }
}

fn payload_of(
    volume: &Value,
    security: &Value,
    objects: Option<&ContentObjects>,
) -> Result<Payload, ContentError> {
    let pod = pod(volume, security);
    let mut allocatable = ResourceAmounts::default();
    allocatable.set("cpu", Quantity::from_units(4));
    let fs_group = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.fs_group)
        .map(|group| u32::try_from(group).unwrap());
    let facts =
        ContentFacts { pod: &pod, volume: "v", objects, allocatable: &allocatable, fs_group };
    compute_payload(&content(&pod), &facts)
}

/// One file a line: path, mode, owner, content.
fn listed(result: Result<Payload, ContentError>) -> String {
    match result {
        Ok(payload) => {
            let line = |(path, file): (&String, &PayloadFile)| {
                let owner = file.owner.map_or_else(|| "-".to_owned(), |owner| owner.to_string());
                let content = String::from_utf8_lossy(&file.content);
                format!("{path} {:o} {owner} {content:?}", file.mode)
            };
            payload.files.iter().map(line).collect::<Vec<_>>().join("; ")
        }
        Err(error) => error.to_string(),
    }
}

fn files(volume: Value) -> String {
    listed(payload_of(&volume, &Value::Null, Some(&objects())))
}

#[test]
fn config_maps_and_secrets_become_files() {
    for (volume, expected) in [
        (json!({"configMap": {"name": "app"}}), "a 644 - \"1\"; b 644 - \"2\"; c 644 - \"bin\""),
        (
            json!({"configMap": {"name": "app", "defaultMode": 0o400, "items": [
                {"key": "a", "path": "x/y"}, {"key": "c", "path": "./z//w", "mode": 0o755}]}}),
            "x/y 400 - \"1\"; z/w 755 - \"bin\"",
        ),
        (json!({"configMap": {"name": "empty"}}), ""),
        (json!({"configMap": {"name": "gone", "optional": true}}), ""),
        (
            json!({"configMap": {"name": "gone", "optional": true, "items": [
                {"key": "a", "path": "a"}]}}),
            "",
        ),
        (
            json!({"configMap": {"name": "app", "optional": true, "items": [
                {"key": "none", "path": "n"}, {"key": "a", "path": "a"}]}}),
            "a 644 - \"1\"",
        ),
        (json!({"configMap": {"name": "gone"}}), "configmap \"gone\" not found"),
        (json!({"configMap": {"name": "far"}}), "connection refused"),
        (json!({"configMap": {"name": "far", "optional": true}}), "connection refused"),
        (
            json!({"configMap": {"name": "app", "items": [{"key": "none", "path": "n"}]}}),
            "references non-existent config key: none",
        ),
        (json!({"configMap": {"name": "bad"}}), "invalid path: must not start with '..': ..x"),
        (
            json!({"configMap": {"name": "app", "items": [
                {"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}]}}),
            "invalid path: x cannot be both a file and the directory of x/y",
        ),
        (json!({"secret": {"secretName": "keys", "defaultMode": 0o440}}), "k 440 - \"s3cret\""),
        (json!({"secret": {"secretName": "gone"}}), "secret \"gone\" not found"),
        (
            json!({"secret": {"secretName": "keys", "items": [{"key": "none", "path": "n"}]}}),
            "references non-existent secret key: none",
        ),
    ] {
        assert_eq!(files(volume.clone()), expected, "{volume}");
    }
}

#[test]
fn a_pod_reads_about_itself() {
    assert_eq!(
        files(json!({"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "meta/labels", "mode": 0o600, "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
            {"path": "memory", "resourceFieldRef":
                {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
        ]}})),
        "cpu 644 - \"4\"; memory 644 - \"64\"; meta/labels 600 - \"app=\\\"x\\\"\"; \
         name 644 - \"web\""
    );
    assert_eq!(
        files(json!({"downwardAPI": {"items": [
            {"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "x", "resource": "limits.cpu"}},
        ]}})),
        "[unsupported fieldPath: status.podIP, container x not found]"
    );
}

fn usual_projection() -> Value {
    json!({"projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "app", "items": [{"key": "a", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]}})
}

#[test]
fn projected_sources_come_together() {
    assert_eq!(
        files(usual_projection()),
        "ca.crt 644 - \"1\"; namespace 644 - \"ns\"; token 644 - \"t0ken\""
    );
    let sources = |sources: Value| files(json!({"projected": {"sources": sources}}));
    assert_eq!(
        sources(json!([
            {"configMap": {"name": "app"}},
            {"secret": {"name": "keys", "items": [{"key": "k", "path": "a"}]}},
            {"serviceAccountToken": {"path": "dir/vault", "audience": "vault",
                "expirationSeconds": 600}},
        ])),
        "a 644 - \"s3cret\"; b 644 - \"2\"; c 644 - \"bin\"; dir/vault 644 - \"vau1t\"",
        "the later source counts"
    );
    assert_eq!(
        sources(json!([
            {"configMap": {"name": "gone"}},
            {"secret": {"name": "gone"}},
            {"configMap": {"name": "gone"}},
            {"serviceAccountToken": {"path": "t", "audience": "none"}},
        ])),
        "[configmap \"gone\" not found, secret \"gone\" not found, failed to fetch token: \
         serviceaccounts \"sa\" not found]"
    );
    assert_eq!(sources(json!([{}])), "");
}

#[test]
fn tokens_belong_to_whom_the_containers_run_as() {
    for (case, security, expected) in [
        ("open", json!({}), "token 644 - \"t0ken\""),
        ("one user", json!({"pod": {"runAsUser": 7}}), "token 600 7 \"t0ken\""),
        (
            "the same in all containers",
            json!({"pod": {"runAsUser": 1}, "c": {"runAsUser": 7}, "d": {"runAsUser": 7}}),
            "token 600 7 \"t0ken\"",
        ),
        (
            "different users",
            json!({"pod": {"runAsUser": 7}, "d": {"runAsUser": 8}}),
            "token 644 - \"t0ken\"",
        ),
        ("one leaves it open", json!({"c": {"runAsUser": 7}}), "token 644 - \"t0ken\""),
        ("group", json!({"pod": {"fsGroup": 9}}), "token 640 - \"t0ken\""),
        ("user and group", json!({"pod": {"fsGroup": 9, "runAsUser": 7}}), "token 640 7 \"t0ken\""),
    ] {
        let volume =
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
        let payload = payload_of(&volume, &security, Some(&objects())).unwrap();
        assert_eq!(payload.group, security["pod"]["fsGroup"].as_u64().map(|_| 9), "{case}");
        assert_eq!(listed(Ok(payload)), expected, "{case}");
    }
    let secret = json!({"secret": {"secretName": "keys", "defaultMode": 0o400}});
    let payload = payload_of(&secret, &json!({"pod": {"fsGroup": 9}}), Some(&objects()));
    assert_eq!(listed(payload), "k 440 - \"s3cret\"", "the group may read what the owner may");
}

#[test]
fn what_passes_is_told_from_what_stays() {
    for (sources, unreachable) in [
        (json!([{"configMap": {"name": "far"}}]), true),
        (
            json!([{"configMap": {"name": "far"}},
                {"serviceAccountToken": {"path": "t", "audience": "far"}}]),
            true,
        ),
        (json!([{"configMap": {"name": "far"}}, {"configMap": {"name": "gone"}}]), false),
        (json!([{"serviceAccountToken": {"path": "t", "audience": "none"}}]), false),
        (json!([{"serviceAccountToken": {"path": "/t"}}]), false),
    ] {
        let volume = json!({"projected": {"sources": sources}});
        let error = payload_of(&volume, &Value::Null, Some(&objects())).unwrap_err();
        assert_eq!(error.is_unreachable(), unreachable, "{volume} {error}");
    }
}

#[test]
fn without_an_api_server_a_pod_still_reads_about_itself() {
    let standalone = |volume: Value| listed(payload_of(&volume, &Value::Null, None));
    assert_eq!(
        standalone(json!({"configMap": {"name": "app"}})),
        "Cannot setup configMap volume v because kube client is not configured"
    );
    assert_eq!(
        standalone(usual_projection()),
        "Cannot setup projected volume v because kube client is not configured"
    );
    let downward = json!({"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]});
    assert_eq!(standalone(json!({"downwardAPI": downward})), "name 644 - \"web\"");
    assert_eq!(
        standalone(json!({"projected": {"sources": [{"downwardAPI": downward}]}})),
        "name 644 - \"web\""
    );
}

#[test]
fn needs_are_named_once() {
    let needs = content(&pod(&usual_projection(), &Value::Null)).needs();
    assert_eq!(
        needs,
        ContentNeeds {
            objects: BTreeSet::from([(ObjectKind::ConfigMap, "app".to_owned())]),
            tokens: BTreeSet::from([TokenSpec { audience: None, expiration_seconds: 3600 }]),
            trust_bundles: BTreeSet::new(),
        }
    );
    let secret = content(&pod(&json!({"secret": {"secretName": "keys"}}), &Value::Null));
    assert_eq!(secret.needs().objects, BTreeSet::from([(ObjectKind::Secret, "keys".to_owned())]));
}

#[test]
fn secrets_live_in_memory_and_config_maps_on_disk() {
    for (volume, memory) in [
        (json!({"configMap": {"name": "app"}}), false),
        (json!({"secret": {"secretName": "keys"}}), true),
        (json!({"downwardAPI": {}}), true),
        (usual_projection(), true),
    ] {
        let medium = content(&pod(&volume, &Value::Null)).medium;
        let expected = if memory {
            EmptyDirMedium::Memory { size_bytes: Some(1 << 30) }
        } else {
            EmptyDirMedium::Disk
        };
        assert_eq!(medium, expected, "{volume}");
    }
}

#[test]
fn secrets_stay_out_of_logs() {
    let text = format!(
        "{:?} {:?}",
        objects(),
        payload_of(&json!({"secret": {"secretName": "keys"}}), &Value::Null, Some(&objects()))
    );
    for secret in ["s3cret", "czNjcmV0", "t0ken", "vau1t"] {
        assert!(!text.contains(secret), "{text}");
    }
}
