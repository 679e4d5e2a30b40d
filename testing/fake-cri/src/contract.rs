//! What the kubelet relies on in a container runtime, as checks that any runtime can be put to: the
//! fake one here, and the real ones it stands for.

mod checks;
mod pod;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use rubelet_cri::{CriClient, CriError, CriOptions, InvalidEndpoint};
use thiserror::Error;

/// What the checks run with.
#[derive(Clone, Debug)]
pub struct ContractOptions {
    /// An image in the runtime's store with `sh`, `sleep`, `echo`, `true` and `false`.
    pub image: String,
    /// Parent cgroup of the pods, as the runtime's cgroup driver wants it; empty for the default.
    pub cgroup_parent: String,
    /// A directory for the pods' logs. Each pod gets one below it.
    pub log_directory: PathBuf,
    /// How long things may take that take no time of their own.
    pub patience: Duration,
}

/// Why a check failed.
#[derive(Debug, Error)]
pub enum CheckError {
    /// A call failed that should not have.
    #[error("{rpc}: {0}", rpc = .0.rpc)]
    Call(#[from] CriError),
    /// The runtime did something else than it should have.
    #[error("{0}")]
    Expectation(String),
    /// The log directory cannot be used.
    #[error("{path}: {source}", path = .path.display())]
    Log {
        /// What was to be read or written.
        path: PathBuf,
        /// Why it could not be.
        source: std::io::Error,
    },
}

/// How a check came out.
#[derive(Debug)]
pub enum Outcome {
    /// As it should.
    Passed,
    /// The runtime does not offer what was to be checked, and need not.
    NotOffered,
    /// Not as it should.
    Failed(CheckError),
}

/// One check and how it came out.
#[derive(Debug)]
pub struct Check {
    /// What the runtime should do.
    pub name: &'static str,
    /// Whether it does.
    pub outcome: Outcome,
}

/// All checks.
#[derive(Debug)]
pub struct Report {
    /// In the order they were run.
    pub checks: Vec<Check>,
}

impl Report {
    /// Those that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| matches!(check.outcome, Outcome::Failed(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Check { name, outcome } in &self.checks {
            match outcome {
                Outcome::Passed => writeln!(f, "ok          {name}")?,
                Outcome::NotOffered => writeln!(f, "not offered {name}")?,
                Outcome::Failed(error) => writeln!(f, "FAILED      {name}: {error}")?,
            }
        }
        Ok(())
    }
}

/// The result of a single check; `Ok(false)` if there was nothing to check.
type CheckResult = Result<bool, CheckError>;
type CheckFuture<'a> = Pin<Box<dyn Future<Output = CheckResult> + Send + 'a>>;
type CheckFn = for<'a> fn(&'a CriClient, &'a ContractOptions) -> CheckFuture<'a>;

/// Runs all checks against the runtime at `endpoint`.
///
/// # Errors
///
/// `endpoint` is no unix socket.
pub async fn run(endpoint: &str, options: &ContractOptions) -> Result<Report, InvalidEndpoint> {
    let client = CriClient::connect_lazy(endpoint, None, CriOptions::default())?;
    Ok(run_with(&client, options).await)
}

/// Runs all checks through `client`.
pub async fn run_with(client: &CriClient, options: &ContractOptions) -> Report {
    let mut checks = Vec::new();
    for (name, check) in checks::ALL {
        let outcome = match check(client, options).await {
            Ok(true) => Outcome::Passed,
            Ok(false) => Outcome::NotOffered,
            Err(error) => Outcome::Failed(error),
        };
        checks.push(Check { name, outcome });
    }
    Report { checks }
}
