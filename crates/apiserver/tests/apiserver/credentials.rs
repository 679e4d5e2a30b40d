//! TLS, and credentials that change.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ConfigMap;
use rubelet_apiserver::{ApiErrorKind, ApiServer, Event, KubeConfig, Selector};
use rubelet_fake_apiserver::{Authority, FakeApiServer, Listening, User};
use rubelet_types::Clock;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

use super::{chain, client, config_map, options, server};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server with TLS that wants to know who asks, and a place for kubeconfigs.
struct Stage {
    server: FakeApiServer,
    authority: Authority,
    listening: Listening,
    directory: TempDir,
}

impl Stage {
    async fn new() -> Self {
        let server = server();
        server.require_authentication(true);
        let authority = Authority::new();
        let listening = server.listen_with_tls(&authority).await.unwrap();
        Self { server, authority, listening, directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        // In one step, as everybody does who cares.
        let fresh = self.path("fresh");
        fs::write(&fresh, content).unwrap();
        fs::rename(fresh, &path).unwrap();
        path
    }

    fn kubeconfig(&self, user: &Value) -> PathBuf {
        self.write("kubeconfig", &self.listening.kubeconfig(user))
    }

    fn client_pem(&self, name: &str) -> String {
        let user = User { name: name.to_owned(), groups: vec!["system:nodes".to_owned()] };
        let tomorrow = now() + SignedDuration::from_hours(24);
        self.authority.client(&user, tomorrow).to_pem()
    }
}

fn now() -> Timestamp {
    Clock::system().now()
}

/// Who the server takes us for.
async fn who(api: &ApiServer) -> String {
    let requests = api.cluster::<CertificateSigningRequest>();
    let request = serde_json::from_value(json!({
        "metadata": {"name": "who"},
        "spec": {"request": "", "signerName": "example.com/x"},
    }))
    .unwrap();
    let made = requests.create(&request).await.unwrap();
    requests.delete("who", &Default::default()).await.unwrap();
    made.spec.username.unwrap_or_default()
}

#[tokio::test]
async fn a_client_certificate_says_who_asks() {
    let stage = Stage::new().await;
    stage.write("client.pem", &stage.client_pem("system:node:a"));
    let user = json!({"client-certificate": "client.pem", "client-key": "client.pem"});
    let api = client(&stage.kubeconfig(&user));
    assert_eq!(who(&api).await, "system:node:a");
    let nobody = client(&stage.kubeconfig(&json!({})));
    let error = nobody.cluster::<CertificateSigningRequest>().get("x").await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Unauthorized);
    assert!(nobody.is_responding().await);
}

#[tokio::test]
async fn the_servers_certificate_is_looked_at() {
    let stage = Stage::new().await;
    stage.server.require_authentication(false);
    let config = |change: &dyn Fn(&mut Value)| {
        let mut config: Value =
            serde_json::from_str(&stage.listening.kubeconfig(&json!({}))).unwrap();
        change(&mut config["clusters"][0]["cluster"]);
        client(&stage.write("kubeconfig", &config.to_string()))
    };
    let encode = |text: &str| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, text);
    let other = encode(Authority::new().certificate_pem());
    let get = async |api: ApiServer| api.namespaced::<ConfigMap>("default").get("x").await;

    let known = get(config(&|_| {})).await.unwrap_err();
    assert!(known.is_not_found(), "{known:?}");
    let named =
        get(config(&|cluster| cluster["tls-server-name"] = json!("kubernetes.default.svc")));
    assert!(named.await.unwrap_err().is_not_found());
    let misnamed = get(config(&|cluster| cluster["tls-server-name"] = json!("other"))).await;
    let error = misnamed.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Connection);
    assert!(chain(&error).contains("TLS handshake with other: "), "{}", chain(&error));
    let unknown =
        get(config(&|cluster| cluster["certificate-authority-data"] = json!(other))).await;
    let unknown = chain(&unknown.unwrap_err());
    assert!(
        unknown.contains("TLS handshake with 127.0.0.1: invalid peer certificate"),
        "{unknown}"
    );
    let anybody = get(config(&|cluster| {
        cluster["certificate-authority-data"] = json!(null);
        cluster["insecure-skip-tls-verify"] = json!(true);
    }));
    assert!(anybody.await.unwrap_err().is_not_found());
}

