//! Decisions as text: files of cases that say what follows from what.
//!
//! ```text
//! == name of the case
//! facts
//! --
//! what is decided
//! --
//! facts that come after it
//! --
//! what is decided then
//! ```
//!
//! With `UPDATE_CASES=1` in the environment what is decided is written into the files, for review.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Facts and what is decided on them, step after step.
    pub steps: Vec<(String, String)>,
}

/// The files of `dir` with their cases, in the order of their names.
///
/// # Errors
///
/// The directory or a file cannot be read, or a case has a name alone.
pub fn read(dir: &Path) -> anyhow::Result<Vec<(PathBuf, Vec<Case>)>> {
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let text =
                fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let blocks = text.split("== ").filter(|block| !block.trim().is_empty());
            let cases = blocks.map(parse).collect::<anyhow::Result<_>>()?;
            Ok((file, cases))
        })
        .collect()
}

fn parse(block: &str) -> anyhow::Result<Case> {
    let (name, rest) = block.split_once('\n').with_context(|| format!("{block}: no facts"))?;
    let sections: Vec<&str> = rest.split("--\n").map(str::trim).collect();
    let steps = sections.chunks(2).map(|step| {
        let decided = step.get(1).copied().unwrap_or_default();
        (step[0].to_owned(), decided.to_owned())
    });
    Ok(Case { name: name.to_owned(), steps: steps.collect() })
}

/// Checks all cases of `dir`: for each of them `begin` gives what decides its steps, one after the
/// other. There have to be `at_least` so many, lest nothing is checked.
///
/// # Errors
///
/// Something else is decided than is written; the text says what.
pub fn check<D: FnMut(&str) -> String>(
    dir: &Path,
    at_least: usize,
    begin: impl Fn() -> D,
) -> anyhow::Result<()> {
    let update = std::env::var_os("UPDATE_CASES").is_some();
    let (mut count, mut wrong) = (0, String::new());
    for (file, cases) in read(dir)? {
        let mut rewritten = String::new();
        for Case { name, steps } in cases {
            count += 1;
            let mut decide = begin();
            let mut written = Vec::new();
            for (facts, expected) in steps {
                let decided = decide(&facts);
                let decided = decided.trim();
                if decided != expected {
                    let file = file.file_name().unwrap_or_default().display();
                    writeln!(
                        wrong,
                        "{file}: {name}\n{facts}\n-- expected\n{expected}\n-- decided\n{decided}\n"
                    )?;
                }
                written.push(format!("{facts}\n--\n{decided}\n"));
            }
            writeln!(rewritten, "== {name}\n{}", written.join("--\n"))?;
        }
        if update {
            fs::write(&file, rewritten.trim_end().to_owned() + "\n")?;
        }
    }
    ensure!(update || wrong.is_empty(), "\n{wrong}");
    ensure!(count >= at_least, "only {count} cases were found");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed helper is a failed test.

    use super::*;

    fn adding(text: &str) -> anyhow::Result<()> {
        let name = format!("rubelet-cases-{}-{}", std::process::id(), text.len());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("sums.txt"), text).unwrap();
        let checked = check(&dir, 2, || {
            let mut sum = 0;
            move |facts: &str| {
                sum += facts.lines().map(|line| line.parse::<i64>().unwrap()).sum::<i64>();
                format!("{sum}\n")
            }
        });
        fs::remove_dir_all(&dir).unwrap();
        checked
    }

    #[test]
    fn each_case_begins_anew_and_its_steps_follow_each_other() {
        adding("== one\n1\n2\n--\n3\n\n== more\n4\n--\n4\n--\n5\n--\n9\n").unwrap();
    }

    #[test]
    fn what_is_decided_otherwise_is_told_and_so_is_a_lack_of_cases() {
        let wrong = adding("== one\n1\n--\n1\n\n== other\n1\n--\n1\n--\n1\n--\n3\n");
        let told = wrong.unwrap_err().to_string();
        assert_eq!(told, "\nsums.txt: other\n1\n-- expected\n3\n-- decided\n2\n\n");
        assert_eq!(
            adding("== one\n1\n--\n1\n").unwrap_err().to_string(),
            "only 1 cases were found"
        );
    }
}
