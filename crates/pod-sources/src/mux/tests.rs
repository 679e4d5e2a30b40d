use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use rubelet_types::pod_annotation;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(uid: &str, name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("default".to_owned());
    pod.spec = Some(PodSpec::default());
    pod
}

fn changed(mut pod: Pod, hostname: &str) -> Pod {
    pod.spec.get_or_insert_default().hostname = Some(hostname.to_owned());
    pod
}

fn with_phase(mut pod: Pod, phase: &str) -> Pod {
    pod.status = Some(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() });
    pod
}

fn deleting(mut pod: Pod, grace: i64) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time(at(100)));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

/// `ADD a b; UPDATE c`
fn told(outcome: &MuxOutcome) -> String {
    let change = |change: &PodChange| {
        let uids: Vec<String> =
            change.pods.iter().map(|pod| pod_ref(pod).uid.to_string()).collect();
        format!("{} {}", change.op, uids.join(" ")).trim_end().to_owned()
    };
    outcome.changes.iter().map(change).collect::<Vec<_>>().join("; ")
}

#[test]
fn a_set_becomes_the_difference_to_the_one_before() {
    let mut mux = PodConfigMux::new([PodSource::Api]);
    let gone = pod("gone", "gone");
    let same = pod("same", "same");
    let spec = pod("spec", "spec");
    let dies = pod("dies", "dies");
    let status = with_phase(pod("status", "status"), "Pending");
    let first = vec![gone, same.clone(), spec.clone(), dies.clone(), status.clone()];
    assert_eq!(
        told(&mux.apply_set(PodSource::Api, first, at(1))),
        "ADD gone same spec dies status"
    );
    let second = vec![
        same,
        changed(spec, "x"),
        deleting(dies.clone(), 30),
        with_phase(status, "Running"),
        pod("new", "new"),
    ];
    assert_eq!(
        told(&mux.apply_set(PodSource::Api, second.clone(), at(2))),
        "REMOVE gone; ADD new; UPDATE spec; DELETE dies; RECONCILE status"
    );
    assert_eq!(told(&mux.apply_set(PodSource::Api, second.clone(), at(3))), "");
    let mut shorter = second;
    shorter[2] = deleting(dies, 5);
    assert_eq!(told(&mux.apply_set(PodSource::Api, shorter, at(4))), "DELETE dies");
}

#[test]
fn single_changes_lead_to_what_a_full_set_leads_to() {
    let mut mux = PodConfigMux::new([PodSource::Api]);
    mux.apply_set(PodSource::Api, vec![pod("a", "a")], at(1));
    let told_of =
        |mux: &mut PodConfigMux, pod: Pod| told(&mux.apply_pod(PodSource::Api, pod, at(2)).into());
    assert_eq!(told_of(&mut mux, pod("a", "a")), "");
    assert_eq!(told_of(&mut mux, pod("b", "b")), "ADD b");
    assert_eq!(told_of(&mut mux, changed(pod("a", "a"), "x")), "UPDATE a");
    assert_eq!(told_of(&mut mux, with_phase(pod("b", "b"), "Running")), "RECONCILE b");
    assert_eq!(told_of(&mut mux, deleting(pod("b", "b"), 30)), "DELETE b");
    let seen = |mux: &PodConfigMux| {
        let pods = mux.pods(PodSource::Api);
        pods.map(|pod| pod_annotation(pod, labels::CONFIG_SEEN).map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(&mux), [Some(at(1).to_string()), Some(at(2).to_string())]);
    // A pod of the same name and another uid is another pod: it may come before the first one goes.
    assert_eq!(told_of(&mut mux, pod("c", "b")), "ADD c");
    let mut remove = |uid: &str| told(&mux.remove_pod(PodSource::Api, &PodUid::new(uid)).into());
    assert_eq!(remove("b"), "REMOVE b");
    assert_eq!(remove("b"), "");
    let set = vec![changed(pod("a", "a"), "x"), pod("c", "b")];
    assert_eq!(told(&mux.apply_set(PodSource::Api, set, at(3))), "");
}

#[test]
fn a_pod_that_cannot_be_made_out_is_not_gone() {
    let mut mux = PodConfigMux::new([PodSource::Api]);
    mux.apply_set(PodSource::Api, vec![pod("a", "a"), pod("b", "b")], at(1));
    let unreadable = [PodUid::new("a"), PodUid::new("never-seen")];
    let outcome = mux.apply_set_keeping(PodSource::Api, Vec::new(), &unreadable, at(2));
    assert_eq!(told(&outcome), "REMOVE b");
    assert_eq!(mux.pods(PodSource::Api).count(), 1);
}

#[test]
fn the_first_set_is_always_heard() {
    let mut mux = PodConfigMux::new([PodSource::File, PodSource::Http]);
    assert!(!mux.sources_ready());
    assert_eq!(told(&mux.apply_set(PodSource::File, Vec::new(), at(1))), "ADD");
    assert!(!mux.sources_ready());
    assert_eq!(told(&mux.apply_set(PodSource::File, Vec::new(), at(1))), "");
    assert_eq!(told(&mux.apply_set(PodSource::Http, vec![pod("a", "a")], at(1))), "ADD a");
    assert!(mux.sources_ready());
    assert!(PodConfigMux::new([]).sources_ready(), "nobody is waited for");
}

#[test]
fn pods_carry_their_source_and_when_they_were_first_seen() {
    let mut mux = PodConfigMux::new([PodSource::File]);
    let original = pod("a", "a");
    mux.apply_set(PodSource::File, vec![original.clone()], at(1));
    let seen = mux.pods(PodSource::File).next().unwrap().clone();
    assert_eq!(pod_annotation(&seen, labels::CONFIG_SOURCE), Some("file"));
    assert_eq!(pod_annotation(&seen, labels::CONFIG_SEEN), Some("1970-01-01T00:00:01Z"));

    let outcome = mux.apply_set(PodSource::File, vec![changed(original, "x")], at(9));
    let updated = &outcome.changes[0].pods[0];
    assert_eq!(pod_annotation(updated, labels::CONFIG_SEEN), Some("1970-01-01T00:00:01Z"));
    assert_eq!(updated.spec.as_ref().unwrap().hostname.as_deref(), Some("x"));
}

#[test]
fn annotations_of_the_kubelet_make_no_difference() {
    let mut mux = PodConfigMux::new([PodSource::Api]);
    let plain = pod("a", "a");
    mux.apply_set(PodSource::Api, vec![plain.clone()], at(1));
    let annotated = |key: &str| {
        let mut pod = plain.clone();
        pod.metadata.annotations.get_or_insert_default().insert(key.to_owned(), "other".to_owned());
        vec![pod]
    };
    for key in [labels::CONFIG_SOURCE, labels::CONFIG_SEEN] {
        assert_eq!(told(&mux.apply_set(PodSource::Api, annotated(key), at(2))), "", "{key}");
    }
    assert_eq!(told(&mux.apply_set(PodSource::Api, annotated("mine"), at(2))), "UPDATE a");
}

#[test]
fn duplicates_are_dropped_with_the_message_users_know() {
    let mut mux = PodConfigMux::new([PodSource::File]);
    let set = vec![pod("1", "web"), pod("2", "web"), pod("1", "other")];
    let outcome = mux.apply_set(PodSource::File, set, at(1));
    assert_eq!(told(&outcome), "ADD 1");
    let messages: Vec<&str> = outcome.duplicates.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "Error validating pod web_default(2) from file due to duplicate pod name \"web\", \
             ignoring",
            "Error validating pod other_default(1) from file due to duplicate pod uid \"1\", \
             ignoring",
        ]
    );
}

