//! Pods that start.

use rubelet_e2e::RuntimeKind;
use rubelet_e2e::runner::{Scenario, Stage};

use crate::WAIT;
use crate::runtime::wait_until_idle;

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario { name: "one_pod_runs", runtimes: &RuntimeKind::ALL, run: one_pod_runs }];

fn one_pod_runs(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    kubelet.write_manifest(
        "one.yaml",
        r#"
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: busybox
    imagePullPolicy: Never
    command: [sh, -c, "echo hello from $(hostname); exec sleep 3600"]
"#,
    )?;
    let pod = kubelet.wait_for_pod("one", "ready", WAIT, |pod| pod.ready)?;
    assert_eq!(pod.phase, "Running");
    assert!(pod.ip.starts_with("10.244."), "its address is {:?}", pod.ip);
    let log = kubelet.wait_for_log(&pod, "app", "hello", WAIT)?;
    assert_eq!(log, [format!("hello from {}", pod.name)]);

    kubelet.remove_manifest("one.yaml")?;
    kubelet.wait_until_gone("one", WAIT)?;
    wait_until_idle(stage.runtime(), WAIT)
}
