//! Making, reading and changing objects.

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use rubelet_apiserver::{ApiErrorKind, Patch, Selector};
use serde_json::json;

use super::{Named, Outcome, Scope, ensure, expect_error, object, to_json, uid};

pub(super) const CHECKS: &[Named] = &[
    ("a new object gets an identity, a version and a time", |s| Box::pin(identity(s))),
    ("a name is taken once", |s| Box::pin(taken(s))),
    ("what is not there is said to be so", |s| Box::pin(missing(s))),
    ("a new pod gets its defaults and its first status", |s| Box::pin(pod_defaults(s))),
    ("an update of an old version is a conflict", |s| Box::pin(old_version(s))),
    ("a status patch changes the status only", |s| Box::pin(status_only(s))),
    ("a patch of the object leaves the status alone", |s| Box::pin(object_only(s))),
    ("a pod's status merges by its keys", |s| Box::pin(pod_status(s))),
    ("a node's status merges by its keys", |s| Box::pin(node_status(s))),
    ("a status patch may change annotations", |s| Box::pin(annotations(s))),
    ("a merged list has the order of the patch", |s| Box::pin(order(s))),
    ("a write for another uid is refused", |s| Box::pin(other_uid(s))),
    ("a merge patch replaces lists and removes nulls", |s| Box::pin(merge_patch(s))),
    ("writing what is there makes no new version", |s| Box::pin(no_change(s))),
    ("selectors choose", |s| Box::pin(selectors(s))),
    ("a long list is whole", |s| Box::pin(long_list(s))),
];

async fn identity(scope: &Scope) -> Outcome {
    let maps = scope.config_maps();
    let made = maps.create(&scope.config_map("identity", "x")).await?;
    let meta = &made.metadata;
    ensure!(meta.uid.as_deref().is_some_and(|uid| !uid.is_empty()), "no uid");
    ensure!(meta.resource_version.is_some(), "no version");
    ensure!(meta.creation_timestamp.is_some(), "no time");
    ensure!(meta.namespace.as_deref() == Some(&scope.namespace), "the wrong namespace");
    ensure!(meta.managed_fields.is_none(), "managed fields were kept");
    ensure!(maps.get("identity").await? == made, "it reads differently");
    // The cache may be behind, though not for long.
    let cached = loop {
        match maps.get_cached("identity").await {
            Err(error) if error.is_not_found() => tokio::task::yield_now().await,
            outcome => break outcome?,
        }
    };
    ensure!(cached == made, "the cache has something else");
    Ok(())
}

async fn taken(scope: &Scope) -> Outcome {
    let maps = scope.config_maps();
    maps.create(&scope.config_map("taken", "x")).await?;
    let again = maps.create(&scope.config_map("taken", "x")).await;
    let error = expect_error(again, ApiErrorKind::AlreadyExists, "a second create")?;
    ensure!(error.to_string() == "configmaps \"taken\" already exists", "its text is {error}");
    Ok(())
}

async fn missing(scope: &Scope) -> Outcome {
    let got = scope.config_maps().get("nobody").await;
    let error = expect_error(got, ApiErrorKind::NotFound, "getting what is not there")?;
    ensure!(error.to_string() == "configmaps \"nobody\" not found", "its text is {error}");
    ensure!(error.name() == Some("nobody") && error.resource() == "configmaps", "{error:?}");
    let deleted = scope.config_maps().delete("nobody", &Default::default()).await;
    expect_error(deleted, ApiErrorKind::NotFound, "deleting what is not there")?;
    let elsewhere = scope.api.namespaced::<ConfigMap>("contract-no-such-namespace");
    let made = elsewhere.create(&scope.config_map("x", "x")).await;
    expect_error(made, ApiErrorKind::NotFound, "creating in no namespace")?;
    let node = scope
        .api
        .cluster::<Node>()
        .patch_status("contract-nobody", &Patch::Strategic(json!({})))
        .await;
    let error = expect_error(node, ApiErrorKind::NotFound, "patching what is not there")?;
    ensure!(error.resource() == "nodes/status", "{error:?}");
    Ok(())
}

