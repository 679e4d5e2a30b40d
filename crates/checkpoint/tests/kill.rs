//! A process that saves is killed at moments it does not choose. No acknowledged save is lost, and
//! no file is ever damaged.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rubelet_checkpoint::{CheckpointFile, Durability, Loaded};

const DIRECTORY: &str = "RUBELET_CHECKPOINT_KILL_TEST_DIRECTORY";

fn checkpoint(directory: impl Into<PathBuf>) -> CheckpointFile {
    CheckpointFile::new(directory.into().join("state"), Durability::Synced)
}

/// Large enough that writing it takes several pages, and each entry the same.
fn value(number: u64) -> Vec<u64> {
    vec![number; 3000]
}

/// Not a test of its own: the process that [`a_killed_process_leaves_a_whole_file`] kills.
#[test]
fn writer_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let file = checkpoint(directory);
    for number in 1.. {
        file.save(&value(number)).unwrap();
        println!("\nsaved {number}");
    }
}

#[test]
fn a_killed_process_leaves_a_whole_file() {
    let directory = tempfile::tempdir().unwrap();
    for kill_after in 1..=12_u64 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["writer_process", "--exact", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Read on until the kill: a writer whose pipe is closed would end by itself.
        let mut saved = BufReader::new(writer.stdout.take().unwrap())
            .lines()
            .filter_map(|line| line.unwrap().strip_prefix("saved ")?.parse::<u64>().ok());
        let acknowledged = saved.find(|number| *number >= kill_after).unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        drop(saved);

        match checkpoint(directory.path()).load::<Vec<u64>>().unwrap() {
            Loaded::Value(read) => {
                assert!(read[0] >= acknowledged, "{} < {acknowledged}", read[0]);
                assert_eq!(read, value(read[0]));
            }
            other => panic!("after {acknowledged}: {other:?}"),
        }
    }
}
