//! The way of events from the recorder to an API server that is not always there.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event as ApiEvent;
use rubelet_event_recorder::{
    EventCounters, EventPort, EventRecorderSettings, EventSender, SendEventError, event_recorder,
};
use rubelet_types::{Clock, EventObject, EventRecorder, PodRef};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// What an API server does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    Down,
    Rejects,
    Hangs,
    /// It has forgotten all events.
    Forgot,
}

/// An API server that keeps a log: when, what, how it went.
#[derive(Clone)]
struct Server {
    mood: Arc<Mutex<Mood>>,
    log: Arc<Mutex<Vec<String>>>,
    start: Instant,
}

impl Server {
    fn new() -> Self {
        Self { mood: Arc::new(Mutex::new(Mood::Well)), log: Arc::default(), start: Instant::now() }
    }

    fn becomes(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    async fn answer(&self, what: String, is_patch: bool) -> Result<(), SendEventError> {
        let mood = *self.mood.lock().unwrap();
        let line = format!("{:>3}s {what} {mood:?}", self.start.elapsed().as_secs());
        self.log.lock().unwrap().push(line);
        match mood {
            Mood::Well => Ok(()),
            Mood::Down => Err(SendEventError::Unavailable("connection refused".into())),
            Mood::Rejects => Err(SendEventError::Rejected("namespace is being terminated".into())),
            Mood::Hangs => std::future::pending().await,
            Mood::Forgot if is_patch => Err(SendEventError::NotFound),
            Mood::Forgot => Ok(()),
        }
    }
}

impl EventPort for Server {
    async fn create_event(&self, event: &ApiEvent) -> Result<(), SendEventError> {
        let message = event.message.as_deref().unwrap();
        self.answer(format!("create {message} x{}", event.count.unwrap()), false).await
    }

    async fn patch_event(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), SendEventError> {
        assert_eq!(namespace, "default");
        assert!(name.starts_with("web."), "{name}");
        self.answer(
            format!("patch {} x{}", patch["message"].as_str().unwrap(), patch["count"]),
            true,
        )
        .await
    }
}

struct Bed {
    recorder: EventRecorder,
    server: Server,
    counters: EventCounters,
    stop: CancellationToken,
    sender: Option<EventSender>,
    running: Option<JoinHandle<()>>,
}

impl Bed {
    fn new(events_per_second: u32, burst: u32) -> Self {
        let start = Instant::now();
        let clock = Clock::from_fn(move || Timestamp::UNIX_EPOCH + start.elapsed());
        let settings =
            EventRecorderSettings { node_name: "n1".to_owned(), events_per_second, burst };
        let (recorder, sender) = event_recorder(settings, clock);
        Self {
            recorder,
            server: Server::new(),
            counters: sender.counters(),
            stop: CancellationToken::new(),
            sender: Some(sender),
            running: None,
        }
    }

    fn start(mut self) -> Self {
        let sender = self.sender.take().unwrap();
        self.running = Some(tokio::spawn(sender.run(self.server.clone(), self.stop.clone())));
        self
    }

    fn tell(&self, message: &str) {
        let pod = PodRef::new("uid", "default", "web");
        self.recorder.warning(EventObject::Pod(pod), "Failed", message);
    }

