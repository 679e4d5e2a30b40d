//! A private mount, network and process namespace.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::wait::wait_for;

/// How long a set of namespaces lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// As long as the process that made it, even if that is killed.
    WithUs,
    /// Until it is swept.
    UntilSwept,
}

/// What the first process runs. It reaps orphans (every POSIX shell does while it waits) and ends
/// when the pipe on its standard input is closed.
const HOLD_WITH_US: &str = "exec 3<&0; cat <&3 >/dev/null & echo ready; exec >/dev/null; wait $!";
const HOLD_UNTIL_SWEPT: &str = "sleep infinity & echo ready; exec >/dev/null; wait $!";

/// Mount, network and process namespaces of our own.
///
/// Dropping it ends every process in there, and with them every mount and network device. Children
/// that were started with [`Namespaces::spawn`] must have been waited for by then.
#[derive(Debug)]
pub struct Namespaces {
    /// `unshare`, which waits for the first process.
    holder: Child,
    /// Open for as long as the namespaces are to live.
    pipe: Option<ChildStdin>,
    lifetime: Lifetime,
    init_pid: u32,
    net: File,
    pid: File,
}

impl Namespaces {
    /// Makes the namespaces. Mounts do not propagate out of them.
    ///
    /// # Errors
    /// When the kernel refuses (not root), or util-linux is not there.
    pub fn create(lifetime: Lifetime) -> anyhow::Result<Self> {
        let (script, stdin) = match lifetime {
            Lifetime::WithUs => (HOLD_WITH_US, Stdio::piped()),
            Lifetime::UntilSwept => (HOLD_UNTIL_SWEPT, Stdio::null()),
        };
        let mut holder = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--mount-proc"])
            .args(["--propagation", "private", "sh", "-c", script])
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot run unshare")?;
        let pipe = holder.stdin.take();
        let stdout = holder.stdout.take().context("the holder has no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("cannot read from the holder")?;
        if line.trim() != "ready" {
            let output = holder.wait_with_output().context("cannot wait for unshare")?;
            bail!(
                "cannot make namespaces: unshare ended with {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        // From here on unshare only has to say that the first process was killed.
        drop(holder.stderr.take());
        let open = |name: &str| {
            let path = format!("/proc/{}/ns/{name}", holder.id());
            File::open(&path).with_context(|| format!("cannot open {path}"))
        };
        let (net, pid) = (open("net")?, open("pid_for_children")?);
        let init_pid = find_child(holder.id()).context("the holder has no child")?;
        Ok(Self { holder, pipe, lifetime, init_pid, net, pid })
    }

    /// The process id, as seen from outside, of the first process: `nsenter -t` takes it.
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// The process id of the holder, which ends when the last process inside has ended.
    pub fn holder_pid(&self) -> u32 {
        self.holder.id()
    }

    /// A command that runs `program` inside, to be handed to [`Namespaces::spawn`].
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()));
        command.arg("--").arg(program.as_ref());
        command
    }

    /// Starts a command from [`Namespaces::command`]. The child is in a process group of its own: a
    /// Ctrl-C at the terminal reaches only us.
    ///
    /// # Errors
    /// When the namespaces cannot be entered or the process cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.process_group(0);
        // Entering is a matter of one thread, which ends right after.
        thread::scope(|scope| {
            let entered = scope.spawn(|| {
                move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
                move_into_link_name_space(self.pid.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
                command.spawn()
            });
            entered.join().unwrap_or_else(|_| Err(io::Error::other("the spawning thread panicked")))
        })
    }

    /// Runs a command inside to its end.
    ///
    /// # Errors
    /// When it cannot be started or fails; the error carries what it wrote to stderr.
    pub fn run(&self, program: &str, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = self.command(program);
        command.args(args);
        let what = [&[program], args].concat().join(" ");
        finish(&what, command, |command| self.spawn(command))
    }

    /// Runs a command to its end that sees the network from inside, and files and process ids from
    /// outside.
    ///
    /// # Errors
    /// When it cannot be started or fails; the error carries what it wrote to stderr.
    pub(crate) fn run_in_network(&self, program: &str, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(program);
        command.args(args);
        let what = [&[program], args].concat().join(" ");
        finish(&what, command, |command| {
            thread::scope(|scope| {
                let entered = scope.spawn(|| {
                    move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
                    command.spawn()
                });
                entered.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
            })
        })
    }

    /// Opens a TCP connection from inside.
    ///
    /// # Errors
    /// When the namespace cannot be entered or nobody answers within `timeout`.
    pub fn connect(&self, address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        thread::scope(|scope| {
            let connected = scope.spawn(|| {
                move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
                TcpStream::connect_timeout(&address, timeout)
            });
            connected
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the connecting thread panicked")))
        })
    }

