//! The same against an API server that keeps its own rules, over its own client.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use rubelet_apiserver::Verb;
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions, Fault, FaultAction};
use rubelet_node_status::{ApiServerNodes, NodeLease, NodeOrigin, NodePressure};
use tokio::time::sleep;

use crate::bed::{Bed, ready_of, seconds};

fn node(server: &FakeApiServer) -> Node {
    server.get("", "n1").expect("the Node")
}

fn start(bed: &Bed, server: &FakeApiServer) -> rubelet_node_status::NodeHandle {
    let (api, watch) = ApiServerNodes::new(&server.client(), "n1");
    tokio::spawn(bed.stop.clone().run_until_cancelled_owned(watch));
    let api = Arc::new(api);
    let lease = NodeLease::new(api.clone(), "n1", bed.timing, bed.clock.clone());
    tokio::spawn(lease.run(bed.stop.clone()));
    bed.start_over(api)
}

#[tokio::test(start_paused = true)]
async fn a_node_from_its_creation_to_rest() {
    let bed = Bed::new(true);
    let server =
        FakeApiServer::new(FakeOptions { clock: bed.clock.clone(), ..FakeOptions::default() });
    let known = start(&bed, &server);
    bed.keep_runtime_ready();
    sleep(seconds(30)).await;
    assert_eq!(ready_of(&node(&server)).0, "True");
    let published = known.current().unwrap();
    assert_eq!(published.origin, NodeOrigin::ApiServer);
    assert_eq!(*published.node, node(&server));
    let lease: Lease = server.get("kube-node-lease", "n1").expect("the lease");
    let owners = lease.metadata.owner_references.unwrap();
    assert_eq!(Some(&owners[0].uid), node(&server).metadata.uid.as_ref());

    let writes = server.requests(Verb::Patch, "nodes/status");
    let reads = server.requests(Verb::Get, "nodes");
    sleep(seconds(100)).await;
    assert_eq!(server.requests(Verb::Patch, "nodes/status"), writes);
    assert_eq!(server.requests(Verb::Get, "nodes"), reads);
    assert!(server.requests(Verb::Update, "leases") >= 11);

    // What others keep there stays, and is seen.
    server.change("", "n1", |node: &mut Node| {
        node.metadata.labels.get_or_insert_default().insert("team".to_owned(), "blue".to_owned());
        node.status.get_or_insert_default().conditions.get_or_insert_default().insert(
            0,
            k8s_openapi::api::core::v1::NodeCondition {
                type_: "NetworkUnavailable".to_owned(),
                status: "False".to_owned(),
                ..Default::default()
            },
        );
    });
    bed.inputs.set_pressure(NodePressure { memory: true, ..NodePressure::default() });
    sleep(seconds(12)).await;
    let now = node(&server);
    let conditions = now.status.clone().unwrap().conditions.unwrap();
    let mut states: Vec<(&str, &str)> =
        conditions.iter().map(|it| (it.type_.as_str(), it.status.as_str())).collect();
    states.sort_unstable();
    assert_eq!(
        states,
        [
            ("DiskPressure", "False"),
            ("MemoryPressure", "True"),
            ("NetworkUnavailable", "False"),
            ("PIDPressure", "False"),
            ("Ready", "True"),
        ]
    );
    assert_eq!(now.metadata.labels.unwrap()["team"], "blue");
    assert_eq!(known.current().unwrap().node.metadata.labels.as_ref().unwrap()["team"], "blue");
}

#[tokio::test(start_paused = true)]
async fn a_second_start_takes_the_node_over_and_a_server_that_was_away_is_told_everything() {
    let mut bed = Bed::new(true);
    let server =
        FakeApiServer::new(FakeOptions { clock: bed.clock.clone(), ..FakeOptions::default() });
    start(&bed, &server);
    bed.keep_runtime_ready();
    sleep(seconds(30)).await;
    let before = node(&server);
    bed.stop().await;

    server.inject(Fault::on(Verb::Patch, "nodes/status", FaultAction::Hang).times(1));
    start(&bed, &server);
    bed.keep_runtime_ready();
    sleep(seconds(60)).await;
    assert_eq!(node(&server).metadata.uid, before.metadata.uid);
    assert_eq!(ready_of(&node(&server)).0, "True");

    server.set_away(true);
    bed.inputs.set_pressure(NodePressure { disk: true, ..NodePressure::default() });
    sleep(Duration::from_secs(600)).await;
    server.set_away(false);
    sleep(seconds(30)).await;
    let conditions = node(&server).status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|it| it.type_ == "DiskPressure" && it.status == "True"));
    let lease: Lease = server.get("kube-node-lease", "n1").expect("the lease");
    let age = bed.clock.now().duration_since(lease.spec.unwrap().renew_time.unwrap().0);
    assert!(age.as_secs() <= 11, "{age:?}");
    assert_eq!(bed.take_events().last().unwrap(), "NodeHasDiskPressure");
}
