//! Real programs, small ones.

use rubelet_metrics::{Format, Registry};
use std::os::unix::fs::symlink;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, PodSpec, Secret};
use rubelet_config::GoDuration;
use rubelet_types::{Fetched, PodRef};

use super::*;

const API: &str = "credentialprovider.kubelet.k8s.io/";

/// Providers that write down each request, and what they are given from the API server.
struct Bench {
    dir: tempfile::TempDir,
    account: Option<ServiceAccountFacts>,
    token: &'static str,
}

impl CredentialObjects for Bench {
    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Fetched<Arc<Secret>>> {
        unreachable!("providers have nothing to do with the secret {name}")
    }

    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<ServiceAccountFacts, String>> {
        assert_eq!((namespace, name), ("team", "robot"));
        let found = self.account.clone().ok_or("serviceaccounts \"robot\" not found".to_owned());
        async move { found }.boxed()
    }

    fn service_account_token<'a>(
        &'a self,
        pod: &'a PodRef,
        service_account: &'a ObjectCoordinates,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<SecretString, String>> {
        let of = (&*service_account.name, &*service_account.uid, audience);
        assert_eq!(of, ("robot", "a1", "r.io"));
        let token = format!("{} of {}", self.token, pod.uid);
        async move { Ok(token.into()) }.boxed()
    }
}

impl Bench {
    /// A program that answers with `answer`, a line of a shell script.
    fn with(answer: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap(), account: None, token: "t0ken" };
        let dir = bench.dir.path();
        let script =
            format!("cd '{}'\ncat > request\ncat request >> requests\n{answer}\n", dir.display());
        fs::write(dir.join("script"), script).unwrap();
        // Not the script itself: a file that was just written cannot be run while a child that
        // another test is about to start has it open.
        symlink("/bin/sh", dir.join("p")).unwrap();
        bench
    }

    fn provider(&self) -> CredentialProvider {
        CredentialProvider {
            args: vec![self.dir.path().join("script").display().to_string()],
            ..provider("p")
        }
    }

    fn with_token(&self, cache_type: TokenCacheType) -> CredentialProvider {
        let attributes = TokenAttributes {
            audience: "r.io".to_owned(),
            cache_type,
            require_service_account: true,
            required_annotation_keys: vec!["role".to_owned()],
            optional_annotation_keys: vec!["zone".to_owned()],
        };
        CredentialProvider { token: Some(attributes), ..self.provider() }
    }

    fn open(&self, configured: CredentialProvider) -> CredentialProviders {
        CredentialProviders::open(vec![configured], self.dir.path()).unwrap()
    }

    fn requests(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("requests")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The users that are found for an image of a pod with the service account.
    async fn ask(
        &self,
        providers: &CredentialProviders,
        pod: &str,
        repository: &str,
    ) -> Vec<String> {
        let account = if pod == "without" { None } else { Some("robot".to_owned()) };
        let lookup = CredentialLookup {
            pod: &PodRef::new(pod, "team", "web"),
            pod_object: &Pod {
                spec: Some(PodSpec { service_account_name: account, ..PodSpec::default() }),
                ..Pod::default()
            },
            repository,
            image: repository,
        };
        let found = providers.credentials(lookup, Some(self)).await;
        let shown = |credential: &PullCredential| {
            let auth = credential.to_auth_config();
            let origin = match credential.origin() {
                CredentialOrigin::ServiceAccount(account) => format!(" of {}", account.uid),
                CredentialOrigin::Node => String::new(),
                CredentialOrigin::Secret(secret) => panic!("{secret:?}"),
            };
            format!("{}:{}{origin}", auth.username, auth.password)
        };
        found.iter().map(shown).collect()
    }
}

fn provider(name: &str) -> CredentialProvider {
    CredentialProvider {
        name: name.to_owned(),
        match_images: vec!["*.r.io".to_owned(), "r.io/team".to_owned()],
        default_cache_duration: GoDuration::from_secs(60),
        api_version: format!("{API}v1"),
        args: Vec::new(),
        env: Vec::new(),
        token: None,
    }
}

/// The script that answers with credentials for `*.r.io`.
fn answer(cache_key_type: &str, more: &str, password: &str) -> String {
    format!(
        r#"echo '{{"kind":"CredentialProviderResponse","apiVersion":"{API}v1","cacheKeyType":"{cache_key_type}",{more}"auth":{{"*.r.io":{{"username":"u","password":"{password}"}}}}}}'"#
    )
}

