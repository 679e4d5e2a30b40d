//! Limits, retries and what is sent.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event as ApiEvent};
use rubelet_apiserver::{
    ApiErrorKind, ApiServer, ApiServerOptions, Delete, RateLimit, Selector, Verb,
};
use rubelet_fake_apiserver::{Fault, FaultAction};
use rubelet_metrics::{Format, Registry};
use rubelet_types::Clock;
use tokio::time::{Instant, timeout};

use super::{chain, config_map, options, server};

fn refuse(code: u16, retry_after: Option<u32>) -> FaultAction {
    FaultAction::Refuse { code, retry_after }
}

#[tokio::test(start_paused = true)]
async fn lanes_hold_up_nobody_but_themselves() {
    let server = server();
    let limit = Some(RateLimit { qps: 1.0, burst: 2 });
    let options = ApiServerOptions { general: limit, events: limit, ..options() };
    let api = ApiServer::over(&server.connector(), options, Clock::system());
    server.put(&config_map("a"));
    let start = Instant::now();
    for _ in 0..5 {
        api.namespaced::<ConfigMap>("default").get("a").await.unwrap();
    }
    // Two at once, three that waited.
    assert_eq!(start.elapsed().as_secs(), 3);
    let start = Instant::now();
    for _ in 0..2 {
        api.events().namespaced::<ApiEvent>("default").list(&Selector::all()).await.unwrap();
    }
    for _ in 0..50 {
        let leases = api.heartbeats().namespaced::<Lease>("kube-node-lease");
        leases.list(&Selector::all()).await.unwrap();
    }
    assert_eq!(start.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_patience_is_asked_again_when_it_said() {
    for code in [429, 500, 503] {
        let server = server();
        let maps = server.client().namespaced::<ConfigMap>("default");
        server.inject(Fault::on(Verb::Create, "configmaps", refuse(code, Some(3))).times(2));
        let start = Instant::now();
        maps.create(&config_map("a")).await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 6);
        assert_eq!(server.requests(Verb::Create, "configmaps"), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn patience_has_bounds() {
    let server = server();
    let api = server.client();
    let maps = api.namespaced::<ConfigMap>("default");
    // So often.
    server.inject(Fault::on(Verb::Get, "configmaps", refuse(429, Some(1))));
    let error = maps.get("a").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::TooManyRequests);
    assert_eq!(server.requests(Verb::Get, "configmaps"), 6);
    // So long.
    server.clear_faults();
    server.inject(Fault::on(Verb::Get, "configmaps", refuse(503, Some(3600))));
    let start = Instant::now();
    let error = maps.get("a").await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(start.elapsed().as_secs(), 0);
    // Not at all where nobody says when, or where waiting is no help.
    for action in [refuse(500, None), refuse(429, None), refuse(403, Some(1))] {
        server.clear_faults();
        server.inject(Fault::on(Verb::Get, "configmaps", action));
        let before = server.requests(Verb::Get, "configmaps");
        maps.get("a").await.unwrap_err();
        assert_eq!(server.requests(Verb::Get, "configmaps"), before + 1);
    }
    // A heartbeat has one limit for everything.
    server.clear_faults();
    server.inject(Fault::on(Verb::Get, "leases", refuse(429, Some(4))));
    let leases = api.heartbeats().namespaced::<Lease>("kube-node-lease");
    let outcome = timeout(Duration::from_secs(10), leases.get("a")).await.unwrap();
    assert_eq!(outcome.unwrap_err().kind, ApiErrorKind::TooManyRequests);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_not_heard_of_the_pod_yet_is_given_moments() {
    let server = server();
    let maps = server.client().namespaced::<ConfigMap>("default");
    server.put(&config_map("a"));
    server.inject(Fault::on(Verb::List, "configmaps", FaultAction::Unrelated).times(3));
    let start = Instant::now();
    let listed = maps.list(&Selector::name("a")).await.unwrap();
    assert_eq!((listed.objects.len(), server.requests(Verb::List, "configmaps")), (1, 4));
    assert_eq!(start.elapsed(), Duration::from_millis(5 + 10 + 20));
    // What really is none of the node's business is told.
    server.inject(Fault::on(Verb::Get, "configmaps", FaultAction::Unrelated));
    let start = Instant::now();
    let error = maps.get("a").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Forbidden);
    assert_eq!(start.elapsed(), Duration::from_millis(315));
    assert_eq!(server.requests(Verb::Get, "configmaps"), 7);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_understood_says_where() {
    let server = server();
    let maps = server.client().namespaced::<ConfigMap>("default");
    server.put_raw(
        "configmaps",
        serde_json::json!({"metadata": {"name": "bad", "namespace": "default"}, "data": {"k": 1}}),
    );
    let error = maps.get("bad").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Decode);
    let text = chain(&error);
    assert!(text.starts_with("cannot get configmaps default/bad: data.k: "), "{text}");
}

#[tokio::test(start_paused = true)]
async fn names_that_are_none_are_not_sent() {
    let server = server();
    let api = server.client();
    let maps = api.namespaced::<ConfigMap>("default");
    for name in ["", ".", "..", "a/../b", "a/status", "a?watch=true", "a%2Fb", "a b", "a#b"] {
        let error = maps.get(name).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::BadRequest, "{name:?}");
        let error = maps.delete(name, &Delete::default()).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::BadRequest, "{name:?}");
    }
    let error = api.namespaced::<ConfigMap>("../../x").get("a").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::BadRequest);
    for verb in [Verb::Get, Verb::List, Verb::Delete] {
        assert_eq!(server.requests(verb, "configmaps"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_history_is_lost_in_the_middle_is_read_at_once() {
    let server = server();
    let maps = server.client().namespaced::<ConfigMap>("default");
    for number in 0..600 {
        server.put(&config_map(&format!("map-{number}")));
    }
    // The second page finds its token forgotten.
    server.inject(
        Fault::on(Verb::List, "configmaps", FaultAction::Delay(Duration::from_secs(5)))
            .after_effect(),
    );
    let forgetful = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.forget_history();
    };
    let all = Selector::all();
    let (set, ()) = tokio::join!(maps.list(&all), forgetful);
    assert_eq!(set.unwrap().objects.len(), 600);
    assert_eq!(server.requests(Verb::List, "configmaps"), 3);
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_what_was_answered() {
    let server = server();
    let limit = Some(RateLimit { qps: 1.0, burst: 1 });
    let options = ApiServerOptions { general: limit, ..options() };
    let api = ApiServer::over(&server.connector(), options, Clock::system());
    let maps = api.namespaced::<ConfigMap>("default");
    server.inject(Fault::on(Verb::Get, "configmaps", refuse(429, Some(1))).times(1));
    maps.get("a").await.unwrap_err();
    maps.create(&config_map("a")).await.unwrap();
    server.set_away(true);
    maps.get("a").await.unwrap_err();
    let text = Registry::new().with(api.metrics()).expose(Format::Prometheus);
    let host = "host=\"apiserver:80\"";
    for line in [
        format!("rest_client_requests_total{{code=\"429\",{host},method=\"GET\"}} 1"),
        format!("rest_client_requests_total{{code=\"404\",{host},method=\"GET\"}} 1"),
        format!("rest_client_requests_total{{code=\"201\",{host},method=\"POST\"}} 1"),
        format!("rest_client_requests_total{{code=\"<error>\",{host},method=\"GET\"}} 1"),
        format!("rest_client_request_retries_total{{code=\"429\",{host},verb=\"GET\"}} 1"),
        format!("rest_client_request_duration_seconds_count{{{host},verb=\"GET\"}} 3"),
        format!("rest_client_request_size_bytes_count{{{host},verb=\"POST\"}} 1"),
        format!("rest_client_response_size_bytes_count{{{host},verb=\"POST\"}} 1"),
        format!(
            "rest_client_response_size_bytes_bucket{{{host},verb=\"POST\",le=\"1.048576e+06\"}} 1"
        ),
        format!("rest_client_rate_limiter_duration_seconds_count{{{host},verb=\"GET\"}} 3"),
        format!(
            "rest_client_rate_limiter_duration_seconds_bucket{{{host},verb=\"POST\",le=\"0.5\"}} 0"
        ),
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
}
