//! Many histories, each in a process of its own, a few at once.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::leftovers;

/// A history takes seconds. One that takes this long, by the clock of the real world, does not end.
const LIMIT: Duration = Duration::from_secs(600);

/// Which histories, and how.
#[derive(Clone, Debug)]
pub struct Many {
    /// The program `rubelet-sim`.
    pub program: PathBuf,
    /// The first seed.
    pub from: u64,
    /// How many seeds.
    pub seeds: u64,
    /// How many at once.
    pub at_once: usize,
}

/// A history that did not go as it must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its seed.
    pub seed: u64,
    /// What was wrong.
    pub problems: Vec<String>,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {} FAILED", self.seed)?;
        for problem in &self.problems {
            writeln!(f, "    {problem}")?;
        }
        write!(f, "    replay it: cargo xtask sim --seed {} --verbose", self.seed)
    }
}

impl Many {
    /// Lives through all of them; answers those that failed, in order. `tell` is called for each that
    /// fails as soon as it has.
    ///
    /// # Errors
    ///
    /// A process cannot be started, or something cannot be swept after it.
    pub fn run(&self, tell: impl Fn(&Failed) + Sync) -> anyhow::Result<Vec<Failed>> {
        let left = leftovers::sweep_abandoned();
        anyhow::ensure!(left.is_empty(), "{}", left.join("; "));
        let next = AtomicU64::new(self.from);
        let failed = Mutex::new(Vec::new());
        // A process is told of the death of the thread that has started it: so that stays with it.
        let work = || -> anyhow::Result<()> {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= self.from.saturating_add(self.seeds) {
                    return Ok(());
                }
                if let Some(one) = self.run_one(seed)? {
                    tell(&one);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.at_once.max(1)).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                worker.join().map_err(|_| anyhow::anyhow!("a thread died"))??;
            }
            anyhow::Ok(())
        })?;
        let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.sort_by_key(|one| one.seed);
        Ok(failed)
    }

    fn run_one(&self, seed: u64) -> anyhow::Result<Option<Failed>> {
        let mut child = Command::new(&self.program)
            .args(["--brief", "--seed", &seed.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let ended = wait(&mut child);
        let left = leftovers::sweep(child.id());
        anyhow::ensure!(left.is_empty(), "after seed {seed}: {}", left.join("; "));
        let (said, status) = ended?;
        let mut problems: Vec<String> =
            said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        match status {
            Some(status) if status.success() => return Ok(None),
            Some(status) if problems.is_empty() => problems.push(format!("it ended with {status}")),
            Some(_) => {}
            None => problems.push(format!("it did not end within {} s", LIMIT.as_secs())),
        }
        Ok(Some(Failed { seed, problems }))
    }
}

/// What it said, and how it ended unless it had to be killed.
fn wait(child: &mut Child) -> anyhow::Result<(String, Option<ExitStatus>)> {
    let mut stdout = child.stdout.take().context("a process without an output")?;
    let (tell, told) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        // What cannot be read was not said.
        let _ = stdout.read_to_end(&mut said);
        // Nobody listens any more if it took too long.
        let _ = tell.send(());
        String::from_utf8_lossy(&said).into_owned()
    });
    let is_over = told.recv_timeout(LIMIT).is_ok();
    if !is_over {
        child.kill()?;
    }
    let status = child.wait()?;
    Ok((reader.join().unwrap_or_default(), is_over.then_some(status)))
}
