//! What a whole kubelet counts, on a fake runtime and a fake API server, under paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bed;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bed::{IMAGE, Machine};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kubelet::{ClusterParts, KubeletView, OtherMetrics};
use rubelet_cri::Rpc;
use rubelet_event_recorder::{EventRecorderSettings, event_recorder};
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions};
use rubelet_fake_cri::{Fault, FaultAction, OnStopSignal, Script, ScriptMatch, tokio_clock};
use rubelet_metrics::{Format, Registry};
use rubelet_pod_sources::PodSourceHandle;
use rubelet_pod_sources::defaults::apply_defaults;
use rubelet_types::EventRecorder;
use rubelet_volume_manager::HostMounts;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

/// A node of a cluster, with its kubelet.
struct Cluster {
    machine: Machine,
    server: FakeApiServer,
    view: KubeletView,
    registry: Registry,
    task: JoinHandle<()>,
}

impl Cluster {
    async fn start() -> Self {
        let machine = Machine::new();
        let clock = tokio_clock(Timestamp::UNIX_EPOCH);
        let server = FakeApiServer::new(FakeOptions { clock: clock.clone(), seed: 1 });
        let (_, events) = event_recorder(
            EventRecorderSettings { node_name: "n1".to_owned(), events_per_second: 50, burst: 100 },
            clock.clone(),
        );
        let api = server.client();
        let joined = |pods, host| Some(ClusterParts { api, pods, events, host });
        let discard = EventRecorder::discard();
        let kubelet = machine.kubelet(clock, discard, Arc::new(HostMounts), joined).await;
        let view = kubelet.view();
        let registry = view.metrics(OtherMetrics::default());
        let task = tokio::spawn(async move {
            kubelet.run(CancellationToken::new()).await.unwrap();
        });
        server.put::<ServiceAccount>(
            &serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap(),
        );
        Self { machine, server, view, registry, task }
    }

    fn text(&self) -> String {
        self.registry.expose(Format::Prometheus)
    }

    /// The value of a series, written as it is read.
    fn value(&self, series: &str) -> Option<f64> {
        let text = self.text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map(|value| value.parse().unwrap())
    }

    fn expect(&self, all: &[(&str, f64)]) {
        for (series, expected) in all {
            let found = self.value(series);
            assert_eq!(found, Some(*expected), "{series}\n{}", self.text());
        }
    }

    fn runs(&self, pod: &str) -> bool {
        self.machine.runtime.inventory().running(pod).next().is_some()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A kubelet without an API server.
struct Alone {
    view: KubeletView,
    pods: PodSourceHandle,
    task: JoinHandle<()>,
}

impl Alone {
    async fn start(machine: &Machine) -> Self {
        let clock = tokio_clock(Timestamp::UNIX_EPOCH + Instant::now().elapsed());
        let mut handle = None;
        let alone = |pods, _| {
            handle = Some(pods);
            None
        };
        let discard = EventRecorder::discard();
        let kubelet = machine.kubelet(clock, discard, Arc::new(HostMounts), alone).await;
        let (view, pods) = (kubelet.view(), handle.unwrap());
        let task = tokio::spawn(async move {
            kubelet.run(CancellationToken::new()).await.unwrap();
        });
        Self { view, pods, task }
    }

    fn text(&self) -> String {
        self.view.metrics(OtherMetrics::default()).expose(Format::Prometheus)
    }

    async fn die(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

fn pod(name: &str, spec: Value) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name,
            "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": spec,
    }))
    .unwrap();
    pod.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
    apply_defaults(&mut pod);
    pod
}

