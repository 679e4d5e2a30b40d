//! Pods that claim volumes which outlive them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::Stage;
use crate::{Ground, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    claimed_volumes_outlive_their_pods,
    an_ephemeral_claim_goes_with_its_pod,
    a_claim_without_a_volume_is_told,
];

/// Persistent volumes belong to no namespace, and this trial's go with it.
struct Volumes<'a> {
    stage: &'a Stage,
    names: Vec<String>,
    dir: PathBuf,
    device: Option<String>,
}

impl<'a> Volumes<'a> {
    fn new(stage: &'a Stage) -> anyhow::Result<Self> {
        let dir = stage.kubelet().runtime().dir().join(format!("disks-{}", stage.namespace()));
        fs::create_dir_all(&dir)?;
        Ok(Self { stage, names: Vec::new(), dir, device: None })
    }

    /// Makes a volume.
    fn make(&mut self, name: &str, spec: Value, annotations: Value) -> anyhow::Result<Value> {
        let name = format!("{}-{name}", self.stage.namespace());
        let common = json!({
            "capacity": { "storage": "1Mi" },
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
        });
        let metadata = json!({ "name": name, "annotations": annotations });
        let volume = json!({ "metadata": metadata, "spec": with(spec, common) });
        self.stage.create("/api/v1/persistentvolumes", &volume)?;
        self.names.push(name);
        Ok(volume)
    }

    /// Makes a volume and a claim that is bound to it.
    fn claim(&mut self, claim: &str, spec: Value, annotations: Value) -> anyhow::Result<()> {
        let volume = self.make(claim, spec, annotations)?;
        let wanted = json!({
            "metadata": { "name": claim },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "",
                "volumeName": volume["metadata"]["name"],
                "volumeMode": volume["spec"]["volumeMode"],
                "resources": { "requests": { "storage": "1Mi" } },
            },
        });
        self.stage.create(&self.stage.path("persistentvolumeclaims"), &wanted)?;
        self.stage.wait_for_object(&format!("persistentvolumeclaims/{claim}"), |claim| {
            claim["status"]["phase"] == "Bound"
        })?;
        Ok(())
    }

    /// A device of the node that is a file of 1 MiB.
    fn make_device(&mut self) -> anyhow::Result<String> {
        let file = self.dir.join("device");
        fs::write(&file, vec![0_u8; 1 << 20])?;
        let made = self.stage.kubelet().runtime().namespaces().run(
            "losetup",
            &["--find", "--show", file.to_str().context("a path that is no text")?],
        )?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let device = String::from_utf8(made.stdout)?.trim().to_owned();
        self.device = Some(device.clone());
        Ok(device)
    }
}

impl Drop for Volumes<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = self.stage.delete(&format!("/api/v1/persistentvolumes/{name}"));
        }
        if let Some(device) = &self.device {
            let args = ["--detach", device];
            let _ = self.stage.kubelet().runtime().namespaces().run("losetup", &args);
        }
    }
}