    /// Opens a TCP port inside.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the port is taken.
    pub fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        thread::scope(|scope| {
            let listening = scope.spawn(|| {
                move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
                TcpListener::bind(address)
            });
            listening
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the listening thread panicked")))
        })
    }

    /// Mounts what a runtime of our own must not share with the machine's: `/run`, `/var/log`,
    /// `/var/lib/kubelet` and `/var/lib/cni` are private and empty, anything else in `/var/lib` can
    /// be read and is changed only in `store`. Mounts propagate between what runs inside, as
    /// volumes need it.
    ///
    /// # Errors
    /// When `store` is where it would be hidden, or a mount fails.
    pub fn mount_private_dirs(&self, store: &Path) -> anyhow::Result<()> {
        for hidden in ["/run", "/var/run", "/var/log", "/var/lib"] {
            anyhow::ensure!(
                !store.starts_with(hidden),
                "{} is below {hidden}, which is private to the test bed: set RUBELET_CACHE",
                store.display()
            );
        }
        let dir = |name: &str| -> anyhow::Result<String> {
            let path = store.join(name);
            std::fs::create_dir_all(&path)
                .with_context(|| format!("cannot make {}", path.display()))?;
            Ok(path.to_str().context("the store is not UTF-8")?.to_owned())
        };
        let options =
            format!("lowerdir=/var/lib,upperdir={},workdir={}", dir("var-lib")?, dir("var-work")?);
        self.run("mount", &["-t", "overlay", "overlay", "-o", &options, "/var/lib"])?;
        self.run("mkdir", &["-p", "/var/lib/kubelet", "/var/lib/cni"])?;
        for (name, place) in [
            ("run", "/run"),
            ("var-log", "/var/log"),
            ("var-lib-kubelet", "/var/lib/kubelet"),
            ("var-lib-cni", "/var/lib/cni"),
        ] {
            self.run("mount", &["--bind", &dir(name)?, place])?;
        }
        self.run("mkdir", &["-p", "/run/lock", "/run/netns", "/run/containerd"])?;
        self.run("mount", &["--make-rshared", "/"])?;
        Ok(())
    }

    /// Ends every process inside and waits until they are gone.
    ///
    /// # Errors
    /// When a process does not go away.
    pub fn end(&mut self) -> anyhow::Result<()> {
        drop(self.pipe.take());
        if self.lifetime == Lifetime::UntilSwept {
            kill(self.init_pid);
        }
        let gone = wait_for("the namespaces to end", Duration::from_secs(60), || {
            match self.holder.try_wait() {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err("processes are left".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        });
        if gone.is_err() {
            kill(self.init_pid);
        }
        gone
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::WithUs
            && let Err(error) = self.end()
        {
            eprintln!("{error:#}");
        }
    }
}

/// Starts a command and waits for its end.
fn finish(
    what: &str,
    mut command: Command,
    spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
) -> anyhow::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(&mut command)
        .and_then(Child::wait_with_output)
        .with_context(|| format!("cannot run `{what}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{what}` ended with {}: {}", output.status, said.trim());
    }
    Ok(output)
}

pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // It may be gone already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// The one child of a process. The kernel's own list of children is an option that not every kernel
/// is built with, so this looks through all processes.
fn find_child(parent: u32) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?;
    entries.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = ProcessStat::read(pid)?;
        (stat.parent == parent).then_some(pid)
    })
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) parent: u32,
    /// User and system time, in clock ticks.
    pub(crate) cpu_ticks: u64,
    /// When it started, in clock ticks after boot: with the id, it names a process for good.
    pub(crate) start_ticks: u64,
    /// Whether it has ended and waits to be reaped.
    pub(crate) ended: bool,
}

impl ProcessStat {
    pub(crate) fn read(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may hold anything.
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            cpu_ticks: number(11)? + number(12)?,
            start_ticks: number(19)?,
            ended: matches!(*fields.first()?, "Z" | "X"),
        })
    }

    /// User and system time. The kernel counts in hundredths of a second for user space, whatever
    /// it uses itself.
    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_millis(self.cpu_ticks * 10)
    }
}

/// The time that a process has used the machine's cores; none if there is no such process.
#[must_use]
pub fn process_cpu(pid: u32) -> Option<Duration> {
    ProcessStat::read(pid).map(|stat| stat.cpu())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_and_spaces_is_skipped() {
        let text = "42 (a) b (c)) S 7 1 1 0 -1 4194560 1 2 3 4 100 23 0 0 20 0 1 0 9000 1 2 3";
        let expected = ProcessStat { parent: 7, cpu_ticks: 123, start_ticks: 9000, ended: false };
        assert_eq!(ProcessStat::parse(text), Some(expected));
        assert_eq!(ProcessStat::parse("42 (gone"), None);
    }
}
