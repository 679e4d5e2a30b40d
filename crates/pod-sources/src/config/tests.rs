use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use rubelet_types::Event;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::PodOperation;

fn settings() -> PodSourceSettings {
    PodSourceSettings {
        static_pod_path: None,
        file_check_frequency: Duration::from_secs(20),
        manifest_url: None,
        manifest_url_headers: Vec::new(),
        http_check_frequency: Duration::from_secs(20),
        node_name: "node".to_owned(),
        prevent_api_references: true,
    }
}

fn pod(uid: &str, name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("default".to_owned());
    pod
}

fn clock() -> Clock {
    Clock::from_fn(|| Timestamp::UNIX_EPOCH)
}

fn drive(config: PodConfig, cancel: &CancellationToken) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(config.run(cancel.clone())))
}

#[tokio::test(start_paused = true)]
async fn ready_means_that_all_sources_have_spoken() {
    let (mut config, mut out) =
        PodConfig::new(settings(), clock(), EventRecorder::discard()).unwrap();
    let (file, api) =
        (config.register_source(PodSource::File), config.register_source(PodSource::Api));
    assert_eq!(config.sources(), [PodSource::File, PodSource::Api]);
    let _running = drive(config, &CancellationToken::new());
    assert!(file.set(Vec::new()).await);
    let change = out.changes.recv().await.unwrap();
    assert_eq!(
        (change.op, change.source, change.pods.len()),
        (PodOperation::Add, PodSource::File, 0)
    );
    assert!(!*out.ready.borrow());
    assert!(api.set(vec![pod("a", "a")]).await);
    assert_eq!(out.changes.recv().await.unwrap().source, PodSource::Api);
    out.ready.wait_for(|ready| *ready).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_sources_the_node_is_ready_and_stays_so() {
    let (config, mut out) = PodConfig::new(settings(), clock(), EventRecorder::discard()).unwrap();
    let cancel = CancellationToken::new();
    let running = drive(config, &cancel);
    out.ready.wait_for(|ready| *ready).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!running.is_finished());
    cancel.cancel();
    running.await.unwrap();
    assert!(out.changes.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_slows_the_sources_and_loses_nothing() {
    let (mut config, mut out) =
        PodConfig::new(settings(), clock(), EventRecorder::discard()).unwrap();
    let api = config.register_source(PodSource::Api);
    let _running = drive(config, &CancellationToken::new());
    let producer = tokio::spawn(async move {
        for round in 0..500 {
            let uid = format!("{round}");
            assert!(api.set(vec![pod(&uid, &uid)]).await);
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!producer.is_finished(), "the channels are bounded");
    let mut wanted = std::collections::BTreeSet::new();
    while wanted != std::collections::BTreeSet::from(["499".to_owned()]) {
        let change = out.changes.recv().await.unwrap();
        for pod in change.pods {
            let uid = pod.metadata.uid.clone().unwrap();
            match change.op {
                PodOperation::Remove => assert!(wanted.remove(&uid)),
                _ => assert!(wanted.insert(uid)),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_told_as_events() {
    let seen: Arc<Mutex<Vec<Event>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let events = EventRecorder::new(move |event| sink.lock().unwrap().push(event));
    let (mut config, mut out) = PodConfig::new(settings(), clock(), events).unwrap();
    let file = config.register_source(PodSource::File);
    let _running = drive(config, &CancellationToken::new());
    assert!(file.set(vec![pod("1", "web"), pod("2", "web")]).await);
    assert_eq!(out.changes.recv().await.unwrap().pods.len(), 1);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].reason, "FailedValidation");
    assert_eq!(
        seen[0].message,
        "Error validating pod web_default(2) from file due to duplicate pod name \"web\", ignoring"
    );
}

#[test]
fn urls_and_headers_are_checked_at_once() {
    let with = |url: &str, headers: &[(&str, &str)]| {
        let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let settings = PodSourceSettings {
            manifest_url: Some(url.to_owned()),
            manifest_url_headers: headers,
            ..settings()
        };
        PodConfig::new(settings, clock(), EventRecorder::discard())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(with("http://localhost/pods", &[("A", "b"), ("A", "c")]), Ok(()));
    for url in ["", "ftp://x/", "/etc/passwd", "http://", "localhost:80"] {
        assert_eq!(with(url, &[]), Err(format!("{url:?} is no http or https URL")));
    }
    assert_eq!(
        with("http://localhost/", &[("A", "secret\r\nB: c")]),
        Err("the header \"A\" of the manifest URL cannot be sent".to_owned())
    );
}
