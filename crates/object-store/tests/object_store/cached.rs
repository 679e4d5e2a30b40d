use std::time::Duration;

use rubelet_object_store::{ChangeDetection, Freshness, ObjectStore, ObjectStoreSettings};

use crate::fake_api::FakeApi;
use crate::pod;

fn store(strategy: ChangeDetection) -> (ObjectStore<FakeApi>, FakeApi) {
    let api = FakeApi::new();
    let settings = ObjectStoreSettings {
        strategy,
        first_sync: Duration::from_secs(5),
        max_idle: Duration::from_secs(300),
        ttl: Duration::from_secs(60),
    };
    (ObjectStore::new(api.clone(), settings), api)
}

async fn value(store: &ObjectStore<FakeApi>) -> String {
    match store.config_map("ns", "a").await {
        Ok(object) => object.data.as_ref().unwrap()["key"].clone(),
        Err(error) => error.to_string(),
    }
}

fn read(freshness: Freshness) -> (String, Freshness) {
    ("ConfigMap/ns/a".to_owned(), freshness)
}

#[tokio::test(start_paused = true)]
async fn the_cache_keeps_objects_for_a_time() {
    let (store, api) = store(ChangeDetection::Cache);
    assert_eq!(value(&store).await, "object \"ns\"/\"a\" not registered");
    store.register_pod(&pod("u1", &["a"]));
    assert_eq!(value(&store).await, "configmap \"a\" not found");
    api.set_data("a", "1");
    assert_eq!(value(&store).await, "configmap \"a\" not found", "absence is kept too");
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(value(&store).await, "1");
    assert_eq!(api.take_reads(), [read(Freshness::Consistent), read(Freshness::Consistent)]);

    api.set_data("a", "2");
    assert_eq!(value(&store).await, "1");
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(value(&store).await, "2");
    assert_eq!(api.take_reads(), [read(Freshness::Cached)]);

    // A new pod may have been made for the new version.
    api.set_data("a", "3");
    store.register_pod(&pod("u2", &["a"]));
    assert_eq!(value(&store).await, "3");
    assert_eq!(api.take_reads(), [read(Freshness::Consistent)]);

    store.set_ttl(Some(Duration::from_secs(5)));
    api.set_data("a", "4");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(value(&store).await, "4");
    store.set_ttl(None);
    api.set_data("a", "5");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(value(&store).await, "4");
    assert!(api.watches().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_of_before_is_better_than_none() {
    let (store, api) = store(ChangeDetection::Cache);
    store.register_pod(&pod("u1", &["a"]));
    api.set_down(Some("connection refused"));
    assert_eq!(value(&store).await, "connection refused");
    api.set_down(None);
    api.set_data("a", "1");
    assert_eq!(value(&store).await, "1");
    api.set_down(Some("connection refused"));
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(value(&store).await, "1");
    api.set_down(None);
    api.delete("a");
    assert_eq!(value(&store).await, "configmap \"a\" not found");
}

#[tokio::test(start_paused = true)]
async fn who_asks_together_reads_once() {
    let (store, api) = store(ChangeDetection::Cache);
    api.set_data("a", "1");
    store.register_pod(&pod("u1", &["a"]));
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { value(&store).await })
        })
        .collect();
    for asking in asking {
        assert_eq!(asking.await.unwrap(), "1");
    }
    assert_eq!(api.take_reads(), [read(Freshness::Consistent)]);
}

#[tokio::test(start_paused = true)]
async fn without_a_cache_each_read_is_a_request() {
    let (store, api) = store(ChangeDetection::Get);
    api.set_data("a", "1");
    assert_eq!(value(&store).await, "1");
    api.set_data("a", "2");
    assert_eq!(value(&store).await, "2");
    assert_eq!(api.take_reads(), [read(Freshness::Consistent), read(Freshness::Consistent)]);
    api.delete("a");
    assert_eq!(value(&store).await, "configmap \"a\" not found");
}