async fn pod_defaults(scope: &Scope) -> Outcome {
    let pod = scope.pods().create(&scope.pod("defaults")).await?;
    let pod = to_json(&pod);
    for (path, value) in [
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/dnsPolicy", json!("ClusterFirst")),
        ("/spec/terminationGracePeriodSeconds", json!(30)),
        ("/spec/enableServiceLinks", json!(true)),
        ("/spec/serviceAccountName", json!("default")),
        ("/spec/containers/0/imagePullPolicy", json!("IfNotPresent")),
        ("/spec/containers/0/terminationMessagePath", json!("/dev/termination-log")),
        ("/spec/containers/0/terminationMessagePolicy", json!("File")),
        ("/status/phase", json!("Pending")),
        ("/status/qosClass", json!("BestEffort")),
        ("/metadata/generation", json!(1)),
    ] {
        ensure!(pod.pointer(path) == Some(&value), "{path} is {:?}", pod.pointer(path));
    }
    Ok(())
}

async fn old_version(scope: &Scope) -> Outcome {
    let maps = scope.config_maps();
    let first = maps.create(&scope.config_map("versions", "x")).await?;
    let mut second = first.clone();
    second.data = Some([("k".to_owned(), "2".to_owned())].into());
    let second = maps.update("versions", &second).await?;
    ensure!(
        second.metadata.resource_version != first.metadata.resource_version,
        "the same version"
    );
    let mut third = first;
    third.data = None;
    let outcome = maps.update("versions", &third).await;
    let error = expect_error(outcome, ApiErrorKind::Conflict, "an update of an old version")?;
    ensure!(error.to_string().contains("the object has been modified"), "its text is {error}");
    ensure!(maps.get("versions").await? == second, "it has changed nevertheless");
    Ok(())
}

async fn status_only(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    let made = pods.create(&scope.pod("status-only")).await?;
    let patch = Patch::Strategic(json!({
        "spec": {"nodeName": "elsewhere", "activeDeadlineSeconds": 5},
        "status": {"phase": "Running", "message": "m"},
    }));
    let patched = pods.patch_status("status-only", &patch).await?;
    ensure!(patched.spec == made.spec, "the specification has changed");
    let status = patched.status.unwrap_or_default();
    ensure!(status.phase.as_deref() == Some("Running"), "the phase is {:?}", status.phase);
    ensure!(status.qos_class.is_some(), "the QoS class is lost");
    Ok(())
}

async fn object_only(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    pods.create(&scope.pod("object-only")).await?;
    let patch = Patch::Strategic(json!({
        "metadata": {"labels": {"new": "label"}},
        "status": {"phase": "Failed"},
    }));
    let patched = pods.patch("object-only", &patch).await?;
    let labels = patched.metadata.labels.unwrap_or_default();
    ensure!(labels.contains_key("new") && labels.contains_key("run"), "labels: {labels:?}");
    let phase = patched.status.and_then(|status| status.phase);
    ensure!(phase.as_deref() == Some("Pending"), "the phase is {phase:?}");
    Ok(())
}