/// A watch goes on with the new certificate, and misses nothing.
#[tokio::test]
async fn a_new_certificate_comes_into_use() {
    let stage = Stage::new().await;
    let pem = stage.write("client.pem", &stage.client_pem("system:node:old"));
    let path = stage.write("kubeconfig", &stage.listening.kubeconfig_with_certificate(&pem));
    let api = client(&path);
    let maps = api.namespaced::<ConfigMap>("default");
    let mut watch = maps.watch(&Selector::all());
    assert!(matches!(watch.next().await, Event::Replaced(_)));
    assert!(!api.reload().await.unwrap(), "nothing has changed");
    assert_eq!(who(&api).await, "system:node:old");

    stage.write("client.pem", &stage.client_pem("system:node:new"));
    stage.server.put(&config_map("meanwhile"));
    assert!(api.reload().await.unwrap());
    assert_eq!(who(&api).await, "system:node:new");
    let next = timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(matches!(next, Event::Applied(_)), "{next:?}");
    // The watch is back, and the old connections are gone: one for calls, one for the watch.
    timeout(PATIENCE, async {
        while stage.server.open_connections() != 2 || stage.server.open_watches() != 1 {
            if let Ok(event) = timeout(Duration::from_millis(20), watch.next()).await {
                panic!("{event:?}");
            }
        }
    })
    .await
    .unwrap();
}

/// Files that cannot be used at the moment leave everything as it was.
#[tokio::test]
async fn bad_files_leave_the_old_credentials_in_use() {
    let stage = Stage::new().await;
    let pem = stage.write("client.pem", &stage.client_pem("system:node:a"));
    let path = stage.write("kubeconfig", &stage.listening.kubeconfig_with_certificate(&pem));
    let api = client(&path);
    stage.write("client.pem", "half a file");
    api.reload().await.unwrap_err();
    assert_eq!(who(&api).await, "system:node:a");
    fs::remove_file(&path).unwrap();
    api.reload().await.unwrap_err();
    assert_eq!(who(&api).await, "system:node:a");
}

/// Whoever watches over the credentials need not be told.
#[tokio::test]
async fn credentials_are_kept_fresh() {
    let stage = Stage::new().await;
    let path = stage.kubeconfig(&json!({"token": "old"}));
    stage.server.add_user("old", User { name: "old".to_owned(), groups: Vec::new() });
    stage.server.add_user("new", User { name: "new".to_owned(), groups: Vec::new() });
    let api = client(&path);
    assert_eq!(who(&api).await, "old");
    stage.kubeconfig(&json!({"token": "new"}));
    let keeping = {
        let api = api.clone();
        tokio::spawn(async move { api.keep_credentials_fresh().await })
    };
    timeout(PATIENCE, async { while who(&api).await != "new" {} }).await.unwrap();
    keeping.abort();
}

#[tokio::test]
async fn a_token_file_is_read_again_when_its_token_is_refused() {
    let stage = Stage::new().await;
    let user = |name: &str| User { name: name.to_owned(), groups: Vec::new() };
    stage.server.add_user("one", user("one"));
    stage.write("token", "one");
    let api = client(&stage.kubeconfig(&json!({"tokenFile": "token"})));
    assert_eq!(who(&api).await, "one");
    stage.write("token", "two");
    stage.server.remove_user("one");
    stage.server.add_user("two", user("two"));
    assert_eq!(who(&api).await, "two");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_at_once() {
    let stage = Stage::new().await;
    let mut config: Value = serde_json::from_str(&stage.listening.kubeconfig(&json!({}))).unwrap();
    config["clusters"][0]["cluster"]["tls-server-name"] = json!("not a name");
    let path = stage.write("kubeconfig", &config.to_string());
    let config = KubeConfig::load(&path).unwrap();
    let error = ApiServer::new(&config, options(), Clock::system()).unwrap_err();
    assert!(error.to_string().contains("\"not a name\" is no name for a TLS server"), "{error}");
}