fn claimed_volumes_outlive_their_pods(stage: &mut Stage) -> anyhow::Result<()> {
    let stage = &*stage;
    let mut volumes = Volumes::new(stage)?;
    let (disk, shelf) = (volumes.dir.join("disk"), volumes.dir.join("shelf"));
    fs::create_dir_all(&disk)?;
    fs::create_dir_all(&shelf)?;
    let device = volumes.make_device()?;
    let on_the_node = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [{
        "key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"] }] }] } });
    let local = |path: &str, mode: &str| json!({ "local": { "path": path }, "volumeMode": mode, "nodeAffinity": on_the_node });
    let disk_path = disk.to_string_lossy();
    let group = json!({ "pv.beta.kubernetes.io/gid": "4711" });
    volumes.claim("disk", local(&disk_path, "Filesystem"), group)?;
    volumes.claim("raw", local(&device, "Block"), json!({}))?;
    volumes.claim("shelf", json!({ "hostPath": { "path": shelf } }), json!({}))?;

    let claiming = |name: &str, script: &str| {
        let container = with(
            json!({
                "volumeMounts": [
                    { "name": "disk", "mountPath": "/disk" },
                    { "name": "disk", "mountPath": "/part", "subPath": "part" },
                    { "name": "shelf", "mountPath": "/shelf" },
                ],
                "volumeDevices": [{ "name": "raw", "devicePath": "/dev/raw" }],
            }),
            busybox("app", script),
        );
        let of = |name: &str, read_only: bool| {
            json!({ "name": name, "persistentVolumeClaim": {
                "claimName": name, "readOnly": read_only } })
        };
        let spec = json!({
            "restartPolicy": "Never",
            "securityContext": { "fsGroup": 2000 },
            "containers": [container],
            "volumes": [of("disk", false), of("shelf", true), of("raw", false)],
        });
        pod(name, spec)
    };
    let run = |name: &str, script: &str| {
        stage.create_pod(&claiming(name, script))?;
        let ended = stage
            .wait_for_pod(name, "over", |pod| pod.phase == "Succeeded" || pod.phase == "Failed")?;
        ensure!(ended.phase == "Succeeded", "{}", ended.raw["status"]);
        anyhow::Ok(ended)
    };
    let first = run(
        "first",
        "echo kept >/disk/file && echo part >/part/file || exit 11
         [ \"$(stat -c '%g %a' /disk)\" = '2000 2775' ] || exit 12
         id -G | grep -qw 4711 || exit 13
         touch /shelf/file 2>/dev/null && exit 14
         printf data | dd of=/dev/raw conv=notrunc 2>/dev/null || exit 15",
    )?;
    ensure!(fs::read_to_string(disk.join("file"))? == "kept\n");
    ensure!(fs::read_to_string(disk.join("part/file"))? == "part\n");
    stage.wait_for_event("first", "SuccessfulMountVolume", "MapVolume.MapPodDevice succeeded")?;
    stage.kubectl(&["delete", "pod", "first", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()?;
    let of_first = stage.kubelet().root_dir().join("pods").join(&first.uid);
    rubelet_e2e::wait_for("the first pod's directory to be gone", crate::WAIT, || {
        if of_first.exists() { Err(of_first.display().to_string()) } else { Ok(()) }
    })?;
    run(
        "second",
        "[ \"$(cat /disk/file /disk/part/file | tr '\\n' ' ')\" = 'kept part ' ] || exit 21
         [ \"$(head -c 4 /dev/raw)\" = data ] || exit 22",
    )?;
    stage.kubectl(&["delete", "pod", "second", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()
}

fn an_ephemeral_claim_goes_with_its_pod(stage: &mut Stage) -> anyhow::Result<()> {
    let stage = &*stage;
    let mut volumes = Volumes::new(stage)?;
    let scratch = volumes.dir.join("scratch");
    fs::create_dir_all(&scratch)?;
    let volume = volumes.make("scratch", json!({ "hostPath": { "path": scratch } }), json!({}))?;
    let container = with(
        json!({ "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }] }),
        busybox("app", "echo mine >/scratch/file"),
    );
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{ "name": "scratch", "ephemeral": { "volumeClaimTemplate": { "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeName": volume["metadata"]["name"],
            "resources": { "requests": { "storage": "1Mi" } },
        } } } }],
    });
    stage.create_pod(&pod("app", spec))?;
    let ended = stage
        .wait_for_pod("app", "over", |pod| pod.phase == "Succeeded" || pod.phase == "Failed")?;
    ensure!(ended.phase == "Succeeded", "{}", ended.raw["status"]);
    ensure!(fs::read_to_string(scratch.join("file"))? == "mine\n");
    ensure!(stage.list("persistentvolumeclaims")?.len() == 1);
    stage.kubectl(&["delete", "pod", "app", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()?;
    rubelet_e2e::wait_for("the claim to go with its pod", crate::WAIT, || {
        let left = stage.list("persistentvolumeclaims").map_err(|error| format!("{error:#}"))?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
}

fn a_claim_without_a_volume_is_told(stage: &mut Stage) -> anyhow::Result<()> {
    let claim = json!({
        "metadata": { "name": "wish" },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "resources": { "requests": { "storage": "1Mi" } },
        },
    });
    stage.create(&stage.path("persistentvolumeclaims"), &claim)?;
    let container = with(
        json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }),
        busybox("app", "exit 0"),
    );
    let spec = json!({
        // Past the scheduler, which would wait for the claim.
        "nodeName": "node-1",
        "containers": [container],
        "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "wish" } }],
    });
    stage.create_pod(&pod("app", spec))?;
    stage.wait_for_event(
        "app",
        "FailedMount",
        "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: error \
         processing PVC",
    )?;
    stage.wait_for_event("app", "FailedMount", "/wish: PVC is not bound")?;
    stage.kubectl(&["delete", "pod", "app", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()
}
