use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rubelet_volume_plan::{Payload, PayloadFile};

use super::writer::{ContentWriter, Steps, has_content};
use crate::HostMounts;

fn payload(files: &[(&str, &str)]) -> Payload {
    let file = |content: &str| PayloadFile {
        content: content.as_bytes().to_vec(),
        mode: 0o640,
        owner: None,
    };
    Payload {
        files: files.iter().map(|(path, content)| ((*path).to_owned(), file(content))).collect(),
        group: None,
    }
}

fn writer(directory: &Path) -> ContentWriter<'_> {
    let now = "2026-03-04T05:06:07Z".parse().unwrap();
    ContentWriter { mounts: &HostMounts, directory, now }
}

/// Writes, and is killed before the change `crash_at`. Returns whether it came to the end, and
/// how many changes it made.
fn write_until(
    directory: &Path,
    payload: &Payload,
    nested: &[String],
    crash_at: usize,
) -> (bool, usize) {
    let mut made = 0;
    let mut step = || {
        if made == crash_at {
            return Err(io::Error::other("killed"));
        }
        made += 1;
        Ok(())
    };
    let written = writer(directory).write(payload, nested, &mut Steps(&mut step));
    match written {
        Ok(_) => (true, made),
        Err(error) if error.to_string() == "killed" => (false, made),
        Err(error) => panic!("{error}"),
    }
}

fn write(directory: &Path, payload: &Payload) -> usize {
    let (ended, made) = write_until(directory, payload, &[], usize::MAX);
    assert!(ended);
    made
}

/// All files beneath a directory with their contents, by path.
fn files_beneath(directory: &Path) -> BTreeMap<String, String> {
    fn walk(at: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(at).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), &format!("{path}/"), found);
            } else {
                found.insert(path, fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(directory, "", &mut found);
    found
}

fn expected(payload: &Payload) -> BTreeMap<String, String> {
    let text = |file: &PayloadFile| String::from_utf8(file.content.clone()).unwrap();
    payload.files.iter().map(|(path, file)| (path.clone(), text(file))).collect()
}

fn tops(payload: &Payload) -> Vec<String> {
    let mut tops: Vec<String> =
        payload.files.keys().map(|path| path.split('/').next().unwrap().to_owned()).collect();
    tops.dedup();
    tops
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The volume shows exactly this, and nothing is left over.
fn assert_shows(directory: &Path, payload: &Payload, foreign: &[&str]) {
    let set = fs::read_link(directory.join("..data")).unwrap().into_os_string();
    let set = set.into_string().unwrap();
    assert_eq!(files_beneath(&directory.join(&set)), expected(payload));
    let mut wanted = vec!["..data".to_owned(), set];
    for top in tops(payload) {
        let target = fs::read_link(directory.join(&top)).unwrap();
        assert_eq!(target, PathBuf::from(format!("..data/{top}")));
        wanted.push(top);
    }
    wanted.extend(foreign.iter().map(|name| (*name).to_owned()));
    wanted.sort();
    assert_eq!(names(directory), wanted);
}

#[test]
fn the_layout_is_the_one_that_others_know() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path();
    assert!(!has_content(&directory.join("missing")).unwrap());
    assert!(!has_content(directory).unwrap());
    let payload = payload(&[("a", "1"), ("dir/deep/b", "2"), ("dir/c", "")]);
    write(directory, &payload);
    assert!(has_content(directory).unwrap());
    assert_shows(directory, &payload, &[]);
    let set = fs::read_link(directory.join("..data")).unwrap();
    let set = set.to_str().unwrap();
    assert!(set.starts_with("..2026_03_04_05_06_07."), "{set}");
    let mode = |path: &str| fs::metadata(directory.join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("a"), 0o640);
    assert_eq!(mode(set), 0o755);
    assert_eq!(mode("dir/deep"), 0o755);
    assert_eq!(fs::read_to_string(directory.join("dir/deep/b")).unwrap(), "2");
}

#[test]
fn what_is_right_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let payload = payload(&[("a", "1"), ("dir/b", "2")]);
    assert!(write(temp.path(), &payload) > 0);
    let before = names(temp.path());
    assert_eq!(write(temp.path(), &payload), 0);
    assert_eq!(names(temp.path()), before);
    let empty = Payload::default();
    assert!(write(temp.path(), &empty) > 0);
    assert_shows(temp.path(), &empty, &[]);
    assert_eq!(write(temp.path(), &empty), 0);
}

