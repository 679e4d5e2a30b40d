use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rubelet_types::format_go_duration;
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration as Go writes it (`1m30s`, `1.5s`, `100ms`, `-1s`): signed, in nanoseconds. This is
/// the form of every duration in `KubeletConfiguration` and in flags.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// A text that is no Go duration. The texts are those of Go's `time.ParseDuration`, which users
/// know and search for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// Neither number nor unit, or beyond the range of 290 years.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number without a unit.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit that does not exist.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

impl GoDuration {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// `seconds` seconds.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// `millis` thousandths of a second.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// `nanos` nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds; negative if the duration is.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// As a duration for timers: negative counts as zero.
    pub fn as_duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// It is exactly zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// It is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseDurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut nanos = 0_i128;
        while !rest.is_empty() {
            let number_end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(|| ParseDurationError::MissingUnit(text.to_owned()))?;
            let (number, tail) = rest.split_at(number_end);
            let unit_end =
                tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
                return Err(invalid());
            }
            let unit_nanos = unit_nanos(unit).ok_or_else(|| ParseDurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: text.to_owned(),
            })?;
            nanos = amount(whole, fraction, unit_nanos)
                .and_then(|part| nanos.checked_add(part))
                .ok_or_else(invalid)?;
            rest = tail;
        }
        let signed = if negative { -nanos } else { nanos };
        i64::try_from(signed).map(Self).map_err(|_| invalid())
    }
}

fn unit_nanos(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        // Both characters that people take for a micro sign.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `whole.fraction` units in nanoseconds, cut off below one; none if it cannot be a duration.
fn amount(whole: &str, fraction: &str, unit_nanos: i128) -> Option<i128> {
    let whole = if whole.is_empty() { 0 } else { i128::from(whole.parse::<u64>().ok()?) };
    // Digits beyond the eighteenth are far below a nanosecond, even of an hour.
    let fraction = &fraction[..fraction.len().min(18)];
    let mut nanos = whole.checked_mul(unit_nanos)?;
    if !fraction.is_empty() {
        let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        nanos += fraction.parse::<i128>().ok()? * unit_nanos / scale;
    }
    (nanos <= 1 << 63).then_some(nanos)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let magnitude = Duration::from_nanos(self.0.unsigned_abs());
        write!(f, "{sign}{}", format_go_duration(magnitude))
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DurationVisitor { numbers_are_nanoseconds: false })
    }
}

/// `logging.flushFrequency` is older than the other durations: a bare number is accepted too, and
/// means nanoseconds.
pub(crate) fn text_or_nanoseconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<GoDuration, D::Error> {
    deserializer.deserialize_any(DurationVisitor { numbers_are_nanoseconds: true })
}

struct DurationVisitor {
    numbers_are_nanoseconds: bool,
}

impl Visitor<'_> for DurationVisitor {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"1m30s\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GoDuration, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, nanos: i64) -> Result<GoDuration, E> {
        if self.numbers_are_nanoseconds {
            Ok(GoDuration(nanos))
        } else {
            Err(E::invalid_type(Unexpected::Signed(nanos), &self))
        }
    }

    fn visit_u64<E: serde::de::Error>(self, nanos: u64) -> Result<GoDuration, E> {
        match i64::try_from(nanos) {
            Ok(nanos) => self.visit_i64(nanos),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(nanos), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("-0", 0),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            ("100ms", 100_000_000),
            ("-1m", -60_000_000_000),
            ("+5s", 5_000_000_000),
            ("1us", 1_000),
            ("1\u{b5}s", 1_000),
            ("1\u{3bc}s", 1_000),
            (".5h", 1_800_000_000_000),
            ("5.s", 5_000_000_000),
            ("1h1h", 7_200_000_000_000),
            ("0.0000000001s", 0),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap().as_nanos(), nanos, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses_in_the_same_words() {
        for (text, expected) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("s", "time: invalid duration \"s\""),
            (".s", "time: invalid duration \".s\""),
            ("10", "time: missing unit in duration \"10\""),
            ("1x", "time: unknown unit \"x\" in duration \"1x\""),
            ("1 s", "time: unknown unit \" s\" in duration \"1 s\""),
            ("1.2.3s", "time: invalid duration \"1.2.3s\""),
            ("--1s", "time: invalid duration \"--1s\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn prints_as_go_prints() {
        for (nanos, text) in [
            (0, "0s"),
            (90_000_000_000, "1m30s"),
            (-1_500_000_000, "-1.5s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration::from_nanos(nanos).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn printing_parses_back(nanos in any::<i64>()) {
            let duration = GoDuration::from_nanos(nanos);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>().unwrap(), duration);
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.a-zµ ]{0,24}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
