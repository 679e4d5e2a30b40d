//! Puts a real container runtime to the contract:
//! `contract ENDPOINT IMAGE LOG_DIRECTORY [CGROUP_PARENT]`.

use std::process::ExitCode;
use std::time::Duration;

use rubelet_fake_cri::contract::{self, ContractOptions};

#[allow(clippy::print_stdout, clippy::print_stderr)] // A program for people at a terminal.
#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (endpoint, image, log_directory, cgroup_parent) = match arguments.as_slice() {
        [endpoint, image, logs] => (endpoint, image, logs, ""),
        [endpoint, image, logs, cgroup] => (endpoint, image, logs, cgroup.as_str()),
        _ => {
            eprintln!("usage: contract ENDPOINT IMAGE LOG_DIRECTORY [CGROUP_PARENT]");
            return ExitCode::from(2);
        }
    };
    let options = ContractOptions {
        image: image.clone(),
        cgroup_parent: cgroup_parent.to_owned(),
        log_directory: log_directory.into(),
        patience: Duration::from_secs(20),
    };
    match contract::run(endpoint, &options).await {
        Ok(report) => {
            print!("{report}");
            ExitCode::from(u8::from(report.failures().next().is_some()))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
