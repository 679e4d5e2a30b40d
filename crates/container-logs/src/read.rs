//! Reading one instance's log, from one generation of its files to the next. Everything here blocks.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use flate2::read::MultiGzDecoder;
use rubelet_linux::path::PathError;

use crate::directory::LogDirectory;
use crate::error::LogError;
use crate::generation::{Form, Rotated, Stamp};
use crate::options::LogOptions;
use crate::render::Renderer;
use crate::tail::last_lines;

/// How much is read at once. A line of Docker's has to fit into it: 16 KiB of text, each byte of which
/// may have been written as six.
const INPUT: usize = 128 * 1024;

/// How much output one step makes.
const OUTPUT: usize = 64 * 1024;

/// How much one step reads at most, however little of it is wanted: in between it can be dropped.
const INPUT_OF_STEP: usize = 8 * 1024 * 1024;

/// A listing and what was found by it may be overtaken by a rotation so often.
const TRIES: usize = 8;

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Step {
    /// There may be more at once. The output can be empty.
    Output(Vec<u8>),
    /// The limit of bytes is reached, or the end of what is wanted without following.
    Done,
    /// The end of the file is reached, as it is now.
    AtEnd(Option<Successor>),
}

/// The log was rotated: another file follows the one that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Successor {
    /// The name that the file which is read has now; none if it is gone, or compressed.
    pub(crate) own_name: Option<OsString>,
    /// Its writer is done with it for certain: it is not the last one that was rotated.
    pub(crate) is_settled: bool,
    next: Next,
}

impl Successor {
    /// `newest` is the last one that was rotated.
    fn of(own_name: Option<OsString>, rotated: Option<Rotated>, newest: Option<Stamp>) -> Self {
        let is_settled = own_name.is_none() || rotated.is_some();
        let next = rotated.map_or(Next::Current { after: newest }, Next::Rotated);
        Self { own_name, is_settled, next }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Rotated(Rotated),
    /// The log that was begun after that one was rotated.
    Current {
        after: Option<Stamp>,
    },
}

/// A file that is being read.
struct Generation {
    source: Source,
    /// How far it was read; of a compressed one this means nothing.
    position: u64,
    /// When it was rotated, if it was opened as a rotated one.
    stamp: Option<Stamp>,
    /// The last one that had been rotated when it was opened as the log that is written.
    rotated_before: Option<Stamp>,
}

enum Source {
    Plain(File),
    Compressed(Box<MultiGzDecoder<File>>),
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buf),
            Self::Compressed(decoder) => decoder.read(buf),
        }
    }
}

/// Reads a log step by step.
pub(crate) struct Reader {
    directory: LogDirectory,
    generation: Generation,
    /// What was read and is not used up begins at `used`.
    input: Vec<u8>,
    used: usize,
    renderer: Renderer,
    /// Without following: where the file ended when it was opened.
    stop_at: Option<u64>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens the log that is written, and goes to where the options begin.
    ///
    /// With `or_rotated` what was rotated last will do where there is no such file: a rotation was
    /// interrupted, and the container has ended before it went on.
    pub(crate) fn open(
        directory: LogDirectory,
        options: LogOptions,
        or_rotated: bool,
    ) -> Result<Self, LogError> {
        let mut generation = match open_current(&directory) {
            Err(LogError::Open { source, path }) if or_rotated && source.is_not_found() => {
                open_last_rotated(&directory)?.ok_or(LogError::Open { source, path })?
            }
            opened => opened?,
        };
        let mut stop_at = None;
        if let Source::Plain(file) = &mut generation.source {
            let read = |source| LogError::Read { path: directory.path_of(directory.log()), source };
            let length = file.metadata().map_err(read)?.len();
            let wanted = match options.tail_lines {
                Some(lines) => last_lines(file, length, lines).map_err(read)?,
                None => 0..length,
            };
            generation.position = file.seek(SeekFrom::Start(wanted.start)).map_err(read)?;
            stop_at = (!options.follow).then_some(wanted.end);
        }
        let renderer = Renderer::new(options);
        Ok(Self { directory, generation, input: Vec::new(), used: 0, renderer, stop_at })
    }

    /// The name of the log that is written.
    pub(crate) fn log_name(&self) -> OsString {
        self.directory.log().to_owned()
    }

