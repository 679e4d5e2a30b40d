use std::time::Duration;

/// Renders a duration as Go's `time.Duration` does (`1m30s`, `1.5s`, `10ms`), which is the form
/// that configuration, messages and events carry.
pub fn format_go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return format!("{}µs", decimal(nanos, 1_000));
    }
    if nanos < 1_000_000_000 {
        return format!("{}ms", decimal(nanos, 1_000_000));
    }
    let total_seconds = duration.as_secs();
    let (hours, minutes) = (total_seconds / 3600, total_seconds / 60 % 60);
    let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000);
    if hours > 0 {
        format!("{hours}h{minutes}m{seconds}s")
    } else if minutes > 0 {
        format!("{minutes}m{seconds}s")
    } else {
        format!("{seconds}s")
    }
}

fn decimal(value: u128, unit: u128) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let fraction = format!("{rest:0width$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

/// Renders a text as Go's `%q` does: in quotes, with Go's escapes. Files of the downward API carry
/// labels and annotations in this form.
pub fn quote_go(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            ' '..='~' => quoted.push(character),
            '\0'..='\x7f' => quoted.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ if is_printable(character) => quoted.push(character),
            '\0'..='\u{ffff}' => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => quoted.push_str(&format!("\\U{:08x}", u32::from(character))),
        }
    }
    quoted.push('"');
    quoted
}

/// The standard library knows it, and tells by what it escapes. Behind a letter, because at the
/// beginning of a text it escapes combining marks too.
fn is_printable(character: char) -> bool {
    let mut shown = String::from("a");
    shown.push(character);
    !shown.escape_debug().any(|escaped| escaped == '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_like_go() {
        for (nanos, expected) in [
            (0, "0s"),
            (15, "15ns"),
            (1_500, "1.5µs"),
            (10_000_000, "10ms"),
            (1_500_000_000, "1.5s"),
            (90_000_000_000, "1m30s"),
            (300_000_000_000, "5m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (3_661_000_000_001, "1h1m1.000000001s"),
        ] {
            assert_eq!(format_go_duration(Duration::from_nanos(nanos)), expected);
        }
    }

    #[test]
    fn quotes_like_go() {
        for (text, expected) in [
            ("", r#""""#),
            ("it's", r#""it's""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1b}\u{7f}", r#""\x00\x1b\x7f""#),
            ("é漢\u{301}😀", "\"é漢\u{301}😀\""),
            ("\u{a0}\u{200b}\u{e000}", r#""\u00a0\u200b\ue000""#),
            ("\u{e0001}", r#""\U000e0001""#),
        ] {
            assert_eq!(quote_go(text), expected, "{text:?}");
        }
    }
}
