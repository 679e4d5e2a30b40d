//! `docs/parity.md` says of metrics, events and volumes what the code does, and of everything who
//! shows it.
//!
//! That flags, fields and gates are all there is for a test of `rubelet-config`, and endpoints for one
//! of `rubelet-server`.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bed;
#[path = "parity/events.rs"]
mod events;
#[path = "parity/sources.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kubelet::{ClusterParts, OtherMetrics};
use rubelet_certificate_manager::{
    CertificateStatus, ClientCertificateMetrics, ServingCertificateMetrics,
};
use rubelet_event_recorder::{EventRecorderSettings, event_recorder};
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions};
use rubelet_fake_cri::tokio_clock;
use rubelet_metrics::{Desc, Registry};
use rubelet_types::{EventRecorder, Fetched};
use rubelet_volume_manager::HostMounts;
use rubelet_volume_plan::{ClaimObjects, VolumeSpecError, desired_volumes};
use serde_json::{Value, json};

use sources::{Sources, Tests};

/// Rows of the table below a heading of the page, by their first cell.
struct Table {
    heading: &'static str,
    rows: BTreeMap<String, Vec<String>>,
}

impl Table {
    fn read(heading: &'static str) -> Self {
        let page = sources::read("docs/parity.md");
        let section = page
            .split("\n## ")
            .find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'))
            .unwrap_or_else(|| panic!("docs/parity.md has no section {heading:?}"));
        let mut rows = BTreeMap::new();
        for row in section.lines().filter(|line| line.starts_with("| `")) {
            let cells = row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
            let mut cells: Vec<String> = cells.collect();
            let name = cells.remove(0).trim_matches('`').to_owned();
            assert!(rows.insert(name, cells).is_none(), "{heading}: listed twice: {row}");
        }
        Self { heading, rows }
    }

    /// The rows with one of these states, which are the page's words for it.
    fn in_state(&self, states: &[&str]) -> BTreeSet<String> {
        let state = |cells: &Vec<String>| cells.first().cloned().unwrap_or_default();
        for (name, cells) in &self.rows {
            let state = state(cells);
            let known = ["works", "untested", "accepted", "missing", "ignored"].contains(&&*state);
            assert!(known, "{}: {name} is {state:?}", self.heading);
        }
        let rows = self.rows.iter().filter(|(_, cells)| states.contains(&&*state(cells)));
        rows.map(|(name, _)| name.clone()).collect()
    }

    fn compare(&self, is: &BTreeSet<String>) {
        let says = self.in_state(&["works", "untested"]);
        let unsaid: Vec<_> = is.difference(&says).collect();
        let untrue: Vec<_> = says.difference(is).collect();
        assert!(
            unsaid.is_empty() && untrue.is_empty(),
            "{}: works and is not said to: {unsaid:?}; does not, and is said to: {untrue:?}",
            self.heading
        );
    }
}

async fn descs() -> Vec<&'static Desc> {
    let machine = bed::Machine::new();
    let clock = tokio_clock(Timestamp::UNIX_EPOCH);
    let server = FakeApiServer::new(FakeOptions { clock: clock.clone(), seed: 1 });
    let settings =
        EventRecorderSettings { node_name: "n1".to_owned(), events_per_second: 50, burst: 100 };
    let (_, events) = event_recorder(settings, clock.clone());
    let api = server.client();
    let joined = |pods, host| Some(ClusterParts { api, pods, events, host });
    let (told, mounts) = (EventRecorder::discard(), Arc::new(HostMounts));
    let kubelet = machine.kubelet(clock.clone(), told, mounts, joined).await;
    let view = kubelet.view();
    let status = CertificateStatus::default();
    let others = OtherMetrics {
        client_certificate: Some(ClientCertificateMetrics {
            status: status.clone(),
            clock: clock.clone(),
        }),
        serving_certificate: Some(ServingCertificateMetrics { status, clock }),
        ..OtherMetrics::default()
    };
    let health = Registry::new().with(others.health.clone()).descs();
    [health, view.probe_metrics().descs(), view.metrics(others).descs()].concat()
}

#[tokio::test]
async fn metrics_are_those_that_the_page_lists() {
    let table = Table::read("Metrics");
    let descs = descs().await;
    for Desc { name, kind, labels, stability, .. } in &descs {
        let Some(cells) = table.rows.get(*name) else { continue };
        let labels =
            if labels.is_empty() { String::new() } else { format!("`{}`", labels.join("`, `")) };
        let promised = stability.to_string().trim_matches(['[', ']', ' ']).to_lowercase();
        let is = [kind.to_string(), labels, promised];
        assert_eq!(cells[1..4], is, "{name}: the page and the code differ");
    }
    table.compare(&descs.iter().map(|desc| desc.name.to_owned()).collect());
}

