use super::*;

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec
    }))
    .unwrap()
}

fn one(pod_context: serde_json::Value, context: serde_json::Value) -> Pod {
    pod(serde_json::json!({
        "securityContext": pod_context,
        "containers": [{"name": "c", "securityContext": context}]
    }))
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

fn secure(
    pod: &Pod,
    image: &ImageUser,
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    compute_container_security(&SecurityInputs {
        pod,
        container: container(pod),
        image,
        target: None,
        seccomp_default: false,
        paths: &NodePaths::new("/var/lib/kubelet", "/l", "/c"),
        node_masked_paths: &[],
    })
}

fn non_root(
    pod_context: serde_json::Value,
    context: serde_json::Value,
    image: &ImageUser,
) -> String {
    let pod = one(pod_context, context);
    match check_run_as_non_root(&pod, container(&pod), image) {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn root_is_refused_where_non_root_is_required() {
    let required = serde_json::json!({"runAsNonRoot": true});
    let none = serde_json::json!({});
    let name = ImageUser::Name("app".to_owned());
    let place = "(pod: \"p_ns(u)\", container: c)";
    for (pod_context, context, image, expected) in [
        (none.clone(), none.clone(), &ImageUser::Unset, "ok".to_owned()),
        (
            required.clone(),
            none.clone(),
            &ImageUser::Unset,
            format!("container has runAsNonRoot and image will run as root {place}"),
        ),
        (
            none.clone(),
            required.clone(),
            &ImageUser::Uid(0),
            format!("container has runAsNonRoot and image will run as root {place}"),
        ),
        (required.clone(), none.clone(), &ImageUser::Uid(1000), "ok".to_owned()),
        (
            required.clone(),
            none.clone(),
            &name,
            format!(
                "container has runAsNonRoot and image has non-numeric user (app), cannot verify \
                 user is non-root {place}"
            ),
        ),
        (required.clone(), serde_json::json!({"runAsUser": 5}), &name, "ok".to_owned()),
        (
            serde_json::json!({"runAsNonRoot": true, "runAsUser": 7}),
            serde_json::json!({"runAsUser": 0}),
            &ImageUser::Uid(1000),
            format!("container's runAsUser breaks non-root policy {place}"),
        ),
        (required, serde_json::json!({"runAsNonRoot": false}), &ImageUser::Unset, "ok".to_owned()),
    ] {
        assert_eq!(non_root(pod_context, context, image), expected);
    }
}

#[test]
fn localhost_seccomp_profiles_need_a_safe_name() {
    for name in ["", "../x", "a/../../x", "/etc/x"] {
        let pod = one(
            serde_json::json!({}),
            serde_json::json!({"seccompProfile": {"type": "Localhost", "localhostProfile": name}}),
        );
        assert!(secure(&pod, &ImageUser::Unset).is_err(), "{name:?}");
    }
    let pod = one(
        serde_json::json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}}),
        serde_json::json!({}),
    );
    let security = secure(&pod, &ImageUser::Unset).unwrap();
    assert_eq!(security.seccomp_profile_path, "localhost//var/lib/kubelet/seccomp/a/b.json");
}

#[test]
fn the_container_overrides_the_pod() {
    let pod = one(
        serde_json::json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3,
            "supplementalGroups": [4], "seccompProfile": {"type": "RuntimeDefault"}}),
        serde_json::json!({"runAsUser": 10, "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}),
    );
    let security = secure(&pod, &ImageUser::Uid(99)).unwrap();
    assert_eq!(security.run_as_user, Some(v1::Int64Value { value: 10 }));
    assert_eq!(security.run_as_group, Some(v1::Int64Value { value: 2 }));
    assert_eq!(security.supplemental_groups, [3, 4]);
    assert_eq!(security.seccomp_profile_path, "runtime/default");
    assert!(security.readonly_rootfs && security.no_new_privs);
    let capabilities = security.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
    assert_eq!(security.masked_paths.len(), 12);
    assert_eq!(security.readonly_paths.len(), 5);
}

#[test]
fn unmasked_proc_hides_nothing() {
    let pod = one(serde_json::json!({}), serde_json::json!({"procMount": "Unmasked"}));
    let security = secure(&pod, &ImageUser::Unset).unwrap();
    assert!(security.masked_paths.is_empty() && security.readonly_paths.is_empty());
}

#[test]
fn the_images_user_counts_only_without_one_in_the_spec() {
    let pod = one(serde_json::json!({}), serde_json::json!({}));
    let security = secure(&pod, &ImageUser::Name("app".to_owned())).unwrap();
    assert_eq!((security.run_as_user, security.run_as_username.as_str()), (None, "app"));
    let security = secure(&pod, &ImageUser::Uid(5)).unwrap();
    assert_eq!(security.run_as_user, Some(v1::Int64Value { value: 5 }));
}

#[test]
fn namespaces_follow_the_pod() {
    let pod = pod(serde_json::json!({"hostNetwork": true, "hostIPC": true,
        "shareProcessNamespace": true, "securityContext": {}, "containers": [{"name": "c"}]}));
    let found = pod_namespaces(&pod);
    assert_eq!(found.network, i32::from(v1::NamespaceMode::Node));
    assert_eq!(found.ipc, i32::from(v1::NamespaceMode::Node));
    assert_eq!(found.pid, i32::from(v1::NamespaceMode::Pod));
    assert_eq!(compute_sandbox_security(&pod).namespace_options, Some(found));
}

#[test]
fn legacy_apparmor_annotations_still_count() {
    let mut pod = one(serde_json::json!({}), serde_json::json!({}));
    pod.metadata.annotations =
        Some([(format!("{}c", labels::APPARMOR_PREFIX), "localhost/strict".to_owned())].into());
    let security = secure(&pod, &ImageUser::Unset).unwrap();
    assert_eq!(security.apparmor_profile, "localhost/strict");
    assert_eq!(security.apparmor.unwrap().localhost_ref, "strict");
}
