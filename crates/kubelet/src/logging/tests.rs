use std::error::Error;
use std::fmt;

use jiff::Timestamp;
use rubelet_config::VModuleItem;
use tracing::{debug, error, info, info_span, trace, warn};

use super::*;

/// What was written to one stream.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn options(format: LogFormat) -> LogOptions {
    LogOptions { format, verbosity: 0, vmodule: Vec::new(), split_stream: false }
}

fn layer(options: &LogOptions, output: Output) -> LogLayer {
    let clock = Clock::from_fn(|| "2026-11-30T07:48:45.123456789Z".parse::<Timestamp>().unwrap());
    let time_zone = TimeZone::fixed(jiff::tz::offset(2));
    LogLayer { pid: 12345, ..LogLayer::new(options, clock, time_zone, output) }
}

/// What `events` write, with the line numbers taken out.
fn log(options: &LogOptions, events: impl FnOnce(&LogHandle)) -> String {
    let written = Written::default();
    let layer = layer(options, Output { info: sink(written.clone()), errors: None });
    let handle = layer.handle();
    tracing::subscriber::with_default(Registry::default().with(layer), || events(&handle));
    let text = written.take();
    let mut result = String::new();
    let mut parts = text.split("tests.rs:");
    result.push_str(parts.next().unwrap());
    for part in parts {
        result.push_str("tests.rs:N");
        result.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    result
}

fn text(events: impl FnOnce(&LogHandle)) -> String {
    log(&options(LogFormat::Text), events)
}

#[derive(Debug)]
struct Failure(Option<Box<Failure>>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "it failed" } else { "disk is full" })
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
    }
}

fn failure() -> Failure {
    Failure(Some(Box::new(Failure(None))))
}

#[test]
fn text_lines_look_like_klog() {
    let lines = text(|_| {
        info!(pod = "default/web", count = 3, ratio = 0.5, ready = true, "Starting container");
        warn!("Odd");
        error!(attempt = 2, error = &failure() as &dyn Error, "Could not start");
    });
    assert_eq!(
        lines,
        "I1130 09:48:45.123456   12345 tests.rs:N] \"Starting container\" pod=\"default/web\" \
         count=3 ratio=0.5 ready=true\n\
         W1130 09:48:45.123456   12345 tests.rs:N] \"Odd\"\n\
         E1130 09:48:45.123456   12345 tests.rs:N] \"Could not start\" err=\"it failed: disk is \
         full\" attempt=2\n"
    );
}

#[test]
fn a_field_may_be_called_message() {
    let written = text(|_| info!(reason = "Pulled", message = "it is there", "Event occurred"));
    let end = "\"Event occurred\" reason=\"Pulled\" message=\"it is there\"\n";
    assert!(written.ends_with(end), "{written}");
}

#[test]
fn no_value_can_fake_a_line() {
    let lines = text(|_| {
        info!(value = "a\"b\\\t\u{1b}[0m\u{202e}é", many = "one\ntwo\n", "first\nE1130 fake");
    });
    assert_eq!(
        lines,
        "I1130 09:48:45.123456   12345 tests.rs:N] \"first\\nE1130 fake\" \
         value=\"a\\\"b\\\\\\t\\x1b[0m\\u202eé\" many=<\n\tone\n\ttwo\n >\n"
    );
}

#[test]
fn spans_say_what_it_is_about() {
    let lines = text(|_| {
        let outer =
            info_span!("sync", pod = "web", namespace = "default", uid = tracing::field::Empty);
        let _entered = outer.enter();
        outer.record("uid", "u-1");
        info_span!("container", container = "app", pod = "other").in_scope(|| {
            info!(container = "mine", "Working");
        });
        info!("Done");
    });
    assert_eq!(
        lines,
        "I1130 09:48:45.123456   12345 tests.rs:N] \"Working\" container=\"mine\" pod=\"web\" \
         namespace=\"default\" uid=\"u-1\"\n\
         I1130 09:48:45.123456   12345 tests.rs:N] \"Done\" pod=\"web\" namespace=\"default\" \
         uid=\"u-1\"\n"
    );
}

