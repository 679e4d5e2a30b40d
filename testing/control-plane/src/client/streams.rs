//! Answers that come bit by bit: watches, logs, and commands in containers.

use std::ops::ControlFlow;

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, HOST, HeaderName, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::{Client, Connected};

/// The channels of `v4.channel.k8s.io`.
const STDOUT: u8 = 1;
const ERROR: u8 = 3;

impl Client {
    /// The same somebody at another server whose certificate the same authority signed, such as a
    /// kubelet.
    #[must_use]
    pub fn at(mut self, address: std::net::SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Reads a watch, or any other answer of JSON lines, until `seen` breaks it off or it ends.
    ///
    /// # Errors
    /// When the answer is not 2xx, breaks, or has a line that is not JSON.
    pub async fn watch(
        &self,
        path: &str,
        mut seen: impl FnMut(Value) -> ControlFlow<()>,
    ) -> anyhow::Result<()> {
        let (mut answer, _connection) = self.open(path, &[]).await?;
        let mut rest = Vec::new();
        while let Some(frame) = answer.frame().await {
            let Ok(data) = frame.context("the watch broke")?.into_data() else { continue };
            rest.extend_from_slice(&data);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                if seen(serde_json::from_slice(&line).context("a line of no JSON")?).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads an answer to its end, and says how many bytes it had.
    ///
    /// # Errors
    /// When the answer is not 2xx, or breaks.
    pub async fn download(&self, path: &str) -> anyhow::Result<u64> {
        let (mut answer, _connection) = self.open(path, &[]).await?;
        let mut bytes = 0;
        while let Some(frame) = answer.frame().await {
            if let Ok(data) = frame.context("the answer broke")?.into_data() {
                bytes += data.len() as u64;
            }
        }
        Ok(bytes)
    }

    /// Runs the command that the path of an `exec` subresource names, over a WebSocket, and returns
    /// what it wrote to standard output. Its connection is its own, as every exec's is.
    ///
    /// # Errors
    /// When it cannot be run, or fails.
    pub async fn exec(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let key = BASE64_STANDARD.encode(rand::random::<[u8; 16]>());
        let headers = [
            (CONNECTION, "Upgrade"),
            (UPGRADE, "websocket"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, key.as_str()),
            (SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io"),
        ];
        let (answer, _connection) = self.answer(path, &headers).await?;
        ensure!(answer.status() == StatusCode::SWITCHING_PROTOCOLS, "{path}: {}", answer.status());
        let stream = hyper::upgrade::on(answer).await.context("no WebSocket")?;
        read_channels(TokioIo::new(stream)).await.with_context(|| path.to_owned())
    }

    async fn open(
        &self,
        path: &str,
        headers: &[(HeaderName, &str)],
    ) -> anyhow::Result<(Incoming, Abort)> {
        let (answer, connection) = self.answer(path, headers).await?;
        let status = answer.status();
        let mut body = answer.into_body();
        if !status.is_success() {
            let why =
                body.frame().await.and_then(Result::ok).and_then(|frame| frame.into_data().ok());
            bail!(
                "{path} was answered with {status}: {}",
                String::from_utf8_lossy(&why.unwrap_or_default())
            );
        }
        Ok((body, connection))
    }

    async fn answer(
        &self,
        path: &str,
        headers: &[(HeaderName, &str)],
    ) -> anyhow::Result<(Response<Incoming>, Abort)> {
        let mut request =
            Request::get(path).header(HOST, self.address.to_string()).header(ACCEPT, "*/*");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new()).context("not a request")?;
        match self.connect().await? {
            Connected::Plain(stream) => ask(stream, request).await,
            Connected::Tls(stream) => ask(stream, request).await,
        }
    }
}

/// Ends the connection with the answer.
struct Abort(tokio::task::AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> anyhow::Result<(Response<Incoming>, Abort)> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = Abort(tokio::spawn(connection.with_upgrades()).abort_handle());
    Ok((sender.send_request(request).await?, connection))
}

/// Reads the frames of a server, which are not masked, up to the one that says how the command ended.
async fn read_channels(mut stream: impl AsyncRead + Unpin) -> anyhow::Result<Vec<u8>> {
    let mut stdout = Vec::new();
    loop {
        let head = [stream.read_u8().await?, stream.read_u8().await?];
        let length = match head[1] & 0x7f {
            126 => u64::from(stream.read_u16().await?),
            127 => stream.read_u64().await?,
            short => u64::from(short),
        };
        let mut payload = Vec::new();
        (&mut stream).take(length).read_to_end(&mut payload).await?;
        match (head[0] & 0x0f, payload.split_first()) {
            (1 | 2, Some((&STDOUT, data))) => stdout.extend_from_slice(data),
            (1 | 2, Some((&ERROR, data))) => {
                let status: Value = serde_json::from_slice(data).context("no status")?;
                ensure!(status["status"] == "Success", "{status}");
                return Ok(stdout);
            }
            (8, _) => bail!("closed without a status"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(frames: &[u8]) -> anyhow::Result<String> {
        Ok(String::from_utf8(read_channels(frames).await?)?)
    }

    #[tokio::test]
    async fn standard_output_is_put_together_until_the_command_has_ended() {
        let end = br#"{"status":"Success"}"#;
        let mut frames = vec![0x82, 1, 1, 0x82, 3, STDOUT, b'h', b'i', 0x82, 3, 2, b'n', b'o'];
        frames.extend([0x82, 126, 0, 2, STDOUT, b'!', 0x82, 21, ERROR]);
        frames.extend(end);
        assert_eq!(read(&frames).await.expect("a whole answer"), "hi!");
        let failed = br#"{"status":"Failure"}"#;
        let mut frames = vec![0x82, 21, ERROR];
        frames.extend(failed);
        assert!(read(&frames).await.is_err());
        assert!(read(&[0x88, 0]).await.is_err());
    }
}
