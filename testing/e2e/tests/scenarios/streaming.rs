//! Commands and ports of containers, again and again: nothing of a session may stay.
//!
//! `RUBELET_STREAMING_CYCLES` (40) says how many commands are run; half as many ports are forwarded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, PodView, wait_for};
use rustls::{ClientConnection, StreamOwned};
use serde_json::json;

use crate::WAIT;
use crate::server::{ask, connect, wait_until_served};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::on_all(
        "sessions_into_containers_leave_nothing_behind",
        sessions_into_containers_leave_nothing_behind,
    ),
    Scenario::on_built(
        "a_session_in_which_nothing_moves_ends",
        a_session_in_which_nothing_moves_ends,
    ),
];

const CYCLES: usize = 40;
/// So many go first, so that what is made once is there.
const WARM_UP: usize = 20;
/// By how much the kubelet's resident memory may be larger in the end.
const GROWTH: u64 = 2 << 20;

/// A WebSocket to the kubelet.
struct Socket(StreamOwned<ClientConnection, TcpStream>);

/// A message: its kind, and its bytes.
type Message = (u8, Vec<u8>);
const BINARY: u8 = 2;
const CLOSE: u8 = 8;

impl Socket {
    fn open(kubelet: &KubeletProcess, path: &str, protocol: &str) -> anyhow::Result<Self> {
        let mut stream = connect(kubelet, None)?;
        stream.sock.set_read_timeout(Some(WAIT))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        ensure!(head.starts_with("HTTP/1.1 101 "), "{path} is answered {head}");
        Ok(Self(stream))
    }

    /// Sends a short binary message, under a mask that changes nothing.
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 126);
        let length = length.context("too long")?;
        let frame = [&[0x80 | BINARY, 0x80 | length, 0, 0, 0, 0], bytes].concat();
        Ok(self.0.write_all(&frame)?)
    }

    fn receive(&mut self) -> anyhow::Result<Message> {
        let mut head = [0; 2];
        self.0.read_exact(&mut head)?;
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length)?;
                usize::from(u16::from_be_bytes(length))
            }
            127 => anyhow::bail!("a message that long is not expected"),
            length => usize::from(length),
        };
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok((head[0] & 0xf, bytes))
    }
}

