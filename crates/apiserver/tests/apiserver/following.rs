//! Watches and stores when things go wrong.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use rubelet_apiserver::{ApiErrorKind, Event, ObjectKey, Selector, Verb, Watch};
use rubelet_fake_apiserver::{Fault, FaultAction};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{config_map, server};

/// Events in short: `=a,b` is the full set, `+a` a change, `-a` an end, `?a` what nobody
/// understands, `!` an interruption.
async fn next(watch: &mut Watch<ConfigMap>) -> String {
    let name = |map: &ConfigMap| map.metadata.name.clone().unwrap_or_default();
    match watch.next().await {
        Event::Replaced(set) => {
            let mut names: Vec<_> = set.objects.iter().map(name).collect();
            names.extend(set.undecodable.into_iter().map(|bad| format!("?{}", bad.key.name)));
            format!("={}", names.join(","))
        }
        Event::Applied(map) => format!("+{}", name(&map)),
        Event::Deleted(key) => format!("-{}", key.name),
        Event::Undecodable(bad) => format!("?{}", bad.key.name),
        Event::Interrupted(_) => "!".to_owned(),
    }
}

fn bad(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "data": {"k": 1}})
}

#[tokio::test(start_paused = true)]
async fn an_object_nobody_understands_hides_no_other() {
    let server = server();
    server.put_raw("configmaps", bad("bad"));
    server.put(&config_map("good"));
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "=good,?bad");
    server.put_raw("configmaps", bad("worse"));
    server.put(&config_map("better"));
    server.remove::<ConfigMap>("default", "worse");
    for expected in ["?worse", "+better", "-worse"] {
        assert_eq!(next(&mut watch).await, expected);
    }
    server.put_raw("configmaps", bad("good"));
    match watch.next().await {
        Event::Undecodable(bad) => {
            assert_eq!(bad.key.name, "good");
            assert!(bad.error.starts_with("data.k: invalid type"), "{}", bad.error);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_object_tells_which_one_it_was() {
    let server = server();
    let map = server.put(&config_map("a"));
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    next(&mut watch).await;
    server.remove::<ConfigMap>("default", "a");
    server.put(&config_map("a"));
    let key = ObjectKey {
        namespace: "default".to_owned(),
        name: "a".to_owned(),
        uid: map.metadata.uid.unwrap(),
    };
    match watch.next().await {
        Event::Deleted(gone) => assert_eq!(gone, key),
        other => panic!("{other:?}"),
    }
    assert_eq!(next(&mut watch).await, "+a");
}

/// However a watch ends, it goes on from where it was, without a new list.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_is_resumed() {
    let server = server();
    for api in [server.client(), server.http2_client()] {
        let lists = server.requests(Verb::List, "configmaps");
        let mut watch = api.namespaced::<ConfigMap>("default").watch(&Selector::name("a"));
        let first = next(&mut watch).await;
        assert!(first.starts_with('='), "{first}");
        for round in 0..6 {
            server.put(&config_map("a"));
            assert_eq!(next(&mut watch).await, "+a");
            if round % 2 == 0 {
                server.cut_watches()
            } else {
                server.break_connections()
            }
            server.remove::<ConfigMap>("default", "a");
            assert_eq!(next(&mut watch).await, "-a");
        }
        assert_eq!(server.requests(Verb::List, "configmaps"), lists + 1);
    }
}

/// What went while nobody could tell is missing in the full set.
#[tokio::test(start_paused = true)]
async fn lost_history_leads_to_a_new_list() {
    let server = server();
    server.put(&config_map("a"));
    server.put(&config_map("b"));
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "=a,b");
    server.hold_watches(true);
    server.remove::<ConfigMap>("default", "a");
    server.forget_history();
    server.hold_watches(false);
    assert_eq!(next(&mut watch).await, "!");
    assert_eq!(next(&mut watch).await, "=b");
    server.put(&config_map("c"));
    assert_eq!(next(&mut watch).await, "+c");
}

/// A refusal of the version by the request itself is as good as one within the watch.
#[tokio::test(start_paused = true)]
async fn an_expired_version_leads_to_a_new_list() {
    let server = server();
    let action = FaultAction::Refuse { code: 410, retry_after: None };
    server.inject(Fault::on(Verb::Watch, "configmaps", action).times(1));
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    for expected in ["=", "!", "="] {
        assert_eq!(next(&mut watch).await, expected);
    }
}

