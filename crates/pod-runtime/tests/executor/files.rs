use std::os::unix::fs::PermissionsExt;

use rubelet_fake_cri::{Script, ScriptMatch, Step};
use rubelet_types::ContainerState;

use super::*;

const STANDARD: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";

fn mode(path: &std::path::Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[tokio::test(start_paused = true)]
async fn files_around_a_container_are_where_others_look_for_them() {
    let node = Node::new();
    let script = Script::of([Step::Print("hello".to_owned()), Step::RunForever]);
    node.fake.add_script(ScriptMatch::Container("c".to_owned()), script);
    let pod = pod(serde_json::json!({}));
    let (sandbox, container) = node.run(&pod).await;
    let pod = pod_ref(&pod);
    let log = node.log(&pod, "0.log");
    assert_eq!(log, node.root.path().join("pod-logs/ns_web_u1/c/0.log"));
    assert_eq!(mode(log.parent().unwrap()), 0o755);
    assert_eq!(container.log_path, log.to_string_lossy());
    assert_eq!(std::fs::read_link(node.link(&container)).unwrap(), log);

    let hosts = node.paths.etc_hosts(&pod.uid);
    assert_eq!(container.mounts["/etc/hosts"], hosts.to_string_lossy());
    assert_eq!(mode(&hosts), 0o644);
    assert_eq!(
        std::fs::read_to_string(&hosts).unwrap(),
        format!("{STANDARD}{}\tweb\n", sandbox.ips[0])
    );

    let message = PathBuf::from(&container.mounts["/dev/termination-log"]);
    assert_eq!(message.parent(), Some(node.paths.container_dir(&pod.uid, "c").as_path()));
    let name = message.file_name().unwrap().to_str().unwrap();
    assert!(name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    assert_eq!(mode(&message), 0o666);
}

#[tokio::test(start_paused = true)]
async fn the_hosts_file_is_written_anew_at_each_start() {
    let node = Node::new();
    let pod = pod_with(
        serde_json::json!({}),
        serde_json::json!({"subdomain": "s", "hostAliases": [
            {"ip": "192.0.2.9", "hostnames": ["a", "b"]}]}),
    );
    let (sandbox, _) = node.run(&pod).await;
    let to_start = ContainerToStart {
        restart_count: Some(1),
        pod_ips: vec!["10.0.0.7".to_owned(), "fd00::7".to_owned()],
        ..node.to_start(&sandbox)
    };
    node.start(&pod, to_start).await.unwrap();
    let name = "web.s.ns.svc.cluster.local\tweb";
    assert_eq!(
        std::fs::read_to_string(node.paths.etc_hosts(&pod_ref(&pod).uid)).unwrap(),
        format!(
            "{STANDARD}10.0.0.7\t{name}\nfd00::7\t{name}\n\n# Entries added by HostAliases.\n\
             192.0.2.9\ta\tb\n"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_hosts_file_is_managed_unless_there_is_one_or_no_address() {
    let managed = async |container: serde_json::Value, spec: serde_json::Value, ips: &[String]| {
        let node = Node::new();
        let pod = pod_with(container, spec);
        let sandbox = node.with_sandbox(&pod).await;
        let to_start = ContainerToStart { pod_ips: ips.to_vec(), ..node.to_start(&sandbox) };
        let container = node.start(&pod, to_start).await.unwrap();
        let file = node.paths.etc_hosts(&pod_ref(&pod).uid);
        assert_eq!(container.mounts.contains_key("/etc/hosts"), file.exists());
        file.exists().then(|| std::fs::read_to_string(file).unwrap())
    };
    let nothing = || serde_json::json!({});
    let ip = ["10.0.0.7".to_owned()];
    let own = serde_json::json!({"volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]});
    assert_eq!(managed(own, nothing(), &ip).await, None);
    assert_eq!(managed(nothing(), nothing(), &[]).await, None);
    let host_network = serde_json::json!({"hostNetwork": true});
    assert_eq!(
        managed(nothing(), host_network, &[]).await.unwrap(),
        format!(
            "# Kubernetes-managed hosts file (host network).\n{}",
            std::fs::read_to_string("/etc/hosts").unwrap()
        )
    );
}

#[tokio::test(start_paused = true)]
async fn restart_counts_continue_after_the_logs_of_a_forgotten_instance() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    let old = node.log(&pod_ref(&pod), "4.log");
    std::fs::create_dir_all(old.parent().unwrap()).unwrap();
    std::fs::write(&old, "old").unwrap();
    let to_start = ContainerToStart { restart_count: None, ..node.to_start(&sandbox) };
    let container = node.start(&pod, to_start).await.unwrap();
    assert_eq!(container.restart_count, 5);
    assert!(node.log(&pod_ref(&pod), "5.log").exists());
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
}

async fn message_of(container: serde_json::Value, script: Script) -> (String, Node) {
    let node = Node::new();
    node.fake.add_script(ScriptMatch::Container("c".to_owned()), script);
    let pod = pod(container);
    let sandbox = node.with_sandbox(&pod).await;
    // It fails where the script says so.
    let _ = node.start(&pod, node.to_start(&sandbox)).await;
    node.fake.wait_for(seconds(10), |all| all.running("u1").count() == 0).await.unwrap();
    let snapshot = node.runtime.inspect(&pod_ref(&pod), None).await.unwrap();
    match &snapshot.containers[0].state {
        ContainerState::Exited { message, .. } => (message.clone(), node),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_container_says_at_its_end_is_found() {
    let fallback = serde_json::json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let print =
        |text: &str, code: i32| Script::of([Step::Print(text.to_owned()), Step::Exit(code)]);
    for (container, script, expected) in [
        (serde_json::json!({}), Script::of([]).termination_message("goodbye"), "goodbye"),
        (serde_json::json!({}), print("in the log", 1), ""),
        (fallback.clone(), print("in the log", 1), "in the log\n"),
        (fallback.clone(), print("in the log", 0), ""),
        (fallback.clone(), print("in the log", 1).termination_message("goodbye"), "goodbye"),
    ] {
        assert_eq!(message_of(container.clone(), script).await.0, expected, "{container}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_failed_to_start_says_why() {
    let container = serde_json::json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let script = Script::run_forever().fails_to_start("exec: \"nonsense\": not found");
    let (message, node) = message_of(container, script).await;
    assert_eq!(message, "failed to create containerd task: exec: \"nonsense\": not found");
    assert_eq!(
        node.events()[1..],
        ["W spec.containers{c} Failed: Error: failed to create containerd task: exec: \
          \"nonsense\": not found"]
    );
}

#[tokio::test(start_paused = true)]
async fn its_environment_reaches_the_container_and_its_arguments() {
    let node = Node::new();
    let pod = pod(serde_json::json!({"args": ["--token=$(T)"]}));
    let sandbox = node.with_sandbox(&pod).await;
    let to_start = ContainerToStart {
        environment: vec![("T".to_owned(), "a b".to_owned())],
        ..node.to_start(&sandbox)
    };
    node.start(&pod, to_start).await.unwrap();
    let config = node.fake.inventory().containers[0].config.clone();
    assert_eq!((config.envs[0].key.as_str(), &config.envs[0].value[..]), ("T", &b"a b"[..]));
    assert_eq!(config.args, ["--token=a b"]);
}
