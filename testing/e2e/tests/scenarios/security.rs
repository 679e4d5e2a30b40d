//! Who a container is, and what it may do.

use std::fs;

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{Cache, KubeletProcess, PodView, Runtime, RuntimeKind};
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{
    Facts, exec, on_node, read_facts, start_kubelet, telling, wait_for_refusal, wait_until_ready,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a_container_runs_as_the_user_and_groups_of_its_spec",
        runtimes: &RuntimeKind::ALL,
        run: a_container_runs_as_the_user_and_groups_of_its_spec,
    },
    Scenario {
        name: "a_strict_groups_policy_is_kept_or_its_pod_refused",
        runtimes: &RuntimeKind::ALL,
        run: a_strict_groups_policy_is_kept_or_its_pod_refused,
    },
    Scenario {
        name: "a_container_has_the_privileges_of_its_spec",
        runtimes: &RuntimeKind::ALL,
        run: a_container_has_the_privileges_of_its_spec,
    },
    Scenario {
        name: "a_seccomp_profile_is_the_one_of_the_spec_or_the_default",
        runtimes: &RuntimeKind::ALL,
        run: a_seccomp_profile_is_the_one_of_the_spec_or_the_default,
    },
    Scenario {
        name: "a_container_that_might_run_as_root_is_refused_where_it_must_not",
        runtimes: &RuntimeKind::ALL,
        run: a_container_that_might_run_as_root_is_refused_where_it_must_not,
    },
    Scenario {
        name: "safe_sysctls_are_set_and_unsafe_ones_refused",
        runtimes: &RuntimeKind::ALL,
        run: safe_sysctls_are_set_and_unsafe_ones_refused,
    },
    Scenario {
        name: "an_apparmor_profile_is_enforced_or_its_pod_refused",
        runtimes: &RuntimeKind::ALL,
        run: an_apparmor_profile_is_enforced_or_its_pod_refused,
    },
];

/// One container that tells what `script` finds out.
fn container(name: &str, script: &str, security: Value) -> Value {
    json!({
        "name": name, "image": "busybox", "imagePullPolicy": "Never",
        "command": ["sh", "-c", telling(script)], "securityContext": security
    })
}

fn write_pod(
    kubelet: &KubeletProcess,
    name: &str,
    security: Value,
    containers: Value,
    more: Value,
) -> anyhow::Result<()> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": security, "containers": containers
        }
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    kubelet.write_manifest(&format!("{name}.yaml"), &pod.to_string())
}

const SHOW_USER: &str = r#"
echo "user=$(id -u)"; echo "group=$(id -g)"; echo "groups=$(id -G)"
if [ -d /data ]; then
  echo "directory=$(stat -c '%a %u:%g' /data)"
  if touch "/data/of-$(id -u)"; then echo "file=$(stat -c '%u:%g' "/data/of-$(id -u)")"; fi
fi
"#;

