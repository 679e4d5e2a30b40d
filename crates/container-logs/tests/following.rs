//! Readers and the rotation on a real directory, with a runtime that is a struct.

#![allow(clippy::unwrap_used)] // Clippy takes helpers outside of test functions for production code.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use futures_util::{Stream, StreamExt};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rubelet_container_logs::{
    LogError, LogOptions, LogReader, LogRotation, LogRuntime, RotationPolicy, RunningContainer,
};
use rubelet_cri::{CriError, CriErrorKind, Rpc};
use rubelet_types::{Clock, ContainerId};
use tempfile::TempDir;
use tokio::time::timeout;

/// What takes longer than this does not come, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A runtime with one container.
#[derive(Clone)]
struct Runtime(Arc<Container>);

struct Container {
    root: TempDir,
    log: PathBuf,
    file: Mutex<Option<File>>,
    /// What was written before the log was opened anew comes out afterwards, as it does when a pipe
    /// still holds it.
    held_back: Mutex<Vec<u8>>,
    runs: AtomicBool,
    reopens: AtomicBool,
    rotations: AtomicU32,
    writes: AtomicU32,
}

impl Runtime {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("ns_pod_uid/app");
        fs::create_dir_all(&dir).unwrap();
        let log = dir.join("0.log");
        let file = open_log(&log);
        Self(Arc::new(Container {
            root,
            log,
            file: Mutex::new(Some(file)),
            held_back: Mutex::default(),
            runs: AtomicBool::new(true),
            reopens: AtomicBool::new(true),
            rotations: AtomicU32::new(0),
            writes: AtomicU32::new(0),
        }))
    }

    fn reader(&self) -> LogReader<Self> {
        LogReader::new(self.0.root.path().to_owned(), self.clone())
    }

    /// A rotation each of whose rounds is a minute later than the one before.
    fn rotation(&self, max_files: usize) -> LogRotation<Self> {
        let container = self.0.clone();
        let clock = Clock::from_fn(move || {
            let minutes = container.rotations.fetch_add(1, Ordering::Relaxed);
            Timestamp::from_second(1_800_000_000 + i64::from(minutes) * 60).unwrap()
        });
        let policy = RotationPolicy {
            max_size: 1,
            max_files,
            workers: 1,
            interval: Duration::from_secs(10),
        };
        let root = self.0.root.path().to_owned();
        LogRotation::new(root, self.clone(), policy, clock, TimeZone::UTC)
    }

    fn running(&self) -> Vec<RunningContainer> {
        vec![RunningContainer { id: id(), log: self.0.log.clone() }]
    }

    /// Each line is a second later than the one before. Rotations are minutes apart: no two files end
    /// within one tick of the kernel's clock, as they would here.
    fn write(&self, text: &str) {
        let line = line(text);
        let file = self.0.file.lock().unwrap();
        let mut file = file.as_ref().unwrap();
        file.write_all(line.as_bytes()).unwrap();
        let seconds = self.0.writes.fetch_add(1, Ordering::Relaxed);
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds.into())).unwrap();
    }

    fn hold_back(&self, text: &str) {
        self.0.held_back.lock().unwrap().extend(line(text).as_bytes());
    }

    fn stop(&self) {
        self.0.runs.store(false, Ordering::SeqCst);
        self.0.file.lock().unwrap().take();
    }
}

fn line(text: &str) -> String {
    format!("2026-01-01T00:00:00.000000001Z stdout F {text}\n")
}

fn id() -> ContainerId {
    ContainerId::new("c")
}

fn open_log(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).unwrap()
}

impl LogRuntime for Runtime {
    async fn log_path(&self, container: &ContainerId) -> Result<PathBuf, CriError> {
        if *container == id() {
            return Ok(self.0.log.clone());
        }
        Err(CriError::new(Rpc::ContainerStatus, CriErrorKind::NotFound, "not found"))
    }

    async fn is_running(&self, _: &ContainerId) -> bool {
        self.0.runs.load(Ordering::SeqCst)
    }

    async fn reopen(&self, _: &ContainerId) -> Result<(), CriError> {
        if !self.0.reopens.load(Ordering::SeqCst) {
            return Err(CriError::new(Rpc::ReopenContainerLog, CriErrorKind::Unavailable, "away"));
        }
        let new = open_log(&self.0.log);
        let old = self.0.file.lock().unwrap().replace(new);
        // A follower sees the new log, and has to wait for what comes to the old one.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let held_back = std::mem::take(&mut *self.0.held_back.lock().unwrap());
        old.unwrap().write_all(&held_back).unwrap();
        Ok(())
    }
}