#[tokio::test]
async fn a_program_is_asked_for_its_images_with_its_arguments_and_environment() {
    let script = r#"echo "$1 $2 $PROFILE ${PATH:+inherited}" >> requests"#;
    let bench = Bench::with(&format!("{script}\n{}", answer("Image", "", "pw")));
    let providers = bench.open(CredentialProvider {
        args: [bench.provider().args, vec!["get".to_owned(), "two words".to_owned()]].concat(),
        env: vec![("PROFILE".to_owned(), "nodes".to_owned())],
        ..bench.provider()
    });
    assert_eq!(bench.ask(&providers, "u1", "q.io/app").await, [] as [String; 0]);
    assert_eq!(bench.requests(), [] as [String; 0], "not its image");
    assert_eq!(bench.ask(&providers, "u1", "a.r.io/app").await, ["u:pw"]);
    assert_eq!(
        bench.requests(),
        [
            &format!(
                r#"{{"kind":"CredentialProviderRequest","apiVersion":"{API}v1","image":"a.r.io/app"}}"#
            ),
            "get two words nodes inherited",
        ]
    );
    // It may be asked for what its answer is not for.
    assert_eq!(bench.ask(&providers, "u1", "r.io/team/app").await, [] as [String; 0]);
    let shown = format!("{providers:?}");
    assert!(!shown.contains("nodes") && !shown.contains("pw"), "{shown}");
}

#[tokio::test]
async fn older_versions_are_spoken_too() {
    for version in ["v1beta1", "v1alpha1"] {
        let script = answer("Image", "", "pw").replace("io/v1\"", &format!("io/{version}\""));
        let bench = Bench::with(&script);
        let api_version = format!("{API}{version}");
        let providers = bench.open(CredentialProvider { api_version, ..bench.provider() });
        assert_eq!(bench.ask(&providers, "u1", "a.r.io/app").await, ["u:pw"]);
        assert!(bench.requests()[0].contains(version));
    }
}

#[tokio::test]
async fn answers_are_kept_as_they_say() {
    for (case, cache_key_type, more, asked) in [
        ("for an image", "Image", "", 4),
        ("for a registry", "Registry", "", 2),
        ("for all", "Global", "", 1),
        ("for no time", "Global", r#""cacheDuration":"0s","#, 5),
        ("for a time of its own", "Global", r#""cacheDuration":"1h","#, 1),
    ] {
        let bench = Bench::with(&answer(cache_key_type, more, "pw"));
        let providers = bench.open(bench.provider());
        for image in ["a.r.io/x", "a.r.io/y", "b.r.io/x", "b.r.io/y", "a.r.io/x"] {
            assert_eq!(bench.ask(&providers, "u1", image).await, ["u:pw"], "{case}");
        }
        assert_eq!(bench.requests().len(), asked, "{case}");
    }
    let bench = Bench::with(&answer("Global", "", "pw"));
    let default_cache_duration = GoDuration::ZERO;
    let providers = bench.open(CredentialProvider { default_cache_duration, ..bench.provider() });
    for _ in 0..2 {
        assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, ["u:pw"]);
    }
    assert_eq!(bench.requests().len(), 2, "the default is no time");
}

#[tokio::test]
async fn who_asks_together_gets_one_answer() {
    let script = format!(
        "while [ ! -e go ]; do sleep 0.01; done\n{}",
        answer("Image", r#""cacheDuration":"0s","#, "pw")
    );
    let bench = Bench::with(&script);
    let providers = bench.open(bench.provider());
    let go = async {
        while bench.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fs::write(bench.dir.path().join("go"), "").unwrap();
    };
    let ask = || bench.ask(&providers, "u1", "a.r.io/x");
    let (one, two, three, ()) = tokio::join!(ask(), ask(), ask(), go);
    assert_eq!([one, two, three], [["u:pw"], ["u:pw"], ["u:pw"]]);
    assert_eq!(bench.requests().len(), 1);
    assert_eq!(ask().await, ["u:pw"]);
    assert_eq!(bench.requests().len(), 2, "what is over is not shared");
}

#[tokio::test]
async fn an_answer_that_is_none_gives_nothing_and_shows_nothing() {
    let good = answer("Image", "", "t0ps3cret");
    for (case, script) in [
        ("exit", "echo what is wrong >&2; exit 3".to_owned()),
        ("nothing", "true".to_owned()),
        ("no JSON", "echo t0ps3cret".to_owned()),
        ("another version", good.replace("io/v1\"", "io/v1beta1\"")),
        ("another kind", good.replace("Response", "Request")),
        ("an unknown field", good.replace("\"auth\"", "\"more\":1,\"auth\"")),
        ("a wrong type", good.replace("\"t0ps3cret\"", "4711")),
        ("an unknown key type", answer("Node", "", "t0ps3cret")),
        ("too much", "head -c 2000000 /dev/zero".to_owned()),
    ] {
        let bench = Bench::with(&script);
        let providers = bench.open(bench.provider());
        assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, [] as [String; 0], "{case}");
        let text = Registry::new().with(providers.metrics()).expose(Format::Prometheus);
        for line in [
            "kubelet_credential_provider_plugin_errors_total{plugin_name=\"p\"} 1",
            "kubelet_credential_provider_plugin_duration_count{plugin_name=\"p\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{case}: {line}\n{text}");
        }
        let request = PluginRequest {
            image: "a.r.io/x".to_owned(),
            token: None,
            annotations: BTreeMap::new(),
        };
        let error = providers.providers[0].program.run(&request).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("t0ps3cret"), "{case}: {shown}");
        if case == "exit" {
            assert_eq!(
                error.to_string(),
                "error execing credential provider plugin p for image a.r.io/x: exit status: 3: \
                 what is wrong"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_not_answer_is_given_up_after_a_minute() {
    let bench = Bench::with("exec sleep 3600");
    let providers = bench.open(bench.provider());
    let started = Instant::now();
    assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, [] as [String; 0]);
    assert_eq!(started.elapsed().as_secs(), 60);
}

#[tokio::test]
async fn tokens_go_to_providers_that_work_with_them() {
    let facts = |role: Option<&str>, zone: Option<&str>| {
        let annotations = [("role", role), ("zone", zone), ("other", Some("x"))];
        let set = annotations.into_iter().filter_map(|(key, value)| Some((key, value?)));
        Some(ServiceAccountFacts {
            uid: "a1".to_owned(),
            annotations: set.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        })
    };
    let mut bench = Bench::with(&answer("Global", "", "pw"));
    let providers = bench.open(bench.with_token(TokenCacheType::ServiceAccount));
    assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, [] as [String; 0], "no account");
    assert_eq!(bench.ask(&providers, "without", "a.r.io/x").await, [] as [String; 0]);
    bench.account = facts(None, Some("z"));
    assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, [] as [String; 0], "no annotation");
    assert_eq!(bench.requests(), [] as [String; 0]);

    bench.account = facts(Some("reader"), Some("z"));
    for pod in ["u1", "u2"] {
        assert_eq!(bench.ask(&providers, pod, "a.r.io/x").await, ["u:pw of a1"]);
    }
    let request = format!(
        r#"{{"kind":"CredentialProviderRequest","apiVersion":"{API}v1","image":"a.r.io/x","serviceAccountToken":"t0ken of u1","serviceAccountAnnotations":{{"role":"reader","zone":"z"}}}}"#
    );
    assert_eq!(bench.requests(), [request.as_str()], "one answer for the account");
    bench.account = facts(Some("writer"), None);
    assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, ["u:pw of a1"]);
    assert_eq!(bench.requests().len(), 2, "another annotation is another answer");

    // What hangs on the token is kept for the token.
    let providers = bench.open(bench.with_token(TokenCacheType::Token));
    for pod in ["u1", "u2", "u1"] {
        assert_eq!(bench.ask(&providers, pod, "a.r.io/x").await, ["u:pw of a1"]);
    }
    assert_eq!(bench.requests().len(), 4);
}