    async fn end(&mut self) {
        self.stop.cancel();
        self.running.take().unwrap().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_created_and_then_patched() {
    let bed = Bed::new(0, 0).start();
    bed.tell("one");
    bed.tell("one");
    bed.tell("two");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(
        bed.server.log(),
        ["  0s create one x1 Well", "  0s patch one x2 Well", "  0s create two x1 Well"]
    );
    assert_eq!((bed.counters.counts().recorded, bed.counters.counts().sent), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_server_forgot_is_created_again_with_its_count() {
    let bed = Bed::new(0, 0).start();
    bed.tell("one");
    sleep(Duration::from_millis(1)).await;
    bed.server.becomes(Mood::Forgot);
    bed.tell("one");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(
        bed.server.log(),
        ["  0s create one x1 Well", "  0s patch one x2 Forgot", "  0s create one x2 Forgot"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_asked_twelve_times_and_then_the_event_is_given_up() {
    let bed = Bed::new(0, 0).start();
    bed.server.becomes(Mood::Down);
    bed.tell("one");
    bed.tell("two");
    sleep(Duration::from_secs(9)).await;
    let early = bed.server.log();
    assert_eq!(early[0], "  0s create one x1 Down");
    assert!(early.len() <= 2, "{early:?}");
    // The wait before the second try is a part of ten seconds, all others are ten seconds.
    sleep(Duration::from_secs(102)).await;
    let ones = early.iter().cloned().chain(bed.server.log());
    assert_eq!(ones.filter(|line| line.contains("one")).count(), 12);
    assert_eq!(bed.counters.counts().abandoned, 1);
    bed.server.becomes(Mood::Well);
    sleep(Duration::from_secs(11)).await;
    assert!(bed.server.log().last().unwrap().ends_with("create two x1 Well"));
    assert_eq!(bed.counters.counts().sent, 1);
}

#[tokio::test(start_paused = true)]
async fn the_second_try_comes_at_another_moment_on_every_node() {
    let mut moments = Vec::new();
    for node in ["n1", "n2", "n3", "n4"] {
        let settings =
            EventRecorderSettings { node_name: node.to_owned(), events_per_second: 0, burst: 0 };
        let clock = Clock::from_fn(|| Timestamp::UNIX_EPOCH);
        let (recorder, sender) = event_recorder(settings, clock);
        let server = Server::new();
        server.becomes(Mood::Down);
        let stop = CancellationToken::new();
        let running = tokio::spawn(sender.run(server.clone(), stop.clone()));
        recorder.normal(EventObject::Pod(PodRef::new("u", "default", "web")), "Pulled", "m");
        let start = Instant::now();
        sleep(Duration::from_millis(1)).await;
        server.log();
        while server.log.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
        let moment = start.elapsed();
        assert!(moment <= Duration::from_millis(10_020), "{node}: {moment:?}");
        moments.push(moment);
        stop.cancel();
        running.await.unwrap();
    }
    moments.sort_unstable();
    moments.dedup();
    assert_eq!(moments.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_rejects_is_not_tried_again() {
    let bed = Bed::new(0, 0).start();
    bed.server.becomes(Mood::Rejects);
    bed.tell("one");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.server.log(), ["  0s create one x1 Rejects"]);
    assert_eq!(bed.counters.counts().abandoned, 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_a_failed_one() {
    let bed = Bed::new(0, 0).start();
    bed.server.becomes(Mood::Hangs);
    bed.tell("one");
    sleep(Duration::from_secs(1)).await;
    bed.server.becomes(Mood::Well);
    sleep(Duration::from_secs(70)).await;
    let log = bed.server.log();
    assert_eq!(log.len(), 2, "{log:?}");
    assert_eq!(bed.counters.counts().sent, 1);
}

#[tokio::test(start_paused = true)]
async fn recording_never_waits_and_what_finds_no_room_is_counted() {
    let bed = Bed::new(0, 0);
    for number in 0..1200 {
        bed.tell(&format!("m{number}"));
    }
    let counts = bed.counters.counts();
    assert_eq!((counts.recorded, counts.dropped, counts.sent), (1200, 200, 0));
    // What was queued before the sender ran is sent: 25 of one object, and no more.
    let bed = bed.start();
    sleep(Duration::from_secs(1)).await;
    let counts = bed.counters.counts();
    assert_eq!((counts.sent, counts.filtered), (25, 975));
}

#[tokio::test(start_paused = true)]
async fn requests_keep_to_the_configured_rate() {
    let bed = Bed::new(2, 3).start();
    for number in 0..9 {
        bed.tell(&format!("m{number}"));
    }
    let mut sent = Vec::new();
    for _ in 0..4 {
        sleep(Duration::from_millis(900)).await;
        sent.push(bed.counters.counts().sent);
    }
    assert_eq!(sent, [4, 6, 8, 9]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_when_the_kubelet_stops_is_offered_once_more() {
    let mut bed = Bed::new(0, 0).start();
    bed.server.becomes(Mood::Down);
    bed.tell("one");
    bed.tell("two");
    sleep(Duration::from_millis(1)).await;
    bed.server.becomes(Mood::Well);
    bed.server.log();
    bed.end().await;
    assert_eq!(bed.server.log(), ["  0s create one x1 Well", "  0s create two x1 Well"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_does_not_hold_up_the_end() {
    let mut bed = Bed::new(0, 0).start();
    bed.server.becomes(Mood::Hangs);
    bed.tell("one");
    bed.tell("two");
    sleep(Duration::from_millis(1)).await;
    let asked = Instant::now();
    bed.end().await;
    assert!(asked.elapsed() <= Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn events_of_one_moment_have_names_of_their_own() {
    #[derive(Clone, Default)]
    struct Names(Arc<Mutex<Vec<String>>>);
    impl EventPort for Names {
        async fn create_event(&self, event: &ApiEvent) -> Result<(), SendEventError> {
            self.0.lock().unwrap().push(event.metadata.name.clone().unwrap());
            Ok(())
        }
        async fn patch_event(&self, _: &str, _: &str, _: &Value) -> Result<(), SendEventError> {
            Err(SendEventError::NotFound)
        }
    }
    let settings =
        EventRecorderSettings { node_name: "n1".to_owned(), events_per_second: 0, burst: 0 };
    let (recorder, sender) = event_recorder(settings, Clock::from_fn(|| Timestamp::UNIX_EPOCH));
    let names = Names::default();
    for message in ["one", "two", "three"] {
        recorder.normal(EventObject::Node, "Starting", message);
    }
    drop(recorder);
    // Without a recorder there is nothing more to come.
    sender.run(names.clone(), CancellationToken::new()).await;
    assert_eq!(*names.0.lock().unwrap(), ["n1.0", "n1.1", "n1.2"]);
}
