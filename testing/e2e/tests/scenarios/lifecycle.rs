//! What becomes of a pod's containers: how they end, are restarted, wait for each other, are probed
//! and are stopped.

mod behind_the_back;
mod ends;
mod hooks;
mod init;
mod probing;
mod stopping;

use std::time::Duration;

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{ContainerView, Diary, KubeletProcess, PodView, pod_leftovers, wait_for};
use serde_json::Value;

use crate::WAIT;
use crate::runtime::with_cri;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::on_all(
        "a_pod_ends_as_its_restart_policy_and_exit_codes_say",
        ends::a_pod_ends_as_its_restart_policy_and_exit_codes_say,
    ),
    Scenario::on_debian(
        "a_crashing_container_is_restarted_after_0_10_and_20_seconds",
        ends::a_crashing_container_is_restarted_after_0_10_and_20_seconds,
    ),
    Scenario::on_all(
        "a_container_that_dies_behind_the_kubelets_back_is_seen_and_restarted_at_once",
        behind_the_back::a_container_that_dies_is_seen_and_restarted_at_once,
    ),
    // containerd 1.6 lists it for as long as it lives.
    Scenario::on_built(
        "a_container_deleted_by_ctr_while_it_terminates_does_not_hold_up_its_pod",
        behind_the_back::a_container_deleted_by_ctr_while_it_terminates_does_not_hold_up_its_pod,
    ),
    Scenario::on_all(
        "a_killed_sandbox_is_replaced_and_the_pod_starts_anew_from_its_init_containers",
        behind_the_back::a_killed_sandbox_is_replaced_and_the_pod_starts_anew,
    ),
    Scenario::on_debian(
        "init_containers_run_one_by_one_and_their_failures_count_by_policy",
        init::init_containers_run_one_by_one_and_their_failures_count_by_policy,
    ),
    Scenario::on_built(
        "sidecars_start_before_and_stop_after_the_regular_containers",
        init::sidecars_start_before_and_stop_after_the_regular_containers,
    ),
    Scenario::on_built(
        "readiness_needs_the_thresholds_of_its_probe",
        probing::readiness_needs_the_thresholds_of_its_probe,
    ),
    Scenario::on_debian(
        "startup_and_liveness_probes_decide_when_a_container_is_restarted",
        probing::startup_and_liveness_probes_decide_when_a_container_is_restarted,
    ),
    Scenario::on_all(
        "a_timed_out_exec_probe_counts_as_failed_and_leaves_no_process",
        probing::a_timed_out_exec_probe_counts_as_failed_and_leaves_no_process,
    ),
    Scenario::on_debian(
        "a_post_start_hook_holds_back_the_next_container_and_its_failure_kills",
        hooks::a_post_start_hook_holds_back_the_next_container_and_its_failure_kills,
    ),
    Scenario::on_built(
        "a_pre_stop_hook_runs_inside_the_grace_period",
        hooks::a_pre_stop_hook_runs_inside_the_grace_period,
    ),
    Scenario::on_all(
        "what_ignores_sigterm_is_killed_when_the_grace_period_is_over",
        stopping::what_ignores_sigterm_is_killed_when_the_grace_period_is_over,
    ),
    Scenario::on_all(
        "a_manifest_removed_while_its_pod_starts_leaves_nothing_behind",
        stopping::a_manifest_removed_while_its_pod_starts_leaves_nothing_behind,
    ),
];

/// A kubelet that restarts crashed containers every second, and a diary for its pods.
fn start_impatient_kubelet(stage: &Stage) -> anyhow::Result<(KubeletProcess, Diary)> {
    let mut options = stage.kubelet_options();
    options.config = serde_json::json!({
        "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" },
        // The Go kubelet tells of events at this level.
        "logging": { "verbosity": 3 },
    });
    let kubelet = stage.start_kubelet_with(options)?;
    let diary = Diary::create(&kubelet.manifests().with_file_name("diary"))?;
    Ok((kubelet, diary))
}

/// The raw status of a container.
fn status_of<'a>(pod: &'a PodView, container: &str) -> &'a Value {
    ["initContainerStatuses", "containerStatuses"]
        .iter()
        .flat_map(|field| pod.raw["status"][field].as_array().into_iter().flatten())
        .find(|status| status["name"] == container)
        .unwrap_or(&Value::Null)
}

/// The condition of that type.
pub(crate) fn condition<'a>(pod: &'a PodView, kind: &str) -> &'a Value {
    let conditions = pod.raw["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// The only container's status, or the one of that name.
fn container<'a>(pod: &'a PodView, name: &str) -> anyhow::Result<&'a ContainerView> {
    pod.container(name)
        .ok_or_else(|| anyhow::anyhow!("{} has no container {name}: {}", pod.name, pod.raw))
}

/// Whether `seconds` is within `from` and `to`, in words that tell how far off it is.
fn ensure_within(what: &str, seconds: f64, from: f64, to: f64) -> anyhow::Result<()> {
    anyhow::ensure!(
        (from..=to).contains(&seconds),
        "{what} took {seconds:.2} s instead of {from} to {to} s"
    );
    Ok(())
}

/// Waits until the runtime has nothing more of a pod: the kubelet forgets it before that.
pub(crate) fn wait_until_stopped(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<()> {
    let prefix = format!("{name}-");
    wait_for(&format!("{name} to be gone from the runtime"), WAIT, || {
        let prefix = prefix.clone();
        let left = with_cri(kubelet.runtime(), |cri| async move {
            let sandboxes = cri.list_pod_sandbox(None).await?;
            let names = sandboxes.into_iter().filter_map(|sandbox| sandbox.metadata);
            Ok(names.filter(|data| data.name.starts_with(&prefix)).count())
        });
        match left.map_err(|error| format!("{error:#}"))? {
            0 => Ok(()),
            left => Err(format!("{left} sandboxes are left")),
        }
    })
    .with_context(|| format!("the kubelet's log ends with:\n{}", kubelet.log_tail(25)))
}

/// Waits until neither the runtime nor the node has anything left of any pod.
pub(crate) fn wait_until_nothing_is_left(
    kubelet: &KubeletProcess,
    timeout: Duration,
) -> anyhow::Result<()> {
    wait_for("nothing to be left of the pods", timeout, || {
        let in_runtime = with_cri(kubelet.runtime(), |cri| async move {
            let containers = cri.list_containers(None).await?;
            let sandboxes = cri.list_pod_sandbox(None).await?;
            let mut left: Vec<String> =
                containers.into_iter().map(|container| format!("{container:?}")).collect();
            left.extend(sandboxes.into_iter().map(|sandbox| format!("{sandbox:?}")));
            Ok(left)
        });
        let mut left = in_runtime.map_err(|error| format!("{error:#}"))?;
        left.extend(pod_leftovers(kubelet));
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    })
    .with_context(|| format!("the kubelet's log ends with:\n{}", kubelet.log_tail(25)))
}
