//! Logs of services, from the journal or from files that are called like them.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::header;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::query::JournalOptions;
use super::{PIECE, open};

const JOURNALCTL: &str = "journalctl";
/// How long a query may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pieces that are read before anybody has taken them.
const AHEAD: usize = 4;

/// Where pieces of an answer go; it fails once nobody wants them any more.
type Pieces = mpsc::Sender<Bytes>;

/// Answers with the logs of `services`. What goes wrong is told in the answer, which has begun.
pub(super) fn serve(
    directory: &'static str,
    services: Vec<String>,
    options: JournalOptions,
) -> Response {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let end = sender.clone();
        let work = collect(directory, services, options, sender);
        if timeout(PATIENCE, work).await.is_err() {
            // Whoever has not taken what there is has no use for this.
            let _ = end.try_send(Bytes::from_static(b"\ncontext error: deadline exceeded\n"));
        }
    });
    let pieces = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (Ok::<_, io::Error>(piece), receiver))
    });
    let kind = [(header::CONTENT_TYPE, "text/plain;charset=UTF-8")];
    (kind, Body::from_stream(pieces)).into_response()
}

async fn collect(
    directory: &'static str,
    services: Vec<String>,
    options: JournalOptions,
    to: Pieces,
) {
    let known = units().await;
    let (in_journal, in_files): (Vec<String>, Vec<String>) =
        services.into_iter().partition(|name| {
            known.lines().any(|unit| unit.strip_suffix(".service") == Some(name.as_str()))
        });
    if !in_journal.is_empty() {
        journal(&options.arguments(&in_journal), &to).await;
    }
    if !in_files.is_empty() && !options.is_empty() {
        let text = format!(
            "\noptions present and query resolved to log files for [{}]\ntry without specifying \
             options\n",
            in_files.join(" ")
        );
        let _ = to.send(Bytes::from(text)).await;
        return;
    }
    for name in in_files {
        if copy_file(directory, &name, &to).await.is_err() {
            return;
        }
    }
}

/// The units of which the journal has anything; none without a journal.
async fn units() -> String {
    let listed = Command::new(JOURNALCTL)
        .args(["--field", "_SYSTEMD_UNIT"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await;
    listed.map(|listed| String::from_utf8_lossy(&listed.stdout).into_owned()).unwrap_or_default()
}

async fn journal(arguments: &[String], to: &Pieces) {
    let started = Command::new(JOURNALCTL)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let child = match started {
        Ok(mut child) => child.stdout.take().zip(child.stderr.take()).map(|pipes| (child, pipes)),
        Err(_) => None,
    };
    let Some((mut child, (stdout, stderr))) = child else {
        let text = Bytes::from_static(b"\nerror: journal output not available\n");
        drop(to.send(text).await);
        return;
    };
    // When nobody wants it any more, both end, and the child with them.
    let _ = tokio::try_join!(copy(stdout, to), copy(stderr, to));
    let _ = child.start_kill();
    let _ = child.wait().await;
}

async fn copy(mut from: impl AsyncRead + Unpin, to: &Pieces) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        let sent = to.send(Bytes::copy_from_slice(&piece[..length])).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    }
}

/// Copies the log file that is called like a service, if there is one.
async fn copy_file(directory: &'static str, name: &str, to: &Pieces) -> io::Result<()> {
    let places = [name.to_owned(), format!("{name}.log"), format!("{name}/{name}.log")];
    let look = move || {
        for place in places {
            match open(Path::new(directory), Path::new(&place)) {
                Ok(file) if file.metadata()?.is_file() => return Ok(Some(file)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    };
    let text = match spawn_blocking(look).await? {
        Ok(Some(file)) => return copy(tokio::fs::File::from_std(file), to).await,
        Ok(None) => format!("\nlog not found for {name}\n"),
        Err(error) => format!("\nerror getting log for {name}: {error}\n"),
    };
    let sent = to.send(Bytes::from(text)).await;
    sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn services_that_the_journal_does_not_know_are_looked_for_in_files() {
        let logs = tempfile::tempdir().unwrap().keep();
        std::fs::write(logs.join("one.log"), "of one\n").unwrap();
        std::fs::create_dir(logs.join("two")).unwrap();
        std::fs::write(logs.join("two/two.log"), "of two\n").unwrap();
        let logs: &'static str = logs.to_str().unwrap().to_owned().leak();
        let names = ["one", "two", "none"].map(|name| format!("rubelet-test-{name}"));
        for name in ["one.log", "two"] {
            let to = Path::new(logs).join(format!("rubelet-test-{name}"));
            std::fs::rename(Path::new(logs).join(name), to).unwrap();
        }
        let two = Path::new(logs).join("rubelet-test-two");
        std::fs::rename(two.join("two.log"), two.join("rubelet-test-two.log")).unwrap();
        let response = serve(logs, names.to_vec(), JournalOptions::default());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let expected = "of one\nof two\n\nlog not found for rubelet-test-none\n";
        assert_eq!(String::from_utf8_lossy(&body), expected);
    }
}
