//! What pods get from the API server beside themselves: tokens, ConfigMaps, Secrets, certificates to
//! trust.

use anyhow::ensure;
use rcgen::{CertificateParams, DnType, KeyPair};
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::wait_for;
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, each_second};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_pod_has_its_token_its_settings_and_its_secret,
    a_pod_waits_for_its_config_map_and_sees_it_change,
    a_service_account_that_is_made_anew_has_other_tokens,
    what_the_cluster_trusts_reaches_its_pods_and_follows_its_changes,
];

const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";

fn a_pod_has_its_token_its_settings_and_its_secret(stage: &mut Stage) -> anyhow::Result<()> {
    stage.create(
        &stage.path("secrets"),
        &json!({ "metadata": { "name": "door" }, "stringData": { "password": "sesame" } }),
    )?;
    stage.create(
        &stage.path("configmaps"),
        &json!({ "metadata": { "name": "settings" }, "data": { "COLOUR": "blue" } }),
    )?;
    // It is asked as a pod asks, from the inside.
    let checks = "\
        account=/var/run/secrets/kubernetes.io/serviceaccount
        [ -s $account/token ] && [ -s $account/ca.crt ] && [ -s $account/namespace ] || exit 11
        [ \"$(cat /door/password)\" = sesame ] && [ \"$PASSWORD\" = sesame ] || exit 12
        [ \"$COLOUR\" = blue ] && [ -z \"$NOTHING\" ] || exit 13
        [ -n \"$KUBERNETES_SERVICE_HOST\" ] && [ -n \"$KUBERNETES_SERVICE_PORT\" ] || exit 14
        [ \"$(cat /about/name)\" = app ] || exit 15";
    let container = with(
        json!({
            "env": [
                { "name": "PASSWORD", "valueFrom": {
                    "secretKeyRef": { "name": "door", "key": "password" } } },
                { "name": "NOTHING", "valueFrom": { "configMapKeyRef": {
                    "name": "settings", "key": "missing", "optional": true } } },
            ],
            "envFrom": [{ "configMapRef": { "name": "settings" } }],
            "volumeMounts": [
                { "name": "door", "mountPath": "/door" },
                { "name": "about", "mountPath": "/about" },
            ],
        }),
        busybox("app", checks),
    );
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            { "name": "door", "secret": { "secretName": "door", "defaultMode": 0o400 } },
            { "name": "about", "downwardAPI": { "items": [
                { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
            ] } },
        ],
    });
    stage.create_pod(&pod("app", spec))?;
    let ended = stage
        .wait_for_pod("app", "over", |pod| pod.phase == "Succeeded" || pod.phase == "Failed")?;
    ensure!(ended.phase == "Succeeded", "{}", ended.raw["status"]);
    stage.kubectl(&["delete", "pod", "app", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()
}

fn a_pod_waits_for_its_config_map_and_sees_it_change(stage: &mut Stage) -> anyhow::Result<()> {
    let reads = |colour: &str| {
        let look = format!("grep -q {colour} /settings/colour");
        each_second(json!({ "exec": { "command": ["sh", "-c", look] } }))
    };
    let reader = |name: &str, colour: &str| {
        with(
            json!({
                "readinessProbe": reads(colour),
                "volumeMounts": [{ "name": "settings", "mountPath": "/settings" }],
            }),
            busybox(name, "trap 'exit 0' TERM; while :; do sleep 1; done"),
        )
    };
    let spec = json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [reader("blue", "blue"), reader("green", "green")],
        "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }],
    });
    stage.create_pod(&pod("app", spec))?;
    stage.wait_for_event("app", "FailedMount", "configmap \"settings\" not found")?;
    let settings =
        |colour: &str| json!({ "metadata": { "name": "settings" }, "data": { "colour": colour } });
    stage.create(&stage.path("configmaps"), &settings("blue"))?;
    let is_ready = |name: &'static str| {
        move |pod: &rubelet_e2e::PodView| pod.container(name).is_some_and(|one| one.ready)
    };
    stage.wait_for_pod("app", "reading blue", is_ready("blue"))?;
    stage.merge(&stage.path("configmaps/settings"), &settings("green"))?;
    let after = stage.wait_for_pod("app", "reading green", is_ready("green"))?;
    let restarted = after.containers.iter().any(|container| container.restarts > 0);
    ensure!(!restarted, "{}", after.raw["status"]);
    Ok(())
}

fn a_service_account_that_is_made_anew_has_other_tokens(stage: &mut Stage) -> anyhow::Result<()> {
    let accounts = stage.path("serviceaccounts");
    let account = json!({ "metadata": { "name": "robot" } });
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } });
    let mut tokens = Vec::new();
    for name in ["first", "second"] {
        let made = stage.create(&accounts, &account)?;
        let mount = json!({ "volumeMounts": [{ "name": "token", "mountPath": "/token" }] });
        let spec = json!({
            "serviceAccountName": "robot",
            "automountServiceAccountToken": false,
            "containers": [with(busybox("app", "cat /token/token; echo; exec sleep 3600"), mount)],
            "volumes": [{ "name": "token", "projected": { "sources": [token] } }],
        });
        stage.create_pod(&pod(name, spec))?;
        stage.wait_until_ready(name)?;
        let shown = wait_for("the token", WAIT, || match stage.kubectl(&["logs", name]) {
            Ok(token) if !token.is_empty() => Ok(token.trim().to_owned()),
            other => Err(format!("{other:?}")),
        })?;
        let review = json!({ "spec": { "token": shown } });
        let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
        let user = |status: &Value| status["status"]["user"]["uid"].clone();
        let known = stage.create(reviews, &review)?;
        ensure!(user(&known) == made["metadata"]["uid"], "{known}");
        stage.delete(&format!("{accounts}/robot"))?;
        tokens.push(shown);
    }
    ensure!(tokens[0] != tokens[1], "both pods have one token");
    Ok(())
}