async fn text(stream: impl Stream<Item = Result<bytes::Bytes, LogError>>) -> String {
    let mut stream = pin!(stream);
    let mut all = Vec::new();
    while let Some(part) = timeout(PATIENCE, stream.next()).await.expect("it hangs") {
        all.extend(part.unwrap());
    }
    String::from_utf8(all).unwrap()
}

fn follow() -> LogOptions {
    LogOptions { follow: true, ..LogOptions::default() }
}

fn numbers(range: std::ops::Range<usize>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

#[tokio::test]
async fn options_reach_the_lines() {
    let runtime = Runtime::new();
    // Many times what is read at once.
    let lines = 20_000;
    (0..lines).for_each(|number| runtime.write(&number.to_string()));
    let reader = runtime.reader();
    let read = async |options| text(reader.open(&id(), options).await.unwrap()).await;
    assert_eq!(read(LogOptions::default()).await, numbers(0..lines));
    let tail = LogOptions { tail_lines: Some(3), ..LogOptions::default() };
    assert_eq!(read(tail.clone()).await, numbers(lines - 3..lines));
    assert_eq!(read(LogOptions { tail_lines: Some(0), ..tail.clone() }).await, "");
    let limited = LogOptions { limit_bytes: Some(5), ..tail.clone() };
    assert_eq!(read(limited).await, "19997");
    let timestamps = LogOptions { timestamps: true, tail_lines: Some(1), ..tail };
    assert_eq!(read(timestamps).await, "2026-01-01T00:00:00.000000001Z 19999\n");
    runtime.stop();
    let tail = LogOptions { tail_lines: Some(2), ..follow() };
    assert_eq!(read(tail).await, numbers(lines - 2..lines), "of one that has ended all is there");
}

#[tokio::test]
async fn a_follower_sees_each_line_once_across_rotations() {
    let runtime = Runtime::new();
    // All of them are kept: a busy machine may leave the reader behind those that would go.
    let rotation = runtime.rotation(40);
    let reading = tokio::spawn(text(runtime.reader().open(&id(), follow()).await.unwrap()));
    let mut written = 0;
    for _ in 0..30 {
        for _ in 0..50 {
            runtime.write(&written.to_string());
            written += 1;
        }
        runtime.hold_back(&written.to_string());
        written += 1;
        rotation.look_after(runtime.running()).await;
    }
    runtime.write(&written.to_string());
    written += 1;
    runtime.stop();
    assert_eq!(reading.await.unwrap(), numbers(0..written));
}

#[tokio::test]
async fn a_slow_follower_finds_what_was_rotated_and_compressed_meanwhile() {
    let runtime = Runtime::new();
    let rotation = runtime.rotation(10);
    runtime.write("0");
    let mut stream = Box::pin(runtime.reader().open(&id(), follow()).await.unwrap());
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    for number in 1..6 {
        runtime.write(&number.to_string());
        rotation.look_after(runtime.running()).await;
    }
    let names = fs::read_dir(runtime.0.log.parent().unwrap()).unwrap();
    let compressed =
        names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().ends_with(".gz"));
    assert_eq!(compressed.count(), 4);
    runtime.stop();
    assert_eq!(text(stream).await, numbers(1..6));
}

#[tokio::test]
async fn files_that_ended_in_one_tick_of_the_clock_are_told_apart() {
    let runtime = Runtime::new();
    let rotation = runtime.rotation(10);
    runtime.write("0");
    let mut stream = Box::pin(runtime.reader().open(&id(), follow()).await.unwrap());
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    rotation.look_after(runtime.running()).await;
    // Many times what is read at once: the reader stops in the middle of it.
    let lines = 200_000;
    (1..lines).for_each(|number| runtime.write(&number.to_string()));
    rotation.look_after(runtime.running()).await;
    let mut seen = stream.next().await.unwrap().unwrap().to_vec();
    for number in lines..lines + 2 {
        runtime.write(&number.to_string());
        rotation.look_after(runtime.running()).await;
    }
    for entry in fs::read_dir(runtime.0.log.parent().unwrap()).unwrap() {
        let file = OpenOptions::new().append(true).open(entry.unwrap().path()).unwrap();
        let ended = UNIX_EPOCH + Duration::from_secs(u64::try_from(lines).unwrap() - 1);
        file.set_modified(ended).unwrap();
    }
    runtime.stop();
    seen.extend(text(stream).await.into_bytes());
    assert!(String::from_utf8(seen).unwrap() == numbers(1..lines + 2), "a file is missing");
}

