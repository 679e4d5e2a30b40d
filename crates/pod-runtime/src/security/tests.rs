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
    secure_with(pod, image, None, None)
}

fn secure_with(
    pod: &Pod,
    image: &ImageUser,
    target: Option<&ContainerId>,
    user_namespace: Option<&UserNamespace>,
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    compute_container_security(&SecurityInputs {
        pod,
        container: container(pod),
        image,
        target,
        extra_groups: &[77],
        user_namespace,
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
            &ImageUser::Uid(1 << 31),
            format!(
                "container has runAsNonRoot and image has an invalid user id (2147483648). (Must \
                 be 1-(2147483647)): must be between 0 and 2147483647, inclusive {place}"
            ),
        ),
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
    let secured = |profile: serde_json::Value| {
        let mut wanted = serde_json::json!({"type": "Localhost"});
        wanted["localhostProfile"] = profile;
        let pod = one(serde_json::json!({}), serde_json::json!({"seccompProfile": wanted}));
        match secure(&pod, &ImageUser::Unset) {
            Ok(security) => security.seccomp_profile_path,
            Err(error) => error.to_string(),
        }
    };
    for none in [serde_json::json!(null), serde_json::json!("")] {
        assert_eq!(
            secured(none),
            "localhostProfile must be set if seccompProfile type is Localhost."
        );
    }
    for name in ["../x", "a/../../x", "/etc/x", "..", "a/.."] {
        assert_eq!(
            secured(name.into()),
            format!("localhostProfile {name:?} must be a relative path without \"..\"")
        );
    }
    assert_eq!(secured("a/b.json".into()), "localhost//var/lib/kubelet/seccomp/a/b.json");
}

#[test]
fn profiles_of_the_container_win_over_those_of_the_pod() {
    for (of_pod, of_container, expected) in [
        (serde_json::json!(null), serde_json::json!(null), "unconfined"),
        (serde_json::json!({"type": "RuntimeDefault"}), serde_json::json!(null), "runtime/default"),
        (
            serde_json::json!({"type": "RuntimeDefault"}),
            serde_json::json!({"type": "Unconfined"}),
            "unconfined",
        ),
        (
            serde_json::json!({"type": "Nonsense"}),
            serde_json::json!(null),
            "unknown seccomp profile type: \"Nonsense\"",
        ),
    ] {
        let pod = one(
            serde_json::json!({"seccompProfile": of_pod}),
            serde_json::json!({"seccompProfile": of_container}),
        );
        let found = secure(&pod, &ImageUser::Unset)
            .map_or_else(|error| error.to_string(), |security| security.seccomp_profile_path);
        assert_eq!(found, expected, "{pod:?}");
    }
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
    assert_eq!(security.supplemental_groups, [3, 4, 77]);
    let sandbox = compute_sandbox_security(&pod, &[77], None).unwrap();
    assert_eq!(sandbox.supplemental_groups, [3, 77, 4]);
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
    for (image, user) in [(ImageUser::Uid(5), 5), (ImageUser::Unset, 0)] {
        let security = secure(&pod, &image).unwrap();
        assert_eq!(security.run_as_user, Some(v1::Int64Value { value: user }));
        assert_eq!(security.run_as_username, "");
    }
}

#[test]
fn namespaces_follow_the_pod() {
    let pod = pod(serde_json::json!({"hostNetwork": true, "hostIPC": true,
        "shareProcessNamespace": true, "securityContext": {}, "containers": [{"name": "c"}]}));
    let found = pod_namespaces(&pod, None).unwrap();
    assert_eq!(found.network, i32::from(v1::NamespaceMode::Node));
    assert_eq!(found.ipc, i32::from(v1::NamespaceMode::Node));
    assert_eq!(found.pid, i32::from(v1::NamespaceMode::Pod));
    let sandbox = compute_sandbox_security(&pod, &[], None).unwrap();
    assert_eq!(sandbox.namespace_options, Some(found));
}

#[test]
fn a_target_is_joined_unless_the_pod_shares_its_processes_anyway() {
    let target = ContainerId::new("4f53");
    for (shared, mode, id) in
        [(false, v1::NamespaceMode::Target, "4f53"), (true, v1::NamespaceMode::Pod, "")]
    {
        let pod = pod(serde_json::json!({"shareProcessNamespace": shared,
            "containers": [{"name": "c"}]}));
        let security = secure_with(&pod, &ImageUser::Unset, Some(&target), None).unwrap();
        let found = security.namespace_options.unwrap();
        assert_eq!((found.pid, found.target_id.as_str()), (i32::from(mode), id));
    }
}

#[test]
fn users_of_its_own_are_the_pods_or_it_does_not_run() {
    let with = |host_users: serde_json::Value| {
        pod(serde_json::json!({"hostUsers": host_users, "securityContext": {},
            "containers": [{"name": "c"}]}))
    };
    let block = crate::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };
    let users = UserNamespace { uids: vec![block], gids: vec![block] };
    let options = |pod: &Pod, users: Option<&UserNamespace>| {
        let container = secure_with(pod, &ImageUser::Unset, None, users)?;
        let sandbox = compute_sandbox_security(pod, &[], users)?;
        assert_eq!(container.namespace_options, sandbox.namespace_options);
        Ok(container.namespace_options.unwrap().userns_options.unwrap())
    };
    for host_users in [serde_json::json!(null), serde_json::json!(true)] {
        let found = options(&with(host_users), Some(&users)).unwrap();
        assert_eq!(found.mode, i32::from(v1::NamespaceMode::Node));
        assert!(found.uids.is_empty() && found.gids.is_empty());
    }
    let own = with(serde_json::json!(false));
    let found = options(&own, Some(&users)).unwrap();
    let mapping = v1::IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };
    assert_eq!(found.mode, i32::from(v1::NamespaceMode::Pod));
    assert_eq!((found.uids, found.gids), (vec![mapping], vec![mapping]));
    assert_eq!(options(&own, None), Err(SecurityError::NoUserNamespace));
}