fn container_status(name: &str, ready: bool) -> serde_json::Value {
    json!({"name": name, "image": "i:1", "imageID": "", "ready": ready, "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}}})
}

async fn pod_status(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    pods.create(&scope.pod("status")).await?;
    let patch = Patch::Strategic(json!({"status": {
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
            {"type": "example.com/gate", "status": "True"},
        ],
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "containerStatuses": [container_status("a", false), container_status("b", false)],
    }}));
    pods.patch_status("status", &patch).await?;
    let patch = Patch::Strategic(json!({"status": {
        "conditions": [{"type": "Ready", "status": "True", "reason": null}],
        "podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}],
        "containerStatuses": [container_status("b", true)],
    }}));
    let status = pods.patch_status("status", &patch).await?.status.unwrap_or_default();
    let conditions: Vec<_> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .map(|condition| (condition.type_, condition.status, condition.reason))
        .collect();
    ensure!(
        conditions
            == [
                ("Ready".to_owned(), "True".to_owned(), None),
                ("example.com/gate".to_owned(), "True".to_owned(), None),
            ],
        "conditions: {conditions:?}"
    );
    let ips: std::collections::BTreeSet<_> =
        status.pod_ips.unwrap_or_default().into_iter().map(|ip| ip.ip).collect();
    ensure!(ips == ["10.1.0.1".to_owned(), "fd00::1".to_owned()].into(), "addresses: {ips:?}");
    let names: Vec<_> =
        status.container_statuses.unwrap_or_default().into_iter().map(|c| c.name).collect();
    ensure!(names == ["b"], "container statuses were merged: {names:?}");
    Ok(())
}

async fn order(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    pods.create(&scope.pod("order")).await?;
    let conditions = |types: &str| {
        let conditions: Vec<_> =
            types.chars().map(|kind| json!({"type": kind.to_string(), "status": "True"})).collect();
        Patch::Strategic(json!({"status": {"conditions": conditions}}))
    };
    for (patch, after) in [("ab", "ab"), ("c", "cab"), ("a", "cab"), ("bc", "abc")] {
        let status =
            pods.patch_status("order", &conditions(patch)).await?.status.unwrap_or_default();
        let types: String =
            status.conditions.unwrap_or_default().into_iter().map(|c| c.type_).collect();
        ensure!(types == after, "after {patch} it is {types} instead of {after}");
    }
    // An address that is added alone comes first, and loses against the one of old.
    let patch = |ip: &str| Patch::Strategic(json!({"status": {"podIPs": [{"ip": ip}]}}));
    pods.patch_status("order", &patch("10.1.0.1")).await?;
    let status = pods.patch_status("order", &patch("fd00::1")).await?.status.unwrap_or_default();
    let ips: Vec<_> = status.pod_ips.unwrap_or_default().into_iter().map(|ip| ip.ip).collect();
    ensure!(ips == ["10.1.0.1"], "addresses: {ips:?}");
    ensure!(status.pod_ip.as_deref() == Some("10.1.0.1"), "the address is {:?}", status.pod_ip);
    Ok(())
}

async fn node_status(scope: &Scope) -> Outcome {
    let nodes = scope.api.cluster::<Node>();
    let patch = Patch::Strategic(json!({"status": {
        "capacity": {"pods": "110"},
        "addresses": [{"type": "Hostname", "address": "a"}],
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}],
    }}));
    let status = nodes.patch_status(&scope.node, &patch).await?.status.unwrap_or_default();
    let addresses = status.addresses.unwrap_or_default().len();
    ensure!(addresses == 2, "{addresses} addresses");
    let capacity = status.capacity.unwrap_or_default();
    ensure!(capacity.len() == 2, "capacity: {capacity:?}");
    let conditions: Vec<_> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .map(|condition| (condition.type_, condition.status, condition.reason))
        .collect();
    ensure!(
        conditions
            == [
                ("Ready".to_owned(), "True".to_owned(), Some("x".to_owned())),
                ("DiskPressure".to_owned(), "False".to_owned(), None),
            ],
        "conditions: {conditions:?}"
    );
    let patch = Patch::Strategic(json!({"status": {
        "$setElementOrder/addresses": [{"type": "Hostname"}],
        "addresses": [{"type": "InternalIP", "$patch": "delete"}],
    }}));
    let status = nodes.patch_status(&scope.node, &patch).await?.status.unwrap_or_default();
    let addresses = status.addresses.unwrap_or_default().len();
    ensure!(addresses == 1, "{addresses} addresses after one was deleted");
    Ok(())
}

async fn annotations(scope: &Scope) -> Outcome {
    let patch = Patch::Strategic(json!({"metadata": {"annotations": {"example.com/a": "b"}}}));
    let node = scope.api.cluster::<Node>().patch_status(&scope.node, &patch).await?;
    let has_it = node.metadata.annotations.is_some_and(|all| all.contains_key("example.com/a"));
    ensure!(has_it, "the annotation is not there");
    Ok(())
}

