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
//! runtime unknown                   the runtime is not known yet; otherwise it is
//! sandbox ID ready|notready [ip=IP,IP] [host-network]          newest first
//! runs NAME ID created|running|exited(C[,R])|unknown [restarts=N] [sandbox=ID]    newest first
//! in-force ID [shares=N] [quota=N] [memory=N]
//! probe NAME readiness|startup=Success|Failure|Unknown
//! failing NAME REASON MESSAGE
//! starting NAME | restarting-all | leaving | stage Terminating|Terminated | now T | hosts IP,IP
//! override PHASE REASON MESSAGE | disruption REASON
//! show phase|containers|conditions|ips|resources|mounts|times|messages ...  (default: phase containers)
//! ```
//!
//! `UPDATE_CASES=1 cargo test` writes what is reported into the files, for review.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod language;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PodStatus;
use language::Case;
use rubelet_pod_status::{Gates, finished_status, statuses_equal};
use rubelet_types::{is_static_pod, is_terminal_phase};

fn case_files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn reported_as_written() {
    let update = std::env::var_os("UPDATE_CASES").is_some();
    let (mut count, mut wrong) = (0, String::new());
    for file in case_files() {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut rewritten = String::new();
        for block in text.split("== ").filter(|block| !block.trim().is_empty()) {
            let (name, rest) = block.split_once('\n').unwrap();
            let (facts, expected) = rest.split_once("--\n").unwrap_or((rest, ""));
            let reported = Case::parse(facts).report();
            count += 1;
            if reported.trim() != expected.trim() {
                let file = file.file_name().unwrap().to_string_lossy();
                writeln!(
                    wrong,
                    "{file}: {name}\n{facts}-- expected\n{expected}-- reported\n{reported}"
                )
                .unwrap();
            }
            let facts = facts.trim();
            write!(rewritten, "== {name}\n{facts}\n--\n{}\n\n", reported.trim()).unwrap();
        }
        if update {
            std::fs::write(&file, rewritten.trim_end().to_owned() + "\n").unwrap();
        }
    }
    assert!(update || wrong.is_empty(), "\n{wrong}");
    assert!(count >= 60, "only {count} cases were found");
}

#[test]
fn computing_again_changes_nothing() {
    for file in case_files() {
        let text = std::fs::read_to_string(&file).unwrap();
        for block in text.split("== ").filter(|block| !block.trim().is_empty()) {
            let (name, rest) = block.split_once('\n').unwrap();
            let (facts, _) = rest.split_once("--\n").unwrap_or((rest, ""));
            let mut case = Case::parse(facts);
            let first = case.compute();
            case.previous = first.clone();
            case.now += 3600;
            let second = case.compute();
            assert!(statuses_equal(&first, &second), "{name}\n{first:#?}\n{second:#?}");
        }
    }
}

#[test]
fn the_last_status_of_a_pod_is_final() {
    for file in case_files() {
        let text = std::fs::read_to_string(&file).unwrap();
        for block in text.split("== ").filter(|block| !block.trim().is_empty()) {
            let (name, rest) = block.split_once('\n').unwrap();
            let (facts, _) = rest.split_once("--\n").unwrap_or((rest, ""));
            let case = Case::parse(facts);
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
            let runs =
                last.container_statuses.iter().flatten().any(|status| {
                    status.state.as_ref().is_some_and(|state| state.running.is_some())
                });
            assert!(!runs, "{name}");
            assert!(statuses_equal(&last, &finish(&last, 3000)), "{name}");
        }
    }
}