/// Runs a command that gives its input back, and reads to the end.
fn exec(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<()> {
    let path = format!("/exec/default/{name}/app?command=cat&input=1&output=1&error=1");
    let mut socket = Socket::open(kubelet, &path, "v5.channel.k8s.io")?;
    socket.send(b"\x00some words")?;
    socket.send(&[255, 0])?;
    let (mut output, mut status) = (Vec::new(), Vec::new());
    loop {
        match socket.receive()? {
            (BINARY, bytes) if bytes.first() == Some(&1) => output.extend(&bytes[1..]),
            (BINARY, bytes) if bytes.first() == Some(&3) => status.extend(&bytes[1..]),
            (CLOSE, _) => break,
            other => anyhow::bail!("{other:?}"),
        }
    }
    ensure!(output == b"some words", "{}", String::from_utf8_lossy(&output));
    let status = String::from_utf8_lossy(&status).into_owned();
    ensure!(status.contains("\"Success\""), "it ends with {status}");
    Ok(())
}

/// Reads a file of a server in a pod through a forwarded port, over a WebSocket of the kind that
/// runtimes speak themselves.
fn forward(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<()> {
    let path = format!("/portForward/default/{name}?port=8080");
    let mut socket = Socket::open(kubelet, &path, "v4.channel.k8s.io")?;
    socket.send(b"\x00GET /file HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    // The port comes first, in both channels.
    while !String::from_utf8_lossy(&answer).contains("a file") {
        match socket.receive()? {
            (BINARY, bytes) if bytes.first() == Some(&0) => answer.extend(&bytes[1..]),
            (BINARY, bytes) if bytes.len() <= 3 => {}
            other => anyhow::bail!("{other:?} after {}", String::from_utf8_lossy(&answer)),
        }
    }
    Ok(())
}

fn descriptors(kubelet: &KubeletProcess) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", kubelet.pid()))?.count())
}

/// Requests that reach no container, and commands without a stream.
fn what_cannot_be_done_says_why(kubelet: &KubeletProcess, served: &PodView) -> anyhow::Result<()> {
    let PodView { name, uid, .. } = served;
    let streams = "output=1&command=true";
    for (method, path, status, text) in [
        ("POST", format!("/exec/default/no/app?{streams}"), 404, "pod does not exist".to_owned()),
        ("POST", format!("/attach/no/{name}/app?{streams}"), 404, "pod does not exist".to_owned()),
        ("GET", "/portForward/default/no".to_owned(), 404, "pod does not exist".to_owned()),
        ("GET", format!("/portForward/default/{name}/other"), 404, "pod not found".to_owned()),
        (
            "POST",
            format!("/exec/default/{name}/no?{streams}"),
            500,
            "container not found (\"no\")".to_owned(),
        ),
        (
            "POST",
            format!("/exec/default/{name}/other/app?{streams}"),
            500,
            "container not found (\"app\")".to_owned(),
        ),
        (
            "POST",
            format!("/attach/default/{name}/no?{streams}"),
            500,
            format!("container no not found in pod {name}_default"),
        ),
        (
            "POST",
            format!("/exec/default/{name}/{uid}/app?{streams}"),
            500,
            "Upgrade request required\n".to_owned(),
        ),
        (
            "POST",
            format!("/exec/default/{name}/app?command=true"),
            400,
            "you must specify at least 1 of stdin, stdout, stderr".to_owned(),
        ),
        (
            "POST",
            format!("/run/default/{name}/app?cmd=echo+some+words"),
            200,
            "some words\n".to_owned(),
        ),
        (
            "POST",
            format!("/run/default/{name}/{uid}/app?cmd=false"),
            500,
            "command 'false' exited with 1: ".to_owned(),
        ),
        ("POST", "/run/default/no/app?cmd=true".to_owned(), 404, "pod does not exist".to_owned()),
        ("POST", "/checkpoint/default/no/app".to_owned(), 404, "pod does not exist".to_owned()),
        (
            "POST",
            format!("/checkpoint/default/{name}/no"),
            404,
            "container no does not exist".to_owned(),
        ),
    ] {
        assert_eq!(ask(kubelet, None, method, &path)?, (status, text), "{method} {path}");
    }
    Ok(())
}

fn sessions_into_containers_leave_nothing_behind(stage: &Stage) -> anyhow::Result<()> {
    let cycles = std::env::var("RUBELET_STREAMING_CYCLES");
    let cycles = cycles.ok().map(|cycles| cycles.parse()).transpose()?.unwrap_or(CYCLES);
    let kubelet = stage.start_kubelet()?;
    let serve = "mkdir /www; echo a file > /www/file; exec httpd -f -p 8080 -h /www";
    let probe = json!({ "readinessProbe": {
        "httpGet": { "path": "/file", "port": 8080 }, "periodSeconds": 1, "timeoutSeconds": 10,
    }});
    let spec = json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [with(busybox("app", serve), probe)],
    });
    kubelet.write_pod(&pod("served", spec))?;
    let served = kubelet.wait_for_pod("served", "ready", WAIT, |pod| pod.ready)?;
    wait_until_served(&kubelet)?;

    what_cannot_be_done_says_why(&kubelet, &served)?;

    let round = |count: usize| {
        for number in 0..count {
            exec(&kubelet, &served.name).with_context(|| format!("command {number}"))?;
            if number % 2 == 0 {
                forward(&kubelet, &served.name).with_context(|| format!("port {number}"))?;
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    round(WARM_UP)?;
    let at_rest = |most: usize| {
        wait_for("its descriptors to be closed", Duration::from_secs(30), || {
            let open = descriptors(&kubelet).map_err(|error| format!("{error:#}"))?;
            if open <= most { Ok(open) } else { Err(format!("{open} are open")) }
        })
    };
    let (before, open) = (kubelet.usage()?, at_rest(usize::MAX)?);
    round(cycles)?;
    at_rest(open + 1)?;
    let after = kubelet.usage()?;
    let grown = after.resident.saturating_sub(before.resident);
    let figures = format!(
        "after {cycles} commands and {} ports: resident memory {} -> {} KiB, threads {} -> {}, \
         descriptors {open}",
        cycles.div_ceil(2),
        before.resident / 1024,
        after.resident / 1024,
        before.threads,
        after.threads,
    );
    println!("{figures}");
    ensure!(grown <= GROWTH, "{figures}");
    ensure!(after.threads <= before.threads + 2, "{figures}");
    Ok(())
}

fn a_session_in_which_nothing_moves_ends(stage: &Stage) -> anyhow::Result<()> {
    let mut options = stage.kubelet_options();
    options.config = json!({ "streamingConnectionIdleTimeout": "3s" });
    let kubelet = stage.start_kubelet_with(options)?;
    kubelet
        .write_pod(&pod("quiet", json!({ "containers": [busybox("app", "exec sleep 3600")] })))?;
    let quiet = kubelet.wait_for_pod("quiet", "ready", WAIT, |pod| pod.ready)?;
    wait_until_served(&kubelet)?;
    let command = "command=sleep&command=3600&output=1";
    let path = format!("/exec/default/{}/app?{command}", quiet.name);
    let begun = Instant::now();
    let mut socket = Socket::open(&kubelet, &path, "v5.channel.k8s.io")?;
    // However it is ended: a read from a connection that stays open gives up after WAIT.
    while let Ok((kind, _)) = socket.receive()
        && kind != CLOSE
    {}
    let lasted = begun.elapsed();
    ensure!(lasted < WAIT, "it lasts");
    ensure!(lasted >= Duration::from_secs(3), "it ended after {lasted:?}");
    Ok(())
}
