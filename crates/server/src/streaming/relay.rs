//! Bytes from one connection to another and back.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{Instant, sleep_until};

/// Bytes that are read at once.
pub(super) const PIECE: usize = 16 * 1024;

/// How long the other direction may be still once one has ended: what is left on the way arrives,
/// and whoever has gone altogether is noticed.
const AFTER_THE_END: Duration = Duration::from_secs(60);

/// When something has last moved on a session.
#[derive(Debug)]
pub(super) struct Activity {
    last: Mutex<Instant>,
    idle: Duration,
}

impl Activity {
    pub(super) fn new(idle: Duration) -> Self {
        Self { last: Mutex::new(Instant::now()), idle }
    }

    pub(super) fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns when nothing has moved for the session's time-out, if it has one (0 is none).
    pub(super) async fn until_idle(&self) {
        if self.idle.is_zero() {
            return pending().await;
        }
        self.until_still_for(self.idle).await;
    }

    async fn until_still_for(&self, time: Duration) {
        loop {
            let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(end) = last.checked_add(time) else { return pending().await };
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// Passes bytes on in both directions until both have ended, one is broken, or nothing has moved for
/// too long. The end of one direction is passed on as well.
pub(super) async fn relay(
    one: impl AsyncRead + AsyncWrite + Unpin,
    other: impl AsyncRead + AsyncWrite + Unpin,
    activity: &Activity,
) {
    let (from_one, to_one) = split(one);
    let (from_other, to_other) = split(other);
    let mut there = pin!(pump(from_one, to_other, activity));
    let mut back = pin!(pump(from_other, to_one, activity));
    let (ended, is_there) = tokio::select! {
        ended = &mut there => (ended, true),
        ended = &mut back => (ended, false),
        () = activity.until_idle() => return tracing::debug!("idle streaming session is closed"),
    };
    if let Err(error) = ended {
        return tracing::debug!(%error, "streaming session is broken");
    }
    activity.touch();
    if is_there {
        finish(back, activity).await;
    } else {
        finish(there, activity).await;
    }
}

async fn finish(rest: impl Future<Output = io::Result<()>>, activity: &Activity) {
    tokio::select! {
        result = rest => if let Err(error) = result {
            tracing::debug!(%error, "streaming session is broken");
        },
        () = activity.until_still_for(AFTER_THE_END) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    activity: &Activity,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        activity.touch();
        to.write_all(&piece[..length]).await?;
        to.flush().await?;
        activity.touch();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::timeout;

    use super::*;

    const IDLE: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn each_end_is_passed_on_and_the_other_direction_goes_on() {
        let (mut client, one) = duplex(64);
        let (mut server, other) = duplex(64);
        let session = tokio::spawn(async move {
            relay(one, other, &Activity::new(IDLE)).await;
        });
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = String::new();
        server.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "question");
        // Longer than a buffer holds, after the other direction has ended.
        let answer = vec![b'x'; 1000];
        let (sent, received) = tokio::join!(
            async {
                server.write_all(&answer).await.unwrap();
                server.shutdown().await.unwrap();
            },
            async {
                let mut received = Vec::new();
                client.read_to_end(&mut received).await.unwrap();
                received
            }
        );
        let () = sent;
        assert_eq!(received, answer);
        session.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_that_moves_ends_it_after_the_time_out_and_a_byte_starts_that_anew() {
        let (mut client, one) = duplex(64);
        let (mut server, other) = duplex(64);
        let session = tokio::spawn(async move {
            relay(one, other, &Activity::new(IDLE)).await;
            Instant::now()
        });
        tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
        client.write_all(b"x").await.unwrap();
        server.read_u8().await.unwrap();
        let touched = Instant::now();
        assert_eq!(session.await.unwrap() - touched, IDLE);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_does_not_read_stops_its_own_direction_only() {
        let (mut client, one) = duplex(64);
        let (mut server, other) = duplex(64);
        tokio::spawn(async move { relay(one, other, &Activity::new(IDLE)).await });
        // The server never reads, and the client's bytes pile up as far as the buffers go.
        let flood = vec![0; 10 * PIECE];
        assert!(timeout(Duration::from_secs(5), client.write_all(&flood)).await.is_err());
        server.write_all(b"still here").await.unwrap();
        let mut text = [0; 10];
        client.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"still here");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_gone_for_good_is_not_waited_for() {
        let (client, one) = duplex(64);
        let (server, other) = duplex(64);
        let session = tokio::spawn(async move {
            relay(one, other, &Activity::new(Duration::ZERO)).await;
        });
        drop(client);
        session.await.unwrap();
        drop(server);
    }
}