/// A certificate of its own making, PEM.
fn certificate(name: &str) -> anyhow::Result<String> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Ok(params.self_signed(&KeyPair::generate()?)?.pem())
}

/// The contents of the blocks of a PEM file, sorted: lines may be of any length.
fn blocks(pem: &str) -> Vec<String> {
    let mut found: Vec<String> = pem
        .split("-----BEGIN CERTIFICATE-----")
        .filter_map(|block| block.split("-----END").next())
        .map(|body| body.split_whitespace().collect())
        .filter(|body: &String| !body.is_empty())
        .collect();
    found.sort();
    found
}

/// Waits until a file of the pod `app` holds these certificates and no others.
fn wait_until_trusted(stage: &Stage, file: &str, certificates: &[&str]) -> anyhow::Result<()> {
    let expected = blocks(&certificates.concat());
    wait_for(&format!("{file} to hold {} certificates", certificates.len()), WAIT, || {
        let text = stage
            .kubectl(&["exec", "app", "--", "cat", &format!("/trust/{file}")])
            .map_err(|error| format!("{error:#}"))?;
        if blocks(&text) == expected { Ok(()) } else { Err(format!("it holds {text:?}")) }
    })
}

fn what_the_cluster_trusts_reaches_its_pods_and_follows_its_changes(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let before = stage.restart_kubelet(|options| {
        options.config["featureGates"] =
            json!({ "ClusterTrustBundle": true, "ClusterTrustBundleProjection": true });
        // Nobody watches bundles: pods see a change when they are looked at the next time.
        options.config["syncFrequency"] = json!("2s");
    })?;
    stage.wait_until_node_is_ready(0)?;
    let name = |rest: &str| format!("{}-{rest}", stage.namespace());
    let signer = format!("example.com/{}", stage.namespace());
    let signed = |rest: &str| format!("example.com:{}:{rest}", stage.namespace());
    let bundle = |name: &str, site: Option<&str>, certificates: &str| {
        let mut bundle =
            json!({ "metadata": { "name": name }, "spec": { "trustBundle": certificates } });
        if let Some(site) = site {
            bundle["metadata"]["labels"] = json!({ "site": site });
            bundle["spec"]["signerName"] = json!(signer);
        }
        bundle
    };
    let [one, two, three, four] = [(); 4].map(|()| certificate("somebody"));
    let (one, two, three, four) = (one?, two?, three?, four?);
    stage.create(BUNDLES, &bundle(&signed("here"), Some("here"), &two))?;
    stage.create(BUNDLES, &bundle(&signed("there"), Some("there"), &three))?;
    let of_signer = |path: &str, selector: Value| {
        json!({ "clusterTrustBundle": {
            "path": path, "signerName": signer, "labelSelector": selector,
        } })
    };
    let sources = [
        json!({ "clusterTrustBundle": { "path": "named", "name": name("named") } }),
        json!({ "clusterTrustBundle": {
            "path": "absent", "name": name("absent"), "optional": true,
        } }),
        of_signer("here", json!({ "matchLabels": { "site": "here" } })),
        of_signer("all", json!({})),
    ];
    let mount = json!({ "volumeMounts": [{ "name": "trust", "mountPath": "/trust" }] });
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [with(busybox("app", "exec sleep 3600"), mount)],
        "volumes": [{ "name": "trust", "projected": { "sources": sources } }],
    });
    stage.create_pod(&pod("app", spec))?;
    let missing = format!("clustertrustbundle.certificates.k8s.io {:?} not found", name("named"));
    stage.wait_for_event("app", "FailedMount", &missing)?;
    stage.create(BUNDLES, &bundle(&name("named"), None, &one))?;
    stage.wait_until_ready("app")?;
    wait_until_trusted(stage, "named", &[&one])?;
    wait_until_trusted(stage, "absent", &[])?;
    wait_until_trusted(stage, "here", &[&two])?;
    wait_until_trusted(stage, "all", &[&two, &three])?;

    // Another content, another one that is meant, one that was not there, and one that goes.
    let changed = json!({ "spec": { "trustBundle": format!("{one}{four}") } });
    stage.merge(&format!("{BUNDLES}/{}", name("named")), &changed)?;
    let moved = json!({ "metadata": { "labels": { "site": "here" } } });
    stage.merge(&format!("{BUNDLES}/{}", signed("there")), &moved)?;
    stage.create(BUNDLES, &bundle(&name("absent"), None, &four))?;
    wait_until_trusted(stage, "named", &[&one, &four])?;
    wait_until_trusted(stage, "here", &[&two, &three])?;
    wait_until_trusted(stage, "absent", &[&four])?;
    stage.delete(&format!("{BUNDLES}/{}", signed("here")))?;
    wait_until_trusted(stage, "all", &[&three])?;

    for bundle in [name("named"), name("absent"), signed("there")] {
        stage.delete(&format!("{BUNDLES}/{bundle}"))?;
    }
    stage.kubectl(&["delete", "pod", "app", "--timeout=120s"])?;
    stage.restart_kubelet(|options| *options = before)?;
    stage.wait_until_node_is_ready(0)
}
