//! The fake runtime keeps the contract that real ones keep.

use std::time::Duration;

use rubelet_cri::CriOptions;
use rubelet_fake_cri::contract::{self, ContractOptions, Outcome, Report};
use rubelet_fake_cri::{FakeOptions, FakeRuntime};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.36.1-1";

fn options(logs: &tempfile::TempDir) -> ContractOptions {
    ContractOptions {
        image: IMAGE.to_owned(),
        cgroup_parent: "/contract".to_owned(),
        log_directory: logs.path().to_owned(),
        patience: Duration::from_secs(20),
    }
}

fn not_offered(report: &Report) -> Vec<&str> {
    let is_not_offered = |check: &&contract::Check| matches!(check.outcome, Outcome::NotOffered);
    report.checks.iter().filter(is_not_offered).map(|check| check.name).collect()
}

#[tokio::test(start_paused = true)]
async fn the_fake_runtime_keeps_the_contract_within_the_process() {
    let logs = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(FakeOptions::default());
    runtime.add_image(IMAGE, 4 << 20);
    let client = runtime.client(CriOptions::default());
    let report = contract::run_with(&client, &options(&logs)).await;
    assert_eq!(report.failures().count(), 0, "{report}");
    assert_eq!(not_offered(&report), ["a command that is not there is reported when started"]);
    assert_eq!(runtime.violations(), []);
    let left = runtime.inventory();
    assert!(left.sandboxes.is_empty() && left.containers.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn the_fake_runtime_keeps_the_contract_over_its_socket_without_what_is_optional() {
    let logs = tempfile::tempdir().unwrap();
    let socket = logs.path().join("cri.sock");
    let runtime = FakeRuntime::new(FakeOptions {
        container_events: false,
        list_streaming: false,
        cgroup_driver: None,
        ..FakeOptions::default()
    });
    runtime.add_image(IMAGE, 4 << 20);
    runtime.serve(&socket).unwrap();
    let report = contract::run(socket.to_str().unwrap(), &options(&logs)).await.unwrap();
    assert_eq!(report.failures().count(), 0, "{report}");
    assert!(not_offered(&report).contains(&"events tell of a container's life"), "{report}");
}
