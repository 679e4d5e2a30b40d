//! From the bytes of a log file to those that somebody asked for, piece by piece.

use memchr::memchr;

use crate::head::{DockerLine, Head, LineTime, NoHead, Stream};
use crate::options::{LogOptions, Streams};

/// Where in a line the input stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before a line.
    Start,
    /// In its text; the head is done with.
    Text { is_shown: bool, is_partial: bool },
    /// In a line that is not understood, to its end.
    Unreadable,
}

/// Turns lines into output. It holds no text: a line may be of any length.
#[derive(Debug)]
pub(crate) struct Renderer {
    options: LogOptions,
    remaining: u64,
    place: Place,
    /// The output ends with a newline, or has not begun.
    at_line_start: bool,
}

impl Renderer {
    pub(crate) fn new(options: LogOptions) -> Self {
        let remaining = options.limit_bytes.unwrap_or(u64::MAX);
        Self { options, remaining, place: Place::Start, at_line_start: true }
    }

    /// Nothing more is wanted.
    pub(crate) fn is_done(&self) -> bool {
        self.remaining == 0
    }

    /// What comes next is the beginning of a file: of a line whose end is missing there is no more.
    pub(crate) fn begin_file(&mut self) {
        self.place = Place::Start;
    }

    /// Appends to `out` what `input` gives, until `out` is `room` long. Answers how much of it is
    /// used up; the rest is to be shown again with what follows it, unless `is_last`, which says that
    /// the input cannot become longer.
    pub(crate) fn render(
        &mut self,
        input: &[u8],
        is_last: bool,
        out: &mut Vec<u8>,
        room: usize,
    ) -> usize {
        let mut used = 0;
        while used < input.len() && out.len() < room && !self.is_done() {
            let rest = &input[used..];
            let taken = match self.place {
                Place::Start => self.begin_line(rest, is_last, out, room),
                Place::Text { is_shown, is_partial } => {
                    let newline = memchr(b'\n', rest);
                    let end = newline.map_or(rest.len(), |at| at + 1);
                    // Not more than fits, or what is not shown as a whole.
                    let end = if is_shown { end.min(room - out.len()) } else { end };
                    let text = &rest[..end];
                    let is_end = newline.is_some_and(|at| at + 1 == end);
                    if is_end {
                        self.place = Place::Start;
                    }
                    if is_shown {
                        self.show(
                            text.strip_suffix(b"\n").filter(|_| is_partial).unwrap_or(text),
                            out,
                        );
                    }
                    end
                }
                Place::Unreadable => match memchr(b'\n', rest) {
                    Some(at) => {
                        self.place = Place::Start;
                        at + 1
                    }
                    None => rest.len(),
                },
            };
            if taken == 0 && self.place == Place::Start {
                break;
            }
            used += taken;
        }
        used
    }

    /// Reads the beginning of a line, or all of a short one; 0 if there is too little of it.
    fn begin_line(&mut self, rest: &[u8], is_last: bool, out: &mut Vec<u8>, room: usize) -> usize {
        if rest[0] == b'{' {
            return self.docker_line(rest, is_last, out);
        }
        let newline = memchr(b'\n', &rest[..rest.len().min(crate::head::MAX_HEAD)]);
        let line = newline.map_or(rest, |at| &rest[..at]);
        match Head::parse(line) {
            Ok(head) => {
                let is_shown = self.wants(head.stream, &head.time);
                if is_shown {
                    self.show_time(&head.time, out);
                }
                // Most lines end here, and need not be searched for their end again.
                if let Some(at) = newline
                    && (!is_shown || out.len() + at < room)
                {
                    if is_shown {
                        let end = if head.is_partial { at } else { at + 1 };
                        self.show(&rest[head.length..end], out);
                    }
                    return at + 1;
                }
                self.place = Place::Text { is_shown, is_partial: head.is_partial };
                head.length
            }
            Err(NoHead::Incomplete) if newline.is_none() && !is_last => 0,
            Err(_) => {
                self.place = Place::Unreadable;
                0
            }
        }
    }

    /// Such a line is understood as a whole, or not at all.
    fn docker_line(&mut self, rest: &[u8], is_last: bool, out: &mut Vec<u8>) -> usize {
        let newline = memchr(b'\n', rest);
        if newline.is_none() && !is_last {
            return 0;
        }
        let end = newline.unwrap_or(rest.len());
        if let Some(line) = DockerLine::parse(&rest[..end])
            && let (Some(stream), Some(time)) = (line.stream(), line.time())
        {
            if self.wants(stream, &time) {
                self.show_time(&time, out);
                self.show(line.text(), out);
            }
            return newline.map_or(end, |at| at + 1);
        }
        self.place = Place::Unreadable;
        0
    }

    fn wants(&self, stream: Stream, time: &LineTime<'_>) -> bool {
        let streams = match self.options.streams {
            Streams::All => true,
            Streams::Stdout => stream == Stream::Stdout,
            Streams::Stderr => stream == Stream::Stderr,
        };
        streams
            && self.options.since.is_none_or(|since| time.moment().is_none_or(|time| time >= since))
    }