#[test]
fn groups_and_owners_are_set() {
    let temp = tempfile::tempdir().unwrap();
    let mut payload = payload(&[("a", "1"), ("dir/token", "2")]);
    payload.files.get_mut("dir/token").unwrap().owner = Some(1234);
    payload.group = Some(4321);
    write(temp.path(), &payload);
    let facts = |path: &str| {
        let metadata = fs::metadata(temp.path().join(path)).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(facts("a"), (0, 4321, 0o640));
    assert_eq!(facts("dir/token"), (1234, 4321, 0o640));
    assert_eq!(facts("dir"), (0, 4321, 0o2755));
    assert_eq!(facts("..data/."), (0, 4321, 0o2755));
    assert_eq!(write(temp.path(), &payload), 0);
    payload.group = Some(4322);
    assert!(write(temp.path(), &payload) > 0);
    assert_eq!(facts("dir/token"), (1234, 4322, 0o640));
}

/// Killed before any change: whoever reads sees all of the old files or all of the new ones; and
/// whoever begins again comes to the same end.
#[test]
fn a_crash_at_any_step_leaves_no_half_of_a_set() {
    let sets = [
        payload(&[]),
        payload(&[("a", "1"), ("b", "2"), ("dir/x", "3"), ("dir/y", "4")]),
        payload(&[("a", "1"), ("b", "changed"), ("dir/y", "moved"), ("other/z", "new")]),
        payload(&[("dir", "a file now"), ("a/b", "a directory now")]),
    ];
    let mut crashes = 0;
    for old in std::iter::once(None).chain(sets.iter().map(Some)) {
        for new in &sets {
            for crash_at in 0.. {
                let temp = tempfile::tempdir().unwrap();
                let directory = temp.path();
                if let Some(old) = old {
                    write(directory, old);
                }
                let (ended, _) = write_until(directory, new, &[], crash_at);
                let shown = directory.join("..data");
                if shown.exists() {
                    let shown = files_beneath(&shown);
                    let is_old = old.is_some_and(|old| shown == expected(old));
                    assert!(is_old || shown == expected(new), "step {crash_at}: {shown:?}");
                    for (path, content) in &shown {
                        // What is in both sets never goes out of sight.
                        if old.is_some_and(|old| old.files.contains_key(path))
                            && new.files.contains_key(path)
                        {
                            let seen = fs::read_to_string(directory.join(path)).unwrap();
                            assert_eq!(&seen, content, "step {crash_at}: {path}");
                        }
                    }
                } else {
                    assert!(old.is_none() && !ended, "step {crash_at}");
                }
                write(directory, new);
                assert_shows(directory, new, &[]);
                if ended {
                    break;
                }
                crashes += 1;
            }
        }
    }
    assert!(crashes > 100, "{crashes}");
}

#[test]
fn wrong_states_are_mended_and_nothing_outside_is_touched() {
    type Sabotage = fn(&Path, &Path);
    let cases: [(&str, Sabotage); 17] = [
        // CVE-2017-1002102.
        ("data leads out", |volume, outside| relink(&volume.join("..data"), outside)),
        ("data leads up", |volume, _| relink(&volume.join("..data"), Path::new("../outside"))),
        ("data dangles", |volume, _| relink(&volume.join("..data"), Path::new("..gone"))),
        ("data leads to itself", |volume, _| relink(&volume.join("..data"), Path::new("..data"))),
        ("data is a directory", |volume, _| {
            fs::remove_file(volume.join("..data")).unwrap();
            fs::create_dir(volume.join("..data")).unwrap();
            fs::write(volume.join("..data/a"), "x").unwrap();
        }),
        ("data is a file", |volume, _| {
            fs::remove_file(volume.join("..data")).unwrap();
            fs::write(volume.join("..data"), "x").unwrap();
        }),
        ("next data was left", |volume, outside| {
            symlink(outside, volume.join("..data_tmp")).unwrap();
        }),
        ("an old set was left", |volume, _| {
            fs::create_dir_all(volume.join("..2020_01_01_00_00_00.1/dir")).unwrap();
            fs::write(volume.join("..2020_01_01_00_00_00.1/dir/x"), "x").unwrap();
        }),
        ("a link leads out", |volume, outside| {
            relink(&volume.join("a"), &outside.join("precious"));
        }),
        ("a link is missing", |volume, _| fs::remove_file(volume.join("a")).unwrap()),
        ("a file is where a link was", |volume, _| {
            fs::remove_file(volume.join("a")).unwrap();
            fs::write(volume.join("a"), "x").unwrap();
        }),
        ("a directory is where a link was", |volume, _| {
            fs::remove_file(volume.join("a")).unwrap();
            fs::create_dir(volume.join("a")).unwrap();
        }),
        ("a file was changed", |volume, _| fs::write(volume.join("a"), "2").unwrap()),
        ("a mode was changed", |volume, _| {
            fs::set_permissions(volume.join("a"), Permissions::from_mode(0o666)).unwrap();
        }),
        ("a file was added", |volume, _| fs::write(volume.join("dir/new"), "").unwrap()),
        ("a file leads out", |volume, outside| {
            relink(&volume.join("..data/a"), &outside.join("precious"));
        }),
        ("a directory leads out", |volume, outside| {
            fs::remove_dir_all(volume.join("..data/dir")).unwrap();
            symlink(outside, volume.join("..data/dir")).unwrap();
        }),
    ];
    for (case, sabotage) in cases {
        let temp = tempfile::tempdir().unwrap();
        let (volume, outside) = (temp.path().join("volume"), temp.path().join("outside"));
        fs::create_dir(&volume).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "kept").unwrap();
        fs::write(outside.join("a"), "kept").unwrap();
        let payload = payload(&[("a", "1"), ("dir/b", "2")]);
        write(&volume, &payload);
        fs::write(volume.join("foreign"), "kept").unwrap();
        sabotage(&volume, &outside);
        write(&volume, &payload);
        assert_shows(&volume, &payload, &["foreign"]);
        assert_eq!(
            files_beneath(&outside),
            BTreeMap::from([
                ("a".to_owned(), "kept".to_owned()),
                ("precious".to_owned(), "kept".to_owned())
            ]),
            "{case}"
        );
        assert_eq!(write(&volume, &payload), 0, "{case}");
    }
}

