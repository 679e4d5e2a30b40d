//! The small language of the decision tables: facts in, decisions out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus, Taint};
use rubelet_linux::{DefaultRoute, InterfaceAddress};
use rubelet_node_status::{
    ImageFacts, NodeFacts, NodeSettings, RuntimeHandlerFacts, build_initial_node, choose_addresses,
    choose_default_address, compute_node, diff_needs_write, node_host_ips, node_status_patch,
    reconcile_existing_node, transition_events,
};
use rubelet_types::{ResourceAmounts, error_chain};
use serde_json::{Value, json};

pub(crate) struct Case {
    settings: NodeSettings,
    facts: NodeFacts,
    now: i64,
    /// The Node as it is reported.
    reported: Value,
    interfaces: Vec<InterfaceAddress>,
    routes: Option<Vec<DefaultRoute>>,
    /// Whole Nodes by their word: `old`, `new`, `existing`, `initial`.
    nodes: BTreeMap<String, Node>,
    reset: bool,
    show: Vec<String>,
}

fn settings() -> NodeSettings {
    NodeSettings {
        name: "n1".to_owned(),
        node_ips: Vec::new(),
        external_cloud_provider: false,
        labels: BTreeMap::new(),
        taints: Vec::new(),
        provider_id: None,
        controller_attach_detach: true,
        local_storage_capacity_isolation: true,
        port: 10250,
        max_images: Some(50),
        kubelet_version: "v1.36.2".to_owned(),
        reports_kube_proxy_version: false,
        architecture: "amd64".to_owned(),
        declared_features: None,
        register_node: true,
        registration_gets_existing_only: false,
    }
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pair(word: &str) -> (&str, &str) {
    word.split_once('=').unwrap_or_else(|| panic!("{word:?} is no key=value"))
}

fn amounts(list: &mut ResourceAmounts, words: &[&str]) {
    for (name, amount) in words.iter().map(|word| pair(word)) {
        list.set(name, amount.parse().unwrap());
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Case {
    pub(crate) fn parse(facts: &str) -> Self {
        let mut case = Self {
            settings: settings(),
            facts: NodeFacts::default(),
            now: 1000,
            reported: json!({"metadata": {"name": "n1"}, "status": {}}),
            interfaces: Vec::new(),
            routes: Some(Vec::new()),
            nodes: BTreeMap::new(),
            reset: false,
            show: Vec::new(),
        };
        case.facts.runtime.name = "containerd".to_owned();
        case.facts.machine.boot_id = "boot-1".to_owned();
        for line in facts.lines().filter(|line| !line.trim().is_empty()) {
            let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
            let words: Vec<&str> = rest.split_whitespace().collect();
            let known = case.setting(keyword, &words)
                || case.network(keyword, rest, &words)
                || case.fact(keyword, rest, &words)
                || case.node(keyword, rest, &words);
            assert!(known, "unknown fact {line:?}");
        }
        case
    }

    fn setting(&mut self, keyword: &str, words: &[&str]) -> bool {
        let settings = &mut self.settings;
        match (keyword, words) {
            ("name", [name]) => (*name).clone_into(&mut settings.name),
            ("node-ip", [ips]) => {
                settings.node_ips = ips.split(',').map(|ip| ip.parse().unwrap()).collect();
            }
            ("cloud", ["external"]) => settings.external_cloud_provider = true,
            ("label", [label]) => {
                let (key, value) = pair(label);
                settings.labels.insert(key.to_owned(), value.to_owned());
            }
            ("taint", [taint]) => {
                let (key, rest) = pair(taint);
                let (value, effect) = rest.split_once(':').unwrap();
                settings.taints.push(Taint {
                    key: key.to_owned(),
                    value: Some(value.to_owned()),
                    effect: effect.to_owned(),
                    time_added: None,
                });
            }
            ("provider-id", [id]) => settings.provider_id = Some((*id).to_owned()),
            ("attach-detach", ["off"]) => settings.controller_attach_detach = false,
            ("local-storage", ["off"]) => settings.local_storage_capacity_isolation = false,
            ("max-images", [count]) => settings.max_images = count.parse().ok(),
            ("kube-proxy", ["on"]) => settings.reports_kube_proxy_version = true,
            ("declared", names) => settings.declared_features = Some(owned(names)),
            _ => return false,
        }
        true
    }

    fn network(&mut self, keyword: &str, rest: &str, words: &[&str]) -> bool {
        let addresses = &mut self.facts.addresses;
        let parsed = || words.iter().map(|word| word.parse().unwrap()).collect();
        match keyword {
            "on" => addresses.on_interfaces = parsed(),
            "dns" => addresses.looked_up = parsed(),
            "route" => addresses.default_route = Some(Ok(words[0].parse().unwrap())),
            "no-route" => addresses.default_route = Some(Err(rest.to_owned())),
            "interface" => self.interfaces.push(InterfaceAddress {
                interface: words[0].to_owned(),
                address: words[1].parse().unwrap(),
                is_up: !words.contains(&"down"),
                is_loopback: words.contains(&"lo"),
                is_point_to_point: words.contains(&"p2p"),
            }),
            "default-route" => self.routes.as_mut().unwrap().push(DefaultRoute {
                interface: words[0].to_owned(),
                is_ipv6: words.contains(&"6"),
            }),
            "no-route-table" => self.routes = None,
            _ => return false,
        }
        true
    }

    fn fact(&mut self, keyword: &str, rest: &str, words: &[&str]) -> bool {
        let facts = &mut self.facts;
        match (keyword, words) {
            ("capacity", words) => amounts(&mut facts.capacity, words),
            ("reserved", words) => amounts(&mut facts.reservation, words),
            ("device", [device]) => {
                let (name, counts) = pair(device);
                let (all, healthy) = counts.split_once('/').unwrap();
                facts.devices.capacity.insert(name.to_owned(), all.parse().unwrap());
                facts.devices.allocatable.insert(name.to_owned(), healthy.parse().unwrap());
            }
            ("removed", [name]) => facts.devices.removed.push((*name).to_owned()),
            ("boot", [id]) => (*id).clone_into(&mut facts.machine.boot_id),
            ("swap", [bytes]) => facts.machine.swap_bytes = bytes.parse().unwrap(),
            ("runtime", [name, version]) => {
                (*name).clone_into(&mut facts.runtime.name);
                facts.runtime.version = Some((*version).to_owned());
            }
            ("image", [size, names @ ..]) => facts.images.push(ImageFacts {
                id: format!("sha256:{size}"),
                names: owned(names),
                size: size.parse().unwrap(),
            }),
            ("handler", [name, features @ ..]) => {
                facts.runtime.handlers.get_or_insert_default().push(RuntimeHandlerFacts {
                    name: name.trim_matches('"').to_owned(),
                    recursive_read_only_mounts: features.contains(&"rro"),
                    user_namespaces: features.contains(&"userns"),
                });
            }
            ("features", features) => {
                let runtime = &mut facts.runtime;
                runtime.supplemental_groups_policy = Some(features.contains(&"groups"));
                runtime.user_namespaces_host_network = features.contains(&"userns-host");
            }
            ("pressure", kinds) => {
                facts.conditions.pressure.memory = kinds.contains(&"memory");
                facts.conditions.pressure.disk = kinds.contains(&"disk");
                facts.conditions.pressure.pid = kinds.contains(&"pid");
            }
            ("error", _) => facts.conditions.ready_errors.push(rest.to_owned()),
            ("soft", _) => facts.conditions.soft_requirements = Some(rest.to_owned()),
            ("volumes", names) => facts.volumes_in_use = Some(owned(names)),
            ("now", [now]) => self.now = now.parse().unwrap(),
            _ => return false,
        }
        true
    }

    fn node(&mut self, keyword: &str, rest: &str, words: &[&str]) -> bool {
        match (keyword, words) {
            ("was", [what, rest @ ..]) => self.was(what, rest),
            ("old" | "new" | "existing" | "initial", _) => {
                let node = serde_json::from_str(rest).unwrap();
                self.nodes.insert(keyword.to_owned(), node);
            }
            ("reset", []) => self.reset = true,
            ("show", parts) => self.show = owned(parts),
            _ => return false,
        }
        true
    }

    fn was(&mut self, what: &str, words: &[&str]) {
        let status = &mut self.reported["status"];
        match (what, words) {
            ("label", [label]) => {
                let (key, value) = pair(label);
                self.reported["metadata"]["labels"][key] = value.into();
            }
            ("annotation", [annotation]) => {
                let (key, value) = pair(annotation);
                self.reported["metadata"]["annotations"][key] = value.into();
            }
            ("address", [type_, address]) => {
                push(&mut status["addresses"], json!({"type": type_, "address": address}));
            }
            ("condition", [condition]) => {
                let (type_, rest) = pair(condition);
                let (state, at) = rest.split_once('@').unwrap();
                let at = second(at.parse().unwrap()).to_string();
                push(
                    &mut status["conditions"],
                    json!({"type": type_, "status": state, "reason": "Before",
                        "message": "as it was", "lastTransitionTime": at,
                        "lastHeartbeatTime": at}),
                );
            }
            ("capacity", words) => {
                for (name, amount) in words.iter().map(|word| pair(word)) {
                    status["capacity"][name] = amount.into();
                    status["allocatable"][name] = amount.into();
                }
            }
            ("boot", [id]) => {
                status["nodeInfo"] = json!({"bootID": id, "architecture": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": ""});
            }
            ("volumes", names) => status["volumesInUse"] = json!(names),
            ("handlers", names) => {
                let handlers = names.iter().map(|name| json!({"name": name}));
                status["runtimeHandlers"] = handlers.collect::<Vec<_>>().into();
            }
            _ => panic!("unknown past fact {what} {words:?}"),
        }
    }

    pub(crate) fn report(&self) -> String {
        let reported: Node = serde_json::from_value(self.reported.clone()).unwrap();
        let now = second(self.now);
        let computed = compute_node(&reported, &self.settings, &self.facts, now);
        let was = reported.status.clone().unwrap_or_default();
        let status = computed.node.status.clone().unwrap();
        let node = |name: &str| &self.nodes[name];
        let mut out = String::new();
        for part in &self.show {
            match part.as_str() {
                "addresses" => self.report_addresses(&was, &computed.node, &mut out),
                "default-address" => {
                    let prefers_ipv6 = self.settings.node_ips.iter().any(|ip| ip.is_ipv6());
                    let found = choose_default_address(
                        self.routes.as_deref(),
                        &self.interfaces,
                        prefers_ipv6,
                    );
                    line(&mut out, found.map_or_else(|error| error, |ip| ip.to_string()));
                }
                "conditions" => report_conditions(&status, false, &mut out),
                "times" => report_conditions(&status, true, &mut out),
                "resources" => report_resources(&status, &mut out),
                "info" => report_json(&status.node_info, "", &mut out),
                "images" => {
                    for image in status.images.iter().flatten() {
                        let names = image.names.as_deref().unwrap_or_default().join(" ");
                        line(&mut out, format!("{} {names}", image.size_bytes.unwrap()));
                    }
                }
                "runtime" => {
                    report_json(&status.runtime_handlers, "handlers ", &mut out);
                    report_json(&status.features, "features ", &mut out);
                    report_json(&status.declared_features, "declared ", &mut out);
                    report_json(&status.volumes_in_use, "volumes ", &mut out);
                }
                "metadata" => report_metadata(&computed.node, &mut out),
                "initial" => {
                    let initial = build_initial_node(&self.settings, &self.facts, now).node;
                    report_metadata(&initial, &mut out);
                    report_json(&initial.spec, "spec ", &mut out);
                }
                "events" => {
                    for event in transition_events(&self.settings.name, &was, &status) {
                        let type_ = event.event_type.as_str();
                        line(&mut out, format!("{type_} {}: {}", event.reason, event.message));
                    }
                }
                "write" => {
                    let again = compute_node(
                        &computed.node,
                        &self.settings,
                        &self.facts,
                        second(self.now + 10),
                    );
                    let first = diff_needs_write(&reported, &computed.node);
                    let second = diff_needs_write(&computed.node, &again.node);
                    line(&mut out, format!("first {first}, again {second}"));
                }
                "changed" => {
                    line(&mut out, diff_needs_write(node("old"), node("new")).to_string());
                }
                "patch" => report_patch(node_status_patch(node("old"), node("new")), &mut out),
                "reconcile" => report_patch(
                    reconcile_existing_node(node("existing"), node("initial"), self.reset),
                    &mut out,
                ),
                _ => panic!("cannot show {part:?}"),
            }
        }
        out
    }

    fn report_addresses(&self, was: &NodeStatus, computed: &Node, out: &mut String) {
        let current = was.addresses.clone().unwrap_or_default();
        match choose_addresses(&self.settings, &current, &self.facts.addresses) {
            Err(error) => line(out, format!("error: {}", error_chain(&error))),
            Ok(None) => line(out, "unchanged"),
            Ok(Some(addresses)) => {
                for entry in addresses {
                    line(out, format!("{} {}", entry.type_, entry.address));
                }
            }
        }
        let host_ips: Vec<String> =
            node_host_ips(computed).iter().map(|ip| ip.to_string()).collect();
        line(out, format!("pods on the host: {}", host_ips.join(" ")));
        let annotations = computed.metadata.annotations.iter().flatten();
        for (key, value) in annotations.filter(|(key, _)| key.contains("provided-node-ip")) {
            line(out, format!("{key}={value}"));
        }
    }
}

fn push(list: &mut Value, item: Value) {
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().unwrap().push(item);
}

fn line(out: &mut String, text: impl AsRef<str>) {
    writeln!(out, "{}", text.as_ref().trim_end()).unwrap();
}

fn report_json(value: &Option<impl serde::Serialize>, prefix: &str, out: &mut String) {
    if let Some(value) = value {
        line(out, format!("{prefix}{}", serde_json::to_string(value).unwrap()));
    }
}

fn report_conditions(status: &NodeStatus, times: bool, out: &mut String) {
    for condition in status.conditions.iter().flatten() {
        let at = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.as_ref().map_or(-1, |time| time.0.as_second())
        };
        let mut text = format!("{}={}", condition.type_, condition.status);
        if times {
            let (since, beat) =
                (at(&condition.last_transition_time), at(&condition.last_heartbeat_time));
            write!(text, " since {since} heartbeat {beat}").unwrap();
        } else {
            let reason = condition.reason.as_deref().unwrap_or_default();
            let message = condition.message.as_deref().unwrap_or_default();
            write!(text, " {reason}: {message}").unwrap();
        }
        line(out, text);
    }
}

fn report_resources(status: &NodeStatus, out: &mut String) {
    for (name, list) in [("capacity", &status.capacity), ("allocatable", &status.allocatable)] {
        let amounts: Vec<String> = list
            .iter()
            .flatten()
            .map(|(resource, amount)| format!("{resource}={}", amount.0))
            .collect();
        line(out, format!("{name} {}", amounts.join(" ")));
    }
}

fn report_metadata(node: &Node, out: &mut String) {
    for (what, list) in
        [("label", &node.metadata.labels), ("annotation", &node.metadata.annotations)]
    {
        for (key, value) in list.iter().flatten() {
            line(out, format!("{what} {key}={value}"));
        }
    }
}

fn report_patch(patch: Option<Value>, out: &mut String) {
    line(out, patch.map_or("nothing".to_owned(), |patch| patch.to_string()));
}
