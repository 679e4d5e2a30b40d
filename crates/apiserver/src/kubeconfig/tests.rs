use std::error::Error;
use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A directory with a kubeconfig in it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn load_text(&self, text: &str) -> Result<KubeConfig, KubeConfigError> {
        KubeConfig::load(&self.write("kubeconfig", text))
    }

    fn load(&self, cluster: Value, user: Value) -> Result<KubeConfig, KubeConfigError> {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        });
        self.load_text(&text.to_string())
    }

    /// What is wrong with it, causes included, without the directory.
    fn problem(&self, cluster: Value, user: Value) -> String {
        self.shown(self.load(cluster, user))
    }

    fn shown(&self, outcome: Result<KubeConfig, KubeConfigError>) -> String {
        let error = outcome.expect_err("a kubeconfig that cannot be used");
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text.replace(&self.directory.path().display().to_string(), "DIR")
    }
}

struct Pair {
    certificate: String,
    key: String,
}

fn pair_until(not_after: Option<(i32, u8, u8)>) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["node".to_owned()]).unwrap();
    if let Some((year, month, day)) = not_after {
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, month, day);
    }
    let certificate = params.self_signed(&key).unwrap().pem();
    Pair { certificate, key: key.serialize_pem() }
}

fn pair() -> Pair {
    pair_until(None)
}

fn insecure() -> Value {
    json!({"server": "https://10.0.0.1:6443", "insecure-skip-tls-verify": true})
}

#[test]
fn certificates_and_keys_may_be_files_beside_the_kubeconfig() {
    let place = Place::new();
    let (ca, client) = (pair(), pair());
    place.write("ca.crt", &ca.certificate);
    place.write("client.pem", format!("{}{}", client.certificate, client.key));
    let config = place
        .load(
            json!({"server": "https://10.0.0.1:6443", "certificate-authority": "ca.crt"}),
            json!({"client-certificate": "client.pem", "client-key": "client.pem"}),
        )
        .unwrap();
    assert_eq!(config.server(), "https://10.0.0.1:6443");
    assert_eq!(config.client_certificates().len(), 1);
    assert!(matches!(config.trust(), Trust::Roots(_)));
}

#[test]
fn certificates_and_keys_may_stand_within_and_go_before_files() {
    let place = Place::new();
    let (ca, client) = (pair(), pair());
    let mut encoded = BASE64_STANDARD.encode(&ca.certificate);
    encoded.insert_str(64, "\n    ");
    let config = place
        .load(
            json!({
                "server": "https://10.0.0.1:6443",
                "certificate-authority": "nowhere", "certificate-authority-data": encoded,
            }),
            json!({
                "client-certificate": "nowhere",
                "client-certificate-data": BASE64_STANDARD.encode(&client.certificate),
                "client-key-data": BASE64_STANDARD.encode(&client.key),
            }),
        )
        .unwrap();
    assert_eq!(config.client_certificates().len(), 1);
}

#[test]
fn the_usual_yaml_of_kubeadm_is_understood() {
    let place = Place::new();
    let client = pair();
    place.write("client.pem", format!("{}{}", client.certificate, client.key));
    let ca = BASE64_STANDARD.encode(pair().certificate);
    let config = place
        .load_text(&format!(
            "apiVersion: v1\n\
             clusters:\n\
             - cluster:\n    certificate-authority-data: {ca}\n    \
             server: https://control-plane:6443\n  name: kubernetes\n\
             contexts:\n\
             - context:\n    cluster: kubernetes\n    user: system:node:a\n  \
             name: system:node:a@kubernetes\n\
             current-context: system:node:a@kubernetes\n\
             kind: Config\n\
             preferences: {{}}\n\
             users:\n\
             - name: system:node:a\n  user:\n    client-certificate: client.pem\n    \
             client-key: client.pem\n"
        ))
        .unwrap();
    assert_eq!(config.server(), "https://control-plane:6443");
}