    /// Reads on until there is a good deal of output, or no more input.
    pub(crate) fn step(&mut self) -> Result<Step, LogError> {
        let mut out = Vec::new();
        let mut may_read = INPUT_OF_STEP;
        let mut is_at_end = false;
        loop {
            if self.used < self.input.len() {
                if out.capacity() == 0 {
                    out.reserve(OUTPUT.min(self.input.len() * 2));
                }
                let is_last = is_at_end && self.stop_at.is_some();
                let input = &self.input[self.used..];
                let mut used = self.renderer.render(input, is_last, &mut out, OUTPUT);
                if used == 0 && input.len() >= INPUT {
                    // What does not fit into the buffer does not become longer.
                    used = self.renderer.render(input, true, &mut out, OUTPUT);
                }
                self.used += used;
            }
            if self.renderer.is_done() {
                return Ok(if out.is_empty() { Step::Done } else { Step::Output(out) });
            }
            if out.len() >= OUTPUT || may_read == 0 {
                return Ok(Step::Output(out));
            }
            if is_at_end {
                break;
            }
            let read = self.read_more()?;
            is_at_end = read == 0;
            may_read = may_read.saturating_sub(read);
        }
        if !out.is_empty() {
            return Ok(Step::Output(out));
        }
        if self.stop_at.is_some() {
            return Ok(Step::Done);
        }
        // Who waits keeps no buffer, but for the piece of a line that waits with him.
        self.compact();
        self.input.shrink_to_fit();
        if self.was_truncated()? {
            self.start_again()?;
            return Ok(Step::Output(out));
        }
        self.successor().map(Step::AtEnd)
    }

    fn compact(&mut self) {
        self.input.drain(..self.used);
        self.used = 0;
    }

    fn read_more(&mut self) -> Result<usize, LogError> {
        self.compact();
        let mut room = (INPUT - self.input.len().min(INPUT)) as u64;
        if let Some(end) = self.stop_at {
            room = room.min(end.saturating_sub(self.generation.position));
        }
        if room == 0 {
            return Ok(0);
        }
        let read = (&mut self.generation.source).take(room).read_to_end(&mut self.input);
        let read = read.map_err(|source| self.read_error(source))?;
        self.generation.position += read as u64;
        Ok(read)
    }

    fn read_error(&self, source: io::Error) -> LogError {
        LogError::Read { path: self.directory.path_of(self.directory.log()), source }
    }

    fn open_error(&self, source: PathError) -> LogError {
        LogError::Open { path: self.directory.path_of(self.directory.log()), source }
    }

    /// Somebody else than the kubelet made the file shorter.
    fn was_truncated(&self) -> Result<bool, LogError> {
        match &self.generation.source {
            Source::Plain(file) => {
                let length = file.metadata().map_err(|source| self.read_error(source))?.len();
                Ok(length < self.generation.position)
            }
            Source::Compressed(_) => Ok(false),
        }
    }

    fn start_again(&mut self) -> Result<(), LogError> {
        if let Source::Plain(file) = &mut self.generation.source {
            let rewound = file.rewind();
            rewound.map_err(|source| self.read_error(source))?;
        }
        self.begin_file();
        self.generation.position = 0;
        Ok(())
    }

    fn begin_file(&mut self) {
        self.renderer.begin_file();
        self.input.clear();
        self.used = 0;
    }