fn container(name: &str) -> Value {
    json!({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent"})
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(Duration::from_secs(600), wait).await.is_ok(), "never: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_pods_life_is_counted() {
    let cluster = Cluster::start().await;
    cluster.expect(&[
        ("kubelet_desired_pods{static=\"\"}", 0.0),
        ("kubelet_running_pods", 0.0),
        ("kubelet_started_pods_total", 0.0),
        ("kubelet_pod_start_sli_duration_seconds_count", 0.0),
    ]);
    let ends = |name: &str, script: Script| {
        cluster.machine.runtime.add_script(ScriptMatch::Container(name.to_owned()), script);
    };
    ends("prepare", Script::exit(Duration::from_secs(2), 0));
    ends(
        "stays",
        Script::run_forever()
            .on_stop_signal(OnStopSignal::Exit { after: Duration::ZERO, code: 143 }),
    );
    let mut stays = container("stays");
    stays["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    cluster.server.put(&pod(
        "web",
        json!({
            "initContainers": [container("prepare")],
            "containers": [stays],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        }),
    ));
    until("it runs", || cluster.runs("web")).await;
    let sli = "kubelet_pod_start_sli_duration_seconds_count";
    until("its start is known", || cluster.value(sli) == Some(1.0)).await;
    cluster.expect(&[
        ("kubelet_pod_start_total_duration_seconds_count", 1.0),
        ("kubelet_pod_start_duration_seconds_count", 1.0),
        ("kubelet_pod_worker_start_duration_seconds_count", 1.0),
        ("kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"}", 1.0),
        ("kubelet_containers_per_pod_count_sum", 1.0),
        ("kubelet_started_pods_total", 1.0),
        ("kubelet_started_pods_errors_total", 0.0),
        ("kubelet_started_user_namespaced_pods_total", 0.0),
        ("kubelet_started_containers_total{container_type=\"init_container\"}", 1.0),
        ("kubelet_started_containers_total{container_type=\"container\"}", 1.0),
        (
            "kubelet_terminated_containers_total{container_type=\"init_container\",exit_code=\"0\",\
             reason=\"Completed\"}",
            1.0,
        ),
        ("kubelet_desired_pods{static=\"\"}", 1.0),
        ("kubelet_active_pods{static=\"\"}", 1.0),
        ("kubelet_mirror_pods", 0.0),
        ("kubelet_managed_ephemeral_containers", 0.0),
        ("kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"\"}", 1.0),
        ("kubelet_working_pods{config=\"orphan\",lifecycle=\"terminating\",static=\"true\"}", 0.0),
        ("kubelet_runtime_operations_total{operation_type=\"start_container\"}", 2.0),
        ("kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"}", 1.0),
        (
            "kubelet_image_manager_ensure_image_requests_total{present_locally=\"true\",\
             pull_policy=\"ifnotpresent\",pull_required=\"false\"}",
            2.0,
        ),
        (
            "storage_operation_duration_seconds_count{migrated=\"false\",\
             operation_name=\"volume_mount\",status=\"success\",\
             volume_plugin=\"kubernetes.io/empty-dir\"}",
            1.0,
        ),
        (
            "volume_operation_total_seconds_count{operation_name=\"overall_volume_mount\",\
             plugin_name=\"kubernetes.io/empty-dir\"}",
            1.0,
        ),
        (
            "volume_manager_total_volumes{plugin_name=\"kubernetes.io/empty-dir\",\
             state=\"actual_state_of_world\"}",
            1.0,
        ),
        ("kubelet_node_name{node=\"n1\"}", 1.0),
        ("kubelet_cgroup_version", 2.0),
    ]);
    // The init container's two seconds are not the kubelet's.
    let seconds = |metric: &str| cluster.value(&format!("{metric}_sum")).unwrap();
    let total = seconds("kubelet_pod_start_total_duration_seconds");
    let sli = seconds("kubelet_pod_start_sli_duration_seconds");
    assert!((1.5..=2.5).contains(&(total - sli)), "{total} {sli}");
    let first = cluster.value("kubelet_first_network_pod_start_sli_duration_seconds");
    assert_eq!(first, Some(sli));
    let running = "kubelet_running_containers{container_state=\"running\"}";
    until("a relist shows it", || cluster.value(running) == Some(1.0)).await;
    cluster.expect(&[("kubelet_running_pods", 1.0)]);
    until("its status is written", || {
        cluster.value("kubelet_pod_status_sync_duration_seconds_count") >= Some(1.0)
    })
    .await;
    for series in [
        "kubelet_pleg_relist_duration_seconds_count",
        "kubelet_pleg_relist_interval_seconds_count",
        "kubelet_pleg_pod_relist_duration_seconds_count",
        "kubelet_evented_pleg_connection_success_count",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
        "process_virtual_memory_max_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    ] {
        assert!(cluster.value(series) > Some(0.0), "{series}\n{}", cluster.text());
    }
    assert!(cluster.value("kubelet_pleg_last_seen_seconds").is_some());
    cluster.expect(&[("kubelet_pleg_discard_events", 0.0)]);

    cluster.server.remove::<Pod>("default", "web");
    until("it is gone", || cluster.view.workers().is_empty()).await;
    until("the runtime shows it", || cluster.value("kubelet_running_pods") == Some(0.0)).await;
    cluster.expect(&[
        ("kubelet_desired_pods{static=\"\"}", 0.0),
        (
            "storage_operation_duration_seconds_count{migrated=\"false\",\
             operation_name=\"volume_unmount\",status=\"success\",\
             volume_plugin=\"kubernetes.io/empty-dir\"}",
            1.0,
        ),
    ]);
    let killed = "kubelet_pod_worker_duration_seconds_count{operation_type=\"kill\"}";
    assert!(cluster.value(killed) >= Some(1.0), "{}", cluster.text());
    assert!(!cluster.text().contains("volume_manager_total_volumes{"), "{}", cluster.text());
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_counted_by_its_reason() {
    let cluster = Cluster::start().await;
    let mut greedy = container("greedy");
    greedy["resources"] = json!({"requests": {"cpu": "100"}});
    cluster.server.put(&pod("too-large", json!({"containers": [greedy]})));
    let rejected = "kubelet_admission_rejections_total{reason=\"OutOfcpu\"}";
    until("it is refused", || cluster.value(rejected) == Some(1.0)).await;

    let absent = json!({"name": "absent", "image": "nowhere.example/absent:1",
        "imagePullPolicy": "Never"});
    cluster.server.put(&pod("waits", json!({"containers": [absent]})));
    let failed = "kubelet_started_containers_errors_total{code=\"ErrImageNeverPull\",\
                  container_type=\"container\"}";
    until("it fails", || cluster.value(failed) >= Some(1.0)).await;
    let asked = "kubelet_image_manager_ensure_image_requests_total{present_locally=\"false\",\
                 pull_policy=\"never\",pull_required=\"true\"}";
    assert!(cluster.value(asked) >= Some(1.0), "{}", cluster.text());
    // It does not run, and its start is not measured.
    cluster.expect(&[("kubelet_pod_start_sli_duration_seconds_count", 0.0)]);
}

#[tokio::test(start_paused = true)]
async fn streams_of_events_that_break_are_counted_and_opened_again() {
    let machine = Machine::new();
    let refuses = FaultAction::Error(Code::Internal, "not now".to_owned());
    machine.runtime.inject(Fault::on(Rpc::GetContainerEvents, refuses).times(2));
    let life = Alone::start(&machine).await;
    let told = |series: &str| life.text().contains(&format!("\nkubelet_evented_pleg_{series}\n"));
    until("both refusals are counted", || told("connection_error_count 2")).await;
    until("it is asked once more", || told("connection_success_count 3")).await;
    assert!(told("connection_error_count 2"));
}

#[tokio::test(start_paused = true)]
async fn who_makes_room_is_counted_by_what_was_lacking() {
    let cluster = Cluster::start().await;
    let asking = |name: &str, cpu: &str| {
        let mut container = container(name);
        container["resources"] = json!({"requests": {"cpu": cpu}});
        container
    };
    cluster.server.put(&pod("web", json!({"containers": [asking("web", "3")], "priority": 0})));
    until("it runs", || cluster.runs("web")).await;
    let critical = json!({"containers": [asking("dns", "2")], "priority": 2_000_000_000});
    cluster.server.put(&pod("dns", critical));
    let preempted = "kubelet_preemptions{preemption_signal=\"cpu\"}";
    until("the other has to go", || cluster.value(preempted) == Some(1.0)).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_kubelet_left_and_what_comes_back_is_counted() {
    let machine = Machine::new();
    let script = Script::run_forever()
        .on_stop_signal(OnStopSignal::Exit { after: Duration::from_secs(5), code: 0 });
    machine.runtime.add_script(ScriptMatch::Container("stays".to_owned()), script);
    let runs = || machine.runtime.inventory().running("left").next().is_some();
    let wanted = pod("left", json!({"containers": [container("stays")]}));

    let life = Alone::start(&machine).await;
    assert!(life.pods.set(vec![wanted.clone()]).await);
    until("it runs", runs).await;
    // It goes, and comes back while it is on its way out.
    assert!(life.pods.set(Vec::new()).await);
    until("it is being stopped", || life.view.workers().iter().any(|it| it.is_removed)).await;
    assert!(life.pods.set(vec![wanted]).await);
    let restarted = "\nkubelet_restarted_pods_total{static=\"\"} 1\n";
    until("it begins again", || life.text().contains(restarted)).await;
    until("it runs again", runs).await;
    life.die().await;

    let life = Alone::start(&machine).await;
    assert!(life.pods.set(Vec::new()).await);
    until("nobody's pod is found", || {
        life.text().contains("\nkubelet_orphaned_runtime_pods_total 1\n")
    })
    .await;
    let working = "\nkubelet_working_pods{config=\"runtime_only\",lifecycle=\"terminating\",\
                   static=\"unknown\"} 1\n";
    until("it is worked on", || life.text().contains(working)).await;
    until("it goes", || !runs()).await;
    life.die().await;
}

#[tokio::test(start_paused = true)]
async fn every_metric_is_told_of_once_and_in_order() {
    let cluster = Cluster::start().await;
    let registries = [cluster.registry.clone(), cluster.view.probe_metrics()];
    let mut names = BTreeSet::new();
    for desc in registries.iter().flat_map(Registry::descs) {
        assert!(names.insert(desc.name), "{} twice", desc.name);
        assert!(desc.labels.is_sorted(), "{}: {:?}", desc.name, desc.labels);
        assert!(desc.buckets.is_sorted(), "{}: {:?}", desc.name, desc.buckets);
        assert!(desc.help.ends_with('.') || desc.help.ends_with(')'), "{}", desc.name);
    }
    // Nothing that comes from the outside is a label of an unlabelled wealth of series.
    assert!(cluster.text().lines().count() < 1500, "{}", cluster.text().lines().count());
}
