//! Following objects.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_apiserver::{ApiObject, Delete, Event, ObjectKey, Patch, Selector, Watch};
use serde_json::json;

use super::{CheckError, Named, Outcome, Scope, ensure, object, uid};

pub(super) const CHECKS: &[Named] = &[
    ("a watch begins with all there is, and tells each change", |s| Box::pin(follow(s))),
    ("a watch tells only of what it was asked for", |s| Box::pin(filtered(s))),
    ("what ceases to match is told as gone", |s| Box::pin(leaving(s))),
    ("a watch that breaks off misses nothing", |s| Box::pin(resumed(s))),
    ("an informer holds what there is", |s| Box::pin(informed(s))),
];

/// The next event that is no interruption.
async fn next<K: ApiObject>(watch: &mut Watch<K>) -> Event<K> {
    loop {
        match watch.next().await {
            Event::Interrupted(_) => {}
            event => return event,
        }
    }
}

async fn first<K: ApiObject>(watch: &mut Watch<K>) -> Result<Vec<K>, CheckError> {
    match next(watch).await {
        Event::Replaced(set) => Ok(set.objects),
        other => Err(CheckError::Expectation(format!("it begins with {other:?}"))),
    }
}

async fn applied<K: ApiObject>(watch: &mut Watch<K>) -> Result<K, CheckError> {
    match next(watch).await {
        Event::Applied(object) => Ok(object),
        other => Err(CheckError::Expectation(format!("a change was expected: {other:?}"))),
    }
}

async fn deleted<K: ApiObject>(watch: &mut Watch<K>) -> Result<ObjectKey, CheckError> {
    match next(watch).await {
        Event::Deleted(key) => Ok(key),
        other => Err(CheckError::Expectation(format!("an end was expected: {other:?}"))),
    }
}

fn now() -> Delete {
    Delete { grace_period_seconds: Some(0), ..Delete::default() }
}

async fn follow(scope: &Scope) -> Outcome {
    let pods = scope.pods();
    pods.create(&scope.pod("watched-before")).await?;
    let mut watch = pods.watch(&Selector::labels(format!("run={}", scope.run)));
    let there = first(&mut watch).await?;
    let is_there = there.iter().any(|pod| pod.metadata.name.as_deref() == Some("watched-before"));
    ensure!(is_there, "what was there is not told");
    let made = pods.create(&scope.pod("watched")).await?;
    ensure!(applied(&mut watch).await? == made, "the new pod differs");
    let patch = Patch::Strategic(json!({"status": {"phase": "Running"}}));
    let patched = pods.patch_status("watched", &patch).await?;
    ensure!(applied(&mut watch).await? == patched, "the changed pod differs");
    pods.delete("watched", &Delete::default()).await?;
    let marked = applied(&mut watch).await?;
    ensure!(marked.metadata.deletion_timestamp.is_some(), "the deletion is not told");
    pods.delete("watched", &now()).await?;
    // A server may tell the shorter grace period first.
    let gone = loop {
        match next(&mut watch).await {
            Event::Deleted(key) => break key,
            Event::Applied(pod) => ensure!(uid(&pod) == uid(&made), "another pod changed"),
            other => ensure!(false, "an end was expected: {other:?}"),
        }
    };
    let key = ObjectKey {
        namespace: scope.namespace.clone(),
        name: "watched".to_owned(),
        uid: uid(&made),
    };
    ensure!(gone == key, "{gone:?} is gone instead of {key:?}");
    Ok(())
}

async fn filtered(scope: &Scope) -> Outcome {
    let selector = Selector::fields(format!("spec.nodeName={}", scope.node));
    let mut watch = scope.api.all_namespaces::<Pod>().watch(&selector);
    first(&mut watch).await?;
    let pods = scope.pods();
    let mut elsewhere = scope.pod_json("filtered-elsewhere");
    elsewhere["spec"]["nodeName"] = json!("another-node");
    pods.create(&object::<Pod>(elsewhere)).await?;
    pods.create(&scope.pod("filtered-here")).await?;
    let told = applied(&mut watch).await?.metadata.name;
    ensure!(told.as_deref() == Some("filtered-here"), "it tells of {told:?}");
    Ok(())
}

async fn leaving(scope: &Scope) -> Outcome {
    let maps = scope.config_maps();
    let mut watch = maps.watch(&Selector::labels("kind=leaving"));
    first(&mut watch).await?;
    let made = maps.create(&scope.config_map("leaving", "leaving")).await?;
    applied(&mut watch).await?;
    let label = |value: &str| Patch::Merge(json!({"metadata": {"labels": {"kind": value}}}));
    maps.patch("leaving", &label("other")).await?;
    let gone = deleted(&mut watch).await?;
    ensure!(gone.uid == uid(&made), "{gone:?} has left");
    maps.patch("leaving", &label("leaving")).await?;
    let back = applied(&mut watch).await?;
    ensure!(uid(&back) == uid(&made), "it came back as another one");
    Ok(())
}

async fn resumed(scope: &Scope) -> Outcome {
    let maps = scope.config_maps();
    let mut watch = maps.watch(&Selector::labels("kind=resumed"));
    first(&mut watch).await?;
    for round in 0..3 {
        let name = format!("resumed-{round}");
        let kept = maps.create(&scope.config_map(&name, "resumed")).await?;
        ensure!(applied(&mut watch).await? == kept, "round {round}: the new object differs");
        scope.api.close_connections();
        maps.delete(&name, &Delete::default()).await?;
        let gone = deleted(&mut watch).await?;
        ensure!(gone.name == name, "round {round}: {gone:?} is gone");
    }
    Ok(())
}

async fn informed(scope: &Scope) -> Outcome {
    let classes = scope.api.cluster::<RuntimeClass>();
    let name = format!("contract-{}", scope.run);
    let class = |handler: &str| -> RuntimeClass {
        object(json!({"metadata": {"name": name}, "handler": handler}))
    };
    classes.create(&class("first")).await?;
    let (store, keeping) = classes.informer(&Selector::name(&name));
    let looking = async {
        store.synced().await;
        let handler = store.get("", &name).map(|class| class.handler.clone());
        ensure!(handler.as_deref() == Some("first"), "the handler is {handler:?}");
        let mut changes = store.changes();
        classes.delete(&name, &Delete::default()).await?;
        while store.get("", &name).is_some() {
            let _ = changes.changed().await;
        }
        classes.create(&class("second")).await?;
        while store.get("", &name).is_none_or(|class| class.handler != "second") {
            let _ = changes.changed().await;
        }
        classes.delete(&name, &Delete::default()).await?;
        let outside = store.get("", "another");
        ensure!(outside.is_none() && store.len() <= 1, "it holds more than was asked for");
        Ok(())
    };
    tokio::select! {
        outcome = looking => outcome,
        () = keeping => Err(CheckError::Expectation("the informer has ended".to_owned())),
    }
}