/// A bookmark moves the version on, so that lost history before it does not matter.
#[tokio::test(start_paused = true)]
async fn bookmarks_spare_a_new_list() {
    let server = server();
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::name("a"));
    assert_eq!(next(&mut watch).await, "=");
    // Others change, and the server says how far it is after a minute.
    server.put(&config_map("other"));
    timeout(Duration::from_secs(70), watch.next()).await.unwrap_err();
    server.forget_history();
    server.cut_watches();
    server.put(&config_map("a"));
    assert_eq!(next(&mut watch).await, "+a");
    assert_eq!(server.requests(Verb::List, "configmaps"), 1);
}

/// Tries become rare while the server is away, at most half a minute apart, and frequent again.
#[tokio::test(start_paused = true)]
async fn pauses_grow_and_start_over() {
    let server = server();
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "=");
    for _ in 0..2 {
        server.set_away(true);
        let start = Instant::now();
        let mut pauses = Vec::new();
        let mut last = start;
        while start.elapsed() < Duration::from_secs(600) {
            assert_eq!(next(&mut watch).await, "!");
            pauses.push(last.elapsed());
            last = Instant::now();
        }
        assert!(pauses[1] < Duration::from_secs(2), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(31)), "{pauses:?}");
        assert!(pauses.len() < 60, "{} tries in ten minutes", pauses.len());
        server.set_away(false);
        server.put(&config_map("a"));
        loop {
            match next(&mut watch).await.as_str() {
                "!" => {}
                "+a" | "=a" => break,
                other => panic!("{other}"),
            }
        }
        // It lasts, and counts as a success.
        timeout(Duration::from_secs(15), watch.next()).await.unwrap_err();
    }
}

/// The pauses of a long outage are over when anybody is served again, the heartbeat for one.
#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_as_soon_as_the_server_serves_anybody() {
    let server = server();
    let api = server.client();
    let mut watch = api.namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "=");
    for fault in [None, Some(503), Some(500)] {
        match fault {
            None => server.set_away(true),
            Some(code) => {
                let action = FaultAction::Refuse { code, retry_after: None };
                server.inject(Fault::on_every_request(action));
                server.cut_watches();
            }
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(300) {
            assert_eq!(next(&mut watch).await, "!");
        }
        server.set_away(false);
        server.clear_faults();
        server.put(&config_map("a"));
        api.heartbeats().namespaced::<ConfigMap>("default").get("a").await.unwrap();
        let heard = timeout(Duration::from_secs(1), next(&mut watch)).await.unwrap();
        assert!(matches!(heard.as_str(), "+a" | "=a"), "{heard}");
        timeout(Duration::from_secs(15), watch.next()).await.unwrap_err();
    }
}

/// A server that has just started refuses those whom it does not know yet.
#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_outage_is_not_waited_out_as_long_as_the_outage() {
    let server = server();
    let api = server.client();
    let mut watch = api.namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "=");
    server.set_away(true);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(300) {
        assert_eq!(next(&mut watch).await, "!");
    }
    let action = FaultAction::Refuse { code: 403, retry_after: None };
    server.inject(Fault::on(Verb::Watch, "configmaps", action).times(2));
    server.set_away(false);
    server.put(&config_map("a"));
    api.heartbeats().namespaced::<ConfigMap>("default").get("a").await.unwrap();
    let back = Instant::now();
    assert_eq!(next(&mut watch).await, "!");
    assert_eq!(next(&mut watch).await, "!");
    assert_eq!(next(&mut watch).await, "+a");
    assert!(back.elapsed() < Duration::from_secs(3), "{:?}", back.elapsed());
}

/// A server that asks for patience is given it, whoever else it serves.
#[tokio::test(start_paused = true)]
async fn patience_that_was_asked_for_is_not_cut_short() {
    let server = server();
    let api = server.client();
    let action = FaultAction::Refuse { code: 503, retry_after: Some(20) };
    server.inject(Fault::on(Verb::List, "configmaps", action).times(1));
    let mut watch = api.namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "!");
    server.put(&config_map("a"));
    api.heartbeats().namespaced::<ConfigMap>("default").get("a").await.unwrap();
    timeout(Duration::from_secs(19), watch.next()).await.unwrap_err();
    assert_eq!(next(&mut watch).await, "=a");
}

