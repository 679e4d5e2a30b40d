//! The front door to the project: `cargo xtask demo`, `cargo xtask test` and what they need.

mod bench;
mod cluster;
mod conformance;
mod demo;
mod go;
mod interrupt;
mod lint;
mod packages;
mod project;
mod report;
mod setup;
mod sim;
mod test;
mod testbed;
mod vm;
mod wheel;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, Command, value_parser};
use rubelet_e2e::Hub;

fn main() -> ExitCode {
    let matches = command().get_matches();
    let result = match matches.subcommand() {
        Some(("setup", args)) => setup::run(
            args.get_many::<String>("part").into_iter().flatten().map(String::as_str).collect(),
        ),
        Some(("demo", args)) => demo::run(&demo::Options {
            keep: args.get_flag("keep"),
            once: args.get_flag("once"),
            stop: args.get_flag("stop"),
        }),
        Some(("cluster", args)) => cluster::run(&cluster::Options {
            nodes: *args.get_one("nodes").unwrap_or(&1),
            stop: args.get_flag("stop"),
        }),
        Some(("conformance", args)) => conformance::run(&conformance::Options {
            focus: args.get_one("focus").cloned(),
            skip: args.get_one("skip").cloned(),
            quick: args.get_flag("quick"),
            procs: args.get_one("procs").copied(),
            peer: args.get_one("peer").cloned(),
        }),
        Some(("lint", _)) => lint::run(),
        Some(("test", args)) => test::run(args.get_flag("no-e2e")),
        Some(("sim", args)) => sim::run(&match args.get_one("seed") {
            Some(seed) => sim::Options::One { seed: *seed, is_verbose: args.get_flag("verbose") },
            None => sim::Options::Many {
                from: *args.get_one("from").unwrap_or(&1),
                seeds: *args.get_one("seeds").unwrap_or(&50),
            },
        }),
        Some(("vm", args)) => vm::run(&vm::Options {
            peer: args.get_one("peer").cloned(),
            script: args.get_one("script").cloned(),
            files: args.get_many("file").into_iter().flatten().cloned().collect(),
            memory: *args.get_one("memory").unwrap_or(&2048),
            limit: Duration::from_secs(*args.get_one("limit").unwrap_or(&3600)),
        }),
        Some(("bench", args)) => match args.subcommand() {
            Some(("pods", args)) => bench::run(&bench::Options {
                pods: *args.get_one("number").unwrap_or(&50),
                peer: args.get_one("peer").cloned(),
                rounds: args.get_one("rounds").copied(),
                idle_seconds: *args.get_one("idle").unwrap_or(&20),
            }),
            _ => bench::beside::run(&bench::beside::Options {
                peer: args.get_one("peer").cloned(),
                rounds: *args.get_one("rounds").unwrap_or(&1),
                sizes: {
                    let given = args.get_many::<usize>("pods").into_iter().flatten();
                    let mut sizes: Vec<usize> = given.copied().collect();
                    sizes.sort_unstable();
                    sizes.dedup();
                    if sizes.is_empty() { vec![10, 50, 110] } else { sizes }
                },
                singles: *args.get_one("singles").unwrap_or(&10),
                idle: Duration::from_secs(*args.get_one("idle").unwrap_or(&10)),
                write: args.get_flag("write"),
            }),
        },
        _ => unreachable!("clap asks for a subcommand"),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(u64)).help(help)
    };
    Command::new("cargo xtask")
        .bin_name("cargo xtask")
        .about("Everything one does with this project")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("setup").about("Installs and builds what the other commands need").arg(
                Arg::new("part")
                    .num_args(0..)
                    .value_parser(["debian", "built", "images", "lint", "cluster", "suite", "peer"])
                    .help("Only these parts [default: all but peer]"),
            ),
        )
        .subcommand(
            Command::new("demo")
                .about("Runs the kubelet on a containerd of its own and shows what it does")
                .arg(flag("keep", "Leave it running at the end, and say how to look at it"))
                .arg(flag("once", "Go through the scenes without waiting for anybody, then end"))
                .arg(flag("stop", "End and remove what an earlier --keep left running")),
        )
        .subcommand(
            Command::new("cluster")
                .about("Runs a control plane and nodes with our kubelet, and says how to use them")
                .arg(
                    Arg::new("nodes")
                        .long("nodes")
                        .value_parser(value_parser!(u8).range(1..=i64::from(Hub::MOST_NODES)))
                        .help("How many nodes [default: 1]"),
                )
                .arg(flag("stop", "End a cluster that runs in another terminal")),
        )
        .subcommand(
            Command::new("conformance")
                .about("Lets Kubernetes' own end-to-end tests judge our node")
                .arg(
                    Arg::new("focus")
                        .long("focus")
                        .value_name("REGEX")
                        .help("Only these, of the whole suite [default: those that judge a node]"),
                )
                .arg(Arg::new("skip").long("skip").value_name("REGEX").help("None of these"))
                .arg(
                    flag("quick", "Only those that `cargo xtask test` repeats")
                        .conflicts_with("focus"),
                )
                .arg(
                    Arg::new("procs")
                        .long("procs")
                        .value_parser(value_parser!(u32).range(1..=64))
                        .help("How many at a time [default: 8]"),
                )
                .arg(Arg::new("peer").long("peer").value_name("KUBELET").help(
                    "Judge another one, too: `go` for the Go kubelet, or a path \
                     [default: compare with what is remembered of the Go kubelet]",
                )),
        )
        .subcommand(
            Command::new("lint")
                .about("Format, clippy, documentation, layers, licences and duplicates"),
        )
        .subcommand(
            Command::new("test")
                .about("Lint and every test, on fakes and on real containerd")
                .arg(flag("no-e2e", "Leave out the tests on real containerd")),
        )
        .subcommand(
            Command::new("sim")
                .about("Simulates a node: many histories, or one of them to look at")
                .arg(number("seeds", "How many histories [default: 50]"))
                .arg(number("from", "The first seed [default: 1]"))
                .arg(number("seed", "Only this one").conflicts_with_all(["seeds", "from"]))
                .arg(flag("verbose", "Show everything that happens").requires("seed")),
        )
        .subcommand(
            Command::new("vm")
                .about("Runs pods in a virtual machine with cgroup v2 and systemd, and looks at them")
                .arg(
                    Arg::new("peer")
                        .long("peer")
                        .value_parser(value_parser!(std::path::PathBuf))
                        .help("Another kubelet: boot again with it, and compare the cgroups"),
                )
                .arg(
                    Arg::new("script")
                        .long("script")
                        .value_parser(value_parser!(std::path::PathBuf))
                        .help("A bash script to run in the guest instead [default: testing/vm/guest/pods.sh]"),
                )
                .arg(
                    Arg::new("file")
                        .long("file")
                        .action(ArgAction::Append)
                        .value_parser(value_parser!(std::path::PathBuf))
                        .help("A file that the script finds in its directory; may be repeated"),
                )
                .arg(
                    Arg::new("memory")
                        .long("memory")
                        .value_parser(value_parser!(u32))
                        .help("MiB of memory [default: 2048]"),
                )
                .arg(
                    Arg::new("limit")
                        .long("limit")
                        .value_parser(value_parser!(u64))
                        .help("Seconds after which a boot is given up [default: 3600]"),
                ),
        )
        .subcommand(
            Command::new("bench")
                .about("Measures a kubelet as a node of a cluster, and another one beside it")
                .args_conflicts_with_subcommands(true)
                .arg(
                    Arg::new("peer")
                        .long("peer")
                        .help("Another kubelet to run in turn with ours: `go`, or its path"),
                )
                .arg(
                    Arg::new("rounds")
                        .long("rounds")
                        .value_parser(value_parser!(usize))
                        .help("How often each of them [default: 1]"),
                )
                .arg(
                    Arg::new("pods")
                        .long("pods")
                        .value_delimiter(',')
                        .value_parser(value_parser!(usize))
                        .help("How many pods are started at once, each of these [default: 10,50,110]"),
                )
                .arg(
                    Arg::new("singles")
                        .long("singles")
                        .value_parser(value_parser!(usize))
                        .help("How many pods are started, and containers ended, alone [default: 10]"),
                )
                .arg(number("idle", "Seconds over which idle CPU is measured [default: 10]"))
                .arg(flag("write", "Write docs/reports/bench.md"))
                .subcommand(
                Command::new("pods")
                    .about("Starts pods and measures time, CPU and memory of the kubelet")
                    .arg(
                        Arg::new("number")
                            .short('n')
                            .value_parser(value_parser!(usize))
                            .help("How many pods [default: 50]"),
                    )
                    .arg(
                        Arg::new("peer")
                            .long("peer")
                            .value_parser(value_parser!(std::path::PathBuf))
                            .help("Another kubelet to run in turn with ours"),
                    )
                    .arg(
                        Arg::new("rounds")
                            .long("rounds")
                            .value_parser(value_parser!(usize))
                            .help("How often [default: 1, with a peer 3]"),
                    )
                    .arg(
                        Arg::new("idle")
                            .long("idle")
                            .value_parser(value_parser!(u64))
                            .help("Seconds over which idle CPU is measured [default: 20]"),
                    ),
            ),
        )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