#[test]
fn sources_do_not_share_uids() {
    let mut mux = PodConfigMux::new([PodSource::File, PodSource::Api]);
    mux.apply_set(PodSource::File, vec![pod("a", "a")], at(1));
    assert_eq!(told(&mux.apply_set(PodSource::Api, vec![pod("a", "a")], at(1))), "ADD a");
    assert_eq!(told(&mux.apply_set(PodSource::Api, Vec::new(), at(1))), "REMOVE a");
    assert_eq!(mux.pods(PodSource::File).count(), 1);
}

proptest! {
    /// Whoever applies the changes in order knows at every time what the source wants.
    #[test]
    fn changes_add_up_to_the_set(
        sets in proptest::collection::vec(
            proptest::collection::btree_map(0u8..8, (0u8..3, any::<bool>(), 0u8..2), 0..8), 1..12)
    ) {
        let mut mux = PodConfigMux::new([PodSource::Api]);
        let mut follower: BTreeMap<PodUid, Arc<Pod>> = BTreeMap::new();
        for (index, set) in (0i64..).zip(sets) {
            let pods: Vec<Pod> = set
                .into_iter()
                .map(|(id, (version, dies, phase))| {
                    let name = format!("p{id}");
                    let pod = changed(pod(&name, &name), &format!("v{version}"));
                    let pod = with_phase(pod, &format!("{phase}"));
                    if dies { deleting(pod, 30) } else { pod }
                })
                .collect();
            let outcome = mux.apply_set(PodSource::Api, pods, at(index));
            let ops: Vec<PodOperation> = outcome.changes.iter().map(|change| change.op).collect();
            prop_assert!(ops.is_sorted(), "{ops:?}");
            prop_assert!(index > 0 || ops.contains(&PodOperation::Add));
            for change in outcome.changes {
                for pod in change.pods {
                    let uid = pod_ref(&pod).uid;
                    let known = match change.op {
                        PodOperation::Remove => follower.remove(&uid).is_some(),
                        PodOperation::Add => follower.insert(uid, pod).is_none(),
                        _ => follower.insert(uid, pod).is_some(),
                    };
                    prop_assert!(known, "{} of a pod in the wrong state", change.op);
                }
            }
            let wanted: Vec<&Arc<Pod>> = mux.pods(PodSource::Api).collect();
            prop_assert_eq!(follower.values().collect::<Vec<_>>(), wanted);
        }
    }
}
