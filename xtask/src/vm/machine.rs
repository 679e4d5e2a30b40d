//! One boot of the virtual machine.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::Options;
use super::image::Image;
use crate::interrupt::Interrupt;

/// How a boot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It switched itself off.
    Ended,
    /// We switched it off.
    TookTooLong,
}

/// Boots a throw-away copy of the image with the work disk, shows its console, and waits until it is
/// off.
pub(crate) fn run(
    image: &Image,
    work_disk: &Path,
    options: &Options,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let deadline = Instant::now() + options.limit;
    // It dies with us, however we end, and leaves the processors to who needs them.
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "nice", "-n", "10", "qemu-system-x86_64"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", &options.memory.to_string()])
        .args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"])
        .args(["-nic", "none", "-device", "virtio-rng-pci"])
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initrd)
        .args([
            "-append",
            "console=ttyS0 quiet panic=1 net.ifnames=0 mitigations=off \
             systemd.unified_cgroup_hierarchy=1 systemd.show_status=0 systemd.getty_auto=no",
        ])
        .args(["-drive", &drive(&image.disk, "snapshot=on")?])
        .args(["-drive", &drive(work_disk, "cache=unsafe")?])
        // Where the throw-away layer is written.
        .env("TMPDIR", work_disk.parent().unwrap_or(work_disk))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run qemu-system-x86_64")?;
    let stdout = child.stdout.take().context("qemu has no output")?;
    let (send, lines) = mpsc::sync_channel::<String>(100);
    let reader = std::thread::spawn(move || {
        let mut console = BufReader::new(stdout);
        let mut line = Vec::new();
        while console.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if send.send(plain_text(&line)).is_err() {
                return;
            }
            line.clear();
        }
    });
    let result = watch(&lines, deadline, interrupt);
    if !matches!(result, Ok(Outcome::Ended)) {
        end(&mut child);
    }
    drop(lines);
    // Its output ends with it.
    let _ = reader.join();
    let status = child.wait().context("cannot wait for qemu")?;
    let outcome = result?;
    if outcome == Outcome::Ended && !status.success() {
        anyhow::bail!("qemu ended with {status}");
    }
    Ok(outcome)
}

fn watch(
    lines: &mpsc::Receiver<String>,
    deadline: Instant,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    loop {
        interrupt.check()?;
        if Instant::now() > deadline {
            return Ok(Outcome::TookTooLong);
        }
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) if line.is_empty() => {}
            Ok(line) => crate::report::say(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(Outcome::Ended),
        }
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself in this moment.
    let _ = child.kill();
}

/// A disk as QEMU's command line has it, where commas separate options.
fn drive(path: &Path, option: &str) -> anyhow::Result<String> {
    let path = path.to_str().context("the cache's path is not UTF-8")?.replace(',', ",,");
    Ok(format!("file={path},if=virtio,format=raw,{option}"))
}

/// A line of a console without what moves cursors and changes colours.
fn plain_text(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let mut text = String::new();
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => {
                let mut rest = characters.clone();
                if rest.next() == Some('[') {
                    // Parameters, then one letter.
                    rest.find(|c| ('@'..='~').contains(c));
                } else {
                    rest = characters.clone();
                    rest.next();
                }
                characters = rest;
            }
            '\t' => text.push(character),
            control if control.is_control() => {}
            printable => text.push(printable),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_line_becomes_plain_text() {
        for (line, text) in [
            (&b"ready\r\n"[..], "ready"),
            (b"\x1b[0;1;31mfailed\x1b[0m: a\tb\n", "failed: a\tb"),
            (b"\x1bc\x1b[?7l\x1b[2J[    0.1] up\r\n", "[    0.1] up"),
            (b"\r\n", ""),
        ] {
            assert_eq!(plain_text(line), text);
        }
    }

    #[test]
    fn commas_in_a_path_do_not_end_it() {
        let option = drive(Path::new("/a,b/disk"), "snapshot=on").expect("a path of text");
        assert_eq!(option, "file=/a,,b/disk,if=virtio,format=raw,snapshot=on");
    }
}
