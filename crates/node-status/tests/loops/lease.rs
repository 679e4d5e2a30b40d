use std::time::Duration;

use rubelet_node_status::{NodeApiErrorKind, NodeLease};
use serde_json::json;
use tokio::time::sleep;

use crate::bed::{Bed, EPOCH, seconds};
use crate::fake_api::{Fault, Verb};

fn start(bed: &Bed) {
    let lease = NodeLease::new(bed.api.clone(), "n1", bed.timing, bed.clock.clone());
    tokio::spawn(lease.run(bed.stop.clone()));
}

fn bed_with_node() -> Bed {
    let bed = Bed::new(false);
    bed.api.set_node(json!({"metadata": {"name": "n1"}}));
    bed
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_created_for_the_node_and_renewed_without_being_read() {
    let bed = bed_with_node();
    start(&bed);
    sleep(seconds(600)).await;
    let lease = bed.api.lease().unwrap();
    assert_eq!(lease.metadata.namespace.as_deref(), Some("kube-node-lease"));
    assert_eq!(
        serde_json::to_value(&lease.metadata.owner_references).unwrap(),
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1"}])
    );
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("n1"));
    assert_eq!(spec.lease_duration_seconds, Some(40));
    assert!(spec.renew_time.unwrap().0.as_second() > EPOCH + 580);
    assert_eq!(bed.api.calls(Verb::CreateLease).len(), 1);
    assert_eq!((bed.api.calls(Verb::GetLease).len(), bed.api.calls(Verb::GetNode).len()), (1, 1));
    let renewals = bed.api.times(Verb::UpdateLease);
    assert!(renewals.len() >= 57, "{renewals:?}");
    for pair in renewals.windows(2) {
        assert!((10_000..=10_402).contains(&(pair[1] - pair[0])), "{renewals:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_there_is_taken_over() {
    let bed = bed_with_node();
    bed.api.change_lease(|lease| {
        *lease = Some(
            serde_json::from_value(json!({
                "metadata": {"name": "n1", "labels": {"a": "b"}},
                "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 10, "leaseTransitions": 3},
            }))
            .unwrap(),
        );
    });
    start(&bed);
    sleep(seconds(1)).await;
    let lease = bed.api.lease().unwrap();
    assert_eq!(lease.metadata.owner_references.unwrap()[0].uid, "uid-1");
    assert_eq!(lease.metadata.labels.unwrap()["a"], "b");
    let spec = lease.spec.unwrap();
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(40), Some(3)));
    assert_eq!(spec.renew_time.unwrap().0.as_second(), EPOCH);
}

#[tokio::test(start_paused = true)]
async fn no_lease_without_a_node_to_own_it() {
    let bed = Bed::new(false);
    start(&bed);
    sleep(seconds(12)).await;
    assert!(bed.api.lease().is_none());
    assert_eq!(bed.api.times(Verb::GetNode), [0, 200, 600, 1400, 3000, 6200]);
    bed.api.set_node(json!({"metadata": {"name": "n1"}}));
    sleep(seconds(1)).await;
    assert!(bed.api.lease().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_goes_out_although_the_node_cannot_be_read() {
    let bed = bed_with_node();
    bed.api.change_lease(|lease| *lease = Some(Default::default()));
    bed.api.inject(Verb::GetNode, Fault::Refuse(NodeApiErrorKind::Other), 2);
    start(&bed);
    sleep(seconds(1)).await;
    let lease = bed.api.lease().unwrap();
    assert!(lease.spec.unwrap().renew_time.is_some());
    assert!(lease.metadata.owner_references.unwrap_or_default().is_empty());
    sleep(seconds(21)).await;
    assert_eq!(bed.api.lease().unwrap().metadata.owner_references.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_wrote_or_deleted_is_renewed_all_the_same() {
    let bed = bed_with_node();
    start(&bed);
    sleep(seconds(5)).await;
    bed.api.change_lease(|lease| {
        lease.as_mut().unwrap().metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    });
    sleep(seconds(6)).await;
    let lease = bed.api.lease().unwrap();
    assert_eq!(lease.metadata.labels.unwrap()["a"], "b");
    assert!(lease.spec.unwrap().renew_time.unwrap().0.as_second() >= EPOCH + 10);
    assert_eq!(bed.api.closed(), 0);
    bed.api.change_lease(|lease| *lease = None);
    sleep(seconds(11)).await;
    assert!(bed.api.lease().is_some());
    assert_eq!(bed.api.calls(Verb::CreateLease).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_everything_is_asked_with_patience() {
    let bed = bed_with_node();
    start(&bed);
    sleep(seconds(5)).await;
    bed.api.inject(Verb::UpdateLease, Fault::Refuse(NodeApiErrorKind::Other), 1000);
    bed.api.inject(Verb::GetLease, Fault::Refuse(NodeApiErrorKind::Other), 1000);
    sleep(seconds(60)).await;
    assert_eq!(bed.api.calls(Verb::UpdateLease).len(), 5);
    assert_eq!(bed.api.closed(), 4);
    let asked = bed.api.times(Verb::GetLease);
    let gaps: Vec<u128> = asked[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[..7], [200, 400, 800, 1600, 3200, 6400, 7000]);
    bed.api.clear_faults();
    let before = bed.api.calls(Verb::UpdateLease).len();
    sleep(seconds(8)).await;
    assert_eq!(bed.api.calls(Verb::UpdateLease).len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_connection_costs_no_lease() {
    let bed = bed_with_node();
    start(&bed);
    sleep(seconds(5)).await;
    bed.api.inject(Verb::UpdateLease, Fault::Hang, 1);
    let renewed = |bed: &Bed| bed.api.lease().unwrap().spec.unwrap().renew_time.unwrap().0;
    let before = renewed(&bed);
    sleep(Duration::from_millis(16_000)).await;
    let gap = renewed(&bed).duration_since(before);
    assert!(gap.as_secs() >= 20 && gap.as_secs() < 40, "{gap:?}");
    assert_eq!(bed.api.closed(), 1);
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_told_so_and_not_before() {
    let bed = bed_with_node();
    start(&bed);
    bed.inputs.set_shutting_down(true);
    sleep(seconds(100)).await;
    let renewals = bed.api.calls(Verb::UpdateLease).len();
    assert!(renewals >= 9);
    bed.stop.cancel();
    sleep(seconds(100)).await;
    assert_eq!(bed.api.calls(Verb::UpdateLease).len(), renewals);
}
