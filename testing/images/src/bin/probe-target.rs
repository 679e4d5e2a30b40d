//! A server for probes to look at, whose answers can be changed while it runs.
//!
//! `probe-target [--http PORT] [--grpc PORT] [--tcp PORT] [--ready-after SECONDS]`
//!
//! - HTTP: any path answers with the current status (200 at first). `/set/http/CODE` and
//!   `/set/grpc/serving|not-serving` change what is answered; `/delay/SECONDS` answers late;
//!   `/redirect/TARGET` sends the caller to `/TARGET`; `/headers` answers with the request's head.
//! - gRPC: the health service without TLS. The service named `absent` is not known, every other is.
//! - TCP: accepts and closes.
//! - `--ready-after`: HTTP answers 503 for the first seconds.
//!
//! One file and nothing but the standard library: it is also compiled on its own, statically, into
//! a container image.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks on its stdout")]
#![allow(clippy::disallowed_methods, reason = "a threaded server of its own, outside the kubelet")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What is answered from now on.
struct Answers {
    http_status: AtomicU16,
    grpc_serving: AtomicBool,
    ready_at: Instant,
}

fn main() -> ExitCode {
    match serve(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("probe-target: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn serve(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let mut listeners: Vec<(String, TcpListener)> = Vec::new();
    let mut ready_after = 0;
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--ready-after" => {
                ready_after = value.parse().map_err(|_| format!("{flag} {value}: no number"))?;
            }
            "--http" | "--grpc" | "--tcp" => {
                let port: u16 = value.parse().map_err(|_| format!("{flag} {value}: no port"))?;
                let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                    .map_err(|error| format!("port {port}: {error}"))?;
                listeners.push((flag, listener));
            }
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    if listeners.is_empty() {
        return Err("nothing to serve: give --http, --grpc or --tcp".to_owned());
    }

    let answers = Arc::new(Answers {
        http_status: AtomicU16::new(200),
        grpc_serving: AtomicBool::new(true),
        ready_at: Instant::now() + Duration::from_secs(ready_after),
    });
    let acceptors: Vec<_> = listeners
        .into_iter()
        .map(|(kind, listener)| {
            let answers = Arc::clone(&answers);
            println!("{} on {:?}", &kind[2..], listener.local_addr());
            thread::spawn(move || accept(&kind, &listener, &answers))
        })
        .collect();
    for acceptor in acceptors {
        acceptor.join().map_err(|_| "a listener ended".to_owned())?;
    }
    Ok(())
}

fn accept(kind: &str, listener: &TcpListener, answers: &Arc<Answers>) {
    for stream in listener.incoming().flatten() {
        let answers = Arc::clone(answers);
        let kind = kind.to_owned();
        thread::spawn(move || {
            // A caller that hangs up early is no concern of the server.
            let _ = match kind.as_str() {
                "--http" => answer_http(stream, &answers),
                "--grpc" => answer_grpc(stream, &answers),
                _ => Ok(()),
            };
        });
    }
}

fn answer_http(stream: TcpStream, answers: &Answers) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let path = head.split_whitespace().nth(1).unwrap_or("/").to_owned();
    let mut status = answers.http_status.load(Ordering::Relaxed);
    if Instant::now() < answers.ready_at {
        status = 503;
    }
    let mut location = String::new();
    let mut body = format!("{status}\n");
    if let Some(code) = path.strip_prefix("/set/http/").and_then(|code| code.parse().ok()) {
        answers.http_status.store(code, Ordering::Relaxed);
        println!("http answers {code} from now on");
        status = 200;
    } else if let Some(state) = path.strip_prefix("/set/grpc/") {
        answers.grpc_serving.store(state == "serving", Ordering::Relaxed);
        println!("grpc is {state} from now on");
        status = 200;
    } else if let Some(seconds) = path.strip_prefix("/delay/").and_then(|s| s.parse().ok()) {
        thread::sleep(Duration::from_secs(seconds));
    } else if let Some(target) = path.strip_prefix("/redirect/") {
        status = 302;
        location = format!("Location: /{target}\r\n");
    } else if path == "/headers" {
        body = head;
    }
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 {status} Answer\r\nContent-Type: text/plain\r\n{location}Content-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Frame types and flags of HTTP/2 that a health check needs.
mod h2 {
    pub(super) const PREFACE: usize = 24;
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const END_STREAM: u8 = 0x1;
    pub(super) const ACK: u8 = 0x1;
    pub(super) const END_HEADERS: u8 = 0x4;
    pub(super) const PADDED: u8 = 0x8;
    /// The largest frame a peer may send to somebody who announced nothing else.
    pub(super) const MAX_FRAME: usize = 16_384;
}

/// Answers every unary call as `grpc.health.v1.Health/Check`.
fn answer_grpc(mut stream: TcpStream, answers: &Answers) -> io::Result<()> {
    let mut preface = [0; h2::PREFACE];
    stream.read_exact(&mut preface)?;
    send_frame(&mut stream, h2::SETTINGS, 0, 0, &[])?;
    // One call at a time, as probes make them.
    let mut message = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        if length > h2::MAX_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload)?;
        match kind {
            h2::SETTINGS if flags & h2::ACK == 0 => {
                send_frame(&mut stream, h2::SETTINGS, h2::ACK, 0, &[])?;
            }
            h2::PING if flags & h2::ACK == 0 => {
                send_frame(&mut stream, h2::PING, h2::ACK, 0, &payload)?;
            }
            h2::GOAWAY => return Ok(()),
            h2::DATA => {
                // A caller may close its stream with a frame of its own, which is empty.
                message.extend_from_slice(data_of(&payload, flags));
                if flags & h2::END_STREAM != 0 {
                    answer_check(&mut stream, id, &std::mem::take(&mut message), answers)?;
                }
            }
            h2::HEADERS if flags & h2::END_STREAM != 0 => {
                answer_check(&mut stream, id, &[], answers)?;
            }
            _ => {}
        }
    }
}

