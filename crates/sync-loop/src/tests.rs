use super::*;

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn seen(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl SyncHandler for Recorder {
    async fn handle_pod_additions(&self, pods: Vec<Arc<Pod>>) {
        self.note(format!("add {}", pods.len()));
    }
    async fn handle_pod_updates(&self, _: Vec<Arc<Pod>>) {
        self.note("update");
    }
    async fn handle_pod_removes(&self, _: Vec<Arc<Pod>>) {
        self.note("remove");
    }
    async fn handle_pod_reconcile(&self, _: Vec<Arc<Pod>>) {
        self.note("reconcile");
    }
    async fn handle_pod_syncs(&self, reason: PodSync) {
        self.note(match reason {
            PodSync::Observed(_) => "observed",
            PodSync::Probe(_) => "probe",
            PodSync::ContainerManager(_) => "devices",
            PodSync::Tick => "tick",
        });
    }
    async fn handle_pod_cleanups(&self) {
        self.note("clean");
    }
}

struct Fixture {
    recorder: Arc<Recorder>,
    config: mpsc::Sender<(PodOperation, Vec<Arc<Pod>>)>,
    ready: watch::Sender<bool>,
    health: SyncLoopHealth,
    _others: (mpsc::Sender<PodSnapshot>, mpsc::Sender<ProbeUpdate>, mpsc::Sender<PodUid>),
}

fn start() -> Fixture {
    let recorder = Arc::new(Recorder::default());
    let (config, config_rx) = mpsc::channel(4);
    let (lifecycle, pod_lifecycle) = mpsc::channel(4);
    let (probe, probes) = mpsc::channel(4);
    let (devices, container_manager) = mpsc::channel(4);
    let (ready, sources_ready) = watch::channel(false);
    let inputs = SyncLoopInputs {
        config: config_rx,
        pod_lifecycle,
        probes,
        container_manager,
        sources_ready,
    };
    let sync_loop = SyncLoop::new(recorder.clone(), inputs, SyncLoopSettings::default());
    let health = sync_loop.health();
    tokio::spawn(sync_loop.run(CancellationToken::new()));
    Fixture { recorder, config, ready, health, _others: (lifecycle, probe, devices) }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_cleaned_up_before_every_source_has_spoken() {
    let fixture = start();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(fixture.recorder.seen(), Vec::<String>::new());
    fixture.ready.send_replace(true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.recorder.seen(), ["clean"]);
}

#[tokio::test(start_paused = true)]
async fn operations_reach_their_handlers_in_order() {
    let fixture = start();
    for operation in [
        PodOperation::Add,
        PodOperation::Update,
        PodOperation::Delete,
        PodOperation::Reconcile,
        PodOperation::Remove,
    ] {
        fixture.config.send((operation, vec![Arc::default()])).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(fixture.recorder.seen(), ["add 1", "update", "update", "reconcile", "remove"]);
}

#[tokio::test(start_paused = true)]
async fn every_pod_is_looked_at_again_after_the_sync_frequency() {
    let fixture = start();
    tokio::time::sleep(Duration::from_secs(121)).await;
    assert_eq!(fixture.recorder.seen(), ["tick", "tick"]);
    assert_eq!(fixture.health.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_stands_still_is_unhealthy() {
    let health = SyncLoopHealth { last_turn: Arc::default(), threshold: MIN_STALL };
    assert_eq!(health.check(), Ok(()));
    health.turned();
    tokio::time::advance(Duration::from_secs(301)).await;
    assert!(health.check().is_err());
}
