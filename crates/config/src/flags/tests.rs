use proptest::prelude::*;

use super::*;

fn parse(words: &[&str]) -> Result<CommandLine, FlagError> {
    CommandLine::parse(words.iter().map(OsString::from))
}

fn apply(words: &[&str]) -> Result<(KubeletConfiguration, KubeletOptions), String> {
    let (mut config, mut options) = Default::default();
    parse(words)
        .and_then(|line| line.apply(&mut config, &mut options))
        .map_err(|error| error.to_string())?;
    Ok((config, options))
}

#[test]
fn values_stand_behind_a_sign_or_in_the_next_word() {
    let (config, options) = apply(&[
        "--max-pods=50",
        "--root_dir",
        "/data",
        "--cluster-dns",
        "10.0.0.10,10.0.0.11",
        "--cluster_dns=10.0.0.12",
        "--node-labels=a=b,c",
        "--kubeconfig",
        "--odd-name",
    ])
    .unwrap();
    assert_eq!(config.max_pods, 50);
    assert_eq!(options.root_dir.to_str(), Some("/data"));
    assert_eq!(config.cluster_dns, ["10.0.0.10", "10.0.0.11", "10.0.0.12"]);
    assert_eq!(options.node_labels["a"], "b");
    assert_eq!(options.node_labels["c"], "");
    assert_eq!(options.kubeconfig.unwrap().to_str(), Some("--odd-name"), "as pflag does");
}

#[test]
fn a_switch_never_takes_the_next_word() {
    assert!(!apply(&["--fail-swap-on=false"]).unwrap().0.fail_swap_on);
    assert!(apply(&["--rotate-certificates"]).unwrap().0.rotate_certificates);
    assert_eq!(
        apply(&["--fail-swap-on", "false"]).unwrap_err(),
        "unknown command false",
        "the word stands alone"
    );
    assert_eq!(
        apply(&["--fail-swap-on=no"]).unwrap_err(),
        "invalid argument \"no\" for \"--fail-swap-on\" flag: strconv.ParseBool: parsing \"no\": \
         invalid syntax"
    );
}

#[test]
fn verbosity_has_all_the_forms_of_a_shorthand() {
    for words in [&["-v4"][..], &["-v=4"], &["-v", "4"], &["--v=4"], &["--v", "4"]] {
        assert_eq!(apply(words).unwrap().0.logging.verbosity, 4, "{words:?}");
    }
    assert_eq!(
        apply(&["-v", "x"]).unwrap_err(),
        "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid \
         syntax"
    );
}

