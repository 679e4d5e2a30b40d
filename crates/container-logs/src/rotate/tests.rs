use std::fs::{self, File};
use std::io::{Read as _, Write as _};

use flate2::read::MultiGzDecoder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const LOG: &str = "0.log";

/// A pod's directory of logs.
struct Logs {
    _root: TempDir,
    directory: LogDirectory,
}

fn stamp(minute: i8) -> Stamp {
    Stamp::of(jiff::civil::date(2026, 1, 1).at(10, minute, 0, 0)).unwrap()
}

fn at(minute: i8) -> DateTime {
    jiff::civil::date(2026, 1, 1).at(10, minute, 0, 0)
}

impl Logs {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("c")).unwrap();
        let log = root.path().join("c").join(LOG);
        let directory = LogDirectory::open(root.path(), &log).unwrap().unwrap();
        Self { _root: root, directory }
    }

    fn write(&self, name: &OsStr, content: &str) {
        fs::write(self.directory.path_of(name), content).unwrap();
    }

    fn rotated(&self, minute: i8, form: Form, content: &str) {
        let name = Rotated { stamp: stamp(minute), form }.name(LOG.as_ref());
        match form {
            Form::Plain => self.write(&name, content),
            // Cut off in the middle.
            Form::Temporary => self.write(&name, "cut off"),
            Form::Compressed => {
                let file = File::create(self.directory.path_of(&name)).unwrap();
                let mut encoder = GzEncoder::new(file, Compression::fast());
                encoder.write_all(content.as_bytes()).unwrap();
                encoder.finish().unwrap();
            }
        }
    }

    /// All that is there, oldest first, each generation once.
    fn contents(&self) -> Vec<String> {
        let mut contents: Vec<String> = self
            .directory
            .generations()
            .unwrap()
            .iter()
            .map(|rotated| {
                let mut file = self.directory.open_file(&rotated.name(LOG.as_ref())).unwrap();
                let mut content = String::new();
                match rotated.form {
                    Form::Plain => file.read_to_string(&mut content),
                    _ => MultiGzDecoder::new(file).read_to_string(&mut content),
                }
                .unwrap();
                content
            })
            .collect();
        contents.extend(fs::read_to_string(self.directory.path_of(LOG.as_ref())).ok());
        contents
    }

    fn names(&self) -> Vec<String> {
        let names = self.directory.handle().names().unwrap();
        let mut names: Vec<String> =
            names.into_iter().map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn rotate(&self, minute: i8, max_files: usize) {
        assert!(prepare(&self.directory, max_files).unwrap().is_empty());
        set_aside(&self.directory, at(minute)).unwrap();
        self.write(LOG.as_ref(), &format!("after {minute}"));
    }
}

#[test]
fn a_log_goes_through_its_forms_and_away() {
    let logs = Logs::new();
    logs.write(LOG.as_ref(), "after 0");
    let mut seen = Vec::new();
    for minute in 1..=4 {
        logs.rotate(minute, 4);
        seen.push(logs.names().join(" "));
    }
    assert_eq!(
        seen,
        [
            "0.log 0.log.20260101-100100",
            "0.log 0.log.20260101-100100.gz 0.log.20260101-100200",
            "0.log 0.log.20260101-100100.gz 0.log.20260101-100200.gz 0.log.20260101-100300",
            "0.log 0.log.20260101-100200.gz 0.log.20260101-100300.gz 0.log.20260101-100400",
        ]
    );
    assert_eq!(logs.contents(), ["after 1", "after 2", "after 3", "after 4"]);
    let logs = Logs::new();
    logs.write(LOG.as_ref(), "after 0");
    logs.rotate(1, 2);
    logs.rotate(2, 2);
    assert_eq!(logs.names(), ["0.log", "0.log.20260101-100200"], "the fewest there can be");
}

#[test]
fn what_others_keep_beside_a_log_is_left_alone() {
    let logs = Logs::new();
    let others = ["0.log.bak", "00.log.20260101-100000", "1.log", "1.log.20260101-100000.tmp"];
    for other in others {
        logs.write(other.as_ref(), "theirs");
    }
    logs.write(LOG.as_ref(), "ours");
    logs.rotate(1, 2);
    logs.rotate(2, 2);
    for other in others {
        assert!(logs.names().contains(&other.to_owned()), "{other}");
    }
}

#[test]
fn a_rotated_file_keeps_its_mode_and_its_time() {
    use std::os::unix::fs::PermissionsExt as _;

    let logs = Logs::new();
    logs.rotated(1, Form::Plain, "text");
    let plain = logs.directory.path_of("0.log.20260101-100100".as_ref());
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(&plain).unwrap();
    prepare(&logs.directory, 5).unwrap();
    let after = fs::metadata(logs.directory.path_of("0.log.20260101-100100.gz".as_ref())).unwrap();
    assert_eq!(after.permissions().mode() & 0o777, 0o640);
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
}

