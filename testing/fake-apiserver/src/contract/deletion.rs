//! How objects go.

use k8s_openapi::api::core::v1::Pod;
use rubelet_apiserver::{ApiErrorKind, Delete, Patch};
use serde_json::json;

use super::{Named, Outcome, Scope, ensure, expect_error, object, uid};

pub(super) const CHECKS: &[Named] = &[
    ("a pod on a node is marked, and stays", |s| Box::pin(graceful(s))),
    ("a grace period only shrinks, and zero ends it", |s| Box::pin(shrinking(s))),
    ("a pod that is over or on no node goes at once", |s| Box::pin(at_once(s))),
    ("only the object with this uid is deleted", |s| Box::pin(preconditions(s))),
    ("a finalizer holds what is deleted", |s| Box::pin(finalizers(s))),
];

fn in_seconds(seconds: u32) -> Delete {
    Delete { grace_period_seconds: Some(seconds), ..Delete::default() }
}

async fn graceful(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    let mut pod = scope.pod_json("graceful");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(55);
    let made = pods.create(&object(pod)).await?;
    pods.delete("graceful", &Delete::default()).await?;
    let marked = pods.get("graceful").await?;
    let meta = &marked.metadata;
    ensure!(meta.uid == made.metadata.uid, "it is another one");
    ensure!(meta.deletion_timestamp.is_some(), "it is not marked");
    let grace = meta.deletion_grace_period_seconds;
    ensure!(grace == Some(55), "its grace period is {grace:?}");
    ensure!(meta.generation == Some(2), "its generation is {:?}", meta.generation);
    // Reporting on it goes on.
    let patch = Patch::Strategic(json!({"status": {"message": "m"}}));
    let patched = pods.patch_status("graceful", &patch).await?;
    ensure!(patched.metadata.deletion_timestamp.is_some(), "a status patch took the mark away");
    Ok(())
}

async fn shrinking(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    pods.create(&scope.pod("shrinking")).await?;
    pods.delete("shrinking", &in_seconds(40)).await?;
    for (asked_for, expected) in
        [(in_seconds(60), 40), (Delete::default(), 40), (in_seconds(20), 20)]
    {
        pods.delete("shrinking", &asked_for).await?;
        let grace = pods.get("shrinking").await?.metadata.deletion_grace_period_seconds;
        ensure!(grace == Some(expected), "after {asked_for:?} it is {grace:?}");
    }
    pods.delete("shrinking", &in_seconds(0)).await?;
    expect_error(pods.get("shrinking").await, ApiErrorKind::NotFound, "getting it")?;
    Ok(())
}

async fn at_once(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    pods.create(&scope.pod("over")).await?;
    let over = Patch::Strategic(json!({"status": {"phase": "Failed"}}));
    pods.patch_status("over", &over).await?;
    let mut unassigned = scope.pod_json("unassigned");
    if let Some(spec) = unassigned["spec"].as_object_mut() {
        spec.remove("nodeName");
        spec.insert("schedulerName".to_owned(), json!("nobody"));
    }
    pods.create(&object::<Pod>(unassigned)).await?;
    for name in ["over", "unassigned"] {
        pods.delete(name, &in_seconds(30)).await?;
        expect_error(pods.get(name).await, ApiErrorKind::NotFound, name)?;
    }
    Ok(())
}

async fn preconditions(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    let pod = pods.create(&scope.pod("preconditions")).await?;
    let other = Delete::now("00000000-1111-2222-3333-444444444444");
    let outcome = pods.delete("preconditions", &other).await;
    let error = expect_error(outcome, ApiErrorKind::Conflict, "deleting another uid")?;
    ensure!(error.to_string().contains("the UID in the precondition"), "its text is {error}");
    let old = Delete { resource_version: Some("1".to_owned()), ..Delete::default() };
    let outcome = pods.delete("preconditions", &old).await;
    expect_error(outcome, ApiErrorKind::Conflict, "deleting another version")?;
    ensure!(pods.get("preconditions").await? == pod, "it has changed");
    pods.delete("preconditions", &Delete::now(uid(&pod))).await?;
    expect_error(pods.get("preconditions").await, ApiErrorKind::NotFound, "getting it")?;
    Ok(())
}

async fn finalizers(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    let mut held = scope.pod_json("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    pods.create(&object::<Pod>(held)).await?;
    pods.delete("held", &in_seconds(0)).await?;
    let pod = pods.get("held").await?;
    ensure!(pod.metadata.deletion_timestamp.is_some(), "it is not marked");
    pods.patch("held", &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
    expect_error(pods.get("held").await, ApiErrorKind::NotFound, "getting it")?;
    Ok(())
}