#[test]
fn mistakes_have_the_words_of_pflag() {
    for (words, expected) in [
        (&["--nonsense"][..], "unknown flag: --nonsense"),
        (&["--nonsense=1"], "unknown flag: --nonsense"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
        (&["--max-pods"], "flag needs an argument: --max-pods"),
        (&["-v"], "flag needs an argument: 'v' in -v"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["---x"], "bad flag syntax: ---x"),
        (&["serve", "--max-pods=1"], "unknown command serve"),
        (&["-"], "unknown command -"),
        (&["--", "--max-pods=1"], "unknown command --max-pods=1"),
        (
            &["--max-pods=many"],
            "invalid argument \"many\" for \"--max-pods\" flag: strconv.ParseInt: parsing \
             \"many\": invalid syntax",
        ),
        (
            &["--sync-frequency=10"],
            "invalid argument \"10\" for \"--sync-frequency\" flag: time: missing unit in \
             duration \"10\"",
        ),
        (
            &["--address=here"],
            "invalid argument \"here\" for \"--address\" flag: \"here\" is not a valid IP address",
        ),
        (
            &["--feature-gates=X"],
            "invalid argument \"X\" for \"--feature-gates\" flag: malformed pair, expect \
             string=bool",
        ),
    ] {
        assert_eq!(apply(words).unwrap_err(), expected, "{words:?}");
    }
}

#[test]
fn help_and_version_come_before_running() {
    for (words, expected) in [
        (&["--help"][..], Request::Help),
        (&["-h", "--version"], Request::Help),
        (&["-hv4"], Request::Help),
        (&["--version"], Request::Version { raw: false }),
        (&["--version=true"], Request::Version { raw: false }),
        (&["--version=raw", "--max-pods=1"], Request::Version { raw: true }),
        (&["--version=false"], Request::Run),
        (&["--version=v1.36.9"], Request::Run),
        (&["--help=false"], Request::Run),
        (&[], Request::Run),
    ] {
        assert_eq!(parse(words).unwrap().request, expected, "{words:?}");
    }
    assert!(parse(&["--version=maybe"]).is_err());
}

#[test]
fn a_command_line_of_kubeadm_is_understood() {
    let words = [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
        "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        "--node-ip=10.0.0.2,fd00::2",
        "--register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule",
        "--hostname-override=node-1",
        "--pod-infra-container-image=registry.k8s.io/pause:3.9",
        "--cgroup-driver=systemd",
    ];
    let (config, options) = apply(&words).unwrap();
    assert_eq!(config.cgroup_driver, "systemd");
    assert_eq!(config.register_with_taints.len(), 1);
    assert_eq!(options.node_ips().len(), 2);
    assert_eq!(options.hostname_override.as_deref(), Some("node-1"));
    let warnings = parse(&words).unwrap().warnings();
    assert!(warnings.contains(
        &"Flag --cgroup-driver has been deprecated, set cgroupDriver in the file that --config \
          names instead"
            .to_owned()
    ));
    assert!(warnings.iter().any(|w| w.starts_with("Flag --pod-infra-container-image ")));
    assert_eq!(warnings.len(), 4, "{warnings:?}");
}

/// A value that the flag accepts.
fn sample(flag: &FlagSpec) -> &'static str {
    match (flag.kind, flag.name) {
        (_, "address" | "healthz-bind-address") => "127.0.0.9",
        (_, "register-with-taints") => "a=b:NoSchedule",
        (_, "reserved-memory") => "0:memory=1Gi",
        (_, "feature-gates") => "EventedPLEG=true",
        (_, "manifest-url-header") => "a:b",
        (_, "vmodule") => "main=3",
        (ValueKind::Bool, _) => "true",
        (ValueKind::Version, _) => "v1.36.0",
        (ValueKind::Text | ValueKind::List, _) => "x",
        (ValueKind::Int, _) => "7",
        (ValueKind::Duration, _) => "7s",
        (ValueKind::Quantity, _) => "7Ki",
        (ValueKind::Map, _) => "a=b",
        (ValueKind::Thresholds, _) => "a<b",
    }
}

/// Guards the table against a setter that writes to another field than it says.
#[test]
fn every_flag_changes_the_field_it_names() {
    for flag in FlagSpec::all() {
        let Some(field) = flag.field else { continue };
        let as_json = |words: &[&str]| {
            let (config, _) = apply(words).unwrap();
            serde_json::to_value(config).unwrap()
        };
        let changed = |value: &str| {
            let before = as_json(&[]);
            let after = as_json(&[&format!("--{}={value}", flag.name)]);
            let pointer = format!("/{}", field.replace('.', "/"));
            let other_fields_are_untouched = {
                let strip = |mut json: serde_json::Value| {
                    let top = field.split('.').next().unwrap();
                    json.as_object_mut().unwrap().remove(top);
                    json
                };
                strip(before.clone()) == strip(after.clone())
            };
            assert!(other_fields_are_untouched, "--{} changes more than {field}", flag.name);
            before.pointer(&pointer) != after.pointer(&pointer)
        };
        let values: &[&str] =
            if flag.kind == ValueKind::Bool { &["true", "false"] } else { &[sample(flag)] };
        assert!(values.iter().any(|value| changed(value)), "--{} does not set {field}", flag.name);
    }
}

#[test]
fn every_other_flag_is_accepted() {
    for flag in FlagSpec::all().filter(|flag| flag.field.is_none()) {
        let word = format!("--{}={}", flag.name, sample(flag));
        let (_, options) = apply(&[&word]).unwrap();
        let has_effect = options != KubeletOptions::default();
        let needs_none = flag.name == HELP || matches!(flag.deprecation, Deprecation::Ignored(_));
        assert_eq!(has_effect, !needs_none, "{word}");
    }
}

#[test]
fn names_are_unique_and_help_lists_them_all() {
    let mut names: Vec<_> = FlagSpec::all().map(|flag| flag.name).collect();
    let help = help_text();
    for name in &names {
        assert!(help.contains(&format!("--{name}")), "{name}");
    }
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(help.contains("--max-pods int\n"));
    assert!(help.contains("Pods the node may run. (default 110) [maxPods]"));
    assert!(help.lines().all(|line| line.len() <= 120), "lines fit a terminal");
}

proptest! {
    #[test]
    fn no_command_line_panics(words in prop::collection::vec("-{0,3}[a-z_=,:<-]{0,12}", 0..5)) {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let _ = apply(&words);
    }
}
