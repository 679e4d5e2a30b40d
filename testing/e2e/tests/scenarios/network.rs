//! Ports, names and the namespaces that pods share, or do not.

use std::fs;
use std::net::IpAddr;

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, PodView, RuntimeKind, wait_for};
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{
    Facts, exec, on_node, read_facts, run_pod, start_kubelet, tell, wait_until_ready,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a_host_port_leads_to_the_pod_that_has_it_to_itself",
        runtimes: &RuntimeKind::ALL,
        run: a_host_port_leads_to_the_pod_that_has_it_to_itself,
    },
    Scenario {
        name: "a_pod_shares_the_namespaces_that_its_spec_says",
        runtimes: &RuntimeKind::ALL,
        run: a_pod_shares_the_namespaces_that_its_spec_says,
    },
    Scenario {
        name: "name_resolution_follows_the_dns_policy",
        runtimes: &RuntimeKind::ALL,
        run: name_resolution_follows_the_dns_policy,
    },
    Scenario::on_debian(
        "others_find_the_chains_that_they_look_for",
        others_find_the_chains_that_they_look_for,
    ),
    Scenario {
        name: "a_pod_has_the_names_of_its_spec",
        runtimes: &RuntimeKind::ALL,
        run: a_pod_has_the_names_of_its_spec,
    },
];

fn others_find_the_chains_that_they_look_for(stage: &Stage) -> anyhow::Result<()> {
    let mut kubelet = stage.start_kubelet()?;
    let rules = |program: &str, table: &str| -> anyhow::Result<Vec<String>> {
        let output = stage.runtime().namespaces().run(program, &["-t", table, "-S"])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().map(str::to_owned).collect())
    };
    let drop = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \
                \"block incoming localnet connections\" -m conntrack ! --ctstate \
                RELATED,ESTABLISHED,DNAT -j DROP";
    for _ in 0..2 {
        for program in ["iptables", "ip6tables"] {
            let canary = |table: &str| -> anyhow::Result<()> {
                let rules = rules(program, table)?;
                let has = rules.iter().any(|rule| rule == "-N KUBE-KUBELET-CANARY");
                if has { Ok(()) } else { anyhow::bail!("{rules:#?}") }
            };
            // The last that is made.
            wait_for("the chains", WAIT, || canary("filter").map_err(|error| error.to_string()))?;
            canary("nat")?;
            let mangle = rules(program, "mangle")?;
            assert!(mangle.iter().any(|rule| rule == "-N KUBE-IPTABLES-HINT"), "{mangle:#?}");
        }
        let filter = rules("iptables", "filter")?;
        let count = |wanted: &str| filter.iter().filter(|rule| *rule == wanted).count();
        for rule in ["-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL", drop] {
            assert_eq!(count(rule), 1, "{rule}\n{filter:#?}");
        }
        kubelet.restart()?;
    }
    Ok(())
}

fn a_host_port_leads_to_the_pod_that_has_it_to_itself(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let node = stage.runtime().node_address();
    kubelet.write_manifest("web.yaml", &web("web", 8081, ""))?;
    // Only on one address of the node.
    kubelet.write_manifest("local.yaml", &web("local", 8082, "10.99.0.1"))?;
    wait_until_ready(&kubelet, "web")?;
    wait_until_ready(&kubelet, "local")?;
    wait_for_answer(&kubelet, node, 8081)?;
    wait_for_answer(&kubelet, node, 8082)?;
    assert!(
        kubelet.get_from(node, 8080, "/").is_err(),
        "the container's own port is not the node's"
    );

    // Nobody else gets it while it is taken, on whatever address.
    for (name, address) in [("second", ""), ("third", "10.99.0.1")] {
        kubelet.write_manifest(&format!("{name}.yaml"), &web(name, 8081, address))?;
        let pod = kubelet.wait_for_pod(name, "refused", WAIT, |pod| pod.phase == "Failed")?;
        assert_eq!(pod.reason, "NodePorts");
        assert_eq!(
            pod.message,
            "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the \
             requested pod ports"
        );
    }

    kubelet.remove_manifest("web.yaml")?;
    kubelet.wait_until_gone("web", WAIT)?;
    wait_for("the host port to be closed", WAIT, || match kubelet.get_from(node, 8081, "/") {
        Err(_) => Ok(()),
        Ok((status, _)) => Err(format!("it answered {status}")),
    })
}

