use jiff::Timestamp;

/// Which of a container's output streams are wanted (`stream` of `PodLogOptions`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Streams {
    /// Both, in the order in which they were written.
    #[default]
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What is wanted of a log: `PodLogOptions` as far as it concerns one instance's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on with what is written later, until the container has stopped.
    pub follow: bool,
    /// Put the time before each line: RFC 3339 with nine digits, in the zone in which it was written.
    pub timestamps: bool,
    /// Begin with so many lines before the end. The runtime splits long lines; each part counts.
    pub tail_lines: Option<u64>,
    /// End after so many bytes.
    pub limit_bytes: Option<u64>,
    /// Leave out what was written before.
    pub since: Option<Timestamp>,
    /// Which streams.
    pub streams: Streams,
}
