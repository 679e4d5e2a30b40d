use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex as StdMutex;

use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use super::*;

const V1: &str = "client.authentication.k8s.io/v1";

/// A plugin that prints the file `answer` beside it, and counts its runs in `runs`.
struct Plugin {
    directory: TempDir,
    now: Arc<StdMutex<Timestamp>>,
}

impl Plugin {
    fn new() -> Self {
        Self::running("cat answer")
    }

    fn running(command: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = format!(
            "#!/bin/sh\ncd {}\necho \"$KUBERNETES_EXEC_INFO $1 $WHO\" >> runs\n{command}\n",
            directory.path().display()
        );
        let path = directory.path().join("plugin");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let now = Arc::new(StdMutex::new("2026-01-01T00:00:00Z".parse().unwrap()));
        Self { directory, now }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn answers(&self, status: serde_json::Value) {
        let answer = json!({"kind": "ExecCredential", "apiVersion": V1, "status": status});
        fs::write(self.path().join("answer"), answer.to_string()).unwrap();
    }

    fn runs(&self) -> Vec<String> {
        let runs = fs::read_to_string(self.path().join("runs")).unwrap_or_default();
        runs.lines().map(str::to_owned).collect()
    }

    fn credentials(&self) -> Credentials {
        let plugin = ExecPlugin {
            api_version: V1.to_owned(),
            command: self.path().join("plugin"),
            arguments: vec!["argument".to_owned()],
            environment: vec![("WHO".to_owned(), "jane".to_owned())],
            install_hint: "install it".to_owned(),
            cluster: None,
        };
        let now = Arc::clone(&self.now);
        let clock = Clock::from_fn(move || *now.lock().unwrap());
        Credentials::new(&Authorization::Exec(Arc::new(plugin)), None, clock).unwrap()
    }
}

async fn header(credentials: &Credentials) -> String {
    let header = credentials.header().await.unwrap().expect("a header");
    assert!(header.is_sensitive());
    header.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_plugin_is_asked_once_until_its_answer_expires() {
    let plugin = Plugin::new();
    plugin.answers(json!({"token": "one", "expirationTimestamp": "2026-01-01T01:00:00Z"}));
    let credentials = plugin.credentials();
    assert_eq!(header(&credentials).await, "Bearer one");
    assert_eq!(header(&credentials).await, "Bearer one");
    let runs = plugin.runs();
    assert_eq!(runs.len(), 1);
    assert!(runs[0].ends_with("argument jane"), "{runs:?}");
    assert!(runs[0].contains(r#""spec":{"interactive":false}"#), "{runs:?}");

    plugin.answers(json!({"token": "two"}));
    *plugin.now.lock().unwrap() = "2026-01-01T01:00:00Z".parse().unwrap();
    assert_eq!(header(&credentials).await, "Bearer two");
    assert_eq!(plugin.runs().len(), 2);
}

#[tokio::test]
async fn a_plugin_is_asked_again_after_its_token_was_refused() {
    let plugin = Plugin::new();
    plugin.answers(json!({"token": "one"}));
    let credentials = plugin.credentials();
    let used = credentials.header().await.unwrap();
    plugin.answers(json!({"token": "two"}));
    assert!(credentials.refused(used.as_ref()).await);
    assert_eq!(header(&credentials).await, "Bearer two");
    // A late refusal of the old one leaves the new one alone.
    assert!(credentials.refused(used.as_ref()).await);
    assert_eq!(header(&credentials).await, "Bearer two");
    assert_eq!(plugin.runs().len(), 2);
}

#[tokio::test]
async fn a_plugin_may_give_a_client_certificate_which_outdates_old_connections() {
    let pair = || {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["node".to_owned()]).unwrap();
        json!({
            "clientCertificateData": params.self_signed(&key).unwrap().pem(),
            "clientKeyData": key.serialize_pem(),
            "expirationTimestamp": "2026-01-01T01:00:00Z",
        })
    };
    let plugin = Plugin::new();
    plugin.answers(pair());
    let credentials = plugin.credentials();
    assert!(credentials.identity().await.unwrap().is_some());
    assert_eq!(credentials.header().await.unwrap(), None);
    let version = credentials.identity_version();
    plugin.answers(pair());
    *plugin.now.lock().unwrap() = "2026-01-01T01:00:00Z".parse().unwrap();
    credentials.header().await.unwrap();
    assert_ne!(credentials.identity_version(), version);
}

#[tokio::test]
async fn what_a_plugin_does_wrong_is_said() {
    let other = json!({"kind": "ExecCredential", "apiVersion": "other", "status": {"token": "t"}});
    for (command, problem) in [
        ("echo went wrong >&2; exit 3", "failed with exit status: 3: went wrong"),
        ("echo hunter2", "its output is no ExecCredential"),
        ("echo '{}'", "it answers with  "),
        (&format!("echo '{other}'"), "it answers with other ExecCredential instead of"),
    ] {
        let error = Plugin::running(command).credentials().header().await.unwrap_err().to_string();
        assert!(error.contains(problem) && !error.contains("hunter2"), "{error}");
    }
    for (status, problem) in [
        (json!(null), "its answer has no status"),
        (json!({}), "neither a token nor a client certificate"),
        (json!({"clientKeyData": "x"}), "only one of client certificate and key"),
        (json!({"clientKeyData": "x", "clientCertificateData": "y"}), "its client certificate"),
    ] {
        let plugin = Plugin::new();
        plugin.answers(status);
        let error = plugin.credentials().header().await.unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let plugin = Plugin::new();
    fs::remove_file(plugin.path().join("plugin")).unwrap();
    let error = plugin.credentials().header().await.unwrap_err().to_string();
    assert!(error.ends_with("plugin failed to start (install it)"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_token_file_is_read_again_and_its_last_token_outlives_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "one\n").unwrap();
    let authorization =
        Authorization::TokenFile { file: file.clone(), token: SecretString::from("one") };
    let credentials = Credentials::new(&authorization, None, Clock::system()).unwrap();
    assert_eq!(header(&credentials).await, "Bearer one");
    fs::write(&file, "two\n").unwrap();
    assert_eq!(header(&credentials).await, "Bearer one");
    tokio::time::advance(TOKEN_FILE_PERIOD).await;
    assert_eq!(header(&credentials).await, "Bearer two");
    fs::remove_file(&file).unwrap();
    tokio::time::advance(TOKEN_FILE_PERIOD).await;
    assert_eq!(header(&credentials).await, "Bearer two");
    // A refusal is a reason not to wait.
    fs::write(&file, "three\n").unwrap();
    let used = credentials.header().await.unwrap();
    assert!(credentials.refused(used.as_ref()).await);
    assert_eq!(header(&credentials).await, "Bearer three");
    let used = credentials.header().await.unwrap();
    assert!(!credentials.refused(used.as_ref()).await);
}

#[tokio::test]
async fn names_and_passwords_become_a_header() {
    let authorization =
        Authorization::Basic { user: "jane".to_owned(), password: SecretString::from("p") };
    let credentials = Credentials::new(&authorization, None, Clock::system()).unwrap();
    assert_eq!(header(&credentials).await, "Basic amFuZTpw");
    let unsendable = Authorization::Token(SecretString::from("a\nb"));
    assert!(Credentials::new(&unsendable, None, Clock::system()).is_err());
}
