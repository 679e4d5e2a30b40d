//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

use anyhow::bail;

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(50);
/// How often it is looked at where the time until it holds is of interest.
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// A point in time until which something must have happened.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    /// Whether it has passed.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }

    /// What is left of it.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Calls `look` until it finds something, and returns that.
///
/// `look` answers `Err(state)` while the condition does not hold; the last such text is in the
/// error when the time is over.
///
/// # Errors
/// When `timeout` passes first.
pub fn wait_for<T>(
    what: &str,
    timeout: Duration,
    look: impl FnMut() -> Result<T, String>,
) -> anyhow::Result<T> {
    wait(what, timeout, POLL, look)
}

/// As [`wait_for`], but looks every few milliseconds, and tells how long it took.
///
/// # Errors
/// When `timeout` passes first.
pub fn wait_closely<T>(
    what: &str,
    timeout: Duration,
    look: impl FnMut() -> Result<T, String>,
) -> anyhow::Result<(T, Duration)> {
    let started = Instant::now();
    let found = wait(what, timeout, CLOSE_POLL, look)?;
    Ok((found, started.elapsed()))
}

fn wait<T>(
    what: &str,
    timeout: Duration,
    poll: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(state) if started.elapsed() >= timeout => {
                bail!("waited {timeout:?} for {what}; at the end: {state}")
            }
            Err(_) => std::thread::sleep(poll),
        }
    }
}
