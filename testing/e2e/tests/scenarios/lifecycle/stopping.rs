//! Pods whose manifests are taken away.

use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::Stage;
use rubelet_e2e::{Diary, KubeletProcess, find_container_processes, uptime, wait_closely};
use serde_json::{Value, json};

use super::{
    ensure_within, start_impatient_kubelet, wait_until_nothing_is_left, wait_until_stopped,
};
use crate::WAIT;

/// A container whose end is of interest.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) pod: String,
    id: String,
}

impl Watched {
    /// The container `app` of a pod.
    pub(super) fn find(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<Self> {
        let pod = kubelet.wait_for_pod(name, "running", WAIT, |pod| {
            pod.container("app").is_some_and(|app| app.is_running())
        })?;
        let app = pod.container("app").context("it has a container")?;
        Ok(Self { pod: name.to_owned(), id: app.id.clone() })
    }
}

/// When the last process of the container was gone, in seconds after boot.
pub(super) fn time_of_death(stage: &Stage, container: &Watched) -> anyhow::Result<f64> {
    wait_closely(
        &format!("{} to be dead", container.pod),
        WAIT,
        || match find_container_processes(stage.runtime().cgroup(), &container.id).len() {
            0 => Ok(()),
            left => Err(format!("{left} processes are left")),
        },
    )?;
    uptime()
}

pub(super) fn what_ignores_sigterm_is_killed_when_the_grace_period_is_over(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let stubborn = |name| {
        let script = "trap 'note term' TERM; note start; while :; do sleep 1000 & wait $!; done";
        Diary::container("app", name, script)
    };
    let obedient = |name| Diary::service("app", name, ":");
    // How long it may go on after SIGTERM. A grace period below two seconds is two: time enough for
    // a process to notice. A busy machine may take some seconds to carry out a kill.
    let cases = [
        ("grace-0", 0, stubborn("grace-0"), (1.9, 6.0)),
        ("grace-1", 1, stubborn("grace-1"), (1.9, 6.0)),
        ("grace-3", 3, stubborn("grace-3"), (2.9, 7.0)),
        ("grace-8", 8, stubborn("grace-8"), (7.9, 12.0)),
        ("obedient", 60, obedient("obedient"), (0.0, 10.0)),
    ];
    for (name, grace, app, _) in &cases {
        let spec = json!({
            "terminationGracePeriodSeconds": grace,
            "containers": [app],
            "volumes": [diary.volume()],
        });
        kubelet.write_pod(&pod(name, spec))?;
    }
    let mut watched = Vec::new();
    for (name, ..) in &cases {
        diary.wait_for(name, "start", 1, WAIT)?;
        watched.push(Watched::find(&kubelet, name)?);
    }
    let removed = uptime()?;
    for (name, ..) in &cases {
        kubelet.remove_pod(name)?;
    }
    let deaths: Vec<anyhow::Result<f64>> = thread::scope(|scope| {
        let watchers: Vec<_> = watched
            .iter()
            .map(|container| scope.spawn(move || time_of_death(stage, container)))
            .collect();
        let join = |watcher: thread::ScopedJoinHandle<'_, anyhow::Result<f64>>| {
            watcher.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the watcher panicked")))
        };
        watchers.into_iter().map(join).collect()
    });
    for ((name, _, _, (from, to)), death) in cases.iter().zip(deaths) {
        let told = diary.wait_for(name, "term", 1, WAIT)?[0];
        // The directory is looked at again every 20 seconds, but its changes are seen at once.
        ensure_within(&format!("the SIGTERM of {name}"), told - removed, 0.0, 12.0)?;
        let death = death?;
        ensure_within(&format!("the whole end of {name}"), death - removed, *from, f64::MAX)?;
        ensure_within(&format!("the end of {name} after SIGTERM"), death - told, 0.0, *to)?;
    }
    assert_eq!(diary.lines("obedient")?, ["obedient start", "obedient term", "obedient end"]);
    wait_until_nothing_is_left(&kubelet, WAIT)
}

pub(super) fn a_manifest_removed_while_its_pod_starts_leaves_nothing_behind(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    // Caught at a stage that it would stay in for long.
    let blocked = |name: &str| {
        Diary::container(
            "init",
            name,
            "note reached; until [ -e /diary/never ]; do sleep 0.2; done",
        )
    };
    let sleeps = || busybox("app", "exec sleep 3600");
    let hook = Diary::script("hook", "note reached; sleep 3600");
    let hooked = with(
        with(sleeps(), json!({ "volumeMounts": [Diary::mount()] })),
        json!({ "lifecycle": { "postStart": { "exec": { "command": ["sh", "-c", hook] } } } }),
    );
    let absent = with(sleeps(), json!({ "image": "localhost/rubelet/absent:1" }));
    let unstarted = with(
        Diary::container("app", "startup", "note reached; exec sleep 3600"),
        json!({ "startupProbe": { "exec": { "command": ["false"] }, "failureThreshold": 1000, "periodSeconds": 1 } }),
    );
    let spec = |init: Vec<Value>, app: Value| {
        json!({
            "initContainers": init,
            "containers": [app],
            "volumes": [diary.volume(), { "name": "scratch", "emptyDir": { "medium": "Memory" } }],
        })
    };
    kubelet.write_pod(&pod("init", spec(vec![blocked("init")], sleeps())))?;
    kubelet.write_pod(&pod("hook", spec(vec![], hooked)))?;
    kubelet.write_pod(&pod("absent", spec(vec![], absent)))?;
    kubelet.write_pod(&pod("startup", spec(vec![], unstarted)))?;
    for who in ["init", "hook", "startup"] {
        diary.wait_for(who, "reached", 1, WAIT)?;
    }
    let absent = kubelet.wait_for_pod("absent", "waiting for its image", WAIT, |pod| {
        pod.container("app").is_some_and(|app| app.reason == "ErrImageNeverPull")
    })?;
    ensure!(absent.phase == "Pending", "{}", absent.raw["status"]);
    let removed = uptime()?;
    for name in ["init", "hook", "absent", "startup"] {
        kubelet.remove_pod(name)?;
    }
    for name in ["init", "hook", "absent", "startup"] {
        wait_until_stopped(&kubelet, name)?;
    }
    // The hook had nearly an hour to go.
    ensure_within("the end of all four", uptime()? - removed, 0.0, 60.0)?;

    // Caught anywhere between nothing and running.
    let names: Vec<String> = (0..12).map(|step| format!("step-{step}")).collect();
    thread::scope(|scope| -> anyhow::Result<()> {
        let removals: Vec<_> = names
            .iter()
            .zip(0_u32..)
            .map(|(name, step)| {
                let kubelet = &kubelet;
                let spec = spec(vec![busybox("init", "exit 0")], sleeps());
                scope.spawn(move || {
                    kubelet.write_pod(&pod(name, spec))?;
                    // No condition to wait for: it is to be caught at any point.
                    thread::sleep(Duration::from_millis(60) * step);
                    kubelet.remove_pod(name)
                })
            })
            .collect();
        removals
            .into_iter()
            .try_for_each(|removal| removal.join().map_err(|_| anyhow::anyhow!("it panicked"))?)
    })?;
    wait_until_nothing_is_left(&kubelet, WAIT)
}
