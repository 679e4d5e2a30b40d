//! Connections that go, stick and are shared.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use rubelet_apiserver::{ApiErrorKind, ApiServer, Event, Selector, Verb, Watch};
use rubelet_fake_apiserver::{Authority, Fault, FaultAction};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{client, config_map, server};

async fn replaced(watch: &mut Watch<ConfigMap>) {
    let first = watch.next().await;
    assert!(matches!(first, Event::Replaced(_)), "{first:?}");
}

async fn told_of(watch: &mut Watch<ConfigMap>, name: &str) {
    loop {
        let has_it = |map: &ConfigMap| map.metadata.name.as_deref() == Some(name);
        match watch.next().await {
            Event::Applied(map) if has_it(&map) => return,
            Event::Replaced(set) if set.objects.iter().any(has_it) => return,
            _ => {}
        }
    }
}

/// A watch over a connection over which nothing passes any more sees the next change within half a
/// minute.
#[tokio::test(start_paused = true)]
async fn a_watch_notices_that_the_way_is_cut() {
    let server = server();
    let maps = server.http2_client().namespaced::<ConfigMap>("default");
    let mut watch = maps.watch(&Selector::all());
    replaced(&mut watch).await;
    // Until the watch is open, and for a while.
    timeout(Duration::from_secs(25), watch.next()).await.unwrap_err();
    server.stick_connections();
    server.put(&config_map("late"));
    let start = Instant::now();
    told_of(&mut watch, "late").await;
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

/// A lease is renewed again within 40 seconds, whatever is spoken.
#[tokio::test(start_paused = true)]
async fn heartbeats_find_another_way() {
    let server = server();
    for api in [server.client(), server.http2_client()] {
        let leases = api.heartbeats().namespaced::<Lease>("kube-node-lease");
        let lease: Lease = serde_json::from_value(
            json!({"metadata": {"name": "a", "namespace": "kube-node-lease"}}),
        )
        .unwrap();
        server.put(&lease);
        leases.get("a").await.unwrap();
        server.stick_connections();
        let start = Instant::now();
        while let Err(error) = leases.get("a").await {
            assert!(error.is_retriable(), "{error:?}");
        }
        assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_answered_ends() {
    let server = server();
    for (api, limit) in [(server.client(), 30), (server.client().heartbeats(), 10)] {
        server.inject(Fault::on(Verb::Get, "configmaps", FaultAction::Hang).times(1));
        let start = Instant::now();
        let error = api.namespaced::<ConfigMap>("default").get("x").await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Timeout);
        assert_eq!(start.elapsed().as_secs(), limit);
        assert_eq!(
            error.to_string(),
            format!("cannot get configmaps default/x: no answer within {limit}s")
        );
    }
}

/// A server that is away is a retriable error, and its return is found.
#[tokio::test(start_paused = true)]
async fn a_server_may_go_and_come_back() {
    let server = server();
    let api = server.client();
    let maps = api.namespaced::<ConfigMap>("default");
    maps.create(&config_map("a")).await.unwrap();
    server.set_away(true);
    let error = maps.get("a").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Connection);
    assert!(error.is_retriable());
    assert!(!api.is_responding().await);
    server.set_away(false);
    maps.get("a").await.unwrap();
    assert!(api.is_responding().await);
}

/// A connection that was idle may be closed at any time: nobody hears of that.
#[tokio::test(start_paused = true)]
async fn a_connection_that_broke_while_idle_is_replaced_silently() {
    let server = server();
    for api in [server.client(), server.http2_client()] {
        let maps = api.namespaced::<ConfigMap>("default");
        server.put(&config_map("a"));
        for _ in 0..5 {
            maps.get("a").await.unwrap();
            server.break_connections();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_may_have_been_made_is_not_made_twice() {
    let server = server();
    let maps = server.http2_client().namespaced::<ConfigMap>("default");
    maps.create(&config_map("a")).await.unwrap();
    let fault = Fault::on(Verb::Create, "configmaps", FaultAction::Break).after_effect().times(1);
    server.inject(fault);
    let error = maps.create(&config_map("b")).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Connection);
    assert_eq!(server.requests(Verb::Create, "configmaps"), 2);
}

/// More watches than fit onto one connection, and a request that is not held up by them.
#[tokio::test]
async fn many_watches_share_few_connections() {
    const WATCHES: usize = 250;
    let server = server();
    let listening = server.listen_with_tls(&Authority::new()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, listening.kubeconfig(&json!({}))).unwrap();
    let api: ApiServer = client(&kubeconfig);
    let maps = api.namespaced::<ConfigMap>("default");
    let deadline = Duration::from_secs(120);
    let mut watches = Vec::new();
    for number in 0..WATCHES {
        let mut watch = maps.watch(&Selector::name(&format!("map-{number}")));
        timeout(deadline, replaced(&mut watch)).await.unwrap();
        watches.push(tokio::spawn(async move {
            told_of(&mut watch, &format!("map-{number}")).await;
        }));
    }
    timeout(deadline, async {
        while server.open_watches() < WATCHES {
            maps.list(&Selector::all()).await.unwrap();
        }
        for number in 0..WATCHES {
            maps.create(&config_map(&format!("map-{number}"))).await.unwrap();
        }
        for watch in watches {
            watch.await.unwrap();
        }
    })
    .await
    .unwrap();
    // Three for watches and one for calls; more only if the machine is too busy to answer.
    let connections = server.open_connections();
    assert!((4..=8).contains(&connections), "{connections} connections");
}

#[tokio::test(start_paused = true)]
async fn connections_nobody_uses_are_closed() {
    let server = server();
    let maps = server.http2_client().namespaced::<ConfigMap>("default");
    server.put(&config_map("a"));
    maps.get("a").await.unwrap();
    assert_eq!(server.open_connections(), 1);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(server.open_connections(), 0);
    maps.get("a").await.unwrap();
}