/// What a DATA frame carries, without the padding.
fn data_of(payload: &[u8], flags: u8) -> &[u8] {
    if flags & h2::PADDED == 0 {
        return payload;
    }
    let Some((&padding, data)) = payload.split_first() else { return &[] };
    &data[..data.len().saturating_sub(usize::from(padding))]
}

fn answer_check(
    stream: &mut TcpStream,
    id: u32,
    message: &[u8],
    answers: &Answers,
) -> io::Result<()> {
    // ":status: 200" by its index in the static table; "content-type" by its name's index.
    let mut headers = vec![0x88, 0x0f, 0x10, 16];
    headers.extend_from_slice(b"application/grpc");
    let trailers = |status: &[u8; 1]| {
        let mut block = vec![0x00, 11];
        block.extend_from_slice(b"grpc-status");
        block.push(1);
        block.extend_from_slice(status);
        block
    };
    if requested_service(message) == Some(b"absent") {
        headers.extend_from_slice(&trailers(b"5"));
        return send_frame(stream, h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, id, &headers);
    }
    let state = if answers.grpc_serving.load(Ordering::Relaxed) { 1 } else { 2 };
    send_frame(stream, h2::HEADERS, h2::END_HEADERS, id, &headers)?;
    send_frame(stream, h2::DATA, 0, id, &[0, 0, 0, 0, 2, 0x08, state])?;
    send_frame(stream, h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, id, &trailers(b"0"))
}

/// The `service` of a `HealthCheckRequest`: field 1, the only one there is.
fn requested_service(message: &[u8]) -> Option<&[u8]> {
    let request = message.get(5..)?;
    let (&[0x0a, length], rest) = request.split_at_checked(2)? else { return None };
    rest.get(..usize::from(length))
}

fn send_frame(
    stream: &mut TcpStream,
    kind: u8,
    flags: u8,
    id: u32,
    payload: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut frame = Vec::with_capacity(9 + payload.len());
    frame.extend_from_slice(&length.to_be_bytes()[1..]);
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&id.to_be_bytes());
    frame.extend_from_slice(payload);
    stream.write_all(&frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_read_from_the_message() {
        assert_eq!(requested_service(&[]), None);
        assert_eq!(requested_service(&[0, 0, 0, 0, 0]), None);
        assert_eq!(requested_service(b"\0\0\0\0\x08\x0a\x06absent"), Some(&b"absent"[..]));
        assert_eq!(requested_service(b"\0\0\0\0\x08\x0a\x09absent"), None, "a length that lies");
    }

    #[test]
    fn padding_is_no_data() {
        assert_eq!(data_of(b"abc", 0), b"abc");
        assert_eq!(data_of(b"\x02abcd", h2::PADDED), b"ab");
        assert_eq!(data_of(b"\x09ab", h2::PADDED), b"", "a length that lies");
        assert_eq!(data_of(b"", h2::PADDED), b"");
    }

    #[test]
    fn flags_are_checked() {
        let serve_with = |args: &[&str]| serve(args.iter().map(|arg| arg.to_string()));
        assert_eq!(serve_with(&["--http"]), Err("--http needs a value".to_owned()));
        assert_eq!(serve_with(&["--http", "x"]), Err("--http x: no port".to_owned()));
        assert!(serve_with(&[]).is_err_and(|text| text.starts_with("nothing to serve")));
    }
}