#[tokio::test]
async fn a_very_slow_follower_goes_on_with_what_is_left() {
    let runtime = Runtime::new();
    let rotation = runtime.rotation(2);
    runtime.write("0");
    let mut stream = Box::pin(runtime.reader().open(&id(), follow()).await.unwrap());
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    for number in 1..6 {
        runtime.write(&number.to_string());
        rotation.look_after(runtime.running()).await;
    }
    runtime.write("6");
    runtime.stop();
    // Its own file is still open, and two are there.
    assert_eq!(text(stream).await, "1\n5\n6\n");
}

#[tokio::test]
async fn a_line_of_any_length_comes_in_pieces() {
    let runtime = Runtime::new();
    let long = "x".repeat(5_000_000);
    runtime.write(&long);
    let mut stream = Box::pin(runtime.reader().open(&id(), LogOptions::default()).await.unwrap());
    let mut length = 0;
    while let Some(part) = stream.next().await {
        let part = part.unwrap();
        assert!(part.len() <= 64 * 1024, "{}", part.len());
        length += part.len();
    }
    assert_eq!(length, long.len() + 1);
}

#[tokio::test]
async fn nothing_outside_of_the_directory_of_logs_is_read() {
    let runtime = Runtime::new();
    let secret = tempfile::tempdir().unwrap();
    fs::write(secret.path().join("0.log"), line("secret")).unwrap();
    let app = runtime.0.log.parent().unwrap().to_owned();
    let refused = async || {
        let opened = runtime.reader().open(&id(), LogOptions::default()).await;
        opened.err().expect("it was opened")
    };

    fs::remove_file(&runtime.0.log).unwrap();
    symlink(secret.path().join("0.log"), &runtime.0.log).unwrap();
    assert!(matches!(refused().await, LogError::Open { .. }));
    fs::remove_file(&runtime.0.log).unwrap();
    fs::create_dir(&runtime.0.log).unwrap();
    assert!(matches!(refused().await, LogError::Open { .. }), "a directory is no log");
    fs::remove_dir_all(&app).unwrap();
    symlink(secret.path(), &app).unwrap();
    assert!(matches!(refused().await, LogError::Open { .. }));

    let elsewhere = LogReader::new(secret.path().to_owned(), runtime.clone());
    let outside = elsewhere.open(&id(), LogOptions::default()).await.err();
    assert!(matches!(outside, Some(LogError::Outside { .. })), "{outside:?}");
    let unknown = runtime.reader().open(&ContainerId::new("x"), LogOptions::default()).await.err();
    assert!(matches!(unknown, Some(LogError::Unknown { .. })), "{unknown:?}");
}

#[tokio::test]
async fn a_log_that_the_runtime_does_not_reopen_stays_what_it_was() {
    let runtime = Runtime::new();
    let rotation = runtime.rotation(3);
    runtime.write("0");
    runtime.0.reopens.store(false, Ordering::SeqCst);
    rotation.look_after(runtime.running()).await;
    runtime.write("1");
    let read =
        async || text(runtime.reader().open(&id(), LogOptions::default()).await.unwrap()).await;
    assert_eq!(read().await, "0\n1\n");
    // Killed after the renaming: the next one finds no log, and has it opened before anything else.
    fs::rename(&runtime.0.log, runtime.0.log.with_file_name("0.log.20260101-000000")).unwrap();
    runtime.write("2");
    runtime.0.reopens.store(true, Ordering::SeqCst);
    rotation.look_after(runtime.running()).await;
    runtime.write("3");
    assert_eq!(read().await, "3\n");
    let rotated = fs::read_to_string(runtime.0.log.with_file_name("0.log.20260101-000000"));
    assert_eq!(rotated.unwrap(), line("0") + &line("1") + &line("2"));
}

#[tokio::test]
async fn more_followers_than_the_kernel_has_watches_for_see_the_same() {
    let runtime = Runtime::new();
    let rotation = runtime.rotation(3);
    let reader = runtime.reader();
    let mut followers = Vec::new();
    for _ in 0..40 {
        followers.push(tokio::spawn(text(reader.open(&id(), follow()).await.unwrap())));
    }
    for number in 0..6 {
        runtime.write(&number.to_string());
        if number % 2 == 1 {
            rotation.look_after(runtime.running()).await;
        }
    }
    runtime.stop();
    for follower in followers {
        assert_eq!(follower.await.unwrap(), numbers(0..6));
    }
    // Who ends gives his watch back.
    let again = text(reader.open(&id(), follow()).await.unwrap()).await;
    assert_eq!(again, "");
}