fn web(name: &str, host_port: u16, host_ip: &str) -> String {
    let mut port = json!({ "containerPort": 8080, "hostPort": host_port });
    if !host_ip.is_empty() {
        port["hostIP"] = json!(host_ip);
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "web", "image": "localhost/rubelet/probe-target:1",
                "imagePullPolicy": "Never", "args": ["--http", "8080"], "ports": [port]
            }]
        }
    })
    .to_string()
}

fn wait_for_answer(kubelet: &KubeletProcess, address: IpAddr, port: u16) -> anyhow::Result<()> {
    wait_for(&format!("an answer from {address}:{port}"), WAIT, || {
        match kubelet.get_from(address, port, "/") {
            Ok((200, _)) => Ok(()),
            Ok((status, _)) => Err(format!("it answered {status}")),
            Err(error) => Err(format!("{error:#}")),
        }
    })
}

const SHOW_NAMESPACES: &str = r#"
for kind in net pid ipc uts mnt; do echo "$kind=$(readlink /proc/self/ns/$kind)"; done
echo "first=$(cat /proc/1/comm)"
echo "host=$(hostname)"
"#;

fn a_pod_shares_the_namespaces_that_its_spec_says(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let runtime = stage.runtime();
    let pod = |name: &str, spec: Value| {
        let container = |name: &str| {
            json!({
                "name": name, "image": "busybox", "imagePullPolicy": "Never",
                "command": serde_json::from_str::<Value>(&tell(SHOW_NAMESPACES)).expect("JSON")
            })
        };
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [container("one"), container("two")]
            }
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        kubelet.write_manifest(&format!("{name}.yaml"), &pod.to_string())
    };
    pod("private", json!({}))?;
    pod("processes", json!({ "shareProcessNamespace": true }))?;
    pod("network", json!({ "hostNetwork": true }))?;
    pod("others", json!({ "hostPID": true, "hostIPC": true }))?;
    let facts_of = |name: &str| -> anyhow::Result<(PodView, Facts, Facts)> {
        let pod = wait_until_ready(&kubelet, name)?;
        let (one, two) = (read_facts(&kubelet, &pod, "one")?, read_facts(&kubelet, &pod, "two")?);
        Ok((pod, one, two))
    };
    let node = |kind: &str| on_node(runtime, &format!("readlink /proc/self/ns/{kind}"));
    let (net, pid, ipc) = (node("net")?, node("pid")?, node("ipc")?);

    let (pod, one, two) = facts_of("private")?;
    assert!(one["net"] != *net && one["pid"] != *pid && one["ipc"] != *ipc);
    for kind in ["net", "ipc", "uts"] {
        assert_eq!(&one[kind], &two[kind], "the containers of a pod share {kind}");
    }
    assert!(one["pid"] != two["pid"] && one["mnt"] != two["mnt"]);
    assert_eq!(&one["first"], "sh", "its process is the first");
    assert_eq!(&one["host"], pod.name);

    let (pod, one, two) = facts_of("processes")?;
    assert!(one["pid"] == two["pid"] && one["pid"] != *pid);
    assert_eq!(&one["first"], "pause");
    let seen = exec(runtime, &pod, "two", "ls /proc | grep -c '^[0-9]'")?;
    assert!(seen.parse::<u32>().is_ok_and(|count| count >= 4), "it sees {seen} processes");
    assert!(one["net"] != *net && one["ipc"] != *ipc);

    let (pod, one, _) = facts_of("network")?;
    assert!(one["net"] == *net && one["pid"] != *pid && one["ipc"] != *ipc);
    assert_eq!(pod.ip, runtime.node_address().to_string());
    assert_eq!(&one["host"], fs::read_to_string("/proc/sys/kernel/hostname")?.trim());

    let (pod, one, _) = facts_of("others")?;
    assert!(one["net"] != *net && one["pid"] == *pid && one["ipc"] == *ipc);
    let kubelet_runs =
        exec(runtime, &pod, "one", "cat /proc/[0-9]*/comm 2>/dev/null | grep -c kubelet")?;
    assert_eq!(kubelet_runs, "1", "it sees the node's processes");
    Ok(())
}

