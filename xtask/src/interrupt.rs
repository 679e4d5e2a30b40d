//! Ctrl-C as a question that long work asks itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set once somebody asked us to end.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// The error of work that was given up because somebody asked us to end.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP do not end the process but are remembered.
    pub(crate) fn watch() -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&asked))
                .context("cannot watch for signals")?;
        }
        Ok(Self(asked))
    }

    /// Whether we have been asked to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error if we have been asked to end.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps, but not past the moment in which we are asked to end.
    pub(crate) fn sleep(&self, duration: Duration) -> Result<(), Interrupted> {
        let slice = Duration::from_millis(50);
        let mut left = duration;
        while !left.is_zero() {
            self.check()?;
            std::thread::sleep(left.min(slice));
            left = left.saturating_sub(slice);
        }
        self.check()
    }
}
