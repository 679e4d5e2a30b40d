//! The store on the client of the API server, and a small working server behind it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use rubelet_apiserver::{ApiServer, Verb};
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions, Fault, FaultAction};
use rubelet_object_store::{ChangeDetection, ObjectStore, ObjectStoreSettings};
use rubelet_types::PodUid;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::pod;

fn store(strategy: ChangeDetection) -> (ObjectStore<ApiServer>, FakeApiServer) {
    let server = FakeApiServer::new(FakeOptions::default());
    server.add_namespace("ns");
    let settings = ObjectStoreSettings {
        strategy,
        first_sync: Duration::from_secs(5),
        max_idle: Duration::from_secs(300),
        ttl: Duration::from_secs(60),
    };
    (ObjectStore::new(server.client(), settings), server)
}

fn put(server: &FakeApiServer, name: &str, value: &str) {
    let object: ConfigMap = serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": name},
        "data": {"key": value},
    }))
    .unwrap();
    server.put(&object);
}

async fn value(store: &ObjectStore<ApiServer>, name: &str) -> String {
    match store.config_map("ns", name).await {
        Ok(object) => object.data.as_ref().unwrap()["key"].clone(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_is_followed_by_its_name() {
    let (store, server) = store(ChangeDetection::Watch);
    put(&server, "a", "1");
    put(&server, "other", "x");
    store.register_pod(&pod("u1", &["a", "b"]));
    assert_eq!(value(&store, "a").await, "1");
    assert_eq!(value(&store, "b").await, "configmap \"b\" not found");

    let changed = store.changed_pods();
    put(&server, "b", "2");
    let pods = timeout(Duration::from_secs(60), changed.next()).await.unwrap();
    assert_eq!(pods, [PodUid::new("u1")].into());
    assert_eq!(value(&store, "b").await, "2");
    put(&server, "other", "y");
    assert!(timeout(Duration::from_secs(1), changed.next()).await.is_err(), "nobody refers to it");
    server.remove::<ConfigMap>("ns", "a");
    timeout(Duration::from_secs(60), changed.next()).await.unwrap();
    assert_eq!(value(&store, "a").await, "configmap \"a\" not found");

    // What happens while the server is away is seen when it is back, and not before it is known.
    server.set_away(true);
    put(&server, "b", "3");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(value(&store, "b").await, "2");
    server.set_away(false);
    timeout(Duration::from_secs(120), changed.next()).await.unwrap();
    assert_eq!(value(&store, "b").await, "3");
    assert_eq!(server.requests(Verb::Get, "configmaps"), 0, "all of it from watches");

    store.unregister_pod(&PodUid::new("u1"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.open_watches() > 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_server_says_is_told() {
    let (store, server) = store(ChangeDetection::Watch);
    put(&server, "a", "1");
    let refusal = FaultAction::Refuse { code: 403, retry_after: None };
    server.inject(Fault::on(Verb::List, "configmaps", refusal));
    store.register_pod(&pod("u1", &["a"]));
    let text = value(&store, "a").await;
    assert!(
        text.starts_with("failed to sync configmap cache: timed out waiting for the condition: "),
        "{text}"
    );
    server.clear_faults();
    let changed = store.changed_pods();
    timeout(Duration::from_secs(120), changed.next()).await.unwrap();
    assert_eq!(value(&store, "a").await, "1");
}

#[tokio::test(start_paused = true)]
async fn objects_are_read_one_by_one() {
    for strategy in [ChangeDetection::Cache, ChangeDetection::Get] {
        let (store, server) = store(strategy);
        put(&server, "a", "1");
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "s"}, "data": {"key": "Mg=="}}))
        .unwrap();
        server.put(&secret);
        let mut pod = pod("u1", &["a", "b"]);
        pod.spec.as_mut().unwrap().image_pull_secrets =
            Some(serde_json::from_value(json!([{"name": "s"}])).unwrap());
        store.register_pod(&pod);
        assert_eq!(value(&store, "a").await, "1");
        assert_eq!(value(&store, "b").await, "configmap \"b\" not found");
        let secret = store.secret("ns", "s").await.unwrap();
        assert_eq!(secret.data.as_ref().unwrap()["key"].0, b"2");
        server.set_away(true);
        tokio::time::advance(Duration::from_secs(61)).await;
        let text = value(&store, "a").await;
        match strategy {
            ChangeDetection::Cache => assert_eq!(text, "1"),
            _ => assert!(!text.contains("not found"), "{text}"),
        }
    }
}
