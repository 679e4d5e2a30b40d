//! Decision tables: every file in `cases/` holds cases of the form
//!
//! ```text
//! == name of the case
//! <facts, one a line>
//! --
//! <what is decided>
//! --
//! <what happens next>
//! --
//! <what is decided then>
//! ```
//!
//! What was decided is begun before the next facts are read, as a worker would begin it.
//!
//! Facts (`language.rs` reads them; names and values as in Kubernetes, times in seconds):
//!
//! ```text
//! pod [restart=P] [grace=N] [deadline=N] [static] [host-network] [waiting] [unprepared] [unseen]
//!     [config-map=NAME]                     a volume that shows it
//! container NAME [init|sidecar|ephemeral] [image=I] [pre-stop] [liveness[=GRACE]]
//!           [startup[=GRACE]] [restart=P] [rule=ACTION:CODE,CODE] [target=NAME]
//!                                           given again: the pod is updated
//! sandbox ID ready|notready [attempt=N] [no-ip] [host-network]
//! runs NAME ID running|created|unknown|exited(CODE[,REASON])[@T] [restarts=N] [sandbox=ID]
//!           [hash=H]                        newest instance wins; an ID again: its new state
//! was NAME running|exited(CODE) [restarts=N]  what an earlier life of the kubelet reported
//! gone ID                                   the runtime holds it no more
//! look [@T]                                 the runtime is looked at (taken at T)
//! probe NAME liveness|startup=Success|Failure|Unknown
//! network ready|MESSAGE
//! resize [in-place=A,B] [by-restart=C] [pod]  what of its resources is not as granted; now nothing
//! now T | +N                                the time; N seconds pass
//! object-changed | delete grace=N | remove | stop CAUSE [grace=N] | admit | start-time T
//! done KEY | cancelled KEY | fail KEY REASON MESSAGE [retry=N]
//! started NAME ID [STATE]                   StartContainer is done, with this instance
//! made ID [attempt=N]                       CreateSandbox is done, with this sandbox
//! ```
//!
//! `UPDATE_CASES=1 cargo test` writes what is decided into the files, for review.

use std::path::Path;

use rubelet_test_bed::cases;

use super::language::Case;

#[test]
fn decided_as_written() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/cases");
    let begin = || {
        let mut case = Case::default();
        move |facts: &str| case.decide(facts)
    };
    cases::check(&dir, 90, begin).unwrap();
}
