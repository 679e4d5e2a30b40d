//! Decision tables: every file in `cases/` holds cases of the form
//!
//! ```text
//! == name of the case
//! <facts, one a line>
//! --
//! <what is reported>
//! ```
//!
//! Facts (`language.rs` reads them, names and values as in Kubernetes):
//!
//! ```text
//! pod [restart=P] [static] [deleting] [host-network] [generation=N] [gate=CONDITION]
//! container NAME [init|sidecar|ephemeral] [startup] [readiness] [restart=P] [rule=ACTION:CODE]
//!           [cpu=REQUEST[/LIMIT]] [memory=REQUEST[/LIMIT]] [mount=VOLUME:PATH[:ro[:MODE]]]
//! api  phase=P [reason=R] [message=M] [start=T] | api condition TYPE=STATUS
//! was  phase=P [reason=R] [message=M] [start=T] [ip=IP] | was condition TYPE=STATUS@T
//! was  NAME running|waiting(R)|terminated(C,R) [id=ID] [restarts=N] [ready] [started] [last=C,R]
//!           [last-id=ID] [said=MESSAGE]
//! runtime unknown                   the runtime is not known yet; otherwise it is
//! sandbox ID ready|notready [ip=IP,IP] [host-network]          newest first
//! runs NAME ID created|running|exited(C[,R])|unknown [restarts=N] [sandbox=ID]    newest first
//! in-force ID [shares=N] [quota=N] [memory=N]
//! probe NAME readiness|startup=Success|Failure|Unknown
//! failing NAME REASON MESSAGE
//! starting NAME | vanished NAME | restarting-all | leaving | stage Terminating|Terminated | now T | hosts IP,IP
//! override PHASE REASON MESSAGE | disruption REASON
//! show phase|containers|conditions|ips|resources|mounts|times|messages ...  (default: phase containers)
//! ```
//!
//! `UPDATE_CASES=1 cargo test` writes what is reported into the files, for review.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod language;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PodStatus;
use language::Case;
use rubelet_pod_status::{Gates, finished_status, statuses_equal};
use rubelet_test_bed::cases;
use rubelet_types::{is_static_pod, is_terminal_phase};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// The names and facts of all cases.
fn all() -> impl Iterator<Item = (String, Case)> {
    let files = cases::read(&dir()).unwrap().into_iter();
    files.flat_map(|(_, cases)| cases).map(|case| (case.name, Case::parse(&case.steps[0].0)))
}

#[test]
fn reported_as_written() {
    cases::check(&dir(), 60, || |facts: &str| Case::parse(facts).report()).unwrap();
}

#[test]
fn computing_again_changes_nothing() {
    for (name, mut case) in all() {
        let first = case.compute();
        case.previous = first.clone();
        case.now += 3600;
        let second = case.compute();
        assert!(statuses_equal(&first, &second), "{name}\n{first:#?}\n{second:#?}");
    }
}

#[test]
fn the_last_status_of_a_pod_is_final() {
    for (name, case) in all() {
        let now = |second| jiff::Timestamp::from_second(second).unwrap();
        let finish = |previous: &PodStatus, at| {
            finished_status(&case.pod, previous, Gates::default(), now(at))
        };
        let last = finish(&case.compute(), 2000);
        assert!(
            is_static_pod(&case.pod) || is_terminal_phase(last.phase.as_deref()),
            "{name}: {:?}",
            last.phase
        );
        let runs = last
            .container_statuses
            .iter()
            .flatten()
            .any(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
        assert!(!runs, "{name}");
        assert!(statuses_equal(&last, &finish(&last, 3000)), "{name}");
    }
}