fn a_container_runs_as_the_user_and_groups_of_its_spec(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let mut of_pod = container("of-pod", SHOW_USER, json!({}));
    let mut of_container =
        container("of-container", SHOW_USER, json!({ "runAsUser": 2000, "runAsGroup": 2001 }));
    for container in [&mut of_pod, &mut of_container] {
        container["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    }
    write_pod(
        &kubelet,
        "told",
        json!({
            "runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 4000,
            "supplementalGroups": [5000, 5001]
        }),
        json!([of_pod, of_container]),
        json!({ "volumes": [{ "name": "data", "emptyDir": {} }] }),
    )?;
    let mut of_image = container("of-image", SHOW_USER, json!({}));
    of_image["image"] = json!("localhost/rubelet/nonroot:1");
    let root = container("root", SHOW_USER, json!({}));
    write_pod(&kubelet, "untold", json!({}), json!([of_image, root]), json!({}))?;

    let pod = wait_until_ready(&kubelet, "told")?;
    let facts = read_facts(&kubelet, &pod, "of-pod")?;
    assert_eq!((&facts["user"], &facts["group"]), ("1000", "3000"));
    assert_eq!(groups(&facts), [3000, 4000, 5000, 5001]);
    assert_eq!(&facts["directory"], "2777 0:4000", "the volume belongs to fsGroup");
    assert_eq!(&facts["file"], "1000:4000", "and so does what is made in it");
    let facts = read_facts(&kubelet, &pod, "of-container")?;
    assert_eq!((&facts["user"], &facts["group"]), ("2000", "2001"));
    assert_eq!(groups(&facts), [2001, 4000, 5000, 5001]);
    assert_eq!(&facts["file"], "2000:4000");

    let pod = wait_until_ready(&kubelet, "untold")?;
    let facts = read_facts(&kubelet, &pod, "of-image")?;
    assert_eq!((&facts["user"], &facts["group"]), ("1234", "0"), "the image's user");
    let facts = read_facts(&kubelet, &pod, "root")?;
    assert_eq!((&facts["user"], &facts["group"]), ("0", "0"));
    Ok(())
}

fn a_strict_groups_policy_is_kept_or_its_pod_refused(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    for policy in ["Merge", "Strict"] {
        let security = json!({
            "runAsUser": 1000, "runAsGroup": 3000, "supplementalGroups": [5000],
            "supplementalGroupsPolicy": policy
        });
        let containers = json!([container("app", SHOW_USER, json!({}))]);
        write_pod(&kubelet, &policy.to_lowercase(), security, containers, json!({}))?;
    }
    let pod = wait_until_ready(&kubelet, "merge")?;
    assert_eq!(groups(&read_facts(&kubelet, &pod, "app")?), [3000, 5000]);
    if stage.runtime().kind() == RuntimeKind::Built {
        let pod = wait_until_ready(&kubelet, "strict")?;
        assert_eq!(groups(&read_facts(&kubelet, &pod, "app")?), [3000, 5000]);
        return Ok(());
    }
    let pod = kubelet.wait_for_pod("strict", "refused", WAIT, |pod| pod.phase == "Failed")?;
    assert_eq!(pod.reason, "SupplementalGroupsPolicyNotSupported");
    let text = "SupplementalGroupsPolicy=Strict is not supported in this node";
    assert_eq!(pod.message, format!("Pod was rejected: {text}"));
    kubelet.wait_for_event("strict", "SupplementalGroupsPolicyNotSupported", text, WAIT)?;
    Ok(())
}

fn groups(facts: &Facts) -> Vec<u32> {
    let mut groups: Vec<u32> =
        facts["groups"].split(' ').filter_map(|group| group.parse().ok()).collect();
    groups.sort_unstable();
    groups
}

const SHOW_PRIVILEGES: &str = r#"
sed -n 's/^\(CapEff\|CapBnd\|NoNewPrivs\|Seccomp\):[[:space:]]*/\1=/p' /proc/self/status
touch /made 2>/dev/null && echo root=writable || echo root=read-only
touch /dev/shm/made 2>/dev/null && echo shm=writable || echo shm=read-only
{ echo 1 >/proc/sys/net/ipv4/ip_forward; } 2>/dev/null && echo sys=writable || echo sys=read-only
[ -c /dev/mem ] || [ -c /dev/kmsg ] && echo devices=node || echo devices=own
echo "firmware=$(ls /sys/firmware | wc -l)"
echo "keys=$(wc -c </proc/keys)"
mounted() { awk '{ print $5, $6 }' /proc/self/mountinfo; }
echo "masked=$(mounted | grep -c -E '^/proc/(acpi|kcore|keys|scsi|timer_list) |^/sys/firmware ')"
echo "protected=$(mounted | grep -c -E '^/proc/(bus|fs|irq|sys|sysrq-trigger) ro')"
"#;
/// What of these the kernel has at all.
const COUNT_MASKED: &str =
    "ls -d /proc/acpi /proc/kcore /proc/keys /proc/scsi /proc/timer_list /sys/firmware | wc -l";
const COUNT_PROTECTED: &str =
    "ls -d /proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger | wc -l";

/// What containerd gives to a container that asks for nothing.
const DEFAULT_CAPABILITIES: u64 = 0xa804_25fb;
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_ADMIN: u64 = 1 << 12;
const CHOWN: u64 = 1;

fn a_container_has_the_privileges_of_its_spec(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let runtime = stage.runtime();
    let with = |name: &str, security: Value| container(name, SHOW_PRIVILEGES, security);
    write_pod(
        &kubelet,
        "mixed",
        json!({}),
        json!([
            with("plain", json!({})),
            with("more", json!({ "capabilities": { "add": ["NET_ADMIN"], "drop": ["CHOWN"] } })),
            with(
                "little",
                json!({
                    "capabilities": { "add": ["NET_BIND_SERVICE"], "drop": ["ALL"] },
                    "allowPrivilegeEscalation": false
                })
            ),
            with("read-only", json!({ "readOnlyRootFilesystem": true })),
            with("user", json!({ "runAsUser": 1000, "allowPrivilegeEscalation": true })),
        ]),
        json!({}),
    )?;
    write_pod(
        &kubelet,
        "privileged",
        json!({}),
        json!([with("privileged", json!({ "privileged": true })), with("beside", json!({})),]),
        json!({}),
    )?;
    let pod = wait_until_ready(&kubelet, "mixed")?;
    let facts = |name: &str| read_facts(&kubelet, &pod, name);

    let plain = facts("plain")?;
    assert_eq!(capabilities(&plain, "CapEff"), DEFAULT_CAPABILITIES);
    assert_eq!((&plain["NoNewPrivs"], &plain["root"]), ("0", "writable"));
    assert_eq!((&plain["sys"], &plain["devices"]), ("read-only", "own"));
    assert_eq!((&plain["firmware"], &plain["keys"]), ("0", "0"), "masked");
    assert_eq!(plain["masked"], *on_node(runtime, COUNT_MASKED)?);
    assert_eq!(plain["protected"], *on_node(runtime, COUNT_PROTECTED)?);

    let more = facts("more")?;
    assert_eq!(capabilities(&more, "CapEff"), DEFAULT_CAPABILITIES & !CHOWN | NET_ADMIN);
    let little = facts("little")?;
    assert_eq!(capabilities(&little, "CapEff"), NET_BIND_SERVICE);
    assert_eq!(&little["NoNewPrivs"], "1");
    let read_only = facts("read-only")?;
    assert_eq!((&read_only["root"], &read_only["shm"]), ("read-only", "writable"));
    let user = facts("user")?;
    assert_eq!((capabilities(&user, "CapEff"), &user["NoNewPrivs"]), (0, "0"));
    assert_eq!(capabilities(&user, "CapBnd"), DEFAULT_CAPABILITIES);

    let pod = wait_until_ready(&kubelet, "privileged")?;
    let privileged = read_facts(&kubelet, &pod, "privileged")?;
    let of_node = on_node(runtime, "sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status")?;
    assert_eq!(privileged["CapEff"], *of_node, "everything that the runtime itself may do");
    assert_eq!((&privileged["sys"], &privileged["devices"]), ("writable", "node"));
    assert_eq!((&privileged["masked"], &privileged["protected"]), ("0", "0"));
    assert_eq!(&privileged["Seccomp"], "0");
    let beside = read_facts(&kubelet, &pod, "beside")?;
    assert_eq!(capabilities(&beside, "CapEff"), DEFAULT_CAPABILITIES, "each on its own");
    assert_eq!((&beside["sys"], &beside["devices"]), ("read-only", "own"));
    Ok(())
}

fn capabilities(facts: &Facts, set: &str) -> u64 {
    u64::from_str_radix(&facts[set], 16).expect("a set of capabilities is a number")
}

const SHOW_SECCOMP: &str = r#"
sed -n 's/^Seccomp:[[:space:]]*/seccomp=/p' /proc/self/status
mkdir /made && echo made=yes || echo made=no
"#;

fn a_seccomp_profile_is_the_one_of_the_spec_or_the_default(stage: &Stage) -> anyhow::Result<()> {
    let mut kubelet = start_kubelet(stage, json!({}))?;
    let profiles = kubelet.root_dir().join("seccomp/own");
    fs::create_dir_all(&profiles)?;
    let no_directories = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" }]
    });
    fs::write(profiles.join("no-directories.json"), no_directories.to_string())?;
    let with = |name: &str, profile: Value| {
        container(name, SHOW_SECCOMP, json!({ "seccompProfile": profile }))
    };
    let untold = || container("untold", SHOW_SECCOMP, json!({}));
    let own = json!({ "type": "Localhost", "localhostProfile": "own/no-directories.json" });
    write_pod(
        &kubelet,
        "told",
        json!({}),
        json!([
            with("default", json!({ "type": "RuntimeDefault" })),
            with("unconfined", json!({ "type": "Unconfined" })),
            with("own", own.clone()),
            untold(),
        ]),
        json!({}),
    )?;
    write_pod(
        &kubelet,
        "of-pod",
        json!({ "seccompProfile": own }),
        json!([untold(), with("unconfined", json!({ "type": "Unconfined" }))]),
        json!({}),
    )?;
    write_pod(
        &kubelet,
        "bogus",
        json!({}),
        json!([with(
            "bogus",
            json!({ "type": "Localhost", "localhostProfile": "own/missing.json" })
        ),]),
        json!({}),
    )?;
    let check = |kubelet: &KubeletProcess, pod: &PodView, expected: &[(&str, &str, &str)]| {
        for (container, seccomp, made) in expected {
            let facts = read_facts(kubelet, pod, container)?;
            let found = (&facts["seccomp"], &facts["made"]);
            assert_eq!(found, (*seccomp, *made), "{container} of {}", pod.name);
        }
        anyhow::Ok(())
    };
    let pod = wait_until_ready(&kubelet, "told")?;
    check(
        &kubelet,
        &pod,
        &[
            ("default", "2", "yes"),
            ("unconfined", "0", "yes"),
            ("own", "2", "no"),
            ("untold", "0", "yes"),
        ],
    )?;
    let pod = wait_until_ready(&kubelet, "of-pod")?;
    check(&kubelet, &pod, &[("untold", "2", "no"), ("unconfined", "0", "yes")])?;

    // Nothing runs without the profile that it asks for. When it is there, all is well.
    let message = wait_for_refusal(&kubelet, "bogus", "bogus", "CreateContainerError")?;
    assert!(message.contains("own/missing.json"), "{message}");
    kubelet.wait_for_event("bogus", "Failed", "own/missing.json", WAIT)?;
    fs::write(profiles.join("missing.json"), no_directories.to_string())?;
    let pod = wait_until_ready(&kubelet, "bogus")?;
    check(&kubelet, &pod, &[("bogus", "2", "no")])?;

    // The node may have another default.
    kubelet.options_mut().config["seccompDefault"] = json!(true);
    kubelet.restart()?;
    write_pod(
        &kubelet,
        "later",
        json!({}),
        json!([untold(), with("unconfined", json!({ "type": "Unconfined" }))]),
        json!({}),
    )?;
    let pod = wait_until_ready(&kubelet, "later")?;
    check(&kubelet, &pod, &[("untold", "2", "yes"), ("unconfined", "0", "yes")])
}

