//! The head of a log line in the CRI's format: `<time> <stream> <tags> <text>`.

use jiff::Timestamp;
use memchr::memchr;
use serde::Deserialize;

/// The longest head: a time, a stream, and more tags than there will be.
pub(crate) const MAX_HEAD: usize = 1024;

/// A stream of a container's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// What stands before the text of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) time: LineTime<'a>,
    pub(crate) stream: Stream,
    /// The line goes on in the next one of its stream: its end is not the end of a line.
    pub(crate) is_partial: bool,
    /// Where the text begins.
    pub(crate) length: usize,
}

/// Why there is no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHead {
    /// What is there may be the beginning of one.
    Incomplete,
    /// It is none.
    Invalid,
}

impl<'a> Head<'a> {
    /// Reads the head of `line`, of which the end may be missing, but which ends before a newline.
    pub(crate) fn parse(line: &'a [u8]) -> Result<Self, NoHead> {
        let (time, rest) = field(line)?;
        let time = LineTime::parse(time).ok_or(NoHead::Invalid)?;
        let (stream, rest) = field(rest)?;
        let stream = Stream::parse(stream).ok_or(NoHead::Invalid)?;
        let (tags, text) = field(rest)?;
        // The first tag is the only one that means something today; others may follow.
        let first = tags.split(|byte| *byte == b':').next().unwrap_or_default();
        Ok(Self { time, stream, is_partial: first == b"P", length: line.len() - text.len() })
    }
}

/// What is before the next space, and what is behind it.
fn field(bytes: &[u8]) -> Result<(&[u8], &[u8]), NoHead> {
    let area = &bytes[..bytes.len().min(MAX_HEAD)];
    match memchr(b' ', area) {
        Some(space) => Ok((&bytes[..space], &bytes[space + 1..])),
        None if bytes.len() < MAX_HEAD => Err(NoHead::Incomplete),
        None => Err(NoHead::Invalid),
    }
}

impl Stream {
    fn parse(name: &[u8]) -> Option<Self> {
        match name {
            b"stdout" => Some(Self::Stdout),
            b"stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// The time of a line, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineTime<'a> {
    text: &'a [u8],
    /// The digits behind the seconds.
    fraction: &'a [u8],
    zone: &'a [u8],
}

/// Length of a time up to its whole seconds.
const SECONDS: usize = "2026-11-30T14:40:31".len();

impl<'a> LineTime<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let (seconds, rest) = text.split_at_checked(SECONDS)?;
        let shaped = seconds.iter().zip(b"dddd-dd-ddTdd:dd:dd").all(|(byte, shape)| match shape {
            b'd' => byte.is_ascii_digit(),
            fixed => byte == fixed,
        });
        let (fraction, zone) = match rest.strip_prefix(b".") {
            None => (&rest[..0], rest),
            Some(rest) => {
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                (digits > 0).then(|| rest.split_at(digits))?
            }
        };
        let has_zone = match zone {
            b"Z" => true,
            [b'+' | b'-', rest @ ..] => {
                rest.len() == 5
                    && rest[2] == b':'
                    && [0, 1, 3, 4].iter().all(|at| rest[*at].is_ascii_digit())
            }
            _ => false,
        };
        (shaped && has_zone).then_some(Self { text, fraction, zone })
    }

    /// Writes it with nine digits, so that the times of lines stand below each other.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.text[..SECONDS]);
        out.push(b'.');
        out.extend((0..9).map(|digit| self.fraction.get(digit).copied().unwrap_or(b'0')));
        match self.zone {
            b"+00:00" | b"-00:00" => out.push(b'Z'),
            zone => out.extend_from_slice(zone),
        }
    }

    /// The moment; none for one that is not in the calendar.
    pub(crate) fn moment(&self) -> Option<Timestamp> {
        std::str::from_utf8(self.text).ok()?.parse().ok()
    }
}

/// A line as Docker's json-file driver writes it. Its text ends with the newline that it had, if the
/// line was not split.
#[derive(Debug, Deserialize)]
pub(crate) struct DockerLine<'a> {
    #[serde(default, borrow)]
    log: std::borrow::Cow<'a, str>,
    #[serde(default)]
    stream: &'a str,
    #[serde(default)]
    time: &'a str,
}