#[test]
fn the_current_context_chooses() {
    let place = Place::new();
    let text = |current: &str| {
        json!({
            "current-context": current,
            "contexts": [
                {"name": "one", "context": {"cluster": "one", "user": "u"}},
                {"name": "two", "context": {"cluster": "two"}},
                {"name": "no-cluster", "context": {"cluster": "three"}},
                {"name": "no-user", "context": {"cluster": "one", "user": "nobody"}},
            ],
            "clusters": [
                {"name": "one", "cluster": {"server": "http://one"}},
                {"name": "two", "cluster": {"server": "http://two"}},
            ],
            "users": [{"name": "u", "user": {"token": "t"}}],
        })
        .to_string()
    };
    let two = place.load_text(&text("two")).unwrap();
    assert_eq!(two.server(), "http://two:80");
    assert!(matches!(two.authorization(), Authorization::None));
    let one = place.load_text(&text("one")).unwrap();
    assert!(matches!(one.authorization(), Authorization::Token(_)));
    for (context, problem) in [
        ("three", "kubeconfig DIR/kubeconfig: there is no context \"three\""),
        ("", "kubeconfig DIR/kubeconfig: no current-context"),
        (
            "no-cluster",
            "kubeconfig DIR/kubeconfig: context \"no-cluster\": there is no cluster \"three\"",
        ),
        ("no-user", "kubeconfig DIR/kubeconfig: context \"no-user\": there is no user \"nobody\""),
    ] {
        assert_eq!(place.shown(place.load_text(&text(context))), problem);
    }
}

#[test]
fn tokens_and_passwords_are_taken_and_never_shown() {
    let place = Place::new();
    place.write("token", "from-a-file\n");
    for (user, expected) in [
        (json!({"token": "hunter2"}), "Token"),
        (json!({"tokenFile": "token"}), "TokenFile"),
        (json!({"tokenFile": "token", "token": "hunter2"}), "TokenFile"),
        (json!({"tokenFile": "nowhere", "token": "hunter2"}), "TokenFile"),
        (json!({"username": "jane", "password": "hunter2"}), "Basic"),
    ] {
        let config = place.load(insecure(), user).unwrap();
        let shown = format!("{config:?}");
        assert!(shown.contains(expected), "{shown}");
        assert!(!shown.contains("hunter2") && !shown.contains("from-a-file"), "{shown}");
    }
}

#[test]
fn names_and_proxies_are_taken() {
    let place = Place::new();
    let mut cluster = insecure();
    cluster["tls-server-name"] = json!("kubernetes");
    cluster["proxy-url"] = json!("http://jane:hunter2@proxy:3128");
    let config = place.load(cluster.clone(), json!({})).unwrap();
    assert_eq!(config.server_name(), Some("kubernetes"));
    assert_eq!(config.proxy().and_then(|proxy| proxy.host()), Some("proxy"));
    assert!(!format!("{config:?}").contains("hunter2"));
    cluster["proxy-url"] = json!("ftp://jane:hunter2@proxy");
    let problem = place.problem(cluster, json!({}));
    assert!(problem.contains("proxy-url") && !problem.contains("hunter2"), "{problem}");
}

#[test]
fn impersonation_becomes_headers() {
    let place = Place::new();
    let user = json!({
        "as": "jane", "as-groups": ["a", "b"], "as-user-extra": {"example.com/x": ["1"]},
    });
    let config = place.load(insecure(), user).unwrap();
    let headers: Vec<_> = config
        .impersonation()
        .iter()
        .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        .collect();
    assert_eq!(
        headers,
        [
            "impersonate-user=jane",
            "impersonate-group=a",
            "impersonate-group=b",
            "impersonate-extra-example.com%2fx=1"
        ]
    );
}