#[test]
fn a_name_is_never_taken_over_and_names_stay_in_order() {
    let logs = Logs::new();
    logs.rotated(5, Form::Compressed, "older");
    logs.write(LOG.as_ref(), "newer");
    let rotated = set_aside(&logs.directory, at(5)).unwrap();
    assert_eq!(rotated.name(LOG.as_ref()), "0.log.20260101-100501");
    // The clock was set back.
    logs.write(LOG.as_ref(), "newest");
    let rotated = set_aside(&logs.directory, at(1)).unwrap();
    assert_eq!(rotated.name(LOG.as_ref()), "0.log.20260101-100502");
    assert_eq!(logs.contents(), ["older", "newer", "newest"]);
}

#[test]
fn what_was_set_aside_comes_back_unless_there_is_a_new_log() {
    let logs = Logs::new();
    logs.write(LOG.as_ref(), "text");
    let rotated = set_aside(&logs.directory, at(1)).unwrap();
    put_back(&logs.directory, rotated).unwrap();
    assert_eq!(logs.names(), ["0.log"]);
    let rotated = set_aside(&logs.directory, at(1)).unwrap();
    logs.write(LOG.as_ref(), "opened after all");
    put_back(&logs.directory, rotated).unwrap();
    assert_eq!(logs.contents(), ["text", "opened after all"]);
}

#[test]
fn a_file_that_cannot_be_compressed_stays_as_it_is() {
    let logs = Logs::new();
    logs.write(LOG.as_ref(), "text");
    // A directory in the way stands for a disk without space.
    logs.rotated(1, Form::Plain, "cannot be compressed");
    fs::create_dir(logs.directory.path_of("0.log.20260101-100100.tmp".as_ref())).unwrap();
    let entries = logs.directory.handle().names().unwrap();
    let plan = plan_preparation(LOG.as_ref(), &entries, 5);
    assert!(plan.contains(&PrepareStep::Compress(stamp(1))));
    let failed = apply(&logs.directory, PrepareStep::Compress(stamp(1)));
    assert!(matches!(failed, Err(RotateError::Compress { .. })), "{failed:?}");
    assert_eq!(logs.contents(), ["cannot be compressed", "text"]);
}

fn generation() -> impl Strategy<Value = Vec<Form>> {
    prop_oneof![
        Just(vec![Form::Plain]),
        Just(vec![Form::Compressed]),
        Just(vec![Form::Plain, Form::Compressed]),
        Just(vec![Form::Plain, Form::Temporary]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever is there, and wherever a rotation is interrupted: the next one goes on, and all that
    /// is missing is what there was too much of, from the oldest.
    #[test]
    fn an_interruption_at_any_step_loses_nothing(
        generations in proptest::collection::vec(generation(), 0..5),
        max_files in 2_usize..7,
    ) {
        let before = || {
            let logs = Logs::new();
            for (minute, forms) in (1..).zip(&generations) {
                for form in forms {
                    logs.rotated(minute, *form, &format!("generation {minute}"));
                }
            }
            logs.write(LOG.as_ref(), "written last");
            logs
        };
        let logs = before();
        let all = logs.contents();
        let entries = logs.directory.handle().names().unwrap();
        let steps = plan_preparation(LOG.as_ref(), &entries, max_files);
        for done in 0..=steps.len() + 1 {
            let logs = before();
            for step in steps.iter().take(done) {
                apply(&logs.directory, *step).unwrap();
            }
            if let Some(PrepareStep::Compress(stamp)) = steps.get(done) {
                // In the middle of it.
                let name = Rotated { stamp: *stamp, form: Form::Temporary }.name(LOG.as_ref());
                logs.write(&name, "half");
            }
            if done > steps.len() {
                set_aside(&logs.directory, at(30)).unwrap();
                // The runtime is told the next time that there is no log.
                logs.write(LOG.as_ref(), "");
            }
            let kept = logs.contents();
            let kept: Vec<_> = kept.into_iter().filter(|content| !content.is_empty()).collect();
            prop_assert!(all.ends_with(&kept), "{all:?} {kept:?}");
            prop_assert!(kept.len() >= all.len().min(max_files - 1), "{all:?} {kept:?}");

            logs.rotate(40, max_files);
            let kept = logs.contents();
            prop_assert!(kept.len() <= max_files, "{kept:?}");
            prop_assert!(logs.names().len() <= max_files, "{:?}", logs.names());
            let newest: Vec<_> =
                all.iter().map(String::as_str).chain(["", "after 40"]).collect();
            let newest: Vec<&str> = if done > steps.len() {
                newest
            } else {
                newest.into_iter().filter(|content| !content.is_empty()).collect()
            };
            let kept: Vec<&str> = kept.iter().map(String::as_str).collect();
            prop_assert!(newest.ends_with(&kept), "{newest:?} {kept:?}");
            prop_assert!(kept.len() == newest.len().min(max_files), "{newest:?} {kept:?}");
        }
    }
}
