//! A process of a component.

use std::process::{Child, ExitStatus};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::component::Component;

/// A running process; dropping it kills it and waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    component: Component,
    child: Child,
}

impl Process {
    pub(crate) fn new(component: Component, child: Child) -> Self {
        Self { component, child }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot look after {}", self.component))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has no process id", self.component))?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.component))
    }

    /// Ends it at once, also when it is held still.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.component))?;
        self.child.wait().with_context(|| format!("cannot wait for {}", self.component))?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{error:#}");
        }
    }
}