#[test]
fn a_plugin_is_taken_with_its_settings() {
    let place = Place::new();
    let exec = |change: &dyn Fn(&mut Value)| {
        let mut exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "./bin/plugin",
            "args": ["get", "token"], "env": [{"name": "A", "value": "b"}],
            "interactiveMode": "IfAvailable", "provideClusterInfo": true,
        });
        change(&mut exec);
        json!({"exec": exec})
    };
    let config = place.load(insecure(), exec(&|_| {})).unwrap();
    let Authorization::Exec(plugin) = config.authorization() else { panic!("no plugin") };
    assert_eq!(plugin.command, place.directory.path().join("./bin/plugin"));
    assert_eq!(plugin.arguments, ["get", "token"]);
    assert_eq!(plugin.environment, [("A".to_owned(), "b".to_owned())]);
    assert!(plugin.cluster.is_some());
    for (field, value) in [
        ("apiVersion", json!(null)),
        ("apiVersion", json!("client.authentication.k8s.io/v1alpha1")),
        ("command", json!("")),
        ("interactiveMode", json!("Always")),
    ] {
        let problem = place.problem(insecure(), exec(&|exec| exec[field] = value.clone()));
        assert!(problem.contains(field), "{field}: {problem}");
    }
}

#[test]
fn what_is_wrong_is_said_with_the_place() {
    let place = Place::new();
    let (client, other) = (pair(), pair());
    place.write("client.crt", &client.certificate);
    place.write("client.key", &client.key);
    place.write("other.key", &other.key);
    place.write("empty", "");
    place.write("garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let tls = |ca: &str| json!({"server": "https://a", "certificate-authority": ca});
    for (cluster, user, problem) in [
        (
            tls("nowhere"),
            json!({}),
            "kubeconfig DIR/kubeconfig: cannot read certificate-authority DIR/nowhere: No such \
             file or directory (os error 2)",
        ),
        (
            tls("empty"),
            json!({}),
            "kubeconfig DIR/kubeconfig: certificate-authority DIR/empty: there is no certificate \
             in it",
        ),
        (
            tls("garbage"),
            json!({}),
            "kubeconfig DIR/kubeconfig: certificate-authority DIR/garbage: none of its \
             certificates can be used as an authority",
        ),
        (
            json!({"server": "https://a", "certificate-authority-data": "?"}),
            json!({}),
            "kubeconfig DIR/kubeconfig: certificate-authority-data is not base64: Invalid symbol \
             63, offset 0.",
        ),
        (
            json!({"server": "https://a", "certificate-authority": "client.crt", "insecure-skip-tls-verify": true}),
            json!({}),
            "kubeconfig DIR/kubeconfig: certificate-authority and insecure-skip-tls-verify \
             contradict each other",
        ),
        (
            insecure(),
            json!({"client-certificate": "client.crt"}),
            "kubeconfig DIR/kubeconfig: client-certificate without client-key",
        ),
        (
            insecure(),
            json!({"client-certificate": "client.crt", "client-key": "other.key"}),
            "kubeconfig DIR/kubeconfig: client-certificate DIR/client.crt: the private key is not \
             the one of the certificate",
        ),
        (
            insecure(),
            json!({"client-certificate": "client.crt", "client-key": "empty"}),
            "kubeconfig DIR/kubeconfig: client-key DIR/empty: no private key: no items found",
        ),
        (
            insecure(),
            json!({"tokenFile": "nowhere"}),
            "kubeconfig DIR/kubeconfig: cannot read tokenFile DIR/nowhere: No such file or \
             directory (os error 2)",
        ),
        (
            insecure(),
            json!({"auth-provider": {"name": "gcp"}}),
            "kubeconfig DIR/kubeconfig: auth-provider \"gcp\": Kubernetes has removed these; use \
             exec",
        ),
        (json!({}), json!({}), "kubeconfig DIR/kubeconfig: cluster \"k\" has no server"),
        (
            json!({"server": "ftp://a"}),
            json!({}),
            "kubeconfig DIR/kubeconfig: server \"ftp://a\": its scheme has to be https or http",
        ),
    ] {
        let found = place.problem(cluster, user);
        // The words of a library may change; what we say of it may not.
        let ours = problem.split(" no items found").next().unwrap();
        assert!(found.starts_with(ours), "{found}\ninstead of\n{problem}");
    }
    let missing = KubeConfig::load(&place.directory.path().join("none"));
    assert_eq!(
        place.shown(missing),
        "cannot read kubeconfig DIR/none: No such file or directory (os error 2)"
    );
    let broken = place.shown(place.load_text("clusters: [\n"));
    assert!(broken.starts_with("cannot parse kubeconfig DIR/kubeconfig: "), "{broken}");
}

#[test]
fn the_fingerprint_changes_with_every_file() {
    let place = Place::new();
    let (ca, client, later) = (pair(), pair(), pair());
    let load = || {
        place
            .load(
                json!({"server": "https://a", "certificate-authority": "ca.crt"}),
                json!({"client-certificate": "client.pem", "client-key": "client.pem"}),
            )
            .unwrap()
            .fingerprint()
    };
    place.write("ca.crt", &ca.certificate);
    place.write("client.pem", format!("{}{}", client.certificate, client.key));
    let first = load();
    assert_eq!(load(), first);
    place.write("client.pem", format!("{}{}", later.certificate, later.key));
    let second = load();
    assert_ne!(second, first);
    place.write("ca.crt", format!("{}{}", ca.certificate, later.certificate));
    assert_ne!(load(), second);
}

#[test]
fn a_client_certificate_is_valid_until_the_first_of_the_chain_expires() {
    let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
    let place = Place::new();
    let path = place.directory.path().join("kubeconfig");
    let check = || ClientCertificate::check(&path, now).unwrap();
    assert!(matches!(check(), ClientCertificate::NoKubeconfig));
    let user = json!({"client-certificate": "client.pem", "client-key": "client.pem"});

    let fresh = pair_until(Some((2026, 7, 1)));
    place.write("client.pem", format!("{}{}", fresh.certificate, fresh.key));
    place.load(insecure(), user.clone()).unwrap();
    assert!(check().is_valid(), "{:?}", check());

    let old = pair_until(Some((2026, 5, 1)));
    place.write("client.pem", format!("{}{}{}", fresh.certificate, old.certificate, fresh.key));
    let expected: Timestamp = "2026-05-01T00:00:00Z".parse().unwrap();
    let found = check();
    assert!(
        matches!(found, ClientCertificate::Expired { not_after } if not_after == expected),
        "{found:?}"
    );

    place.write("client.pem", "");
    assert!(matches!(check(), ClientCertificate::Unusable { .. }));
    place.load(insecure(), json!({"token": "t"})).unwrap();
    assert!(matches!(check(), ClientCertificate::Unusable { .. }));
    place.write("kubeconfig", "{");
    assert!(matches!(check(), ClientCertificate::Unusable { .. }));
}

#[test]
fn the_kubeconfig_of_a_bootstrapped_node_can_be_read_again() {
    let place = Place::new();
    let (ca, client) = (pair(), pair());
    let ca = BASE64_STANDARD.encode(&ca.certificate);
    let bootstrap = place
        .load(
            json!({
                "server": "https://10.0.0.1:6443/prefix", "certificate-authority-data": ca,
                "tls-server-name": "kubernetes", "proxy-url": "http://proxy:1",
            }),
            json!({"token": "t"}),
        )
        .unwrap();
    let pem =
        place.write("it's \"the\" client.pem", format!("{}{}", client.certificate, client.key));
    let text = bootstrap.text_with_client_certificate(&pem);
    assert!(text.contains("current-context: default-context"), "{text}");
    let own = place.load_text(&text).unwrap();
    assert_eq!(own.server(), bootstrap.server());
    assert_eq!(own.server_name(), Some("kubernetes"));
    assert_eq!(own.client_certificates().len(), 1);
    assert!(matches!(own.authorization(), Authorization::None));
}