#[tokio::test]
async fn a_token_is_a_password_only_where_that_is_said() {
    let mut bench = Bench::with(&answer("Global", "", "t0ken of u1"));
    bench.account = Some(ServiceAccountFacts {
        uid: "a1".to_owned(),
        annotations: BTreeMap::from([("role".to_owned(), "reader".to_owned())]),
    });
    let providers = bench.open(bench.with_token(TokenCacheType::ServiceAccount));
    assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, [] as [String; 0]);
    let providers = bench.open(bench.with_token(TokenCacheType::Token));
    assert_eq!(bench.ask(&providers, "u1", "a.r.io/x").await, ["u:t0ken of u1 of a1"]);
}

#[tokio::test]
async fn a_pod_without_an_account_is_served_where_none_is_required() {
    let bench = Bench::with(&answer("Global", "", "pw"));
    let mut configured = bench.with_token(TokenCacheType::Token);
    if let Some(token) = &mut configured.token {
        token.require_service_account = false;
        token.required_annotation_keys.clear();
    }
    let providers = bench.open(configured);
    assert_eq!(bench.ask(&providers, "without", "a.r.io/x").await, ["u:pw"]);
}

#[test]
fn programs_must_be_there() {
    let bench = Bench::with("true");
    fs::write(bench.dir.path().join("plain"), "").unwrap();
    fs::create_dir(bench.dir.path().join("dir")).unwrap();
    let open = |configured: CredentialProvider, dir: &Path| {
        CredentialProviders::open(vec![configured], dir).unwrap_err().to_string()
    };
    let dir = bench.dir.path();
    let program = |name: &str| format!("plugin binary executable {}", dir.join(name).display());
    assert_eq!(open(provider("none"), dir), format!("{}: it does not exist", program("none")));
    for name in ["plain", "dir"] {
        assert_eq!(open(provider(name), dir), format!("{}: it is not executable", program(name)));
    }
    let missing = dir.join("missing");
    assert_eq!(
        open(provider("p"), &missing),
        format!("error inspecting binary directory {}", missing.display())
    );
    let match_images = vec!["r.io:http".to_owned()];
    assert_eq!(
        open(CredentialProvider { match_images, ..provider("p") }, dir),
        "providers.matchImages: Invalid value: \"r.io:http\": match image is invalid: invalid \
         port \":http\" after host"
    );
}
