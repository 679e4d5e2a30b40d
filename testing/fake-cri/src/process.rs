//! Running scripts, and the log files they write.

use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rubelet_types::Clock;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::script::{KILLED, OnStopSignal, Script, Step};

/// What is sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The stop signal.
    Stop,
    /// SIGKILL.
    Kill,
    /// Something no process survives, with the exit code it leaves.
    Die(i32),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) out_of_memory: bool,
}

impl Exit {
    fn with(code: i32) -> Self {
        Self { code, out_of_memory: false }
    }

    /// The reason that containerd gives.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self { out_of_memory: true, .. } => "OOMKilled",
            Self { code: 0, .. } => "Completed",
            Self { .. } => "Error",
        }
    }
}

/// Runs `script` until it ends by itself or by a signal.
pub(crate) async fn run(
    script: &Script,
    log: &ContainerLog,
    mut signals: mpsc::Receiver<Signal>,
) -> Exit {
    let steps = take_steps(script, log);
    let clean_up = async |reaction| match reaction {
        OnStopSignal::Ignore => pending().await,
        OnStopSignal::Exit { after, code } => {
            sleep(after).await;
            Exit::with(code)
        }
    };
    tokio::pin!(steps);
    loop {
        let signal = tokio::select! {
            exit = &mut steps => return exit,
            signal = signals.recv() => signal,
        };
        match signal {
            Some(Signal::Die(code)) => return Exit::with(code),
            Some(Signal::Kill) if !script.survives_kill => return Exit::with(KILLED),
            Some(Signal::Stop) if !script.survives_kill => {
                if script.on_stop_signal == OnStopSignal::Ignore {
                    continue;
                }
                // From here on the handler runs, and only SIGKILL interrupts it.
                let handler = clean_up(script.on_stop_signal);
                tokio::pin!(handler);
                loop {
                    tokio::select! {
                        exit = &mut handler => return exit,
                        signal = signals.recv() => match signal {
                            Some(Signal::Kill) => return Exit::with(KILLED),
                            Some(Signal::Die(code)) => return Exit::with(code),
                            Some(Signal::Stop) => {}
                            None => return handler.await,
                        },
                    }
                }
            }
            Some(Signal::Kill | Signal::Stop) => {}
            None => return steps.await,
        }
    }
}

async fn take_steps(script: &Script, log: &ContainerLog) -> Exit {
    for step in &script.steps {
        match step {
            Step::Sleep(duration) => sleep(*duration).await,
            Step::Print(line) => log.write("stdout", line),
            Step::PrintError(line) => log.write("stderr", line),
            Step::Exit(code) => return Exit::with(*code),
            Step::OutOfMemory => return Exit { code: KILLED, out_of_memory: true },
            Step::RunForever => pending().await,
        }
    }
    Exit::with(0)
}

/// The log file of a container, in the format of the CRI.
#[derive(Debug)]
pub(crate) struct ContainerLog {
    path: Option<PathBuf>,
    clock: Clock,
    file: Mutex<Option<File>>,
}

impl ContainerLog {
    /// A log at `path`, not open yet; without a path what is written goes nowhere.
    pub(crate) fn new(path: Option<PathBuf>, clock: Clock) -> Self {
        Self { path, clock, file: Mutex::new(None) }
    }

    /// Opens the file, anew if it is open: after a rename the path may lead to another one.
    pub(crate) fn open(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    pub(crate) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    fn write(&self, stream: &str, line: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = file.as_mut() else { return };
        let now = self.clock.now();
        // The line is short and the disk that of a test: blocking here is no harm.
        if let Err(error) = writeln!(file, "{now:.9} {stream} F {line}") {
            tracing::warn!(%error, path = ?self.path, "cannot write the container log");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::tokio_clock;

    async fn run_with(script: Script, signals: &[(u64, Signal)]) -> (Exit, Duration) {
        let log = ContainerLog::new(None, tokio_clock(jiff::Timestamp::UNIX_EPOCH));
        let (sender, receiver) = mpsc::channel(8);
        let signals = signals.to_vec();
        let started = Instant::now();
        let send = async move {
            for (at, signal) in signals {
                tokio::time::sleep_until(started + Duration::from_secs(at)).await;
                let _ = sender.send(signal).await;
            }
            pending::<()>().await;
        };
        tokio::select! {
            exit = run(&script, &log, receiver) => (exit, started.elapsed()),
            () = send => unreachable!("it never ends"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn processes_end_as_their_scripts_say() {
        let seconds = Duration::from_secs;
        let graceful =
            Script::run_forever().on_stop_signal(OnStopSignal::Exit { after: seconds(3), code: 7 });
        let deaf = Script::of([Step::RunForever]);
        use Signal::{Kill, Stop};
        for (script, signals, code, ended) in [
            (Script::exit(seconds(5), 2), vec![], 2, 5),
            (Script::of([Step::OutOfMemory]), vec![], 137, 0),
            (Script::run_forever(), vec![(1, Stop)], 143, 1),
            (graceful.clone(), vec![(1, Stop)], 7, 4),
            (graceful, vec![(1, Stop), (2, Stop), (3, Kill)], 137, 3),
            (deaf, vec![(1, Stop), (2, Kill)], 137, 2),
            (Script::exit(seconds(9), 0).survives_kill(), vec![(1, Stop), (2, Kill)], 0, 9),
        ] {
            let text = format!("{script:?} {signals:?}");
            let (exit, elapsed) = run_with(script, &signals).await;
            assert_eq!((exit.code, elapsed.as_secs()), (code, ended), "{text}");
        }
    }
}
