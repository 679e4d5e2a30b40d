//! What the kubelet logs becomes part of the history.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::ledger::Book;

static BOOK: Mutex<Option<Book>> = Mutex::new(None);

/// Log lines that tell of a fault of the kubelet itself.
const FAULTS: [&str; 3] = ["did not come to rest", "panicked", "internal error"];

/// Has everything written to `book` that the kubelet logs. `filter` is in the syntax of `RUST_LOG`.
pub fn start(filter: &str) {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_ansi(false)
        .without_time()
        .with_writer(Lines)
        .finish();
    // A second call finds the first one's subscriber, which does the same.
    let _ = tracing::subscriber::set_global_default(subscriber);
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(book) = &*BOOK.lock().unwrap_or_else(PoisonError::into_inner) {
            book.violation(format!("panic: {panic}"));
        }
        earlier(panic);
    }));
}

pub(crate) fn into_book(book: &Book) {
    *BOOK.lock().unwrap_or_else(PoisonError::into_inner) = Some(book.clone());
}

struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::new())
    }
}

struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        let text = text.trim_end();
        if let Some(book) = &*BOOK.lock().unwrap_or_else(PoisonError::into_inner) {
            book.note(format!("    {text}"));
            if FAULTS.iter().any(|fault| text.contains(fault)) {
                book.violation(text.to_owned());
            }
        }
    }
}
