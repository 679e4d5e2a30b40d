use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::transport::{MAX_ANSWER, OpenAnswer};

/// The lines of an answer that goes on.
#[derive(Debug)]
pub(super) struct Lines {
    answer: OpenAnswer,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line's end.
    searched: usize,
    deadline: Instant,
}

/// What was read.
#[derive(Debug)]
pub(super) enum Line {
    Text(Bytes),
    /// The server has ended the answer in order.
    End,
    Broken(String),
    TooLong,
}

impl Lines {
    /// The answer is dead if it goes on beyond `deadline`.
    pub(super) fn new(answer: OpenAnswer, deadline: Instant) -> Self {
        Self { answer, buffer: BytesMut::new(), searched: 0, deadline }
    }

    /// The next line that is not empty.
    pub(super) async fn next(&mut self) -> Line {
        loop {
            let rest = &self.buffer[self.searched..];
            if let Some(offset) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + offset).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                // A large event must not leave its room behind.
                if self.buffer.is_empty() {
                    self.buffer = BytesMut::new();
                }
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Line::Text(line);
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_ANSWER {
                return Line::TooLong;
            }
            match timeout_at(self.deadline, self.answer.body.frame()).await {
                Err(_) => {
                    self.answer.lease.suspect();
                    return Line::Broken("the server did not end it in time".to_owned());
                }
                // A line that was begun is sent again after resuming.
                Ok(None) => return Line::End,
                Ok(Some(Err(error))) => {
                    self.answer.lease.suspect();
                    return Line::Broken(error.to_string());
                }
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The answer has come to its end.
    pub(super) fn finish(self) {
        self.answer.lease.finish();
    }
}
