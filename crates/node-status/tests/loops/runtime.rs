use std::time::Duration;

use rubelet_cri::{CriOptions, Rpc};
use rubelet_fake_cri::{FakeOptions, FakeRuntime, Fault, FaultAction};
use rubelet_node_status::{keep_pod_cidr, keep_runtime_facts};
use tokio::time::sleep;

use crate::bed::{Bed, seconds};

fn runtime() -> FakeRuntime {
    FakeRuntime::new(FakeOptions {
        name: "containerd".to_owned(),
        version: "v2.1.4".to_owned(),
        ..FakeOptions::default()
    })
}

#[tokio::test(start_paused = true)]
async fn images_and_version_are_looked_at_every_half_minute() {
    let (bed, runtime) = (Bed::new(true), runtime());
    runtime.add_image("registry.k8s.io/small:1", 10);
    runtime.add_image("registry.k8s.io/large:1", 1000);
    let cri = runtime.client(CriOptions::default());
    tokio::spawn(keep_runtime_facts(cri, bed.inputs.clone(), bed.stop.clone()));
    let node = bed.start();
    sleep(seconds(11)).await;
    let status = node.current().unwrap().node.status.clone().unwrap();
    let version = status.node_info.unwrap().container_runtime_version;
    assert_eq!(version, "containerd://2.1.4");
    let sizes: Vec<i64> = status.images.unwrap().iter().map(|it| it.size_bytes.unwrap()).collect();
    assert_eq!(sizes, [1000, 10]);

    // While the runtime hangs, the heartbeat goes on with what it said last.
    runtime.inject(Fault::on_every_call(FaultAction::Hang));
    runtime.add_image("registry.k8s.io/more:1", 100);
    sleep(Duration::from_secs(1200)).await;
    let status = bed.api.node().unwrap().status.unwrap();
    assert_eq!(status.images.unwrap().len(), 2);
    let beat = status.conditions.unwrap()[0].last_heartbeat_time.clone().unwrap().0;
    assert!(bed.clock.now().duration_since(beat).as_secs() < 320);
    runtime.clear_faults();
    sleep(seconds(60 * 5)).await;
    assert_eq!(bed.api.node().unwrap().status.unwrap().images.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_told_the_pods_network() {
    let (bed, runtime) = (Bed::new(true), runtime());
    let cri = runtime.client(CriOptions::default());
    let node = bed.start();
    tokio::spawn(keep_pod_cidr(cri, node, bed.stop.clone()));
    sleep(seconds(20)).await;
    assert_eq!(runtime.calls(Rpc::UpdateRuntimeConfig), 0);
    let unavailable = FaultAction::Error(tonic::Code::Unknown, "not now".to_owned());
    runtime.inject(Fault::on(Rpc::UpdateRuntimeConfig, unavailable).times(2));
    bed.api.change_node(|node| {
        let spec = node.spec.get_or_insert_default();
        spec.pod_cidr = Some("10.1.0.0/24".to_owned());
        spec.pod_cidrs = Some(vec!["10.1.0.0/24".to_owned(), "fd00::/64".to_owned()]);
    });
    sleep(seconds(21)).await;
    assert_eq!(runtime.pod_cidr(), "10.1.0.0/24,fd00::/64");
    sleep(seconds(3600)).await;
    assert_eq!(runtime.calls(Rpc::UpdateRuntimeConfig), 3);
}
