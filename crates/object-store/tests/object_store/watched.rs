use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rubelet_object_store::{
    ChangeDetection, ChangedPods, ObjectStore, ObjectStoreSettings, ReadObjectError,
};
use rubelet_types::{Fetched, PodUid};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::fake_api::FakeApi;
use crate::pod;

const SETTINGS: ObjectStoreSettings = ObjectStoreSettings {
    strategy: ChangeDetection::Watch,
    first_sync: Duration::from_secs(5),
    max_idle: Duration::from_secs(300),
    ttl: Duration::from_secs(60),
};

fn store() -> (ObjectStore<FakeApi>, FakeApi) {
    let api = FakeApi::new();
    (ObjectStore::new(api.clone(), SETTINGS), api)
}

async fn value(store: &ObjectStore<FakeApi>, name: &str) -> String {
    match store.config_map("ns", name).await {
        Ok(object) => object.data.as_ref().map_or("-".to_owned(), |data| data["key"].clone()),
        Err(error) => error.to_string(),
    }
}

/// Waits until an object reads so.
async fn until(store: &ObjectStore<FakeApi>, name: &str, expected: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while value(store, name).await != expected {
        assert!(Instant::now() < deadline, "{}", value(store, name).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn changed(pods: &ChangedPods) -> Vec<String> {
    let wait = timeout(Duration::from_secs(1), pods.next());
    let pods: BTreeSet<PodUid> = wait.await.unwrap_or_default();
    pods.iter().map(|uid| uid.as_str().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn objects_are_watched_while_some_pod_refers_to_them() {
    let (store, api) = store();
    api.set_data("a", "1");
    assert_eq!(value(&store, "a").await, "object \"ns\"/\"a\" not registered");
    store.register_pod(&pod("u1", &["a", "b"]));
    store.register_pod(&pod("u2", &["a"]));
    store.register_pod(&pod("u2", &["a"]));
    assert_eq!(api.watches(), ["ConfigMap/ns/a", "ConfigMap/ns/b"], "one for each");
    assert_eq!(value(&store, "a").await, "1");
    assert_eq!(value(&store, "b").await, "configmap \"b\" not found");
    assert!(matches!(store.fetch_config_map("ns", "b").await, Fetched::NotFound));

    // A pod that comes to refer to others.
    store.register_pod(&pod("u1", &["b", "c"]));
    assert_eq!(api.watches(), ["ConfigMap/ns/a", "ConfigMap/ns/b", "ConfigMap/ns/c"]);
    store.unregister_pod(&PodUid::new("u2"));
    store.unregister_pod(&PodUid::new("u2"));
    tokio::task::yield_now().await;
    assert_eq!(api.watches(), ["ConfigMap/ns/b", "ConfigMap/ns/c"]);
    assert_eq!(value(&store, "a").await, "object \"ns\"/\"a\" not registered");
    store.register_pod(&pod("u1", &[]));
    tokio::task::yield_now().await;
    assert_eq!(api.watches(), Vec::<String>::new());

    store.register_pod(&pod("u3", &["a"]));
    drop(store);
    tokio::task::yield_now().await;
    assert_eq!(api.watches(), Vec::<String>::new(), "all ends with the store");
}

#[tokio::test(start_paused = true)]
async fn pods_are_told_of_changes() {
    let (store, api) = store();
    let pods = store.changed_pods();
    api.set_data("a", "1");
    store.register_pod(&pod("u1", &["a"]));
    store.register_pod(&pod("u2", &["a", "b"]));
    until(&store, "a", "1").await;
    until(&store, "b", "configmap \"b\" not found").await;
    assert_eq!(changed(&pods).await, Vec::<String>::new(), "first sight is no news");

    api.set_data("a", "2");
    assert_eq!(changed(&pods).await, ["u1", "u2"]);
    assert_eq!(value(&store, "a").await, "2");
    api.set_data("b", "1");
    assert_eq!(changed(&pods).await, ["u2"]);
    api.delete("a");
    assert_eq!(changed(&pods).await, ["u1", "u2"]);

    // What nobody here reads is no change.
    let annotated = |text: &str| {
        json!({"data": {"key": "1"}, "metadata": {"resourceVersion": text,
            "managedFields": [{"manager": text}], "annotations": {"last-applied": text}}})
    };
    api.set("b", annotated("a"));
    api.set("b", annotated("b"));
    assert_eq!(changed(&pods).await, Vec::<String>::new());
    let object = store.config_map("ns", "b").await.unwrap();
    assert_eq!((&object.metadata.annotations, &object.metadata.managed_fields), (&None, &None));
    assert_eq!(object.metadata.name.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn readers_share_one_copy() {
    let (store, api) = store();
    api.set_data("a", "1");
    store.register_pod(&pod("u1", &["a"]));
    let (one, two) = (store.config_map("ns", "a").await, store.config_map("ns", "a").await);
    assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn first_sight_is_waited_for_and_not_for_ever() {
    let (store, api) = store();
    let pods = store.changed_pods();
    api.set_silent(true);
    api.set_data("a", "1");
    store.register_pod(&pod("u1", &["a"]));
    let begun = Instant::now();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { value(&store, "a").await }
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    api.set_silent(false);
    assert_eq!(waiting.await.unwrap(), "1");
    assert_eq!(begun.elapsed().as_secs(), 2);
    assert_eq!(changed(&pods).await, Vec::<String>::new());

    api.set_silent(true);
    store.register_pod(&pod("u2", &["b"]));
    let begun = Instant::now();
    assert_eq!(
        value(&store, "b").await,
        "failed to sync configmap cache: timed out waiting for the condition"
    );
    assert_eq!(begun.elapsed().as_secs(), 5);
    // Whoever gave up waiting is told.
    api.set_silent(false);
    assert_eq!(changed(&pods).await, ["u2"]);
    assert_eq!(value(&store, "b").await, "configmap \"b\" not found");
}

#[tokio::test(start_paused = true)]
async fn not_knowing_is_not_absence() {
    let (store, api) = store();
    api.set_down(Some("configmaps \"a\" is forbidden"));
    store.register_pod(&pod("u1", &["a"]));
    let error = store.config_map("ns", "a").await.unwrap_err();
    assert!(!error.is_not_found());
    assert_eq!(
        error.to_string(),
        "failed to sync configmap cache: timed out waiting for the condition: configmaps \"a\" is \
         forbidden"
    );
    assert!(matches!(store.fetch_config_map("ns", "a").await, Fetched::Failed(_)));

    // What was known once goes on being known.
    api.set_data("a", "1");
    api.set_down(None);
    until(&store, "a", "1").await;
    api.set_down(Some("connection refused"));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(value(&store, "a").await, "1");

    api.set("a", json!({"data": "no map"}));
    api.set_down(None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(matches!(
        store.config_map("ns", "a").await.unwrap_err(),
        ReadObjectError::Unavailable { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn what_is_immutable_is_not_watched_any_more() {
    let (store, api) = store();
    api.set("a", json!({"data": {"key": "1"}, "immutable": true}));
    store.register_pod(&pod("u1", &["a"]));
    until(&store, "a", "1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(api.watches(), Vec::<String>::new());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(value(&store, "a").await, "1");
    assert_eq!(api.watches(), Vec::<String>::new());
    // One that nobody has seen yet may be another.
    store.unregister_pod(&PodUid::new("u1"));
    api.set("a", json!({"data": {"key": "2"}, "immutable": true}));
    store.register_pod(&pod("u2", &["a"]));
    assert_eq!(value(&store, "a").await, "2");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_reads_is_not_watched_any_more() {
    let (store, api) = store();
    api.set_data("a", "1");
    api.set_data("b", "1");
    store.register_pod(&pod("u1", &["a", "b"]));
    let stopping = tokio::spawn({
        let store = store.clone();
        async move { store.stop_idle_watches().await }
    });
    assert_eq!(value(&store, "a").await, "1");
    for _ in 0..6 {
        assert_eq!(value(&store, "b").await, "1");
        tokio::time::sleep(Duration::from_secs(61)).await;
    }
    assert_eq!(api.watches(), ["ConfigMap/ns/b"]);
    // It is seen anew when somebody does.
    api.set_data("a", "2");
    assert_eq!(value(&store, "a").await, "2");
    assert_eq!(api.watches(), ["ConfigMap/ns/a", "ConfigMap/ns/b"]);

    // A watch that has not begun is not given up.
    api.set_silent(true);
    store.register_pod(&pod("u3", &["d"]));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(api.watches(), ["ConfigMap/ns/d"]);
    stopping.abort();
}