    /// What follows the file that is read, if it is not the one that is written any more.
    fn successor(&self) -> Result<Option<Successor>, LogError> {
        let own = match &self.generation.source {
            Source::Plain(file) => Some(file.metadata().map_err(|source| self.read_error(source))?),
            Source::Compressed(_) => None,
        };
        let is_written = match self.directory.open_file(self.directory.log()) {
            Ok(current) => {
                let current = current.metadata().map_err(|source| self.read_error(source))?;
                if own.as_ref().is_some_and(|own| is_same(own, &current)) {
                    return Ok(None);
                }
                true
            }
            // Renamed, and not opened anew yet; or removed.
            Err(error) if error.is_not_found() => false,
            Err(error) => return Err(self.open_error(error)),
        };
        let known = self.generation.stamp.or(self.generation.rotated_before);
        let all = self.directory.generations().map_err(|source| self.open_error(source))?;
        // One that still stands under the name it was opened by is none of the later ones, even if
        // these ended within the same tick of the kernel's clock.
        let stands = self
            .generation
            .stamp
            .is_some_and(|stamp| all.iter().any(|rotated| rotated.stamp == stamp));
        let newest = all.last().map(|rotated| rotated.stamp);
        let later: Vec<Rotated> =
            all.into_iter().filter(|rotated| Some(rotated.stamp) > known).collect();
        let first_form = match (later.first(), &own) {
            (Some(first), Some(own)) if !stands => self.is_own(first, own)?,
            _ => None,
        };
        let log = self.directory.log();
        let (own_name, later) = match (first_form, later.split_first()) {
            (Some(Form::Plain), Some((first, others))) => (Some(first.name(log)), others),
            (Some(_), Some((_, others))) => (None, others),
            _ => {
                // By the name it was opened by, if it has not been compressed since.
                let stamp = self.generation.stamp.filter(|_| own.is_some());
                let name = stamp.map(|stamp| Rotated { stamp, form: Form::Plain }.name(log));
                (name, &later[..])
            }
        };
        if later.is_empty() && !is_written {
            return Ok(None);
        }
        Ok(Some(Successor::of(own_name, later.first().copied(), newest)))
    }

    /// The form in which the file that is read was rotated to `rotated`, if it was. A compressed file
    /// has the time of what it was made of.
    fn is_own(&self, rotated: &Rotated, own: &Metadata) -> Result<Option<Form>, LogError> {
        let found = match self.directory.open_file(&rotated.name(self.directory.log())) {
            Ok(file) => file.metadata().map_err(|source| self.read_error(source))?,
            Err(_) => return Ok(None),
        };
        let is_it = match rotated.form {
            Form::Plain => is_same(own, &found),
            Form::Compressed | Form::Temporary => {
                (own.mtime(), own.mtime_nsec()) == (found.mtime(), found.mtime_nsec())
            }
        };
        Ok(is_it.then_some(rotated.form))
    }

    /// Goes on with what follows. False if that was renamed meanwhile: then it is to be looked for
    /// again.
    pub(crate) fn advance(&mut self, to: &Successor) -> Result<bool, LogError> {
        let opened = match to.next {
            Next::Current { .. } => open_current(&self.directory),
            Next::Rotated(rotated) => open_rotated(&self.directory, rotated),
        };
        self.generation = match opened {
            Ok(generation) => match to.next {
                // What followed was rotated itself, and this is the one after it.
                Next::Current { after } if after != generation.rotated_before => return Ok(false),
                _ => generation,
            },
            Err(LogError::Open { source, .. }) if source.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        };
        self.begin_file();
        Ok(true)
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Opens the log that is written, and what was rotated last before it.
fn open_current(directory: &LogDirectory) -> Result<Generation, LogError> {
    let failed = |source| LogError::Open { path: directory.path_of(directory.log()), source };
    let newest = || {
        let generations = directory.generations().map_err(failed)?;
        Ok(generations.last().map(|rotated| rotated.stamp))
    };
    let mut rotated_before = newest()?;
    let mut tries = 0;
    loop {
        let file = directory.open_file(directory.log()).map_err(failed)?;
        let after = newest()?;
        tries += 1;
        if after == rotated_before || tries == TRIES {
            let source = Source::Plain(file);
            return Ok(Generation { source, position: 0, stamp: None, rotated_before });
        }
        rotated_before = after;
    }
}

/// Opens what was rotated last, if that was not compressed.
fn open_last_rotated(directory: &LogDirectory) -> Result<Option<Generation>, LogError> {
    let failed = |source| LogError::Open { path: directory.path_of(directory.log()), source };
    let last = directory.generations().map_err(failed)?.pop();
    let last = last.filter(|rotated| rotated.form == Form::Plain);
    last.map(|rotated| open_rotated(directory, rotated)).transpose()
}

fn open_rotated(directory: &LogDirectory, rotated: Rotated) -> Result<Generation, LogError> {
    let name = rotated.name(directory.log());
    let file = directory
        .open_file(&name)
        .map_err(|source| LogError::Open { path: directory.path_of(&name), source })?;
    let source = match rotated.form {
        Form::Plain => Source::Plain(file),
        Form::Compressed | Form::Temporary => {
            Source::Compressed(Box::new(MultiGzDecoder::new(file)))
        }
    };
    Ok(Generation { source, position: 0, stamp: Some(rotated.stamp), rotated_before: None })
}