fn a_container_that_might_run_as_root_is_refused_where_it_must_not(
    stage: &Stage,
) -> anyhow::Result<()> {
    let _named = NamedUserImage::import(stage)?;
    let kubelet = start_kubelet(stage, json!({}))?;
    let of_image = |name: &str, image: &str| {
        let mut container = container(name, SHOW_USER, json!({}));
        container["image"] = json!(image);
        container
    };
    write_pod(
        &kubelet,
        "strict",
        json!({ "runAsNonRoot": true }),
        json!([
            container("zero", SHOW_USER, json!({ "runAsUser": 0 })),
            of_image("root", "busybox"),
            of_image("named", NamedUserImage::NAME),
            of_image("numbered", "localhost/rubelet/nonroot:1"),
            container("other", SHOW_USER, json!({ "runAsUser": 7 })),
            container("exempt", SHOW_USER, json!({ "runAsNonRoot": false })),
        ]),
        json!({}),
    )?;
    let reason = "CreateContainerConfigError";
    let mut refused = Vec::new();
    for (container, text) in [
        ("zero", "container's runAsUser breaks non-root policy"),
        ("root", "container has runAsNonRoot and image will run as root"),
        (
            "named",
            "container has runAsNonRoot and image has non-numeric user (abcd), cannot verify user \
             is non-root",
        ),
    ] {
        let message = wait_for_refusal(&kubelet, "strict", container, reason)?;
        let uid = kubelet.pod("strict")?.context("no pod")?.uid;
        let node = stage.kubelet_options().node_name;
        let expected =
            format!("{text} (pod: \"strict-{node}_default({uid})\", container: {container})");
        assert_eq!(message, expected);
        refused.push((container, message));
    }
    for (_, message) in refused {
        kubelet.wait_for_event("strict", "Failed", &format!("Error: {message}"), WAIT)?;
    }
    let runs = |pod: &PodView| {
        ["numbered", "other", "exempt"]
            .iter()
            .all(|name| pod.container(name).is_some_and(|container| container.is_running()))
    };
    let pod = kubelet.wait_for_pod("strict", "running where it may", WAIT, runs)?;
    assert!(!pod.ready);
    for (container, user) in [("numbered", "1234"), ("other", "7"), ("exempt", "0")] {
        assert_eq!(&read_facts(&kubelet, &pod, container)?["user"], user, "{container}");
    }
    Ok(())
}