impl DockerLine<'_> {
    pub(crate) fn parse(line: &[u8]) -> Option<DockerLine<'_>> {
        serde_json::from_slice(line).ok()
    }

    pub(crate) fn text(&self) -> &[u8] {
        self.log.as_bytes()
    }

    pub(crate) fn stream(&self) -> Option<Stream> {
        Stream::parse(self.stream.as_bytes())
    }

    pub(crate) fn time(&self) -> Option<LineTime<'_>> {
        LineTime::parse(self.time.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<(String, Stream, bool, &str), NoHead> {
        let head = Head::parse(line.as_bytes())?;
        let mut time = Vec::new();
        head.time.write(&mut time);
        let time = String::from_utf8(time).unwrap();
        Ok((time, head.stream, head.is_partial, &line[head.length..]))
    }

    #[test]
    fn lines_of_the_cri_are_understood() {
        for (line, time, stream, is_partial, text) in [
            (
                "2016-10-06T00:17:09.669794202Z stdout P log content 1",
                "2016-10-06T00:17:09.669794202Z",
                Stream::Stdout,
                true,
                "log content 1",
            ),
            (
                "2016-10-06T00:17:09.66979+02:00 stderr F  two  spaces ",
                "2016-10-06T00:17:09.669790000+02:00",
                Stream::Stderr,
                false,
                " two  spaces ",
            ),
            (
                "2016-10-06T00:17:09Z stdout F ",
                "2016-10-06T00:17:09.000000000Z",
                Stream::Stdout,
                false,
                "",
            ),
            (
                "2016-10-06T00:17:09.1234567891+00:00 stdout P:new:tags x",
                "2016-10-06T00:17:09.123456789Z",
                Stream::Stdout,
                true,
                "x",
            ),
            (
                "2016-10-06T00:17:09Z stdout F:P x",
                "2016-10-06T00:17:09.000000000Z",
                Stream::Stdout,
                false,
                "x",
            ),
        ] {
            assert_eq!(parsed(line), Ok((time.to_owned(), stream, is_partial, text)), "{line}");
        }
    }

    #[test]
    fn what_is_no_line_is_told_from_what_may_become_one() {
        for line in ["", "2016-10-06T0", "2016-10-06T00:17:09Z", "2016-10-06T00:17:09Z stdout"] {
            assert_eq!(parsed(line), Err(NoHead::Incomplete), "{line}");
        }
        let long = "x".repeat(MAX_HEAD);
        for line in [
            "no time stdout F x",
            "2016-10-06 00:17:09Z stdout F x",
            "2016-10-06T00:17:09 stdout F x",
            "2016-10-06T00:17:09.Z stdout F x",
            "2016-10-06T00:17:09+2:00 stdout F x",
            "2016-10-06T00:17:09Z stdin F x",
            "\0\0\0\0 x",
            &long,
        ] {
            assert_eq!(parsed(line), Err(NoHead::Invalid), "{line}");
        }
    }

    #[test]
    fn a_time_is_a_moment_in_its_zone() {
        let moment = |line: &str| Head::parse(line.as_bytes()).unwrap().time.moment();
        assert_eq!(
            moment("2016-10-06T02:17:09.5+02:00 stdout F x"),
            Some("2016-10-06T00:17:09.5Z".parse().unwrap())
        );
        assert_eq!(moment("2016-13-06T02:17:09Z stdout F x"), None);
    }

    #[test]
    fn lines_of_docker_are_understood() {
        let line =
            br#"{"log":"a \"b\"\n","stream":"stderr","time":"2016-10-20T18:39:20.57606443Z"}"#;
        let line = DockerLine::parse(line).unwrap();
        assert_eq!(line.text(), b"a \"b\"\n");
        assert_eq!(line.stream(), Some(Stream::Stderr));
        let mut time = Vec::new();
        line.time().unwrap().write(&mut time);
        assert_eq!(time, b"2016-10-20T18:39:20.576064430Z");
        assert!(DockerLine::parse(b"{\"log\": 1}").is_none());
        assert!(DockerLine::parse(b"{\"log\": \"unfinished").is_none());
    }
}