/// The lines of `/etc/resolv.conf` in the order in which they matter.
fn resolver(facts: &str) -> (Vec<String>, Vec<String>, Vec<String>) {
    let words = |keyword: &str| -> Vec<String> {
        facts
            .lines()
            .filter_map(|line| line.strip_prefix(keyword))
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect()
    };
    (words("nameserver "), words("search "), words("options "))
}

fn name_resolution_follows_the_dns_policy(stage: &Stage) -> anyhow::Result<()> {
    let runtime = stage.runtime();
    let of_node = runtime.dir().join(format!("{}.resolv.conf", stage.kubelet_options().node_name));
    let text = "# the node's\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n\
                search node.example other.example.\noptions timeout:7 ndots:2\n";
    fs::write(&of_node, text).with_context(|| format!("cannot write {}", of_node.display()))?;
    let mut kubelet = start_kubelet(
        stage,
        json!({
            "resolvConf": of_node, "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.test"
        }),
    )?;
    let pod = |kubelet: &KubeletProcess, name: &str, spec: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "shop" },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "app", "image": "busybox", "imagePullPolicy": "Never",
                    "command": ["sleep", "3600"]
                }]
            }
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        kubelet.write_manifest(&format!("{name}.yaml"), &pod.to_string())
    };
    let own = json!({
        "nameservers": ["192.0.2.99", "192.0.2.53"],
        "searches": ["own.example", "node.example"],
        "options": [{ "name": "ndots", "value": "3" }, { "name": "edns0" }]
    });
    let cluster = ["shop.svc.cluster.test", "svc.cluster.test", "cluster.test"];
    let of_cluster = [&cluster[..], &["node.example", "other.example"]].concat();
    let of_node_searches = ["node.example", "other.example"];
    type Case<'a> = (&'a str, Value, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 6] = [
        ("cluster", json!({}), &["10.96.0.10"], &of_cluster, &["ndots:5"]),
        (
            "default",
            json!({ "dnsPolicy": "Default" }),
            &["192.0.2.53", "192.0.2.54"],
            &of_node_searches,
            &["timeout:7", "ndots:2"],
        ),
        (
            "none",
            json!({ "dnsPolicy": "None", "dnsConfig": own }),
            &["192.0.2.99", "192.0.2.53"],
            &["own.example", "node.example"],
            &["edns0", "ndots:3"],
        ),
        (
            "host",
            json!({ "hostNetwork": true }),
            &["192.0.2.53", "192.0.2.54"],
            &of_node_searches,
            &["timeout:7", "ndots:2"],
        ),
        (
            "host-cluster",
            json!({ "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet" }),
            &["10.96.0.10"],
            &of_cluster,
            &["ndots:5"],
        ),
        (
            "merged",
            json!({ "dnsPolicy": "Default", "dnsConfig": {
                "nameservers": ["192.0.2.53", "192.0.2.60", "192.0.2.61"],
                "searches": ["other.example", "own.example"],
                "options": [{ "name": "timeout", "value": "1" }]
            } }),
            // The fourth is one too many.
            &["192.0.2.53", "192.0.2.54", "192.0.2.60"],
            &["node.example", "other.example", "own.example"],
            &["ndots:2", "timeout:1"],
        ),
    ];
    for (name, spec, ..) in &cases {
        pod(&kubelet, name, spec.clone())?;
    }
    for (name, _, servers, searches, options) in cases {
        let view = wait_until_ready(&kubelet, name)?;
        let text = exec(runtime, &view, "app", "cat /etc/resolv.conf")?;
        let mut found = resolver(&text);
        found.2.sort_unstable_by_key(|option| option.starts_with("ndots"));
        let mut options = options.to_vec();
        options.sort_unstable_by_key(|option| option.starts_with("ndots"));
        let strings =
            |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(found, (strings(servers), strings(searches), strings(&options)), "{name}");
    }
    kubelet.wait_for_event(
        "merged",
        "DNSConfigForming",
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
         nameserver line is: 192.0.2.53 192.0.2.54 192.0.2.60",
        WAIT,
    )?;

    // Without a cluster's resolver, the node's has to do, and everybody is told.
    kubelet.options_mut().config["clusterDNS"] = json!([]);
    kubelet.restart()?;
    pod(&kubelet, "fallback", json!({}))?;
    let view = wait_until_ready(&kubelet, "fallback")?;
    let text = exec(runtime, &view, "app", "cat /etc/resolv.conf")?;
    assert_eq!(resolver(&text).0, ["192.0.2.53", "192.0.2.54"]);
    kubelet.wait_for_event(
        "fallback",
        "MissingClusterDNS",
        "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
         \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
        WAIT,
    )?;
    Ok(())
}

