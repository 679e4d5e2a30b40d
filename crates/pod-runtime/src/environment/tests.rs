use std::path::PathBuf;
use std::sync::Arc;

use rubelet_types::Quantity;

use super::*;

fn pod(container: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u-1",
            "labels": {"app": "x", "tier": "y"}, "annotations": {"a/b": "y"}},
        "spec": {"serviceAccountName": "sa", "enableServiceLinks": true, "containers": [
            container,
            {"name": "other", "resources": {"limits": {"cpu": "2"}}}
        ]}
    }))
    .unwrap()
}

fn objects() -> ApiObjects {
    serde_json::from_value::<Vec<Arc<k8s_openapi::api::core::v1::Service>>>(serde_json::json!([
        {"metadata": {"name": "db", "namespace": "ns"},
         "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 5432}]}}
    ]))
    .map(|services| ApiObjects {
        config_maps: [
            (
                "one".to_owned(),
                Fetched::Found(
                    serde_json::from_value(
                        serde_json::json!({"data": {"A": "one-a", "B": "one-b"}}),
                    )
                    .unwrap(),
                ),
            ),
            (
                "two".to_owned(),
                Fetched::Found(
                    serde_json::from_value(serde_json::json!({"data": {"A": "two-a"}})).unwrap(),
                ),
            ),
            ("gone".to_owned(), Fetched::NotFound),
            ("broken".to_owned(), Fetched::Failed("the server is down".to_owned())),
        ]
        .into(),
        secrets: [
            (
                "text".to_owned(),
                // "s3cret"
                Fetched::Found(
                    serde_json::from_value(serde_json::json!({"data": {"KEY": "czNjcmV0"}}))
                        .unwrap(),
                ),
            ),
            (
                "binary".to_owned(),
                Fetched::Found(
                    serde_json::from_value(serde_json::json!({"data": {"KEY": "/w=="}})).unwrap(),
                ),
            ),
            ("gone".to_owned(), Fetched::NotFound),
        ]
        .into(),
        services: Some(services),
    })
    .unwrap()
}

fn computed(
    container: serde_json::Value,
    objects: Option<&ApiObjects>,
    volume_paths: &BTreeMap<String, PathBuf>,
) -> String {
    let mut container = container;
    container["name"] = "c".into();
    let pod = pod(container);
    let mut allocatable = ResourceAmounts::default();
    allocatable.set("cpu", Quantity::from_units(4));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let files = read_environment_files(container, volume_paths);
    let facts = EnvironmentFacts {
        pod_ips: &["10.0.0.2".to_owned(), "fd00::2".to_owned()],
        host_ips: &["192.0.2.1".to_owned()],
        node_name: "node",
        allocatable: &allocatable,
        objects,
        files: &files,
    };
    match compute_environment(&pod, container, &facts) {
        Ok(found) => found.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

fn environment(env: serde_json::Value) -> String {
    computed(
        serde_json::json!({"env": env, "resources": {
            "requests": {"cpu": "250m"}, "limits": {"memory": "64Mi", "hugepages-2Mi": "4Mi"}}}),
        None,
        &BTreeMap::new(),
    )
}

fn from_api(container: serde_json::Value) -> String {
    let text = computed(container, Some(&objects()), &BTreeMap::new());
    // The service's variables come last.
    text.split(" DB_SERVICE_HOST=").next().unwrap_or_default().to_owned()
}

#[test]
fn earlier_variables_are_expanded_and_the_last_value_wins() {
    let env = serde_json::json!([
        {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)-$$(A)"},
        {"name": "A", "value": "2"}, {"name": "C", "value": "$(A)"}
    ]);
    assert_eq!(environment(env), "A=2 B=1-$(C)-$(A) C=2");
}

#[test]
fn fields_of_the_pod() {
    for (path, expected) in [
        ("metadata.name", "V=web"),
        ("metadata.namespace", "V=ns"),
        ("metadata.uid", "V=u-1"),
        ("metadata.labels", "V=app=\"x\"\ntier=\"y\""),
        ("metadata.labels['app']", "V=x"),
        ("metadata.annotations['a/b']", "V=y"),
        ("metadata.annotations['none']", "V="),
        ("spec.nodeName", "V=node"),
        ("spec.serviceAccountName", "V=sa"),
        ("status.hostIP", "V=192.0.2.1"),
        ("status.hostIPs", "V=192.0.2.1"),
        ("status.podIP", "V=10.0.0.2"),
        ("status.podIPs", "V=10.0.0.2,fd00::2"),
        ("spec.secret", "field label not supported: spec.secret"),
        ("status.phase", "unsupported fieldPath: status.phase"),
        ("metadata.name['x']", "field label does not support subscript: metadata.name['x']"),
    ] {
        let env =
            serde_json::json!([{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}]);
        assert_eq!(environment(env), expected, "{path}");
    }
}

#[test]
fn resources_are_divided_and_rounded_up() {
    for (name, container, divisor, expected) in [
        ("requests.cpu", "", "1m", "V=250"),
        ("requests.cpu", "", "", "V=1"),
        ("requests.cpu", "", "0", "V=1"),
        ("limits.memory", "", "1Mi", "V=64"),
        ("requests.memory", "", "1Mi", "V=64"),
        ("limits.cpu", "", "", "V=4"),
        ("limits.cpu", "other", "1m", "V=2000"),
        ("limits.hugepages-2Mi", "", "1Mi", "V=4"),
        ("limits.hugepages-1Gi", "", "", "V=0"),
        ("limits.gpu", "", "", "unsupported container resource : limits.gpu"),
        ("limits.cpu", "nobody", "", "container nobody not found"),
    ] {
        let env = serde_json::json!([{"name": "V", "valueFrom": {"resourceFieldRef":
            {"resource": name, "containerName": container, "divisor": divisor}}}]);
        assert_eq!(environment(env), expected, "{name} {container}");
    }
}

#[test]
fn without_a_limit_of_its_own_a_container_has_the_pods() {
    let mut pod = pod(serde_json::json!({"name": "c", "env": [{"name": "V", "valueFrom":
        {"resourceFieldRef": {"resource": "limits.cpu"}}}]}));
    pod.spec.as_mut().unwrap().resources =
        Some(serde_json::from_value(serde_json::json!({"limits": {"cpu": "3"}})).unwrap());
    let mut allocatable = ResourceAmounts::default();
    allocatable.set("cpu", Quantity::from_units(4));
    let facts = EnvironmentFacts {
        pod_ips: &[],
        host_ips: &[],
        node_name: "node",
        allocatable: &allocatable,
        objects: None,
        files: &EnvironmentFiles::default(),
    };
    let found =
        compute_environment(&pod, &pod.spec.as_ref().unwrap().containers[0], &facts).unwrap();
    assert_eq!(found, [("V".to_owned(), "3".to_owned())]);
}

#[test]
fn objects_of_an_api_that_is_not_there_are_missing_unless_optional() {
    let reference = |optional: bool| {
        serde_json::json!([{"name": "V", "valueFrom": {"secretKeyRef":
            {"name": "s", "key": "k", "optional": optional}}}])
    };
    assert_eq!(environment(reference(false)), "couldn't get secret ns/s, no kubeClient defined");
    assert_eq!(environment(reference(true)), "");
}

#[test]
fn later_sources_win_and_env_wins_over_all_of_them() {
    let text = from_api(serde_json::json!({
        "envFrom": [
            {"configMapRef": {"name": "one"}},
            {"prefix": "P_", "configMapRef": {"name": "one"}},
            {"configMapRef": {"name": "two"}},
            {"secretRef": {"name": "text"}},
            {"configMapRef": {"name": "gone", "optional": true}}
        ],
        "env": [{"name": "B", "value": "$(A)/$(P_A)/$(DB_SERVICE_PORT)"},
                {"name": "KEY", "valueFrom": {"configMapKeyRef":
                    {"name": "two", "key": "none", "optional": true}}}]
    }));
    assert_eq!(text, "A=two-a B=two-a/one-a/5432 P_A=one-a P_B=one-b KEY=s3cret");
}

#[test]
fn what_cannot_be_resolved_is_named() {
    let key = |kind: &str, name: &str, key: &str| {
        let mut source = serde_json::json!({});
        source[kind] = serde_json::json!({"name": name, "key": key});
        from_api(serde_json::json!({"env": [{"name": "V", "valueFrom": source}]}))
    };
    let source = |kind: &str, name: &str| {
        let mut source = serde_json::json!({});
        source[kind] = serde_json::json!({"name": name});
        from_api(serde_json::json!({"envFrom": [source]}))
    };
    assert_eq!(key("configMapKeyRef", "one", "A"), "V=one-a");
    assert_eq!(key("configMapKeyRef", "one", "X"), "couldn't find key X in ConfigMap ns/one");
    assert_eq!(key("secretKeyRef", "text", "X"), "couldn't find key X in Secret ns/text");
    assert_eq!(key("configMapKeyRef", "gone", "X"), "configmap \"gone\" not found");
    assert_eq!(key("configMapKeyRef", "broken", "X"), "the server is down");
    assert_eq!(source("secretRef", "gone"), "secret \"gone\" not found");
    assert_eq!(source("configMapRef", "gone"), "configmap \"gone\" not found");
    assert_eq!(
        source("secretRef", "binary"),
        "key KEY in Secret ns/binary is not UTF-8 and cannot be a variable"
    );
}

#[test]
fn pods_of_the_api_wait_for_the_services_and_static_pods_do_not() {
    let unknown = ApiObjects { services: None, ..objects() };
    let facts = EnvironmentFacts {
        pod_ips: &[],
        host_ips: &[],
        node_name: "node",
        allocatable: &ResourceAmounts::default(),
        objects: Some(&unknown),
        files: &EnvironmentFiles::default(),
    };
    let mut pod = pod(serde_json::json!({"name": "c"}));
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    assert_eq!(
        compute_environment(&pod, &container, &facts).unwrap_err().to_string(),
        "services have not yet been read at least once, cannot construct envvars"
    );
    let source = (rubelet_types::labels::CONFIG_SOURCE.to_owned(), "file".to_owned());
    pod.metadata.annotations = Some([source].into());
    assert_eq!(compute_environment(&pod, &container, &facts).unwrap(), []);
    pod.spec.as_mut().unwrap().enable_service_links = None;
    assert_eq!(
        compute_environment(&pod, &container, &facts).unwrap_err().to_string(),
        "nil pod.spec.enableServiceLinks encountered, cannot construct envvars"
    );
}

#[test]
fn variables_come_out_of_files_of_the_pods_volumes() {
    let volume = tempfile::tempdir().unwrap();
    std::fs::write(volume.path().join("app.env"), "A='one\ntwo' # two lines\nE=''\n").unwrap();
    std::fs::write(volume.path().join("bad.env"), "A=one\n").unwrap();
    let paths = BTreeMap::from([("config".to_owned(), volume.path().to_owned())]);
    let value = |volume: &str, path: &str, key: &str, optional: bool| {
        let env = serde_json::json!([{"name": "V", "valueFrom": {"fileKeyRef":
            {"volumeName": volume, "path": path, "key": key, "optional": optional}}}]);
        computed(serde_json::json!({"env": env}), None, &paths)
    };
    let missing = |key: &str| {
        let file = volume.path().join("app.env");
        format!("environment variable key \"{key}\" not found in file {file:?}")
    };
    for (volume, path, key, required, optional) in [
        ("config", "app.env", "A", "V=one\ntwo".to_owned(), "V=one\ntwo"),
        ("config", "app.env", "E", missing("E"), ""),
        ("config", "app.env", "X", missing("X"), ""),
        ("config", "none.env", "A", "couldn't parse env file".to_owned(), ""),
        ("config", "bad.env", "A", "couldn't parse env file".to_owned(), "couldn't parse env file"),
        (
            "other",
            "app.env",
            "A",
            "cannot find the volume \"other\" referenced by FileKeyRef".to_owned(),
            "cannot find the volume \"other\" referenced by FileKeyRef",
        ),
    ] {
        assert_eq!(value(volume, path, key, false), required, "{volume} {path} {key}");
        assert_eq!(value(volume, path, key, true), optional, "{volume} {path} {key}");
    }
}

#[test]
fn a_container_names_the_objects_it_needs() {
    let container: Container = serde_json::from_value(serde_json::json!({"name": "c",
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [
            {"name": "V", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "W", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}}]}))
    .unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        referenced_objects(&container),
        ReferencedObjects { config_maps: names(&["a", "c"]), secrets: names(&["b"]) }
    );
}

#[test]
fn secrets_do_not_get_into_logs() {
    let text = format!("{:?}", objects());
    assert!(text.contains("text") && !text.contains("s3cret") && !text.contains("czNjcmV0"));
}