#[test]
fn a_policy_for_groups_that_does_not_exist_is_refused() {
    let pod = one(serde_json::json!({"supplementalGroupsPolicy": "Some"}), serde_json::json!({}));
    assert_eq!(
        secure(&pod, &ImageUser::Unset).unwrap_err().to_string(),
        "unsupported supplementalGroupsPolicy: Some"
    );
    assert!(compute_sandbox_security(&pod, &[], None).is_err());
}

#[test]
fn apparmor_profiles_are_taken_from_the_nearest_place() {
    let found = |of_pod: Option<&str>, annotation: Option<&str>, of_container: Option<&str>| {
        let profile = |kind: Option<&str>| match kind {
            Some("Named") => {
                serde_json::json!({"type": "Localhost", "localhostProfile": "strict"})
            }
            kind => kind.map_or(serde_json::json!(null), |kind| serde_json::json!({"type": kind})),
        };
        let mut pod = one(
            serde_json::json!({"appArmorProfile": profile(of_pod)}),
            serde_json::json!({"appArmorProfile": profile(of_container)}),
        );
        pod.metadata.annotations = annotation
            .map(|value| [(format!("{}c", labels::APPARMOR_PREFIX), value.to_owned())].into());
        match secure(&pod, &ImageUser::Unset) {
            Ok(security) => security.apparmor_profile,
            Err(error) => error.to_string(),
        }
    };
    for (of_pod, annotation, of_container, expected) in [
        (None, None, None, ""),
        (Some("RuntimeDefault"), None, None, "runtime/default"),
        (Some("RuntimeDefault"), Some("unconfined"), None, "unconfined"),
        (Some("RuntimeDefault"), Some("nonsense"), None, "runtime/default"),
        (Some("RuntimeDefault"), Some("unconfined"), Some("Named"), "localhost/strict"),
        (None, Some("localhost/old"), None, "localhost/old"),
        (None, Some("runtime/default"), Some("Unconfined"), "unconfined"),
        (None, None, Some("Localhost"), "missing localhost apparmor profile name"),
        (None, None, Some("Nonsense"), "unknown apparmor profile type: \"Nonsense\""),
    ] {
        assert_eq!(found(of_pod, annotation, of_container), expected, "{of_pod:?} {annotation:?}");
    }
}