async fn other_uid(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    let pod = pods.create(&scope.pod("other-uid")).await?;
    let patch =
        |uid: &str| Patch::Strategic(json!({"metadata": {"uid": uid}, "status": {"message": "m"}}));
    let outcome =
        pods.patch_status("other-uid", &patch("00000000-1111-2222-3333-444444444444")).await;
    let error = expect_error(outcome, ApiErrorKind::Invalid, "a patch for another uid")?;
    ensure!(error.to_string().contains("metadata.uid"), "its text is {error}");
    pods.patch_status("other-uid", &patch(&uid(&pod))).await?;
    let mut other = pods.get("other-uid").await?;
    other.metadata.uid = Some("00000000-1111-2222-3333-444444444444".to_owned());
    other.metadata.resource_version = None;
    let outcome = pods.update_subresource("other-uid", "status", &other).await;
    let error = expect_error(outcome, ApiErrorKind::Conflict, "an update for another uid")?;
    ensure!(error.to_string().contains("Precondition failed: UID"), "its text is {error}");
    Ok(())
}

async fn merge_patch(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    pods.create(&scope.pod("merge")).await?;
    let conditions = |kind: &str| json!({"status": {"message": "m", "conditions": [{"type": kind, "status": "True"}]}});
    pods.patch_status("merge", &Patch::Merge(conditions("Ready"))).await?;
    let mut patch = conditions("Initialized");
    patch["status"]["message"] = json!(null);
    let status = pods.patch_status("merge", &Patch::Merge(patch)).await?.status.unwrap_or_default();
    let kinds: Vec<_> =
        status.conditions.unwrap_or_default().into_iter().map(|c| c.type_).collect();
    ensure!(kinds == ["Initialized"], "conditions: {kinds:?}");
    ensure!(status.message.is_none(), "the message is {:?}", status.message);
    Ok(())
}

async fn no_change(scope: &Scope) -> Outcome {
    let maps = scope.config_maps();
    let made = maps.create(&scope.config_map("no-change", "x")).await?;
    let updated = maps.update("no-change", &made).await?;
    let patched = maps.patch("no-change", &Patch::Strategic(json!({"data": {"k": "v"}}))).await?;
    let version = &made.metadata.resource_version;
    ensure!(updated.metadata.resource_version == *version, "an update made a version");
    ensure!(patched.metadata.resource_version == *version, "a patch made a version");
    Ok(())
}

async fn selectors(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    let mut elsewhere = scope.pod_json("elsewhere");
    elsewhere["spec"]["nodeName"] = json!("another-node");
    pods.create(&object::<Pod>(elsewhere)).await?;
    pods.create(&scope.pod("here")).await?;
    let all = scope.api.all_namespaces::<Pod>();
    let on_node = Selector::fields(format!("spec.nodeName={}", scope.node));
    let names = |set: rubelet_apiserver::FullSet<Pod>| -> Vec<String> {
        set.objects.into_iter().filter_map(|pod| pod.metadata.name).collect()
    };
    let here = names(all.list(&on_node).await?);
    ensure!(
        here.contains(&"here".to_owned()) && !here.contains(&"elsewhere".to_owned()),
        "{here:?}"
    );
    let named = names(pods.list(&Selector::name("elsewhere")).await?);
    ensure!(named == ["elsewhere"], "{named:?}");
    let labelled = pods.list(&on_node.clone().and_labels(format!("run={}", scope.run))).await?;
    ensure!(labelled.objects.len() == here.len(), "labels do not choose");
    let none = pods.list(&on_node.and_labels(format!("run!={}", scope.run))).await?;
    ensure!(none.objects.is_empty(), "labels do not exclude");
    let outcome = pods.list(&Selector::fields("spec.priority=1")).await;
    expect_error(outcome, ApiErrorKind::BadRequest, "a selector by any field")?;
    let now = rubelet_apiserver::Delete { grace_period_seconds: Some(0), ..Default::default() };
    pods.delete("elsewhere", &now).await?;
    Ok(())
}

/// More than a page.
async fn long_list(scope: &Scope) -> Outcome {
    const MANY: usize = 620;
    let maps = scope.config_maps();
    for number in 0..MANY {
        maps.create(&scope.config_map(&format!("many-{number:04}"), "many")).await?;
    }
    let set = maps.list(&Selector::labels("kind=many")).await?;
    let mut names: Vec<_> =
        set.objects.iter().filter_map(|map| map.metadata.name.clone()).collect();
    names.sort();
    names.dedup();
    ensure!(names.len() == MANY && set.objects.len() == MANY, "{} of {MANY}", set.objects.len());
    ensure!(!set.resource_version.is_empty(), "the list has no version");
    Ok(())
}
