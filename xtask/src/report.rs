//! How the commands talk to a person.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// A new chapter.
pub(crate) fn heading(text: &str) {
    println!("\n{text}\n{}", "-".repeat(text.chars().count()));
}

/// One line about something that was done or found.
pub(crate) fn say(text: impl Display) {
    println!("  {text}");
    flush();
}

/// The start of something that takes a while.
pub(crate) fn begin(text: impl Display) {
    print!("  {text} ... ");
    flush();
}

/// Its end.
pub(crate) fn end(text: impl Display) {
    println!("{text}");
    flush();
}

/// Whether a person can see lines being redrawn.
pub(crate) fn is_interactive() -> bool {
    std::io::stdout().is_terminal()
}

pub(crate) fn flush() {
    // Nobody reads any more: the next thing that matters will say so.
    let _ = std::io::stdout().flush();
}
