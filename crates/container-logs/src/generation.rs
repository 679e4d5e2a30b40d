//! The names of a log's files: the one that is written, and those that were rotated.

use std::ffi::{OsStr, OsString};
use std::fmt;

use jiff::civil::DateTime;

const COMPRESSED: &str = ".gz";
const TEMPORARY: &str = ".tmp";
const FORMAT: &str = "%Y%m%d-%H%M%S";

/// When a file was rotated, as its name tells: `YYYYMMDD-hhmmss` in the node's time. Later ones are
/// greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Stamp([u8; 15]);

impl Stamp {
    pub(crate) fn of(time: DateTime) -> Option<Self> {
        Self::parse(&time.strftime(FORMAT).to_string())
    }

    /// The time; none if it is not in the calendar.
    pub(crate) fn time(&self) -> Option<DateTime> {
        DateTime::strptime(FORMAT, std::str::from_utf8(&self.0).ok()?).ok()
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 15] = text.as_bytes().try_into().ok()?;
        let is_one = bytes.iter().enumerate().all(|(at, byte)| match at {
            8 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
        is_one.then_some(Self(bytes))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a rotated file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// The log as it was written.
    Plain,
    /// The same, compressed by gzip.
    Compressed,
    /// What a rotation was writing when it was interrupted.
    Temporary,
}

/// A rotated file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rotated {
    pub(crate) stamp: Stamp,
    pub(crate) form: Form,
}

impl Rotated {
    /// Reads the name of an entry beside the log `log`. What has another form was made by somebody
    /// else.
    pub(crate) fn parse(log: &OsStr, entry: &OsStr) -> Option<Self> {
        let rest = entry.to_str()?.strip_prefix(log.to_str()?)?.strip_prefix('.')?;
        let (stamp, form) = match (rest.strip_suffix(COMPRESSED), rest.strip_suffix(TEMPORARY)) {
            (Some(stamp), _) => (stamp, Form::Compressed),
            (_, Some(stamp)) => (stamp, Form::Temporary),
            _ => (rest, Form::Plain),
        };
        Some(Self { stamp: Stamp::parse(stamp)?, form })
    }

    /// Its name.
    pub(crate) fn name(&self, log: &OsStr) -> OsString {
        let suffix = match self.form {
            Form::Plain => "",
            Form::Compressed => COMPRESSED,
            Form::Temporary => TEMPORARY,
        };
        let mut name = log.to_owned();
        name.push(format!(".{}{suffix}", self.stamp));
        name
    }
}

/// The rotated files of a log that hold something, each once, oldest first.
pub(crate) fn kept_generations(log: &OsStr, entries: &[OsString]) -> Vec<Rotated> {
    let mut kept: Vec<Rotated> = entries
        .iter()
        .filter_map(|entry| Rotated::parse(log, entry))
        .filter(|rotated| rotated.form != Form::Temporary)
        .collect();
    // Of a compressed one the original may still be there: the order of forms puts it first.
    kept.sort();
    kept.dedup_by_key(|rotated| rotated.stamp);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_upstream() {
        let log = OsStr::new("0.log");
        let stamp = Stamp::of(jiff::civil::date(2026, 1, 2).at(3, 4, 5, 999_999_999)).unwrap();
        for (form, name) in [
            (Form::Plain, "0.log.20260102-030405"),
            (Form::Compressed, "0.log.20260102-030405.gz"),
            (Form::Temporary, "0.log.20260102-030405.tmp"),
        ] {
            let rotated = Rotated { stamp, form };
            assert_eq!(rotated.name(log), name);
            assert_eq!(Rotated::parse(log, OsStr::new(name)), Some(rotated));
        }
        for other in [
            "0.log",
            "0.log.",
            "0.log.gz",
            "0.log.20260102",
            "0.log.20260102-030405.gz.tmp",
            "0.log.20260102-030405.bz2",
            "0.log.2026010x-030405",
            "10.log.20260102-030405",
        ] {
            assert_eq!(Rotated::parse(log, OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_generation_counts_once_and_the_oldest_comes_first() {
        let names = [
            "0.log",
            "0.log.20260103-000000.tmp",
            "0.log.20260102-000000",
            "0.log.20260101-000000.gz",
            "0.log.20260102-000000.gz",
            "1.log.20250101-000000",
        ];
        let entries = names.map(OsString::from);
        let kept = kept_generations(OsStr::new("0.log"), &entries);
        let names: Vec<_> = kept.iter().map(|rotated| rotated.name(OsStr::new("0.log"))).collect();
        assert_eq!(names, ["0.log.20260101-000000.gz", "0.log.20260102-000000"]);
    }
}