const SHOW_NAMES: &str = r#"
echo "host=$(hostname)"
echo "variable=$HOSTNAME"
"#;

fn a_pod_has_the_names_of_its_spec(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({ "clusterDomain": "cluster.test" }))?;
    let runtime = stage.runtime();
    let pod = |name: &str, spec: &str| -> anyhow::Result<()> {
        let manifest = format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  terminationGracePeriodSeconds: 1
  {spec}
  containers:
  - name: app
    image: busybox
    imagePullPolicy: Never
    command: {command}
"#,
            command = tell(SHOW_NAMES)
        );
        kubelet.write_manifest(&format!("{name}.yaml"), &manifest)
    };
    let long_name = format!("{}ab-more", "very-long-name-".repeat(4));
    pod("plain", "hostAliases: [{ip: 192.0.2.7, hostnames: [db, db.example]}]")?;
    pod("named", "hostname: front\n  subdomain: web")?;
    pod("full", "hostname: front\n  subdomain: web\n  setHostnameAsFQDN: true")?;
    pod("on-node", "hostNetwork: true\n  hostAliases: [{ip: 192.0.2.7, hostnames: [db]}]")?;
    pod(&long_name, "hostNetwork: false")?;
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: hosts, hostPath: {path: /etc/hostname, type: File}}]
  containers:
  - name: app
    image: busybox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    volumeMounts: [{name: hosts, mountPath: /etc/hosts}]
"#;
    let own = run_pod(&kubelet, "own", manifest)?;
    let names_of = |name: &str| -> anyhow::Result<(PodView, Facts, String)> {
        let pod = wait_until_ready(&kubelet, name)?;
        let facts = read_facts(&kubelet, &pod, "app")?;
        let hosts = exec(runtime, &pod, "app", "cat /etc/hosts")?;
        Ok((pod, facts, hosts))
    };

    let standard = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
                    ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
                    fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
    let (pod, facts, hosts) = names_of("plain")?;
    assert_eq!((&facts["host"], &facts["variable"]), (&*pod.name, &*pod.name));
    assert_eq!(
        hosts,
        format!(
            "{standard}{}\t{}\n\n# Entries added by HostAliases.\n192.0.2.7\tdb\tdb.example",
            pod.ip, pod.name
        )
    );
    let kept = kubelet.root_dir().join("pods").join(&pod.uid).join("etc-hosts");
    assert_eq!(fs::read_to_string(&kept)?.trim_end(), hosts, "{}", kept.display());

    let (pod, facts, hosts) = names_of("named")?;
    assert_eq!(&facts["host"], "front");
    let domain = "front.web.shop.svc.cluster.test";
    assert_eq!(hosts, format!("{standard}{}\t{domain}\tfront", pod.ip));

    let (_, facts, hosts) = names_of("full")?;
    assert_eq!(&facts["host"], domain);
    assert!(hosts.ends_with(&format!("\t{domain}\tfront")), "{hosts}");

    let (_, facts, hosts) = names_of("on-node")?;
    let of_node = fs::read_to_string("/etc/hosts")?;
    assert_eq!(&facts["host"], fs::read_to_string("/proc/sys/kernel/hostname")?.trim());
    assert_eq!(
        hosts,
        format!(
            "# Kubernetes-managed hosts file (host network).\n{of_node}\n\
             # Entries added by HostAliases.\n192.0.2.7\tdb"
        )
    );

    // A hostname is shorter than a pod's name may be, and ends in a letter or digit.
    let (_, facts, _) = names_of(&long_name)?;
    assert_eq!(&facts["host"], format!("{}ab", "very-long-name-".repeat(4)));

    let hosts = exec(runtime, &own, "app", "cat /etc/hosts")?;
    assert_eq!(hosts, fs::read_to_string("/etc/hostname")?.trim_end(), "a pod's own file wins");
    Ok(())
}
