use std::time::Duration;

use rubelet_config::GoDuration;
use rubelet_node_status::{NodeApiErrorKind, NodeOrigin};
use serde_json::json;
use tokio::time::sleep;

use crate::bed::{Bed, effective, ready_of, seconds};
use crate::fake_api::{Fault, Verb};

#[tokio::test(start_paused = true)]
async fn a_node_is_created_with_growing_patience() {
    let bed = Bed::new(false);
    bed.api.inject(Verb::CreateNode, Fault::Refuse(NodeApiErrorKind::Other), 8);
    let node = bed.start();
    sleep(seconds(10)).await;
    let known = node.current().expect("what would be created");
    assert_eq!(known.origin, NodeOrigin::Computed);
    assert_eq!(node.host_ips(), ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    sleep(seconds(30)).await;
    assert_eq!(
        bed.api.times(Verb::CreateNode),
        [0, 100, 300, 700, 1500, 3100, 6300, 12_700, 19_700]
    );
    let created = bed.api.node().expect("the Node");
    assert_eq!(created.metadata.labels.as_ref().unwrap()["kubernetes.io/hostname"], "n1");
    let known = node.from_api_server().await;
    assert_eq!(known.metadata.uid, created.metadata.uid);
    // Said once, however often it was tried.
    assert_eq!(
        bed.take_events(),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_given_up() {
    let bed = Bed::new(false);
    bed.api.inject(Verb::CreateNode, Fault::Hang, 1);
    bed.start();
    sleep(seconds(11)).await;
    assert_eq!(bed.api.times(Verb::CreateNode), [0, 10_100]);
    assert!(bed.api.node().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_gets_lost_is_a_node_that_exists() {
    let bed = Bed::new(false);
    bed.api.inject(Verb::CreateNode, Fault::LoseAnswer, 1);
    let node = bed.start();
    node.from_api_server().await;
    assert_eq!(bed.api.times(Verb::CreateNode), [0, 100]);
}

fn existing() -> serde_json::Value {
    json!({
        "metadata": {
            "name": "n1",
            "labels": {"kubernetes.io/hostname": "old", "team": "blue"},
            "annotations": {"somebody": "else"},
        },
        "spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"cpu": "2", "example.com/dongle": "1", "hugepages-64Ki": "0"},
            "allocatable": {"cpu": "2", "example.com/dongle": "1", "hugepages-64Ki": "0"},
        },
    })
}

#[tokio::test(start_paused = true)]
async fn an_existing_node_is_put_right_and_the_rest_of_it_left_alone() {
    let mut bed = Bed::new(false);
    bed.settings.labels = [("disktype".to_owned(), "ssd".to_owned())].into();
    bed.settings.taints = vec![
        serde_json::from_value(json!({
        "key": "dedicated", "value": "gpu", "effect": "NoSchedule"}))
        .unwrap(),
    ];
    bed.api.set_node(existing());
    let node = bed.start();
    node.from_api_server().await;
    let first = bed.api.calls(Verb::PatchStatus)[0].patch.clone().unwrap();
    assert_eq!(
        first,
        json!({
            "metadata": {
                "annotations": {
                    "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
                "labels": {
                    "beta.kubernetes.io/arch": "amd64",
                    "beta.kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": "n1",
                    "kubernetes.io/os": "linux",
                },
            },
            "status": {
                "allocatable": {"hugepages-64Ki": null},
                "capacity": {"hugepages-64Ki": null},
            },
        })
    );
    sleep(seconds(1)).await;
    let now = bed.api.node().unwrap();
    let labels = now.metadata.labels.unwrap();
    assert_eq!(labels["team"], "blue");
    assert!(!labels.contains_key("disktype"), "given at creation alone");
    assert_eq!(now.spec.unwrap().taints.unwrap().len(), 1);
    let capacity = now.status.unwrap().capacity.unwrap();
    assert_eq!((capacity["cpu"].0.as_str(), capacity["example.com/dongle"].0.as_str()), ("4", "1"));
}

#[tokio::test(start_paused = true)]
async fn who_may_not_create_nodes_may_still_have_one() {
    let bed = Bed::new(false);
    bed.api.set_node(existing());
    bed.api.inject(Verb::CreateNode, Fault::Refuse(NodeApiErrorKind::Forbidden), 100);
    bed.start().from_api_server().await;
    assert_eq!(bed.api.times(Verb::CreateNode), [0]);

    // Where nobody created it, the node waits.
    let bed = Bed::new(false);
    bed.api.inject(Verb::CreateNode, Fault::Refuse(NodeApiErrorKind::Forbidden), 100);
    let node = bed.start();
    sleep(seconds(5)).await;
    assert!(bed.api.calls(Verb::GetNode).len() > 2);
    bed.api.set_node(existing());
    node.from_api_server().await;
}

#[tokio::test(start_paused = true)]
async fn forbidden_is_final_where_only_existing_nodes_are_looked_for() {
    let mut bed = Bed::new(false);
    bed.settings.registration_gets_existing_only = true;
    bed.api.set_node(existing());
    bed.api.inject(Verb::CreateNode, Fault::Refuse(NodeApiErrorKind::Forbidden), 3);
    bed.start().from_api_server().await;
    assert_eq!(bed.api.times(Verb::CreateNode), [0, 100, 300, 700]);
}

#[tokio::test(start_paused = true)]
async fn extended_resources_are_reset_when_no_record_of_devices_survived() {
    let bed = Bed::new(false);
    bed.api.set_node(existing());
    bed.inputs.set_devices(rubelet_node_status::DeviceResources {
        reset_at_registration: true,
        ..Default::default()
    });
    bed.start().from_api_server().await;
    let status = bed.api.node().unwrap().status.unwrap();
    assert_eq!(status.capacity.unwrap()["example.com/dongle"].0, "0");
    assert_eq!(status.allocatable.unwrap()["example.com/dongle"].0, "0");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_somebody_else_creates_is_waited_for() {
    let mut bed = Bed::new(false);
    bed.settings.register_node = false;
    let node = bed.start();
    bed.keep_runtime_ready();
    sleep(seconds(60)).await;
    assert_eq!(bed.api.times(Verb::CreateNode), [0_u128; 0]);
    assert_eq!(node.current().unwrap().origin, NodeOrigin::Computed);
    bed.api.set_node(existing());
    sleep(seconds(11)).await;
    assert_eq!(ready_of(&*node.from_api_server().await).0, "True");
    assert_eq!(bed.ready().0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_not_created_again_before_the_next_start() {
    for watches in [false, true] {
        let mut bed = Bed::new(watches);
        let node = bed.start();
        bed.keep_runtime_ready();
        sleep(seconds(30)).await;
        bed.api.delete_node();
        sleep(Duration::from_secs(1800)).await;
        assert!(bed.api.node().is_none());
        assert_eq!(bed.api.calls(Verb::CreateNode).len(), 1);
        assert!(node.current().is_some(), "the last one known stays");
        bed.stop().await;
        bed.start();
        sleep(seconds(1)).await;
        assert!(bed.api.node().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn alone_the_node_is_computed_all_the_same() {
    let bed = Bed::new(false);
    let node = bed.start_alone();
    let known = node.node().await;
    assert_eq!(known.metadata.labels.as_ref().unwrap()["kubernetes.io/hostname"], "n1");
    assert_eq!(known.status.as_ref().unwrap().allocatable.as_ref().unwrap()["cpu"].0, "4");
    assert_eq!(ready_of(&known).0, "False");
    bed.keep_runtime_ready();
    sleep(Duration::from_millis(200)).await;
    let known = node.current().unwrap();
    assert_eq!((ready_of(&known.node).0.as_str(), known.origin), ("True", NodeOrigin::Computed));
    assert_eq!(
        bed.take_events(),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
    );
    assert!(bed.api.calls(Verb::GetNode).is_empty());
}

#[test]
fn settings_follow_flags_and_configuration() {
    let mut effective = effective(&[
        "--node-ip=10.0.0.1,fd00::1",
        "--node-labels=node.kubernetes.io/a=b,c=d",
        "--register-with-taints=k=v:NoExecute",
        "--provider-id=aws:///x",
        "--cloud-provider=external",
        "--register-node=false",
        "--node-status-max-images=-1",
        "--enable-controller-attach-detach=false",
        "--feature-gates=DisableNodeKubeProxyVersion=false,KubeletRegistrationGetOnExistsOnly=true",
        "--node-status-update-frequency=4s",
    ]);
    let settings = rubelet_node_status::NodeSettings::new(&effective, "n1", "v1.36.2");
    assert_eq!(settings.node_ips.len(), 2);
    assert_eq!(settings.labels["c"], "d");
    assert_eq!(settings.taints[0].effect, "NoExecute");
    assert_eq!(settings.provider_id.as_deref(), Some("aws:///x"));
    assert!(settings.external_cloud_provider && settings.reports_kube_proxy_version);
    assert!(!settings.register_node && !settings.controller_attach_detach);
    assert!(settings.registration_gets_existing_only);
    assert_eq!(settings.max_images, None);
    assert_eq!(settings.port, 10250);
    assert!(settings.declared_features.unwrap().contains(&"ExtendWebSocketsToKubelet".to_owned()));
    let timing = rubelet_node_status::NodeStatusTiming::new(&effective);
    assert_eq!((timing.update_frequency, timing.report_frequency), (seconds(4), seconds(300)));
    assert_eq!(timing.lease_duration_seconds, 40);
    // Of these there are no flags.
    effective.config.node_status_report_frequency = GoDuration::from_secs(9);
    effective.config.node_lease_duration_seconds = 20;
    let timing = rubelet_node_status::NodeStatusTiming::new(&effective);
    assert_eq!((timing.report_frequency, timing.lease_duration_seconds), (seconds(9), 20));
}