#[test]
fn json_lines_look_like_kubernetes() {
    let lines = log(&options(LogFormat::Json), |handle| {
        handle.set_verbosity(4);
        info_span!("sync", pod = "web").in_scope(|| {
            info!(count = 3, ready = true, name = "a\"b\n", "Starting");
        });
        debug!("Details");
        error!(error = %failure(), attempt = 2, "Could not start");
    });
    assert_eq!(
        lines,
        "{\"ts\":1796024925123.4568,\"caller\":\"kubelet/tests.rs:N\",\"msg\":\"Starting\",\"v\":0,\
         \"count\":3,\"ready\":true,\"name\":\"a\\\"b\\n\",\"pod\":\"web\"}\n\
         {\"ts\":1796024925123.4568,\"caller\":\"kubelet/tests.rs:N\",\"msg\":\"Details\",\"v\":4}\n\
         {\"ts\":1796024925123.4568,\"caller\":\"kubelet/tests.rs:N\",\"msg\":\"Could not start\",\
         \"attempt\":2,\"err\":\"it failed\"}\n"
    );
    for line in lines.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

/// The messages that are written at a level.
fn messages_at(verbosity: u32, vmodule: &[(&str, u32)]) -> Vec<String> {
    let options = LogOptions {
        verbosity,
        vmodule: vmodule.iter().map(|(p, v)| ((*p).to_owned(), *v)).collect(),
        ..options(LogFormat::Text)
    };
    log(&options, |_| {
        error!("error");
        info!("info");
        debug!("debug");
        trace!("trace");
        warn!(target: "h2::codec", "h2-warn");
        info!(target: "h2::codec", "h2-info");
        debug!(target: "h2::codec", "h2-debug");
        trace!(target: "h2::codec", "h2-trace");
    })
    .lines()
    .map(|line| line.split('"').nth(1).unwrap().to_owned())
    .collect()
}

#[test]
fn verbosity_decides_by_level_and_origin() {
    assert_eq!(messages_at(0, &[]), ["error", "info", "h2-warn"]);
    assert_eq!(messages_at(3, &[]), messages_at(0, &[]));
    assert_eq!(messages_at(4, &[]), ["error", "info", "debug", "h2-warn", "h2-info"]);
    assert_eq!(messages_at(6, &[]), ["error", "info", "debug", "trace", "h2-warn", "h2-info"]);
    assert_eq!(messages_at(8, &[]).last().unwrap(), "h2-debug");
    assert_eq!(messages_at(10, &[]).last().unwrap(), "h2-trace");
}

#[test]
fn single_files_can_have_another_level() {
    assert_eq!(messages_at(0, &[("tests", 4)]), ["error", "info", "debug", "h2-warn", "h2-info"]);
    assert_eq!(
        messages_at(0, &[("codec", 8)]),
        ["error", "info", "h2-warn", "h2-info", "h2-debug"]
    );
    assert_eq!(messages_at(0, &[("other", 10)]), ["error", "info", "h2-warn"]);
}

#[test]
fn the_level_changes_while_running() {
    let lines = text(|handle| {
        for verbosity in [0, 4, 0] {
            handle.set_verbosity(verbosity);
            assert_eq!(handle.verbosity(), verbosity);
            debug!(verbosity, "Details");
        }
    });
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert!(lines.ends_with("\"Details\" verbosity=4\n"));
}

#[test]
fn streams_split_by_severity() {
    let (info_stream, error_stream) = (Written::default(), Written::default());
    let output =
        Output { info: sink(info_stream.clone()), errors: Some(sink(error_stream.clone())) };
    let layer = layer(&options(LogFormat::Text), output);
    tracing::subscriber::with_default(Registry::default().with(layer), || {
        info!("good");
        warn!("odd");
        error!("bad");
    });
    let out = info_stream.take();
    assert!(out.contains("good") && out.contains("odd") && !out.contains("bad"));
    let err = error_stream.take();
    assert!(err.contains("bad") && err.lines().count() == 1);
}

#[test]
fn options_follow_the_configuration() {
    let mut config = LoggingConfiguration { verbosity: 3, ..Default::default() };
    let item = VModuleItem { file_pattern: "pods*".to_owned(), verbosity: 7 };
    config.vmodule.push(item);
    config.options.json.split_stream = true;
    let options = LogOptions::from(&config);
    assert_eq!((options.format, options.verbosity), (LogFormat::Text, 3));
    assert_eq!(options.vmodule, [("pods*".to_owned(), 7)]);
    assert!(!options.split_stream, "only the chosen format's options count");
    config.format = "json".to_owned();
    let options = LogOptions::from(&config);
    assert_eq!(options.format, LogFormat::Json);
    assert!(options.split_stream);
    config.options.json.split_stream = false;
    config.options.text.split_stream = true;
    assert!(!LogOptions::from(&config).split_stream);
    config.format = "text".to_owned();
    assert!(LogOptions::from(&config).split_stream);
}
