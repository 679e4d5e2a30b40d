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
//! now T | +N                                the time; N seconds pass
//! delete grace=N | remove | stop CAUSE [grace=N] | admit | start-time T
//! done KEY | cancelled KEY | fail KEY REASON MESSAGE [retry=N]
//! started NAME ID [STATE]                   StartContainer is done, with this instance
//! made ID [attempt=N]                       CreateSandbox is done, with this sandbox
//! ```
//!
//! `UPDATE_CASES=1 cargo test` writes what is decided into the files, for review.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::language::Case;

fn case_files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/cases");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn decided_as_written() {
    let update = std::env::var_os("UPDATE_CASES").is_some();
    let (mut count, mut wrong) = (0, String::new());
    for file in case_files() {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut rewritten = String::new();
        for block in text.split("== ").filter(|block| !block.trim().is_empty()) {
            let (name, rest) = block.split_once('\n').unwrap();
            let sections: Vec<&str> = rest.split("--\n").map(str::trim).collect();
            let mut case = Case::default();
            let mut steps = Vec::new();
            for step in sections.chunks(2) {
                let (facts, expected) = (step[0], step.get(1).copied().unwrap_or_default());
                let decided = case.decide(facts);
                if decided.trim() != expected {
                    let file = file.file_name().unwrap().to_string_lossy();
                    writeln!(
                        wrong,
                        "{file}: {name}\n{facts}\n-- expected\n{expected}\n-- decided\n{decided}"
                    )
                    .unwrap();
                }
                steps.push(format!("{facts}\n--\n{}\n", decided.trim()));
            }
            count += 1;
            writeln!(rewritten, "== {name}\n{}", steps.join("--\n")).unwrap();
        }
        if update {
            std::fs::write(&file, rewritten.trim_end().to_owned() + "\n").unwrap();
        }
    }
    assert!(update || wrong.is_empty(), "\n{wrong}");
    assert!(count >= 90, "only {count} cases were found");
}