/// An image that says by name who it runs as. It goes when it is dropped.
struct NamedUserImage<'a> {
    runtime: &'a Runtime,
}

impl<'a> NamedUserImage<'a> {
    const NAME: &'static str = "localhost/rubelet/byname1:1";

    /// Makes it of the image whose user is a number: an uncompressed archive in which a text of the
    /// same length can take the place of another.
    fn import(stage: &'a Stage) -> anyhow::Result<Self> {
        let source = Cache::from_environment()?.images().join("nonroot.tar");
        let mut archive =
            fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
        for (old, new) in [("rubelet/nonroot:1", "rubelet/byname1:1"), ("\"1234\"", "\"abcd\"")] {
            let places: Vec<usize> = archive
                .windows(old.len())
                .enumerate()
                .filter(|(_, window)| *window == old.as_bytes())
                .map(|(at, _)| at)
                .collect();
            anyhow::ensure!(!places.is_empty(), "{} has no {old}", source.display());
            for at in places {
                archive[at..at + new.len()].copy_from_slice(new.as_bytes());
            }
        }
        let runtime = stage.runtime();
        let path = runtime.dir().join("named-user.tar");
        fs::write(&path, archive).with_context(|| format!("cannot write {}", path.display()))?;
        let image = Self { runtime };
        let path = path.to_str().context("the cache's path is not UTF-8")?;
        runtime.ctr(&["-n", "k8s.io", "images", "import", path])?;
        Ok(image)
    }
}

