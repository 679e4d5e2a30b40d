//! Lines as klog writes them.

use std::fmt::Write as _;

use jiff::Zoned;
use tracing::{Level, Metadata};

use super::fields::{FieldValue, Fields};

/// `Lmmdd hh:mm:ss.uuuuuu pid file:line] "message" key="value"`, with the line's end.
pub(super) fn line(metadata: &Metadata<'_>, now: &Zoned, pid: u32, fields: &Fields) -> String {
    let severity = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let file = metadata.file().unwrap_or("???");
    let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
    let mut line = String::with_capacity(160);
    // Writing to a text cannot fail.
    let _ = write!(
        line,
        "{severity}{} {pid:>7} {file}:{}] ",
        now.strftime("%m%d %H:%M:%S.%6f"),
        metadata.line().unwrap_or(1),
    );
    push_quoted(&mut line, &fields.message);
    if let Some(error) = &fields.error {
        push_field(&mut line, "err", error);
    }
    for (name, value) in &fields.others {
        match value {
            FieldValue::Text(text) => push_field(&mut line, name, text),
            FieldValue::Number(number) => {
                let _ = write!(line, " {name}={number}");
            }
            FieldValue::Bool(value) => {
                let _ = write!(line, " {name}={value}");
            }
        }
    }
    line.push('\n');
    line
}

/// A text of several lines stays readable: it is indented between `<` and `>`.
fn push_field(line: &mut String, name: &str, value: &str) {
    line.push(' ');
    line.push_str(name);
    line.push('=');
    if !value.contains('\n') {
        push_quoted(line, value);
        return;
    }
    line.push_str("<\n");
    for part in value.strip_suffix('\n').unwrap_or(value).split('\n') {
        line.push('\t');
        line.push_str(part);
        line.push('\n');
    }
    line.push_str(" >");
}

/// In quotes, as Go's `strconv.Quote` does, so that no value can fake a line.
fn push_quoted(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            '\u{7}' => line.push_str("\\a"),
            '\u{8}' => line.push_str("\\b"),
            '\u{b}' => line.push_str("\\v"),
            '\u{c}' => line.push_str("\\f"),
            c if c.is_ascii_control() => {
                let _ = write!(line, "\\x{:02x}", u32::from(c));
            }
            c if is_invisible(c) => {
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line.push('"');
}

/// Characters that change what a terminal shows and are not seen themselves.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
}
