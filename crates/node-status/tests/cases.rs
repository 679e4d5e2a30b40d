//! Decision tables: every file in `cases/` holds cases of the form
//!
//! ```text
//! == name of the case
//! <facts, one a line>
//! --
//! <what is decided>
//! ```
//!
//! Facts (`language` reads them, names and values as in Kubernetes); the node is called `n1`:
//!
//! ```text
//! name N | node-ip A[,B] | cloud external | label K=V | taint K=V:EFFECT | provider-id ID
//! attach-detach off | local-storage off | max-images N | kube-proxy on | declared NAME ...
//! on A ...                        addresses on interfaces
//! dns A ...                       what DNS knows for the name
//! route A | no-route TEXT         the address of the default route, or why there is none
//! interface NAME A [down] [lo] [p2p] | default-route NAME [6] | no-route-table
//! capacity NAME=N ... | reserved NAME=N ... | device NAME=CAPACITY/HEALTHY | removed NAME
//! boot ID | swap N | runtime NAME VERSION | image SIZE NAME ... | features [groups] [userns-host]
//! handler NAME [rro] [userns]
//! pressure [memory] [disk] [pid] | error TEXT | soft TEXT | volumes NAME ... | now SECOND
//! was label K=V | was annotation K=V | was address TYPE A | was condition TYPE=STATUS@SECOND
//! was capacity NAME=N ... | was boot ID | was volumes NAME ... | was handlers NAME ...
//! old JSON | new JSON             whole Nodes, for patches
//! existing JSON | initial JSON | reset
//! show addresses|default-address|conditions|times|resources|info|images|runtime|metadata|
//!      events|initial|changed|patch|reconcile|write
//! ```
//!
//! `UPDATE_CASES=1 cargo test` writes what is decided into the files, for review.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod language;

use std::path::Path;

use language::Case;
use rubelet_test_bed::cases;

#[test]
fn decided_as_written() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    cases::check(&dir, 50, || |facts: &str| Case::parse(facts).report()).unwrap();
}