    fn show_time(&mut self, time: &LineTime<'_>, out: &mut Vec<u8>) {
        if self.options.timestamps && self.at_line_start {
            let before = out.len();
            time.write(out);
            out.push(b' ');
            let length = (out.len() - before) as u64;
            // It counts as what it stands before does.
            let kept = usize::try_from(length.min(self.remaining)).unwrap_or_default();
            out.truncate(before + kept);
            self.remaining -= kept as u64;
            self.at_line_start = false;
        }
    }

    fn show(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let length = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(text.len());
        let text = &text[..length];
        self.remaining -= length as u64;
        out.extend_from_slice(text);
        if let Some(last) = text.last() {
            self.at_line_start = *last == b'\n';
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: &str = "\
2026-01-01T00:00:00.1Z stdout F one\n\
2026-01-01T00:00:01.1Z stderr F two\n\
garbage\n\
2026-01-01T00:00:02.1Z stdout P th\n\
2026-01-01T00:00:02.2Z stdout P:x re\n\
2026-01-01T00:00:02.3Z stdout F e\n\
\n\
{\"log\":\"four\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-01T00:00:03Z\"}\n\
{\"log\":\"fi\",\"stream\":\"stderr\",\"time\":\"2026-01-01T00:00:04Z\"}\n\
{\"log\":\"ve\\n\",\"stream\":\"stderr\",\"time\":\"2026-01-01T00:00:04.5Z\"}\n\
{\"broken\": \n\
2026-01-01T00:00:05Z stdout F \n\
2026-01-01T00:00:06Z stdout F last";

    /// Renders `log` as if it were read in pieces of `piece` bytes into output of `room`.
    fn render(log: &[u8], options: LogOptions, piece: usize, room: usize) -> Vec<u8> {
        let mut renderer = Renderer::new(options);
        let (mut seen, mut used, mut output) = (0, 0, Vec::new());
        while !renderer.is_done() {
            let mut out = Vec::new();
            let is_last = seen == log.len();
            let taken = renderer.render(&log[used..seen], is_last, &mut out, room);
            used += taken;
            assert!(out.len() < room + 64, "{} in a room of {room}", out.len());
            output.extend(out);
            if taken == 0 {
                if is_last {
                    break;
                }
                seen = (seen + piece).min(log.len());
            }
        }
        output
    }

    fn text(options: LogOptions) -> String {
        String::from_utf8(render(LOG.as_bytes(), options, LOG.len(), 1 << 16)).unwrap()
    }

    #[test]
    fn options_choose_what_is_shown() {
        let all = LogOptions::default;
        assert_eq!(text(all()), "one\ntwo\nthree\nfour\nfive\n\nlast");
        assert_eq!(
            text(LogOptions { streams: Streams::Stdout, ..all() }),
            "one\nthree\nfour\n\nlast"
        );
        assert_eq!(text(LogOptions { streams: Streams::Stderr, ..all() }), "two\nfive\n");
        let since = Some("2026-01-01T00:00:03Z".parse().unwrap());
        assert_eq!(text(LogOptions { since, ..all() }), "four\nfive\n\nlast");
        assert_eq!(text(LogOptions { limit_bytes: Some(6), ..all() }), "one\ntw");
        assert_eq!(
            text(LogOptions { timestamps: true, limit_bytes: Some(150), ..all() }),
            "2026-01-01T00:00:00.100000000Z one\n2026-01-01T00:00:01.100000000Z two\n\
             2026-01-01T00:00:02.100000000Z three\n2026-01-01T00:00:03.000000000Z four\n\
             2026-01"
        );
    }

    #[test]
    fn a_time_counts_among_the_bytes() {
        let options =
            LogOptions { timestamps: true, limit_bytes: Some(4), ..LogOptions::default() };
        assert_eq!(text(options), "2026");
    }

    #[test]
    fn a_file_that_begins_does_not_go_on_where_the_last_one_broke_off() {
        let mut renderer = Renderer::new(LogOptions::default());
        let mut out = Vec::new();
        let broken = b"2026-01-01T00:00:00Z stdout F brok";
        assert_eq!(renderer.render(broken, false, &mut out, 100), broken.len());
        renderer.begin_file();
        let next = b"2026-01-01T00:00:00Z stdout F next\n";
        assert_eq!(renderer.render(next, false, &mut out, 100), next.len());
        assert_eq!(out, b"broknext\n");
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            piece in 1_usize..80,
            room in 1_usize..80,
            timestamps: bool,
            limit_bytes in proptest::option::of(1_u64..300),
            stream in 0_usize..3,
        ) {
            let streams = [Streams::All, Streams::Stdout, Streams::Stderr][stream];
            let options = LogOptions { timestamps, limit_bytes, streams, ..LogOptions::default() };
            let whole = render(LOG.as_bytes(), options.clone(), LOG.len(), 1 << 16);
            prop_assert_eq!(render(LOG.as_bytes(), options, piece, room), whole);
        }

        #[test]
        fn anything_ends(log in proptest::collection::vec(any::<u8>(), 0..400), piece in 1_usize..50) {
            let whole = render(&log, LogOptions::default(), log.len().max(1), 1 << 16);
            prop_assert_eq!(render(&log, LogOptions::default(), piece, 16), whole);
        }
    }
}