fn relink(link: &Path, target: &Path) {
    fs::remove_file(link).unwrap();
    symlink(target, link).unwrap();
}

#[test]
fn what_is_in_the_way_and_not_ours_is_kept() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("a")).unwrap();
    fs::write(temp.path().join("a/data"), "kept").unwrap();
    let mut no_steps = || Ok(());
    let written =
        writer(temp.path()).write(&payload(&[("a", "1")]), &[], &mut Steps(&mut no_steps));
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(fs::read_to_string(temp.path().join("a/data")).unwrap(), "kept");
}

#[test]
fn places_of_other_mounts_are_made() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path();
    let nested: Vec<String> =
        ["alone/deep", "dir/mounted", "file"].iter().map(|path| (*path).to_owned()).collect();
    let first = payload(&[("dir/b", "1"), ("file", "2"), ("plain", "3")]);
    let (ended, _) = write_until(directory, &first, &nested, usize::MAX);
    assert!(ended);
    assert!(directory.join("alone/deep").is_dir());
    // Among the files of a directory that has some.
    assert!(directory.join("dir/mounted").is_dir());
    assert_eq!(fs::read_to_string(directory.join("dir/b")).unwrap(), "1");
    // The mount hides the file anyway.
    assert!(fs::symlink_metadata(directory.join("file")).unwrap().is_dir());
    assert_eq!(fs::metadata(directory.join("alone")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(write_until(directory, &first, &nested, usize::MAX), (true, 0));

    let second = payload(&[("dir/c", "1")]);
    write_until(directory, &second, &nested, usize::MAX);
    assert!(directory.join("alone/deep").is_dir());
    assert!(directory.join("dir/mounted").is_dir());
    assert!(!directory.join("plain").exists());
}

#[test]
fn a_mount_that_comes_to_be_wanted_later_takes_the_place_of_a_file() {
    let temp = tempfile::tempdir().unwrap();
    let payload = payload(&[("file", "2")]);
    write(temp.path(), &payload);
    write_until(temp.path(), &payload, &["file".to_owned()], usize::MAX);
    assert!(fs::symlink_metadata(temp.path().join("file")).unwrap().is_dir());
}

fn any_payload() -> impl Strategy<Value = Payload> {
    let path = prop_oneof!["[ab]", "[cd]/[ab]", "e/[ab]/[ab]"];
    prop::collection::btree_map(path, "[xy]{0,2}", 0..5).prop_map(|files| Payload {
        files: files
            .into_iter()
            .map(|(path, content)| {
                (path, PayloadFile { content: content.into_bytes(), mode: 0o600, owner: None })
            })
            .collect(),
        group: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_of_writes_and_crashes_ends_with_the_last_set(
        history in prop::collection::vec((any_payload(), 0_usize..24), 0..5),
        last in any_payload(),
    ) {
        let temp = tempfile::tempdir().unwrap();
        for (payload, crash_at) in &history {
            write_until(temp.path(), payload, &[], *crash_at);
        }
        write(temp.path(), &last);
        assert_shows(temp.path(), &last, &[]);
    }
}
