use k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;
use rubelet_node_status::{diff_needs_write, node_status_patch};
use serde_json::{Map, Value, json};

use crate::fake_api::apply_patch;

fn texts(keys: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let pairs = proptest::collection::btree_map(
        proptest::sample::select(keys),
        proptest::sample::select(&["1", "2", "3"][..]),
        0..keys.len(),
    );
    pairs.prop_map(|pairs| {
        Value::Object(
            pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect(),
        )
    })
}

fn conditions() -> impl Strategy<Value = Value> {
    let types = proptest::sample::subsequence(&["A", "B", "C", "Ready"][..], 0..=4).prop_shuffle();
    (types, proptest::collection::vec((any::<bool>(), 0..3_u8), 4)).prop_map(|(types, states)| {
        types
            .into_iter()
            .zip(states)
            .map(|(type_, (state, message))| {
                let mut condition = json!({
                    "type": type_,
                    "status": if state { "True" } else { "False" },
                    "lastHeartbeatTime": format!("2026-01-01T00:00:0{message}Z"),
                });
                if message > 0 {
                    condition["message"] = format!("m{message}").into();
                }
                condition
            })
            .collect()
    })
}

fn addresses() -> impl Strategy<Value = Value> {
    let address = (
        proptest::sample::select(&["InternalIP", "Hostname"][..]),
        proptest::sample::select(&["10.0.0.1", "fd00::1", "n1"][..]),
    );
    proptest::collection::vec(address, 1..4).prop_map(|addresses| {
        addresses
            .into_iter()
            .map(|(type_, address)| json!({"type": type_, "address": address}))
            .collect()
    })
}

fn nodes() -> impl Strategy<Value = Node> {
    (
        texts(&["a", "b"]),
        texts(&["x", "y"]),
        texts(&["cpu", "example.com/x", "memory"]),
        proptest::option::of(conditions()),
        proptest::option::of(addresses()),
        proptest::collection::vec("[ab]", 0..3),
    )
        .prop_map(|(labels, annotations, capacity, conditions, addresses, volumes)| {
            let mut status = Map::from_iter([
                ("capacity".to_owned(), capacity),
                ("volumesInUse".to_owned(), json!(volumes)),
            ]);
            status.extend(conditions.map(|list| ("conditions".to_owned(), list)));
            status.extend(addresses.map(|list| ("addresses".to_owned(), list)));
            serde_json::from_value(json!({
                "metadata": {"name": "n1", "labels": labels, "annotations": annotations},
                "status": status,
            }))
            .unwrap()
        })
}

proptest! {
    #[test]
    fn a_patch_makes_the_old_node_the_new_one(old in nodes(), new in nodes()) {
        match node_status_patch(&old, &new) {
            Some(patch) => {
                let patched = apply_patch(&old, &patch);
                prop_assert!(!diff_needs_write(&patched, &new), "{patch}");
                prop_assert_eq!(patched, new);
            }
            None => prop_assert_eq!(old, new),
        }
    }

    #[test]
    fn nothing_is_written_of_what_agrees(node in nodes()) {
        prop_assert!(!diff_needs_write(&node, &node));
        prop_assert_eq!(node_status_patch(&node, &node), None);
    }
}