#[tokio::test]
async fn a_rotation_that_is_undone_repeats_nothing_to_a_follower() {
    let runtime = Runtime::new();
    let rotation = runtime.rotation(9);
    runtime.write("0");
    let mut stream = Box::pin(runtime.reader().open(&id(), follow()).await.unwrap());
    assert_eq!(stream.next().await.unwrap().unwrap(), "0\n");
    // It does not read for two rotations, the second of which ...
    runtime.write("1");
    rotation.look_after(runtime.running()).await;
    runtime.write("2");
    let last = runtime.0.log.with_file_name("0.log.20990101-000000");
    fs::rename(&runtime.0.log, &last).unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "1\n");
    assert_eq!(stream.next().await.unwrap().unwrap(), "2\n");
    // ... is undone while it reads the file, and done later.
    fs::rename(&last, &runtime.0.log).unwrap();
    runtime.write("3");
    assert_eq!(stream.next().await.unwrap().unwrap(), "3\n");
    rotation.look_after(runtime.running()).await;
    runtime.write("4");
    runtime.stop();
    assert_eq!(text(stream).await, "4\n");
}

#[tokio::test]
async fn the_log_of_who_ended_while_a_rotation_was_interrupted_is_found() {
    let runtime = Runtime::new();
    runtime.write("0");
    fs::rename(&runtime.0.log, runtime.0.log.with_file_name("0.log.20260101-000000")).unwrap();
    runtime.write("1");
    runtime.stop();
    let reader = runtime.reader();
    let read = async |options| text(reader.open(&id(), options).await.unwrap()).await;
    assert_eq!(read(LogOptions::default()).await, "0\n1\n");
    assert_eq!(read(LogOptions { tail_lines: Some(1), ..follow() }).await, "1\n");
}

#[tokio::test]
async fn a_log_that_somebody_emptied_is_followed_from_its_beginning() {
    let runtime = Runtime::new();
    (0..10).for_each(|number| runtime.write(&number.to_string()));
    let mut stream = Box::pin(runtime.reader().open(&id(), follow()).await.unwrap());
    assert_eq!(stream.next().await.unwrap().unwrap(), numbers(0..10));
    File::options().write(true).open(&runtime.0.log).unwrap().set_len(0).unwrap();
    runtime.write("10");
    runtime.stop();
    assert_eq!(text(stream).await, "10\n");
}

/// A runtime that reopens a log when it is let.
#[derive(Clone, Default)]
struct Slow {
    asked: Arc<AtomicU32>,
    lets: Arc<tokio::sync::Notify>,
}

impl LogRuntime for Slow {
    async fn log_path(&self, _: &ContainerId) -> Result<PathBuf, CriError> {
        Err(CriError::new(Rpc::ContainerStatus, CriErrorKind::NotFound, "not found"))
    }

    async fn is_running(&self, _: &ContainerId) -> bool {
        true
    }

    async fn reopen(&self, _: &ContainerId) -> Result<(), CriError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.lets.notified().await;
        Ok(())
    }
}

#[tokio::test]
async fn as_many_logs_are_rotated_at_once_as_is_configured() {
    let root = tempfile::tempdir().unwrap();
    let running: Vec<RunningContainer> = (0..5)
        .map(|number| {
            let dir = root.path().join(format!("ns_pod_uid/{number}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("0.log"), line("something")).unwrap();
            RunningContainer { id: id(), log: dir.join("0.log") }
        })
        .collect();
    let runtime = Slow::default();
    let policy =
        RotationPolicy { max_size: 1, max_files: 2, workers: 2, interval: Duration::from_secs(10) };
    let rotation = LogRotation::new(
        root.path().to_owned(),
        runtime.clone(),
        policy,
        Clock::system(),
        TimeZone::UTC,
    );
    let mut round = tokio::spawn(async move { rotation.look_after(running).await });
    let asked = |count: u32| {
        let asked = runtime.asked.clone();
        timeout(PATIENCE, async move {
            while asked.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    asked(2).await.unwrap();
    // The third begins when one of them has ended, and not before.
    for count in 3..=5 {
        assert_eq!(runtime.asked.load(Ordering::SeqCst), count - 1);
        runtime.lets.notify_one();
        asked(count).await.unwrap();
    }
    runtime.lets.notify_waiters();
    timeout(PATIENCE, &mut round).await.unwrap().unwrap();
}
