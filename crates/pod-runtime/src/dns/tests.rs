use super::*;

fn settings() -> DnsSettings {
    DnsSettings {
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        ..DnsSettings::default()
    }
}

fn host() -> ResolvConf {
    ResolvConf::parse(
        "# comment\n; another\nnameserver 192.0.2.1 first\nsearch old.example\n\
         search example.com. .\noptions timeout:1 rotate\nsortlist x\noptions timeout:2\n",
    )
}

fn dns(spec: serde_json::Value, settings: &DnsSettings) -> (String, Vec<String>) {
    let mut spec = spec;
    spec["containers"] = serde_json::json!([]);
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec
    }))
    .unwrap();
    let (config, warnings) = compute_dns(&pod, settings, &host());
    let text = |warning: &DnsWarning| {
        let object = match &warning.object {
            EventObject::Node => "node".to_owned(),
            EventObject::Pod(pod) => pod.to_string(),
            EventObject::Container { .. } => "container".to_owned(),
        };
        format!("{object} {}: {}", warning.reason, warning.message)
    };
    (
        format!(
            "{} | {} | {}",
            config.servers.join(" "),
            config.searches.join(" "),
            config.options.join(" ")
        ),
        warnings.iter().map(text).collect(),
    )
}

#[test]
fn policies() {
    let cluster = "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local \
                   example.com | ndots:5";
    let from_host = "192.0.2.1 | example.com | timeout:2 rotate";
    for (spec, expected) in [
        (serde_json::json!({}), cluster),
        (serde_json::json!({"dnsPolicy": "ClusterFirst"}), cluster),
        (serde_json::json!({"dnsPolicy": "Whatever"}), cluster),
        (serde_json::json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), from_host),
        (serde_json::json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), cluster),
        (serde_json::json!({"dnsPolicy": "Default"}), from_host),
        (
            serde_json::json!({"dnsPolicy": "None", "dnsConfig": {
                "nameservers": ["9.9.9.9"], "searches": ["a.b"],
                "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}}),
            "9.9.9.9 | a.b | ndots:2 rotate",
        ),
        (
            serde_json::json!({"dnsPolicy": "Default", "dnsConfig": {
                "nameservers": ["192.0.2.1", "9.9.9.9"], "searches": ["example.com", "x.y"],
                "options": [{"name": "timeout", "value": "3"}, {"name": "ndots", "value": ""}]}}),
            "192.0.2.1 9.9.9.9 | example.com x.y | timeout:3 rotate ndots",
        ),
    ] {
        assert_eq!(dns(spec.clone(), &settings()), (expected.to_owned(), vec![]), "{spec}");
    }
}

#[test]
fn without_cluster_dns_the_nodes_file_is_used_with_warnings() {
    let settings = DnsSettings::default();
    let spec = serde_json::json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true});
    let (config, warnings) = dns(spec, &settings);
    assert_eq!(config, "192.0.2.1 | example.com | timeout:2 rotate");
    let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                   \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    assert_eq!(
        warnings,
        [
            format!("node MissingClusterDNS: {message}"),
            format!("p_ns(u) MissingClusterDNS: pod: \"p_ns(u)\". {message}"),
        ]
    );
}

#[test]
fn without_the_nodes_file_default_means_this_host() {
    let settings = DnsSettings { ignore_host: true, ..settings() };
    let (config, _) = dns(serde_json::json!({"dnsPolicy": "Default"}), &settings);
    assert_eq!(config, "127.0.0.1 | . | ");
    let settings = DnsSettings { prefer_ipv6: true, ..settings };
    let (config, _) = dns(serde_json::json!({"dnsPolicy": "Default"}), &settings);
    assert_eq!(config, "::1 | . | ");
}

#[test]
fn what_fits_exactly_is_not_cut() {
    let searches: Vec<String> = (0..32).map(|i| format!("{i:063}")).collect();
    assert_eq!(searches.join(" ").len(), 32 * 64 - 1);
    let (config, warnings) = dns(
        serde_json::json!({"dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.1"],
            "searches": searches}}),
        &settings(),
    );
    assert_eq!(config, format!("192.0.2.1 192.0.2.2 192.0.2.3 | {} | ", searches.join(" ")));
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn limits_cut_and_warn() {
    let servers: Vec<String> = (1..6).map(|i| format!("192.0.2.{i}")).collect();
    let searches: Vec<String> = (0..40).map(|i| format!("d{i}.example")).collect();
    let (config, warnings) = dns(
        serde_json::json!({"dnsPolicy": "None",
            "dnsConfig": {"nameservers": servers, "searches": searches}}),
        &settings(),
    );
    let (servers, searches) = ("192.0.2.1 192.0.2.2 192.0.2.3", searches[..32].join(" "));
    assert_eq!(config, format!("{servers} | {searches} | "));
    assert_eq!(
        warnings,
        [
            format!(
                "p_ns(u) DNSConfigForming: Nameserver limits were exceeded, some nameservers have \
                 been omitted, the applied nameserver line is: {servers}"
            ),
            format!(
                "p_ns(u) DNSConfigForming: Search Line limits were exceeded, some search paths \
                 have been omitted, the applied search line is: {searches}"
            ),
        ]
    );
}

#[test]
fn long_domains_and_long_lines_are_cut() {
    let searches =
        [vec!["x".repeat(254)], (0..10).map(|i| format!("{i}").repeat(250)).collect()].concat();
    let (config, warnings) = dns(
        serde_json::json!({"dnsPolicy": "None", "dnsConfig": {"searches": searches}}),
        &settings(),
    );
    assert_eq!(config, format!(" | {} | ", searches[1..9].join(" ")));
    assert_eq!(warnings.len(), 1);
}

#[test]
fn the_nodes_file_is_checked_with_room_for_the_clusters_domains() {
    let path = Path::new("/etc/resolv.conf");
    let with = |searches: Vec<String>| ResolvConf { searches, ..ResolvConf::default() };
    let short = |count: usize| with((0..count).map(|i| format!("d{i}")).collect());
    assert_eq!(resolv_conf_problem(path, &short(29), "cluster.local"), None);
    assert_eq!(
        resolv_conf_problem(path, &short(30), "cluster.local").unwrap(),
        "Resolv.conf file '/etc/resolv.conf' contains search line consisting of more than 29 \
         domains!"
    );
    assert_eq!(resolv_conf_problem(path, &short(30), ""), None);
    assert_eq!(
        resolv_conf_problem(path, &with(vec!["x".repeat(254)]), "").unwrap(),
        "Resolv.conf file \"/etc/resolv.conf\" contains a search path which length is more than \
         allowed 253 chars!"
    );
    assert_eq!(
        resolv_conf_problem(path, &with(vec!["x".repeat(250); 9]), "").unwrap(),
        "Resolv.conf file '/etc/resolv.conf' contains search line which length is more than \
         allowed 2048 chars!"
    );
}
