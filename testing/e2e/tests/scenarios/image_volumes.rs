//! Volumes with the files of images.

use rubelet_e2e::RuntimeKind;
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::{Scenario, Stage};
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{exec, start_kubelet, wait_for_refusal};

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "an_image_is_a_volume_where_the_runtime_can_mount_it",
    runtimes: &RuntimeKind::ALL,
    run: an_image_is_a_volume_where_the_runtime_can_mount_it,
}];

fn an_image_is_a_volume_where_the_runtime_can_mount_it(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let container = |name: &str, mounts: Value| {
        with(json!({ "volumeMounts": mounts }), busybox(name, "exec sleep 3600"))
    };
    let of = |name: &str, image: &str| json!({ "name": name, "image": { "reference": image, "pullPolicy": "Never" } });
    let spec = json!({
        "volumes": [of("tools", "busybox"), of("missing", "localhost/rubelet/none:1")],
        "containers": [
            container("user", json!([
                { "name": "tools", "mountPath": "/tools" },
                { "name": "tools", "mountPath": "/part", "subPath": "bin" },
            ])),
            container("unlucky", json!([{ "name": "missing", "mountPath": "/missing" }])),
            container("other", json!([])),
        ],
    });
    kubelet.write_manifest("images.yaml", &pod("images", spec).to_string())?;
    let can = stage.runtime().kind() == RuntimeKind::Built;
    let pod = kubelet.wait_for_pod("images", "as far as it can be", WAIT, |pod| {
        let running = |name: &str| pod.container(name).is_some_and(|status| status.is_running());
        running("other") && (!can || running("user"))
    })?;
    if !can {
        // Nothing is pulled in vain.
        for name in ["user", "unlucky"] {
            let message = wait_for_refusal(&kubelet, "images", name, "CreateContainerConfigError")?;
            let text = "image volumes are not supported by containerd 1.6";
            assert!(message.starts_with(text), "{message}");
        }
        return Ok(());
    }
    let message = wait_for_refusal(&kubelet, "images", "unlucky", "ErrImageNeverPull")?;
    assert_eq!(
        message,
        "Container image \"localhost/rubelet/none:1\" is not present with pull policy of Never"
    );
    let see = |script: &str| exec(stage.runtime(), &pod, "user", script);
    assert_eq!(see("test -x /tools/bin/busybox && test -x /part/busybox && echo both")?, "both");
    let refused = see("touch /tools/mine; touch /part/mine")?;
    assert_eq!(refused.matches("Read-only file system").count(), 2, "{refused}");
    kubelet.remove_manifest("images.yaml")?;
    kubelet.wait_until_gone("images", WAIT)
}
