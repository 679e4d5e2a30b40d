//! Histories of fixed seeds, each in a process of its own.

use std::process::Command;
use std::thread::available_parallelism;

use rubelet_simulation::Many;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rubelet-sim");

#[test]
fn nothing_is_wrong_in_fifty_histories() {
    let many = Many {
        program: PROGRAM.into(),
        from: 1,
        seeds: 50,
        at_once: available_parallelism().map_or(1, usize::from),
    };
    let failed = many.run(|failed| println!("{failed}")).unwrap();
    let texts: Vec<String> = failed.iter().map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), many.seeds, texts.join("\n"));
}

fn history(seed: u64) -> Vec<String> {
    let ended = Command::new(PROGRAM)
        .args(["--verbose", "--log", "debug", "--seed", &seed.to_string()])
        .output()
        .expect("rubelet-sim can be run");
    let lines: Vec<String> =
        String::from_utf8_lossy(&ended.stderr).lines().map(str::to_owned).collect();
    assert!(lines.len() > 100, "{lines:?} {}", String::from_utf8_lossy(&ended.stdout));
    lines
}

#[test]
fn one_seed_is_one_history() {
    let mut earlier: Option<Vec<String>> = None;
    for seed in [2, 3, 11, 23] {
        let (first, second) = (history(seed), history(seed));
        let differs = first.iter().zip(&second).position(|(first, second)| first != second);
        if let Some(line) = differs {
            panic!("seed {seed}, line {line}: {:?} and {:?}", first[line], second[line]);
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
        // And another one is another one.
        assert!(earlier.is_none_or(|earlier| earlier != first));
        earlier = Some(first);
    }
}
