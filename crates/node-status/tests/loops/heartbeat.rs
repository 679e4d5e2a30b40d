use std::time::Duration;

use rubelet_cri::{CriError, CriErrorKind, Rpc};
use rubelet_node_status::{NodeApiErrorKind, NodePressure};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::bed::{Bed, ready_of, runtime_status, seconds};
use crate::fake_api::{Fault, Verb};

/// A bed with a node that has been ready for a while, and whose start is told of.
async fn ready_bed(watches: bool) -> (Bed, CancellationToken) {
    let bed = Bed::new(watches);
    bed.start();
    let runtime = bed.keep_runtime_ready();
    sleep(seconds(65)).await;
    assert_eq!(bed.ready().0, "True");
    bed.take_events();
    (bed, runtime)
}

/// Waits until `holds`, and says how long that took.
async fn until(holds: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < seconds(600), "it never comes about");
        sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn readiness_is_written_as_soon_as_it_is_there() {
    let bed = Bed::new(true);
    let pleg = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let relisted = pleg.clone();
    bed.inputs.add_health_check("PLEG", move || {
        let is_well = relisted.load(std::sync::atomic::Ordering::Relaxed);
        if is_well { Ok(()) } else { Err("pleg has yet to be successful".to_owned()) }
    });
    let node = bed.start();
    sleep(Duration::from_millis(3030)).await;
    assert_eq!(
        bed.ready(),
        (
            "False".to_owned(),
            "[container runtime status check may not have completed yet, PLEG is not healthy: \
             pleg has yet to be successful, network state unknown]"
                .to_owned()
        )
    );
    bed.keep_runtime_ready();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(bed.ready().1, "PLEG is not healthy: pleg has yet to be successful");
    bed.take_events();
    // Nobody says when a health check passes: it is looked at.
    pleg.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(until(|| bed.ready().0 == "True").await <= seconds(1));
    assert_eq!(bed.take_events(), ["NodeReady"]);
    assert_eq!(ready_of(&node.current().unwrap().node).0, "True");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_at_rest_but_reports() {
    for watches in [false, true] {
        let (bed, _runtime) = ready_bed(watches).await;
        let (patches, reads) =
            (bed.api.times(Verb::PatchStatus).len(), bed.api.calls(Verb::GetNode).len());
        sleep(Duration::from_secs(3600)).await;
        let written = bed.api.times(Verb::PatchStatus);
        let reports = &written[patches..];
        assert!((10..=13).contains(&reports.len()), "{reports:?}");
        // The first after a change comes at some time; then one each five minutes, as far as the
        // status is looked at.
        for pair in reports.windows(2) {
            let gap = pair[1] - pair[0];
            assert!((300_000..=311_000).contains(&gap), "{reports:?}");
        }
        let report = bed.api.calls(Verb::PatchStatus).last().unwrap().patch.clone().unwrap();
        let conditions = report["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 4);
        assert!(conditions.iter().all(|it| it["lastHeartbeatTime"].is_string()));
        assert_eq!(report["status"].as_object().unwrap().len(), 2, "{report}");
        let read = bed.api.calls(Verb::GetNode).len() - reads;
        assert!(if watches { read == 0 } else { (340..=361).contains(&read) }, "{read} reads");
        assert_eq!(bed.take_events(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_take_readiness_back_before_it_has_looked() {
    let (mut bed, _runtime) = ready_bed(true).await;
    bed.stop().await;
    bed.start();
    let patches = bed.api.times(Verb::PatchStatus).len();
    sleep(seconds(8)).await;
    assert_eq!(bed.ready().0, "True");
    assert_eq!(bed.api.times(Verb::PatchStatus).len(), patches);
    // The runtime answers at last: a node that was ready is.
    bed.keep_runtime_ready();
    sleep(seconds(60)).await;
    assert_eq!(bed.ready().0, "True");
    assert_eq!(
        bed.take_events(),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_whose_runtime_does_not_answer_says_so_after_a_grace() {
    let (mut bed, _runtime) = ready_bed(false).await;
    bed.stop().await;
    bed.start();
    let took = until(|| bed.ready().0 == "False").await;
    assert!((seconds(10)..=Duration::from_millis(10_100)).contains(&took), "{took:?}");
    assert!(bed.take_events().contains(&"NodeNotReady".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_nothing_is_ready_until_it_is() {
    let (mut bed, _runtime) = ready_bed(true).await;
    bed.stop().await;
    bed.api.change_node(|node| {
        let info = node.status.as_mut().unwrap().node_info.as_mut().unwrap();
        info.boot_id = "boot-0".to_owned();
    });
    bed.start();
    assert!(until(|| bed.ready().0 == "False").await <= Duration::from_millis(50));
    bed.keep_runtime_ready();
    sleep(seconds(30)).await;
    let events = bed.take_events();
    assert_eq!(events.iter().filter(|reason| *reason == "Rebooted").count(), 1, "{events:?}");
    assert_eq!(events.last().unwrap(), "NodeReady");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_silent_for_half_a_minute_is_down() {
    let (bed, runtime) = ready_bed(true).await;
    runtime.cancel();
    bed.inputs.observe_runtime_status(Ok(&runtime_status(true, true)));
    let error = CriError::new(Rpc::Status, CriErrorKind::Unavailable, "gone");
    bed.inputs.observe_runtime_status(Err(&error));
    let took = until(|| bed.ready().0 == "False").await;
    assert!((seconds(30)..=Duration::from_millis(30_010)).contains(&took), "{took:?}");
    assert_eq!(bed.ready().1, "container runtime is down");
    sleep(seconds(20)).await;
    bed.inputs.observe_runtime_status(Ok(&runtime_status(true, true)));
    assert!(until(|| bed.ready().0 == "True").await <= Duration::from_millis(10));
    assert_eq!(bed.take_events(), ["NodeNotReady", "NodeReady"]);
}

#[tokio::test(start_paused = true)]
async fn changes_are_written_at_once_and_together_when_they_follow_each_other() {
    let (bed, _runtime) = ready_bed(true).await;
    let memory = NodePressure { memory: true, ..NodePressure::default() };
    let before = bed.api.times(Verb::PatchStatus).len();
    bed.inputs.set_pressure(memory);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(bed.api.times(Verb::PatchStatus).len(), before + 1);
    for disk in [true, false, true, false, true] {
        bed.inputs.set_pressure(NodePressure { disk, ..memory });
        sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(bed.api.times(Verb::PatchStatus).len(), before + 1);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(bed.api.times(Verb::PatchStatus).len(), before + 2);
    assert_eq!(bed.take_events(), ["NodeHasInsufficientMemory", "NodeHasDiskPressure"]);
    bed.inputs.set_shutting_down(true);
    sleep(seconds(2)).await;
    assert_eq!(bed.ready(), ("False".to_owned(), "node is shutting down".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_is_repeated_and_its_events_come_once() {
    let (bed, _runtime) = ready_bed(false).await;
    bed.api.inject(Verb::PatchStatus, Fault::Refuse(NodeApiErrorKind::Conflict), 2);
    bed.api.inject(Verb::PatchStatus, Fault::LoseAnswer, 1);
    bed.inputs.set_pressure(NodePressure { pid: true, ..NodePressure::default() });
    sleep(seconds(30)).await;
    assert_eq!(bed.api.closed(), 2);
    // The lost answer was a write all the same: the next try has nothing to write.
    assert_eq!(bed.take_events(), ["NodeHasInsufficientPID"]);
    let conditions = bed.api.node().unwrap().status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|it| it.type_ == "PIDPressure" && it.status == "True"));
}

#[tokio::test(start_paused = true)]
async fn five_tries_and_then_the_next_period() {
    let (bed, _runtime) = ready_bed(false).await;
    let before = bed.api.times(Verb::PatchStatus).len();
    bed.api.inject(Verb::PatchStatus, Fault::Refuse(NodeApiErrorKind::Other), 7);
    bed.inputs.set_pressure(NodePressure { pid: true, ..NodePressure::default() });
    sleep(seconds(1)).await;
    assert_eq!(bed.api.times(Verb::PatchStatus).len(), before + 5);
    sleep(seconds(10)).await;
    assert_eq!(bed.api.times(Verb::PatchStatus).len(), before + 8);
    assert_eq!(bed.take_events(), ["NodeHasInsufficientPID"]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_leads_nowhere_is_given_up() {
    let (bed, _runtime) = ready_bed(false).await;
    bed.api.inject(Verb::PatchStatus, Fault::Hang, 1);
    bed.inputs.set_pressure(NodePressure { pid: true, ..NodePressure::default() });
    sleep(seconds(11)).await;
    assert_eq!(bed.api.closed(), 1);
    assert_eq!(bed.take_events(), ["NodeHasInsufficientPID"]);
}

#[tokio::test(start_paused = true)]
async fn what_others_write_is_seen_without_asking() {
    let bed = Bed::new(true);
    let mut node = bed.start();
    bed.keep_runtime_ready();
    sleep(seconds(65)).await;
    let reads = bed.api.calls(Verb::GetNode).len();
    bed.api.change_node(|node| {
        node.metadata.labels.get_or_insert_default().insert("zone".to_owned(), "a".to_owned());
        node.spec.get_or_insert_default().unschedulable = Some(true);
    });
    let labels = loop {
        node.changed().await;
        let labels = node.current().unwrap().node.metadata.labels.clone().unwrap();
        if labels.contains_key("zone") {
            break labels;
        }
    };
    assert_eq!(labels["zone"], "a");
    sleep(seconds(1)).await;
    bed.api.change_node(|node| node.spec.as_mut().unwrap().unschedulable = None);
    sleep(seconds(30)).await;
    let events = bed.take_events();
    let schedulable: Vec<&String> =
        events.iter().filter(|reason| reason.ends_with("Schedulable")).collect();
    assert_eq!(schedulable, ["NodeNotSchedulable", "NodeSchedulable"]);
    assert_eq!(bed.api.calls(Verb::GetNode).len(), reads);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_hides_no_change() {
    let (bed, _runtime) = ready_bed(true).await;
    bed.api.freeze_watch(true);
    let pressure = |disk| NodePressure { disk, ..NodePressure::default() };
    bed.inputs.set_pressure(pressure(true));
    sleep(seconds(2)).await;
    // The watch still shows a node without pressure.
    bed.inputs.set_pressure(pressure(false));
    sleep(seconds(2)).await;
    let conditions = bed.api.node().unwrap().status.unwrap().conditions.unwrap();
    let disk = conditions.iter().find(|it| it.type_ == "DiskPressure").unwrap();
    assert_eq!(disk.status, "False");
    assert_eq!(bed.take_events(), ["NodeHasDiskPressure", "NodeHasNoDiskPressure"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_control_plane_gave_up_is_taken_back_and_said() {
    let (bed, _runtime) = ready_bed(true).await;
    bed.api.change_node(|node| {
        for condition in node.status.as_mut().unwrap().conditions.iter_mut().flatten() {
            condition.status = "Unknown".to_owned();
            condition.reason = Some("NodeStatusUnknown".to_owned());
        }
    });
    sleep(seconds(11)).await;
    assert_eq!(bed.ready(), ("True".to_owned(), "kubelet is posting ready status".to_owned()));
    assert_eq!(
        bed.take_events(),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_label_that_must_be_right_is_put_right() {
    let (bed, _runtime) = ready_bed(true).await;
    bed.api.change_node(|node| {
        let labels = node.metadata.labels.as_mut().unwrap();
        labels.insert("kubernetes.io/os".to_owned(), "plan9".to_owned());
        labels.insert("kubernetes.io/hostname".to_owned(), "mine".to_owned());
    });
    sleep(seconds(11)).await;
    let patch = bed.api.calls(Verb::PatchStatus).last().unwrap().patch.clone().unwrap();
    assert_eq!(patch["metadata"], json!({"labels": {"kubernetes.io/os": "linux"}}));
}
