//! Takes chance out of file system work.
//!
//! The kubelet does such work on blocking threads. When they are done is a matter of chance, and so
//! would be the order in which their results are taken up. Here there is one such thread, and it
//! waits at a gate while tasks run. When nothing is left to run, the gate opens, everything that
//! was ordered is done, in order, and only then do tasks run again.
//!
//! ```text
//! tasks   ▓▓▓▓▓▓▓▓ park          ▓▓▓▓▓ park                      (time goes on)  ▓▓▓▓
//! thread  gate┄┄┄┄┄┄┄ work work  gate┄┄┄┄ (nothing was ordered)                  gate┄┄
//! ```

use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::runtime::{Builder, Handle};

#[derive(Debug, Default)]
struct State {
    /// Opens the gate at which the thread waits.
    closed: Option<mpsc::Sender<()>>,
    /// Work was done while nobody ran, and its results were not seen yet.
    has_worked: bool,
}

/// The gate of one runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    handle: Arc<OnceLock<Handle>>,
    state: Arc<Mutex<State>>,
}

impl Gate {
    /// Puts the gate into a runtime that is being built.
    pub(crate) fn install(&self, builder: &mut Builder) {
        let (before_park, after_park) = (self.clone(), self.clone());
        builder
            .max_blocking_threads(1)
            // What another thread has done is taken up when nothing else is left to do.
            .global_queue_interval(u32::MAX)
            .on_thread_park(move || before_park.open())
            .on_thread_unpark(move || after_park.close_if_tasks_may_run());
    }

    /// Closes it for the first time, before any task runs.
    pub(crate) fn start(&self, handle: &Handle) {
        // It is set once: a gate is of one runtime.
        let _ = self.handle.set(handle.clone());
        self.close();
    }

    /// Has the thread wait before it takes up what is ordered from now on.
    fn close(&self) {
        let Some(handle) = self.handle.get() else { return };
        let (open, opened) = mpsc::channel::<()>();
        // A gate that nobody can open any more is open.
        drop(handle.spawn_blocking(move || opened.recv().is_ok()));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = Some(open);
        state.has_worked = false;
    }

    /// Nothing is left to run: lets everything be done that was ordered.
    fn open(&self) {
        let open = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(open) = state.closed.take() else { return };
            state.has_worked = true;
            open
        };
        let Some(handle) = self.handle.get() else { return };
        let (done, all_done) = mpsc::channel::<()>();
        drop(handle.spawn_blocking(move || drop(done)));
        drop(open);
        // Answers when the sender is dropped, after everything that was ordered before.
        let _ = all_done.recv();
    }

    fn close_if_tasks_may_run(&self) {
        let Some(handle) = self.handle.get() else { return };
        let has_worked = self.state.lock().unwrap_or_else(PoisonError::into_inner).has_worked;
        // The thread's signs of life end the first rest after work. Time has not gone on then, and
        // nobody runs unless the work has woken somebody.
        let nobody_runs = has_worked && handle.metrics().global_queue_depth() == 0;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).has_worked = false;
        if !nobody_runs {
            self.close();
        }
    }
}