/// A server that has lost its data, or gone back in time, refuses the version without saying that
/// it is too old.
#[tokio::test(start_paused = true)]
async fn a_version_of_the_future_leads_to_a_new_list() {
    let server = server();
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "=");
    let action = FaultAction::Refuse { code: 504, retry_after: Some(1) };
    server.inject(Fault::on(Verb::Watch, "configmaps", action).times(3));
    for expected in ["!", "!", "!", "="] {
        assert_eq!(next(&mut watch).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_watch_from_beginning_is_told() {
    let server = server();
    let action = FaultAction::Refuse { code: 403, retry_after: None };
    server.inject(Fault::on(Verb::List, "configmaps", action).times(1));
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    match watch.next().await {
        Event::Interrupted(error) => {
            assert_eq!(error.kind, ApiErrorKind::Forbidden);
            assert_eq!((error.verb(), error.resource()), (Verb::List, "configmaps"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(next(&mut watch).await, "=");
}

/// A watch ends after its time even if nobody ends it, and goes on.
#[tokio::test(start_paused = true)]
async fn watches_do_not_last_for_ever() {
    let server = server();
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    assert_eq!(next(&mut watch).await, "=");
    timeout(Duration::from_secs(3600), watch.next()).await.unwrap_err();
    let watches = server.requests(Verb::Watch, "configmaps");
    assert!((6..=13).contains(&watches), "{watches} watches in an hour");
    assert_eq!(server.requests(Verb::List, "configmaps"), 1);
    server.put(&config_map("a"));
    assert_eq!(next(&mut watch).await, "+a");
}

/// Dropping the future of `next` in the middle of anything loses nothing.
#[tokio::test(start_paused = true)]
async fn the_next_event_can_be_given_up() {
    let server = server();
    let delay = FaultAction::Delay(Duration::from_secs(5));
    server.inject(Fault::on_every_request(delay));
    server.put(&config_map("a"));
    let mut watch = server.client().namespaced::<ConfigMap>("default").watch(&Selector::all());
    let mut tries = 0;
    let first = loop {
        tries += 1;
        if let Ok(event) = timeout(Duration::from_secs(1), next(&mut watch)).await {
            break event;
        }
    };
    assert_eq!(first, "=a");
    assert!(tries > 3, "{tries}");
    assert_eq!(server.requests(Verb::List, "configmaps"), 1);
}

/// One lane's sluggish reader holds up nobody, and loses nothing.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_loses_nothing() {
    const MANY: usize = 300;
    let server = server();
    let api = server.http2_client();
    let maps = api.namespaced::<ConfigMap>("default");
    let mut slow = maps.watch(&Selector::all());
    let mut quick = maps.watch(&Selector::name("last"));
    next(&mut slow).await;
    next(&mut quick).await;
    timeout(Duration::from_secs(1), slow.next()).await.unwrap_err();
    for number in 0..MANY {
        let mut map = config_map(&format!("map-{number}"));
        map.data = Some([("large".to_owned(), "x".repeat(20_000))].into());
        server.put(&map);
    }
    server.put(&config_map("last"));
    let told = timeout(Duration::from_secs(5), next(&mut quick)).await.unwrap();
    assert_eq!(told, "+last");
    for number in 0..MANY {
        assert_eq!(next(&mut slow).await, format!("+map-{number}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_keeps_what_was_understood_last() {
    let server = server();
    server.put(&config_map("a"));
    server.put(&config_map("b"));
    let maps = server.client().namespaced::<ConfigMap>("default");
    let (store, keeping) = maps.informer(&Selector::all());
    assert!(!store.has_synced());
    tokio::spawn(keeping);
    store.synced().await;
    assert!(store.has_synced());
    assert_eq!(store.len(), 2);
    let mut changes = store.changes();

    server.put_raw("configmaps", bad("a"));
    server.remove::<ConfigMap>("default", "b");
    while store.get("default", "b").is_some() {
        changes.changed().await.unwrap();
    }
    let kept = store.get("default", "a").and_then(|map| map.data.clone()).unwrap_or_default();
    assert_eq!(kept.get("k").map(String::as_str), Some("v"));

    // Also by a new list.
    server.hold_watches(true);
    server.put(&config_map("c"));
    server.forget_history();
    server.hold_watches(false);
    while store.get("default", "c").is_none() {
        changes.changed().await.unwrap();
    }
    assert!(store.get("default", "a").is_some());
    assert_eq!(store.list().len(), 2);
}

/// Who manages which field is dropped before anything is kept.
#[tokio::test(start_paused = true)]
async fn managed_fields_are_dropped() {
    let server = server();
    let pod = |name: &str| {
        json!({
            "metadata": {"name": name, "namespace": "default", "managedFields": [{"manager": "m"}]},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        })
    };
    server.put_raw("pods", pod("a"));
    let pods = server.client().namespaced::<Pod>("default");
    assert_eq!(pods.get("a").await.unwrap().metadata.managed_fields, None);
    let mut watch = pods.watch(&Selector::all());
    let Event::Replaced(set) = watch.next().await else { panic!("no full set") };
    assert_eq!(set.objects[0].metadata.managed_fields, None);
    server.put_raw("pods", pod("b"));
    let Event::Applied(pod) = watch.next().await else { panic!("no change") };
    assert_eq!(pod.metadata.managed_fields, None);
}
