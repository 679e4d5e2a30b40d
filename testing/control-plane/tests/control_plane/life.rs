//! How a control plane begins, is disturbed, and ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::Method;
use rubelet_control_plane::{Cache, Component, ControlPlane, Options, Tools};
use rubelet_test_bed::trials::Trial;
use serde_json::json;

use crate::ground::{Ground, block_on, eventually};

pub(crate) const TRIALS: &[Trial<Ground>] = &[
    Trial { name: "kubectl_reads_what_there_is", run: kubectl_reads_what_there_is },
    Trial {
        name: "a_killed_api_server_comes_back_with_its_port_and_its_data",
        run: a_killed_api_server_comes_back_with_its_port_and_its_data,
    },
    Trial {
        name: "a_paused_api_server_takes_connections_and_does_not_answer",
        run: a_paused_api_server_takes_connections_and_does_not_answer,
    },
    Trial { name: "nothing_is_left_when_it_stops", run: nothing_is_left_when_it_stops },
    Trial {
        name: "nothing_survives_a_process_that_is_killed",
        run: nothing_survives_a_process_that_is_killed,
    },
    Trial {
        name: "a_component_that_cannot_start_is_told_with_its_reason",
        run: a_component_that_cannot_start_is_told_with_its_reason,
    },
];

/// Tells this executable to start a control plane in that directory and to wait for its end.
pub(crate) const HOLD: &str = "RUBELET_TEST_HOLD_CONTROL_PLANE";

fn kubectl_reads_what_there_is(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    block_on(async {
        let namespaces = control_plane.kubectl(&["get", "namespaces", "-o", "name"]).await?;
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            ensure!(namespaces.contains(&format!("namespace/{name}\n")), "{namespaces}");
        }
        let version = control_plane.admin().get("/version").await?;
        // Another one may come by KUBEBUILDER_ASSETS.
        ensure!(version["gitVersion"].as_str().is_some_and(|v| v.starts_with("v1.")), "{version}");
        Ok(())
    })
}

fn a_killed_api_server_comes_back_with_its_port_and_its_data(
    ground: &Ground,
) -> anyhow::Result<()> {
    let control_plane = ground.start(ground.api_only())?;
    block_on(async {
        let admin = control_plane.admin();
        let config_maps = "/api/v1/namespaces/default/configmaps";
        let object = json!({ "metadata": { "name": "kept" }, "data": { "a": "b" } });
        admin.create(config_maps, &object).await?;
        let server = control_plane.server();

        control_plane.kill(Component::ApiServer)?;
        ensure!(control_plane.pid(Component::ApiServer).is_none(), "it is still known");
        let refused = admin.get(config_maps).await;
        ensure!(refused.is_err(), "somebody answers: {refused:?}");

        control_plane.start_again(Component::ApiServer).await?;
        ensure!(control_plane.server() == server, "its port has changed");
        let kept = admin.get(&format!("{config_maps}/kept")).await?;
        ensure!(kept["data"]["a"] == "b", "{kept}");

        control_plane.kill(Component::Etcd)?;
        control_plane.start_again(Component::Etcd).await?;
        let kept = eventually("the data", async || {
            let kept = admin.get(&format!("{config_maps}/kept")).await;
            Ok(kept.map_err(|error| format!("{error:#}")))
        })
        .await?;
        ensure!(kept["data"]["a"] == "b", "{kept}");
        Ok(())
    })
}

fn a_paused_api_server_takes_connections_and_does_not_answer(
    ground: &Ground,
) -> anyhow::Result<()> {
    let control_plane = ground.start(ground.api_only())?;
    block_on(async {
        control_plane.pause(Component::ApiServer)?;
        let impatient = control_plane.admin().clone().with_timeout(Duration::from_secs(1));
        let silence = impatient.request(Method::GET, "/version", None).await;
        let silence = silence.expect_err("it is held still").to_string();
        ensure!(silence.contains("within 1s"), "{silence}");
        control_plane.resume(Component::ApiServer)?;
        control_plane.wait_until_healthy(Component::ApiServer).await
    })
}

fn nothing_is_left_when_it_stops(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.start(ground.options())?;
    let dir = control_plane.dir().to_owned();
    let components: Vec<Component> = ground.options().components().collect();
    ensure!(components.len() == 4);
    for &component in &components {
        let pid = control_plane.pid(component).context("it runs")?;
        ensure!(processes_with(&dir)?.contains(&pid), "{component} is not seen");
    }
    control_plane.stop();
    let left = processes_with(&dir)?;
    ensure!(left.is_empty(), "processes are left: {left:?}");
    ensure!(!dir.exists(), "{} is left", dir.display());
    Ok(())
}

fn nothing_survives_a_process_that_is_killed(ground: &Ground) -> anyhow::Result<()> {
    let run = ground.api_only().run.join(format!("held-{}", std::process::id()));
    let mut holder = Command::new(std::env::current_exe()?)
        .env(HOLD, &run)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start this executable again")?;
    let stdout = holder.stdout.take().context("it has no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let dir = PathBuf::from(line.trim());
    let before = processes_with(&dir)?.len();
    holder.kill()?;
    holder.wait()?;
    ensure!(before == 2, "{before} processes use {}", dir.display());
    block_on(eventually("the processes to end", async || {
        let left = processes_with(&dir)?;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    }))?;
    // Nobody was left who could remove it: the next one does.
    ensure!(dir.exists(), "who removed {}?", dir.display());
    ground.start(Options { run: run.clone(), ..ground.api_only() })?.stop();
    ensure!(!dir.exists(), "{} was not swept", dir.display());
    fs::remove_dir(&run).with_context(|| format!("{} is not empty", run.display()))
}

/// The other side: says where its control plane is, and waits to be killed.
pub(crate) fn hold_a_control_plane(run: PathBuf) -> ExitCode {
    let held = block_on(async {
        let tools = Tools::find(&Cache::from_environment()?)?;
        let control_plane = ControlPlane::start(&tools, Options::api_only(run)).await?;
        println!("{}", control_plane.dir().display());
        let mut nothing = String::new();
        std::io::stdin().read_line(&mut nothing)?;
        Ok(())
    });
    match held {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn a_component_that_cannot_start_is_told_with_its_reason(ground: &Ground) -> anyhow::Result<()> {
    let mut options = ground.api_only();
    options.api_server_args.push("--authorization-mode=Nobody".to_owned());
    let error = ground.start(options).map(|_| ()).expect_err("there is no such mode");
    let text = format!("{error:#}");
    ensure!(text.contains("kube-apiserver ended with") && text.contains("Nobody"), "{text}");
    Ok(())
}

/// The processes whose command line names a directory.
fn processes_with(dir: &Path) -> anyhow::Result<Vec<u32>> {
    let name = dir.to_str().context("a path in UTF-8")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("no /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(name) {
            found.push(pid);
        }
    }
    Ok(found)
}
