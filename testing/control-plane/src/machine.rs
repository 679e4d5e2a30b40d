//! Where processes run and ports are reached.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A machine, or a part of one (namespaces), on which a control plane runs.
pub trait Machine: fmt::Debug + Send + Sync {
    /// A command that runs `program` there, to be handed to [`Machine::spawn`]. `program` is the
    /// path on this machine.
    fn command(&self, program: &Path) -> Command;

    /// Starts it. Whatever happens to the process that calls, the child must not survive it.
    ///
    /// # Errors
    /// When it cannot be started.
    fn spawn(&self, command: Command) -> io::Result<Child>;

    /// Opens a connection to a port as a process there would.
    ///
    /// # Errors
    /// When nobody answers within a few seconds.
    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream>;
}

/// This machine, with its own network.
///
/// Children are killed by the kernel when the thread that started them ends (`PR_SET_PDEATHSIG`).
/// Threads of tests and of executors come and go, so a thread of its own starts them all; it ends
/// with this value, or with the process.
#[derive(Debug)]
pub struct ThisMachine {
    orders: SyncSender<Order>,
}

struct Order {
    command: Command,
    answer: SyncSender<io::Result<Child>>,
}

impl ThisMachine {
    /// Starts the thread that is the parent of all processes.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn new() -> anyhow::Result<Self> {
        let (orders, inbox) = sync_channel::<Order>(0);
        thread::Builder::new()
            .name("control-plane".to_owned())
            .spawn(move || {
                for Order { mut command, answer } in inbox {
                    // Who asked waits for the answer, or has been given up with all its children.
                    let _ = answer.send(command.spawn());
                }
            })
            .context("cannot start a thread")?;
        Ok(Self { orders })
    }
}

impl Machine for ThisMachine {
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        // Ctrl-C at the terminal reaches only us.
        command.process_group(0);
        command
    }

    fn spawn(&self, command: Command) -> io::Result<Child> {
        let (answer, child) = sync_channel(1);
        let gone = || io::Error::other("the thread that starts processes is gone");
        self.orders.send(Order { command, answer }).map_err(|_| gone())?;
        child.recv().map_err(|_| gone())?
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&address, CONNECT_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_does_not_outlive_its_machine_and_outlives_the_thread_that_asked() {
        let machine = ThisMachine::new().expect("a thread");
        let mut child = thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let mut command = machine.command(Path::new("sleep"));
                command.arg("1000").stdin(Stdio::null());
                machine.spawn(command).expect("sleep starts")
            });
            asked.join().expect("no panic")
        });
        // It runs setpriv first, and must have become sleep before its parent may go.
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&comm).expect("it runs").trim() != "sleep" {
            thread::yield_now();
        }
        assert!(child.try_wait().expect("ours").is_none(), "the thread that asked has ended");
        drop(machine);
        let status = child.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
