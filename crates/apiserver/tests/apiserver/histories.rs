//! Random histories: whatever goes wrong, a follower ends up knowing what there is.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use proptest::prelude::*;
use rubelet_apiserver::{Event, Selector, Watch};
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions, Fault, FaultAction};
use tokio::time::timeout;

use super::config_map;

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Remove(u8),
    Cut,
    Break,
    Stick,
    Forget,
    Away(bool),
    Hold(bool),
    Bookmark,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..5, any::<u8>()).prop_map(|(name, value)| Step::Put(name, value)),
        4 => (0_u8..5).prop_map(Step::Remove),
        2 => Just(Step::Cut),
        2 => Just(Step::Break),
        1 => Just(Step::Stick),
        2 => Just(Step::Forget),
        1 => any::<bool>().prop_map(Step::Away),
        1 => any::<bool>().prop_map(Step::Hold),
        1 => Just(Step::Bookmark),
        4 => (0_u16..20_000).prop_map(Step::Pass),
    ]
}

type Known = BTreeMap<String, String>;

fn entry(map: &ConfigMap) -> (String, String) {
    let value = map.data.as_ref().and_then(|data| data.get("k")).cloned().unwrap_or_default();
    (map.metadata.name.clone().unwrap_or_default(), value)
}

/// What a consumer makes of an event. An end is only told of what is known.
fn take(known: &mut Known, event: Event<ConfigMap>) {
    match event {
        Event::Replaced(set) => *known = set.objects.iter().map(entry).collect(),
        Event::Applied(map) => {
            let (name, value) = entry(&map);
            known.insert(name, value);
        }
        Event::Deleted(key) => {
            assert!(known.remove(&key.name).is_some(), "{key:?} was not known");
        }
        Event::Undecodable(bad) => panic!("{bad:?}"),
        Event::Interrupted(_) => {}
    }
}

async fn follow_for(watch: &mut Watch<ConfigMap>, known: &mut Known, time: Duration) {
    let following = async {
        loop {
            take(known, watch.next().await);
        }
    };
    let _ = timeout(time, following).await;
}

async fn run(steps: Vec<Step>, seed: u64, http2: bool) {
    let server = FakeApiServer::new(FakeOptions { seed, ..FakeOptions::default() });
    let refuse = |code| FaultAction::Refuse { code, retry_after: None };
    for action in [refuse(500), refuse(429), FaultAction::Break, FaultAction::Hang] {
        server.inject(Fault::on_every_request(action).with_probability(0.03));
    }
    let api = if http2 { server.http2_client() } else { server.client() };
    let mut watch = api.namespaced::<ConfigMap>("default").watch(&Selector::all());
    let mut known = Known::new();
    for step in steps {
        match step {
            Step::Put(name, value) => {
                let mut map = config_map(&format!("map-{name}"));
                map.data = Some([("k".to_owned(), value.to_string())].into());
                server.put(&map);
            }
            Step::Remove(name) => {
                server.remove::<ConfigMap>("default", &format!("map-{name}"));
            }
            Step::Cut => server.cut_watches(),
            Step::Break => server.break_connections(),
            Step::Stick => server.stick_connections(),
            Step::Forget => server.forget_history(),
            Step::Away(is_away) => server.set_away(is_away),
            Step::Hold(is_held) => server.hold_watches(is_held),
            Step::Bookmark => server.send_bookmarks(),
            Step::Pass(millis) => {
                follow_for(&mut watch, &mut known, Duration::from_millis(millis.into())).await;
            }
        }
    }
    server.set_away(false);
    server.hold_watches(false);
    server.clear_faults();
    // HTTP/1.1 within the process has nothing that notices a connection that sticks.
    if !http2 {
        server.break_connections();
    }
    // The longest pause, a request that hangs, and a connection that sticks, one after the other.
    follow_for(&mut watch, &mut known, Duration::from_secs(180)).await;
    let there: Known = server.list::<ConfigMap>().iter().map(entry).collect();
    assert_eq!(known, there);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_follower_ends_up_knowing_what_there_is(
        steps in prop::collection::vec(step(), 1..60),
        seed in any::<u64>(),
        http2 in any::<bool>(),
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(run(steps, seed, http2));
    }
}
