//! `rubelet-sim --seed N` lives through one history, `rubelet-sim --seeds N` through many.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use rubelet_simulation::{Many, entropy, log, run, sweep};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::time::Instant;

#[allow(clippy::print_stdout)] // It is a tool.
fn main() -> ExitCode {
    let matches = command().get_matches();
    let result = match matches.get_one::<u64>("seed") {
        Some(seed) => one(*seed, &matches),
        None => many(&matches),
    };
    result.unwrap_or_else(|error| {
        println!("{error:#}");
        ExitCode::from(2)
    })
}

fn command() -> Command {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(u64)).help(help)
    };
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).requires("seed").help(help)
    };
    Command::new("rubelet-sim")
        .about("Simulated histories of a node")
        .arg(number("seed", "Live through this one").conflicts_with_all(["seeds", "from"]))
        .arg(flag("verbose", "Show everything that happens"))
        .arg(flag("brief", "Show only what is wrong"))
        .arg(
            Arg::new("log")
                .long("log")
                .default_value("info")
                .help("Which log lines of the kubelet belong to the history, as in RUST_LOG"),
        )
        .arg(number("seeds", "Live through so many").default_value("50"))
        .arg(number("from", "The first of them").default_value("1"))
        .arg(number("at-once", "So many processes at once [default: one for each CPU]"))
}

#[allow(clippy::print_stdout)]
fn one(seed: u64, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let is_verbose = matches.get_flag("verbose");
    entropy::seed(seed);
    leave_nothing().context("preparing for the end")?;
    log::start(matches.get_one::<String>("log").map_or("info", String::as_str));
    let outcome = run(seed, is_verbose)?;
    let is_brief = matches.get_flag("brief");
    if outcome.violations.is_empty() {
        if !is_brief {
            println!("seed {seed}: nothing wrong, {} lines", outcome.lines.len());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !is_brief && !is_verbose {
        for line in &outcome.lines {
            println!("{line}");
        }
    }
    for violation in &outcome.violations {
        println!("{violation}");
    }
    Ok(ExitCode::FAILURE)
}

/// When this process is told to end, or whoever has started it dies, nothing is left behind.
#[allow(clippy::exit)] // From a thread there is no other way.
fn leave_nothing() -> anyhow::Result<()> {
    let (mut told, tell) = UnixStream::pair()?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        signal_hook::low_level::pipe::register(signal.as_raw(), tell.try_clone()?)?;
    }
    set_parent_process_death_signal(Some(Signal::TERM))?;
    std::thread::spawn(move || {
        let _ = told.read(&mut [0]);
        let _ = sweep(std::process::id());
        std::process::exit(130);
    });
    Ok(())
}

#[allow(clippy::print_stdout)]
fn many(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once =
        matches.get_one::<u64>("at-once").and_then(|number| usize::try_from(*number).ok());
    let many = Many {
        program: std::env::current_exe().context("finding this program")?,
        from: *matches.get_one("from").unwrap_or(&1),
        seeds: *matches.get_one("seeds").unwrap_or(&1),
        at_once: at_once.unwrap_or(cpus),
    };
    let started = Instant::now();
    let failed = many.run(|failed| println!("{failed}"))?;
    let took = started.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss)] // It is for people.
    let rate = many.seeds as f64 / took;
    println!(
        "{} seeds from {} in {took:.0} s ({rate:.1} seeds/s), {} failed",
        many.seeds,
        many.from,
        failed.len()
    );
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let seeds: Vec<String> = failed.iter().map(|failed| failed.seed.to_string()).collect();
    println!("failing seeds: {}", seeds.join(" "));
    Ok(ExitCode::FAILURE)
}
