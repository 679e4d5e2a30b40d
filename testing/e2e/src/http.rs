//! The few lines of HTTP that reading a kubelet's ports takes.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;

use crate::namespaces::Namespaces;

const TIMEOUT: Duration = Duration::from_secs(20);

/// `GET path` from inside the namespaces: the status and the body.
pub(crate) fn get(
    namespaces: &Namespaces,
    address: SocketAddr,
    path: &str,
) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut stream = namespaces
        .connect(address, TIMEOUT)
        .with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // HTTP/1.0: the body ends where the connection ends, and is never in chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: */*\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("cannot read {address}{path}"))?;
    parse(&answer).with_context(|| format!("{address}{path} answered no HTTP"))
}

fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[end + 4..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_taken_apart() {
        let answer = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nok\r\n\r\n";
        assert_eq!(parse(answer), Some((200, b"ok\r\n\r\n".to_vec())));
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\n"), None);
    }
}
