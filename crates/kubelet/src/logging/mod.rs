//! The log: lines as the Go kubelet writes them, text (klog) or JSON, so that what people and
//! collectors already have keeps working.
//!
//! Which level a line has follows from the `tracing` level and from who writes it:
//!
//! | `tracing` level | our crates | libraries |
//! |---|---|---|
//! | error, warn | always | always |
//! | info | always | `-v 4` |
//! | debug | `-v 4` | `-v 8` |
//! | trace | `-v 6` | `-v 10` |
//!
//! Fields of the spans around an event (pod, namespace, uid) stand behind the event's own fields.
//! Each line is written at once and whole; there is nothing to flush.

mod fields;
mod json;
mod text;
mod threshold;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::tz::TimeZone;
use rubelet_config::LoggingConfiguration;
use rubelet_types::Clock;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{Interest, SetGlobalDefaultError, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber, span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

use fields::Fields;
use threshold::Thresholds;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// `I1130 07:48:45.123456   12345 main.rs:42] "Message" key="value"`.
    Text,
    /// `{"ts":1700000000000.1,"caller":"kubelet/main.rs:10","msg":"Message","v":0,"key":"value"}`.
    Json,
}

/// What the log should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// How a line looks.
    pub(crate) format: LogFormat,
    /// Lines up to this level are written.
    pub(crate) verbosity: u32,
    /// Levels of some files: pattern and level. See [`threshold`].
    pub(crate) vmodule: Vec<(String, u32)>,
    /// Errors go to standard error and everything else to standard output; else all goes to
    /// standard error.
    pub(crate) split_stream: bool,
}

impl From<&LoggingConfiguration> for LogOptions {
    fn from(config: &LoggingConfiguration) -> Self {
        let (format, routing) = if config.format == "json" {
            (LogFormat::Json, &config.options.json)
        } else {
            (LogFormat::Text, &config.options.text)
        };
        Self {
            format,
            verbosity: config.verbosity,
            vmodule: config
                .vmodule
                .iter()
                .map(|item| (item.file_pattern.clone(), item.verbosity))
                .collect(),
            split_stream: routing.split_stream,
        }
    }
}

/// Changes the log level while the kubelet runs (`PUT /debug/flags/v`).
#[derive(Clone, Debug)]
pub(crate) struct LogHandle {
    thresholds: Arc<Thresholds>,
}

impl LogHandle {
    /// Sets the level. The levels of single files stay.
    pub(crate) fn set_verbosity(&self, verbosity: u32) {
        self.thresholds.set_verbosity(verbosity);
        tracing::callsite::rebuild_interest_cache();
    }

    /// The level.
    pub(crate) fn verbosity(&self) -> u32 {
        self.thresholds.verbosity()
    }
}

/// Makes this the log of the whole process. Fails if there is one already.
pub(crate) fn init(options: &LogOptions, clock: Clock) -> Result<LogHandle, SetGlobalDefaultError> {
    let output = if options.split_stream {
        Output { info: sink(io::stdout()), errors: Some(sink(io::stderr())) }
    } else {
        Output { info: sink(io::stderr()), errors: None }
    };
    let layer = LogLayer::new(options, clock, TimeZone::system(), output);
    let handle = layer.handle();
    set_global_default(Registry::default().with(layer))?;
    Ok(handle)
}

type Sink = Mutex<Box<dyn Write + Send>>;

fn sink(writer: impl Write + Send + 'static) -> Sink {
    Mutex::new(Box::new(writer))
}

/// Where lines go.
struct Output {
    info: Sink,
    /// Another place for errors.
    errors: Option<Sink>,
}

impl Output {
    fn write(&self, level: Level, line: &str) {
        let sink = match &self.errors {
            Some(errors) if level == Level::ERROR => errors,
            _ => &self.info,
        };
        let mut writer = sink.lock().unwrap_or_else(PoisonError::into_inner);
        // There is no better place to complain about a log that cannot be written.
        let _ = writer.write_all(line.as_bytes()).and_then(|()| writer.flush());
    }
}

/// Turns events into lines.
struct LogLayer {
    format: LogFormat,
    thresholds: Arc<Thresholds>,
    clock: Clock,
    /// The text format shows local time.
    time_zone: TimeZone,
    pid: u32,
    output: Output,
}

impl LogLayer {
    fn new(options: &LogOptions, clock: Clock, time_zone: TimeZone, output: Output) -> Self {
        Self {
            format: options.format,
            thresholds: Arc::new(Thresholds::new(options.verbosity, options.vmodule.clone())),
            clock,
            time_zone,
            pid: std::process::id(),
            output,
        }
    }

    fn handle(&self) -> LogHandle {
        LogHandle { thresholds: Arc::clone(&self.thresholds) }
    }
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level can change at any time.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.thresholds.enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.thresholds.most_detailed())
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in ctx.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.add_missing(outer);
            }
        }
        let metadata = event.metadata();
        let now = self.clock.now();
        let line = match self.format {
            LogFormat::Text => {
                let local = now.to_zoned(self.time_zone.clone());
                text::line(metadata, &local, self.pid, &fields)
            }
            LogFormat::Json => json::line(metadata, now, &fields),
        };
        self.output.write(*metadata.level(), &line);
    }
}

#[cfg(test)]
mod tests;