#[test]
fn events_are_those_that_the_page_lists() {
    let reasons = events::reasons(&Sources::of_crates());
    Table::read("Event reasons").compare(&reasons);
}

/// What the kubelet makes of a volume of each kind, by the names of the API's fields.
fn accepted(pod: Value, claims: &ClaimObjects) -> bool {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let desired = desired_volumes(&pod, None, claims);
    let unknown = desired.rejected.iter().any(|rejected| {
        matches!(rejected.error, VolumeSpecError::Kind { .. } | VolumeSpecError::CsiDriver { .. })
    });
    assert!(unknown || desired.rejected.is_empty(), "{desired:?}");
    !unknown
}

fn with_volume(volume: Value) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {
            "volumes": [volume],
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/a"}]}],
        },
    })
}

/// A claim that is bound to a volume of this source.
fn claimed(source: &str, value: Value) -> ClaimObjects {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "cu"},
        "spec": {"volumeName": "pv", "volumeMode": "Filesystem"},
        "status": {"phase": "Bound"},
    }))
    .unwrap();
    let mut volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"volumeMode": "Filesystem",
            "claimRef": {"namespace": "n", "name": "c", "uid": "cu"}},
        "status": {"phase": "Bound"},
    });
    volume["spec"][source] = value;
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    // A generic ephemeral volume's claim is called after pod and volume.
    let mut of_pod = claim.clone();
    of_pod.metadata.name = Some("p-v".to_owned());
    of_pod.metadata.owner_references = serde_json::from_value(json!([{
        "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true,
    }]))
    .unwrap();
    let found = |claim| Fetched::Found(Arc::new(claim));
    ClaimObjects {
        claims: [("c".to_owned(), found(claim)), ("p-v".to_owned(), found(of_pod))].into(),
        volumes: [("pv".to_owned(), Fetched::Found(Arc::new(volume)))].into(),
        elsewhere: BTreeSet::new(),
    }
}

#[test]
fn volumes_are_those_that_the_page_lists() {
    let of_pods: Value = serde_json::from_str(include_str!("parity/volumes.json")).unwrap();
    let mut works = BTreeSet::new();
    let mut all = BTreeSet::new();
    for (kind, source) in of_pods["volumes"].as_object().unwrap() {
        all.insert(kind.clone());
        let mut volume = json!({"name": "v"});
        volume[kind] = source.clone();
        let claims = claimed("local", json!({"path": "/data"}));
        if accepted(with_volume(volume), &claims) {
            works.insert(kind.clone());
        }
    }
    for (kind, source) in of_pods["persistentVolumes"].as_object().unwrap() {
        let name = format!("persistentVolume.{kind}");
        all.insert(name.clone());
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        if accepted(with_volume(volume), &claimed(kind, source.clone())) {
            works.insert(name);
        }
    }
    let table = Table::read("Volume kinds");
    table.compare(&works);
    let listed: BTreeSet<String> = table.rows.keys().cloned().collect();
    assert_eq!(listed, all, "the page lists the kinds of the API");
}

/// What is written in backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

const HEADINGS: [&str; 7] = [
    "Flags",
    "KubeletConfiguration fields",
    "Feature gates",
    "Endpoints",
    "Metrics",
    "Event reasons",
    "Volume kinds",
];

#[test]
fn what_works_is_shown_by_a_test_that_exists() {
    let tests = Tests::read();
    let mut problems = Vec::new();
    for heading in HEADINGS {
        let table = Table::read(heading);
        let works = table.in_state(&["works"]);
        for (name, cells) in &table.rows {
            let shown_by = quoted(cells.last().unwrap());
            let problem = |what: String| format!("{heading}: {name}: {what}");
            if !works.contains(name) {
                let found = shown_by.iter().filter(|test| tests.find(test).is_ok());
                let shown = |test| problem(format!("{test} shows what does not work"));
                problems.extend(found.map(shown));
                continue;
            }
            let by_its_field = heading == "Flags" && !cells[1].is_empty();
            if by_its_field != shown_by.is_empty() {
                let what = if by_its_field { "its field is shown" } else { "no test shows it" };
                problems.push(problem(what.to_owned()));
            }
            problems.extend(shown_by.iter().filter_map(|test| tests.find(test).err()).map(problem));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_flag_works_as_far_as_its_field_does() {
    let fields = Table::read("KubeletConfiguration fields");
    for (flag, cells) in &Table::read("Flags").rows {
        for field in quoted(&cells[1]) {
            let items = format!("{field}[]");
            let of_field = |name: &str| name == field || name.starts_with(&items);
            let states: BTreeSet<&String> = fields
                .rows
                .iter()
                .filter(|(name, _)| of_field(name))
                .map(|(_, it)| &it[0])
                .collect();
            assert_eq!(states, BTreeSet::from([&cells[0]]), "{flag} and {field}");
        }
    }
}