impl Drop for NamedUserImage<'_> {
    fn drop(&mut self) {
        let removed = self.runtime.ctr(&["-n", "k8s.io", "images", "rm", "--sync", Self::NAME]);
        if let Err(error) = removed {
            eprintln!("cannot remove {}: {error:#}", Self::NAME);
        }
    }
}

fn safe_sysctls_are_set_and_unsafe_ones_refused(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(
        stage,
        json!({ "allowedUnsafeSysctls": ["kernel.msg*", "net.core.somaxconn"] }),
    )?;
    let runtime = stage.runtime();
    let with = |name: &str, sysctls: &[(&str, &str)]| {
        let sysctls: Vec<Value> =
            sysctls.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let containers = json!([container("app", "", json!({}))]);
        write_pod(&kubelet, name, json!({ "sysctls": sysctls }), containers, json!({}))
    };
    with(
        "safe",
        &[
            ("kernel.shm_rmid_forced", "1"),
            ("net/ipv4/ip_local_port_range", "40000 50000"),
            ("kernel.msgmax", "12345"),
            ("net.core.somaxconn", "99"),
        ],
    )?;
    let unsafe_ones = [("shared", "kernel.sem"), ("network", "net.ipv4.ip_forward")];
    for (name, sysctl) in unsafe_ones {
        with(name, &[(sysctl, "1")])?;
    }
    let pod = wait_until_ready(&kubelet, "safe")?;
    for (file, expected) in [
        ("kernel/shm_rmid_forced", "1"),
        ("net/ipv4/ip_local_port_range", "40000\t50000"),
        ("kernel/msgmax", "12345"),
        ("net/core/somaxconn", "99"),
    ] {
        let found = exec(runtime, &pod, "app", &format!("cat /proc/sys/{file}"))?;
        assert_eq!(found, expected, "{file}");
        let of_node = on_node(runtime, &format!("cat /proc/sys/{file}"))?;
        assert_ne!(of_node, expected, "the node's own {file} is not touched");
    }
    for (name, sysctl) in unsafe_ones {
        let pod = kubelet.wait_for_pod(name, "refused", WAIT, |pod| pod.phase == "Failed")?;
        assert_eq!(pod.reason, "SysctlForbidden");
        let text = format!("forbidden sysctl: \"{sysctl}\" not allowlisted");
        assert_eq!(pod.message, format!("Pod was rejected: {text}"));
        kubelet.wait_for_event(name, "SysctlForbidden", &text, WAIT)?;
        assert!(pod.containers.iter().all(|container| container.id.is_empty()), "nothing ran");
    }
    Ok(())
}

fn an_apparmor_profile_is_enforced_or_its_pod_refused(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let with = |kind: &str| {
        let script = "echo \"profile=$(cat /proc/self/attr/current 2>/dev/null)\"";
        container("app", script, json!({ "appArmorProfile": { "type": kind } }))
    };
    write_pod(&kubelet, "default", json!({}), json!([with("RuntimeDefault")]), json!({}))?;
    write_pod(&kubelet, "unconfined", json!({}), json!([with("Unconfined")]), json!({}))?;
    wait_until_ready(&kubelet, "unconfined")?;
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    if enabled.is_ok_and(|enabled| enabled.trim() == "Y") {
        let pod = wait_until_ready(&kubelet, "default")?;
        let facts = read_facts(&kubelet, &pod, "app")?;
        assert_eq!(&facts["profile"], "cri-containerd.apparmor.d (enforce)");
        return Ok(());
    }
    let pod = kubelet.wait_for_pod("default", "refused", WAIT, |pod| pod.phase == "Failed")?;
    let text = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert_eq!(pod.reason, "AppArmor");
    assert_eq!(pod.message, format!("Pod was rejected: {text}"));
    kubelet.wait_for_event("default", "AppArmor", text, WAIT)?;
    Ok(())
}
