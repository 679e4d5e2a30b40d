//! The image manager on a small registry in memory, under paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1::{AuthConfig, Image, ImageSpec, Int64Value, PodSandboxConfig};
use rubelet_cri::{CriError, CriErrorKind, Rpc};
use rubelet_image_manager::{
    CredentialLookup, CredentialOrigin, CredentialVerification, EnsureImage, EnsureImageError,
    ImageCredentials, ImageManager, ImageManagerConfig, ImageRef, ImageService, ImageUser,
    ObjectCoordinates, PullCredential, PullCredentialsError, PullPolicy, VerificationPolicy,
};
use rubelet_metrics::{Format, Registry};
use rubelet_types::{Clock, EventObject, EventRecorder, PodRef, PodUid};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A runtime that pulls from a registry in memory.
#[derive(Clone, Default)]
struct Runtime(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Images on the node, by name and by reference.
    present: BTreeMap<String, Image>,
    /// What the registry answers, by image; everything else can be pulled.
    refusals: BTreeMap<String, String>,
    /// Images that only this user may pull.
    private: BTreeMap<String, String>,
    pull_takes: Duration,
    inspect_fails: bool,
    running: usize,
    most_running: usize,
    pulls: Vec<(String, Option<String>)>,
}

struct Running(Runtime);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

impl Runtime {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn has(&self, name: &str, image: Image) {
        self.state().present.insert(name.to_owned(), image);
    }

    fn pulls(&self) -> Vec<String> {
        self.state().pulls.iter().map(|(image, _)| image.clone()).collect()
    }
}

fn image(id: &str) -> Image {
    Image { id: id.to_owned(), size: 1234, ..Default::default() }
}

impl ImageService for Runtime {
    async fn image_status(&self, image: ImageSpec) -> Result<Option<Image>, CriError> {
        let state = self.state();
        if state.inspect_fails {
            return Err(CriError::new(Rpc::ImageStatus, CriErrorKind::Unavailable, "no runtime"));
        }
        Ok(state.present.get(&image.image).cloned())
    }

    async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        Ok(self.state().present.values().cloned().collect())
    }

    async fn pull_image(
        &self,
        image_spec: ImageSpec,
        auth: Option<AuthConfig>,
        _sandbox_config: PodSandboxConfig,
    ) -> Result<String, CriError> {
        let user = auth.map(|auth| auth.username);
        let name = image_spec.image;
        let takes = {
            let mut state = self.state();
            state.pulls.push((name.clone(), user.clone()));
            state.running += 1;
            state.most_running = state.most_running.max(state.running);
            state.pull_takes
        };
        let _running = Running(self.clone());
        tokio::time::sleep(takes).await;
        let mut state = self.state();
        let refusal = match (state.refusals.get(&name), state.private.get(&name)) {
            (Some(refusal), _) => Some(refusal.clone()),
            (None, Some(owner)) if Some(owner) != user.as_ref() => {
                Some(format!("denied for {}", user.as_deref().unwrap_or("anonymous")))
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            return Err(CriError::new(Rpc::PullImage, CriErrorKind::Other, refusal));
        }
        let image_ref = format!("sha256:{name}");
        let pulled = Image { uid: Some(Int64Value { value: 1000 }), ..image(&image_ref) };
        state.present.insert(name, pulled.clone());
        state.present.insert(image_ref.clone(), pulled);
        Ok(image_ref)
    }
}

/// Who pulls: users of the node, or of Secrets with their names (`secret:alice`).
struct Users {
    names: Arc<Mutex<Vec<&'static str>>>,
    lookups: Arc<Mutex<usize>>,
}

impl ImageCredentials for Users {
    async fn credentials(
        &self,
        lookup: CredentialLookup<'_>,
    ) -> Result<Vec<PullCredential>, PullCredentialsError> {
        assert!(lookup.repository.contains('/'), "{lookup:?}");
        *self.lookups.lock().unwrap() += 1;
        if self.names.lock().unwrap().contains(&"broken") {
            return Err(PullCredentialsError::InvalidSecret {
                namespace: "default".to_owned(),
                name: "key".to_owned(),
                problem: "no such format".to_owned(),
            });
        }
        let credential = |user: &&str| {
            let (origin, user) = match user.strip_prefix("secret:") {
                Some(name) => {
                    let secret = ObjectCoordinates {
                        namespace: "default".to_owned(),
                        name: name.to_owned(),
                        uid: format!("uid of {name}"),
                    };
                    (CredentialOrigin::Secret(secret), name)
                }
                None => (CredentialOrigin::Node, *user),
            };
            PullCredential::new(user, format!("{user}s password").into(), origin)
        };
        Ok(self.names.lock().unwrap().iter().map(credential).collect())
    }
}

struct Node {
    records: tempfile::TempDir,
    users: Arc<Mutex<Vec<&'static str>>>,
    lookups: Arc<Mutex<usize>>,
    manager: ImageManager<Runtime, Users>,
    runtime: Runtime,
    events: Arc<Mutex<Vec<String>>>,
    started: Instant,
}

fn node_with(config: &ImageManagerConfig, users: Vec<&'static str>) -> Node {
    let runtime = Runtime::default();
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let recorder = EventRecorder::new(move |event| {
        let EventObject::Container { field_path, .. } = &event.object else { panic!("{event:?}") };
        assert_eq!(field_path, "spec.containers{app}");
        let line = format!("{:?} {} {}", event.event_type, event.reason, event.message);
        sink.lock().unwrap().push(line);
    });
    let started = Instant::now();
    let clock = Clock::from_fn(move || {
        Timestamp::UNIX_EPOCH + SignedDuration::try_from(started.elapsed()).unwrap()
    });
    let records = tempfile::tempdir().unwrap();
    let verification = CredentialVerification {
        policy: VerificationPolicy::NeverVerifyPreloadedImages,
        directory: records.path().join("image_manager"),
    };
    let config =
        ImageManagerConfig { credential_verification: Some(verification), ..config.clone() };
    let (users, lookups) = (Arc::new(Mutex::new(users)), Arc::new(Mutex::new(0)));
    let credentials = Users { names: users.clone(), lookups: lookups.clone() };
    let manager = ImageManager::new(&config, runtime.clone(), credentials, recorder, clock);
    Node { records, users, lookups, manager, runtime, events, started }
}

fn unlimited() -> ImageManagerConfig {
    ImageManagerConfig { serialize_image_pulls: false, registry_pull_qps: 0, ..Default::default() }
}

fn node() -> Node {
    node_with(&unlimited(), vec![])
}

impl Node {
    async fn ensure_for(
        &self,
        pod: &str,
        image: &str,
        policy: PullPolicy,
        annotations: &BTreeMap<String, String>,
        cancel: &CancellationToken,
    ) -> Result<ImageRef, EnsureImageError> {
        let mut pod_object = Pod::default();
        pod_object.metadata.annotations = Some(annotations.clone());
        let request = EnsureImage {
            pod: &PodRef::new(pod, "default", "web"),
            pod_object: &pod_object,
            image,
            policy,
            field_path: "spec.containers{app}",
            sandbox_config: &PodSandboxConfig::default(),
        };
        self.manager.ensure_image(request, cancel).await
    }

    async fn ensure(&self, image: &str, policy: PullPolicy) -> Result<ImageRef, EnsureImageError> {
        self.ensure_for("u1", image, policy, &BTreeMap::new(), &CancellationToken::new()).await
    }

    fn take_events(&self) -> Vec<String> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }
}

fn failure(result: Result<ImageRef, EnsureImageError>) -> (&'static str, String) {
    let error = result.unwrap_err();
    (error.reason, error.message)
}

#[tokio::test(start_paused = true)]
async fn an_absent_image_is_pulled_and_reported() {
    let node = node();
    node.runtime.state().pull_takes = Duration::from_micros(1_234_567);
    let image_ref = node.ensure("busybox", PullPolicy::IfNotPresent).await.unwrap();
    assert_eq!(
        image_ref,
        ImageRef { image_ref: "sha256:busybox:latest".to_owned(), user: ImageUser::Uid(1000) }
    );
    let events = node.take_events();
    assert_eq!(events[0], "Normal Pulling Pulling image \"busybox\"");
    // The test clock ticks in whole milliseconds.
    assert!(
        events[1].starts_with("Normal Pulled Successfully pulled image \"busybox\" in 1.23"),
        "{events:?}"
    );
    assert!(events[1].ends_with("s including waiting). Image size: 1234 bytes."), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn policies_decide_what_happens_to_a_present_image() {
    let node = node();
    let named = Image { username: "nobody".to_owned(), ..image("sha256:a") };
    node.runtime.has("a:1", named);
    let present = "Normal Pulled Container image \"a:1\" already present on machine and can be \
                   accessed by the pod";
    for policy in [PullPolicy::IfNotPresent, PullPolicy::Never] {
        let image_ref = node.ensure("a:1", policy).await.unwrap();
        assert_eq!(image_ref.image_ref, "sha256:a");
        assert_eq!(image_ref.user, ImageUser::Name("nobody".to_owned()));
        assert_eq!(node.take_events(), [present]);
    }
    assert!(node.runtime.pulls().is_empty());
    node.ensure("a:1", PullPolicy::Always).await.unwrap();
    assert_eq!(node.runtime.pulls(), ["a:1"]);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_names_no_user_runs_as_root() {
    let node = node();
    node.runtime.has("a:1", image("sha256:a"));
    let image_ref = node.ensure("a:1", PullPolicy::Never).await.unwrap();
    assert_eq!(image_ref.user, ImageUser::Uid(0));
}

#[tokio::test(start_paused = true)]
async fn failures_before_a_pull_have_their_own_reasons() {
    let node = node();
    assert_eq!(
        failure(node.ensure("a", PullPolicy::Never).await),
        (
            "ErrImageNeverPull",
            "Container image \"a\" is not present with pull policy of Never".to_owned()
        )
    );
    assert_eq!(
        node.take_events(),
        [
            "Warning ErrImageNeverPull Container image \"a\" is not present with pull policy of Never"
        ]
    );

    let invalid = "Failed to apply default image tag \"A\": couldn't parse image name \"A\": \
                   invalid reference format: repository name (library/A) must be lowercase";
    assert_eq!(
        failure(node.ensure("A", PullPolicy::Always).await),
        ("InvalidImageName", invalid.to_owned())
    );
    assert_eq!(node.take_events(), [format!("Warning InspectFailed {invalid}")]);

    node.runtime.state().inspect_fails = true;
    let inspect =
        "Failed to inspect image \"a:latest\": rpc error: code = Unavailable desc = no runtime";
    assert_eq!(
        failure(node.ensure("a", PullPolicy::IfNotPresent).await),
        ("ImageInspectError", inspect.to_owned())
    );
    assert_eq!(node.take_events(), [format!("Warning InspectFailed {inspect}")]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_backs_off() {
    let node = node();
    node.runtime.state().refusals.insert("a:1".to_owned(), "no such manifest".to_owned());
    let mut waits = Vec::new();
    for _ in 0..7 {
        let failed = node.ensure("a:1", PullPolicy::Always).await.unwrap_err();
        assert_eq!(
            (failed.reason, failed.message.as_str(), failed.retry_at),
            ("ErrImagePull", "no such manifest", None)
        );
        assert_eq!(
            node.take_events(),
            [
                "Normal Pulling Pulling image \"a:1\"",
                "Warning Failed Failed to pull image \"a:1\": no such manifest",
            ]
        );
        let waiting = node.ensure("a:1", PullPolicy::Always).await.unwrap_err();
        assert_eq!(waiting.reason, "ImagePullBackOff");
        assert_eq!(
            waiting.message,
            "Back-off pulling image \"a:1\": ErrImagePull: no such manifest"
        );
        assert_eq!(node.take_events(), ["Normal BackOff Back-off pulling image \"a:1\""]);
        let now = Timestamp::UNIX_EPOCH + SignedDuration::try_from(node.started.elapsed()).unwrap();
        let wait = waiting.retry_at.unwrap().duration_since(now);
        let state = node.manager.pull_state(&PodUid::new("u1"), "a:1").unwrap();
        assert_eq!(state.retry_in, Some(Duration::try_from(wait).unwrap()));
        assert_eq!(state.last_error.as_deref(), Some("ErrImagePull: no such manifest"));
        assert!(!state.in_flight);
        waits.push(wait.as_secs());
        tokio::time::advance(Duration::try_from(wait).unwrap()).await;
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(node.runtime.pulls().len(), 7);
    node.ensure_for("u2", "a:2", PullPolicy::Always, &BTreeMap::new(), &CancellationToken::new())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn reasons_at_the_beginning_of_a_runtime_error_are_recognised() {
    let node = node();
    for (image, refusal, reason, message) in [
        (
            "a:1",
            "RegistryUnavailable: dial tcp: refused",
            "RegistryUnavailable",
            "image pull failed for a:1 because the registry is unavailable: dial tcp: refused",
        ),
        (
            "a:2",
            "SignatureValidationFailed",
            "SignatureValidationFailed",
            "image pull failed for a:2 because the signature validation failed",
        ),
    ] {
        node.runtime.state().refusals.insert(image.to_owned(), refusal.to_owned());
        assert_eq!(
            failure(node.ensure(image, PullPolicy::Always).await),
            (reason, message.to_owned())
        );
        let waiting = failure(node.ensure(image, PullPolicy::Always).await);
        assert_eq!(waiting.1, format!("Back-off pulling image \"{image}\": {reason}: {message}"));
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_in_order() {
    let node = node_with(&unlimited(), vec!["alice", "bob", "carol"]);
    node.runtime.state().private.insert("a:1".to_owned(), "bob".to_owned());
    node.ensure("a:1", PullPolicy::Always).await.unwrap();
    let users: Vec<_> =
        node.runtime.state().pulls.iter().map(|(_, user)| user.clone().unwrap()).collect();
    assert_eq!(users, ["alice", "bob"]);

    node.runtime.state().private.insert("a:2".to_owned(), "dave".to_owned());
    assert_eq!(
        failure(node.ensure("a:2", PullPolicy::Always).await),
        ("ErrImagePull", "[denied for alice, denied for bob, denied for carol]".to_owned())
    );
}

async fn pull_many(node: Node, count: usize) -> (Node, Vec<Result<ImageRef, EnsureImageError>>) {
    let node = Arc::new(node);
    let tasks: Vec<_> = (0..count)
        .map(|index| {
            let node = node.clone();
            tokio::spawn(async move {
                node.ensure_for(
                    &format!("u{index}"),
                    &format!("a:{index}"),
                    PullPolicy::Always,
                    &BTreeMap::new(),
                    &CancellationToken::new(),
                )
                .await
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    (Arc::into_inner(node).unwrap(), results)
}

#[tokio::test(start_paused = true)]
async fn pulls_run_one_by_one_or_side_by_side_as_configured() {
    for (serialize, max_parallel, at_once) in
        [(true, None, 1), (true, Some(3), 1), (false, Some(3), 3), (false, None, 12)]
    {
        let config = ImageManagerConfig {
            serialize_image_pulls: serialize,
            max_parallel_image_pulls: max_parallel.and_then(NonZeroU32::new),
            ..unlimited()
        };
        let node = node_with(&config, vec![]);
        node.runtime.state().pull_takes = Duration::from_secs(6);
        let (node, results) = pull_many(node, 12).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(node.runtime.state().most_running, at_once);
        let took = node.started.elapsed().as_secs();
        assert_eq!(took, 6 * 12 / u64::try_from(at_once).unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_turn_counts_as_waiting() {
    let config = ImageManagerConfig { serialize_image_pulls: true, ..unlimited() };
    let node = node_with(&config, vec![]);
    node.runtime.state().pull_takes = Duration::from_secs(2);
    let (node, _) = pull_many(node, 2).await;
    let pulled: BTreeSet<_> =
        node.take_events().into_iter().filter(|event| event.contains("Successfully")).collect();
    let times: Vec<_> = pulled
        .iter()
        .map(|event| event.split_once("\" in ").unwrap().1.split_once('.').unwrap().0)
        .collect();
    assert_eq!(times, ["2s (2s including waiting)", "2s (4s including waiting)"]);
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_refuses_what_exceeds_the_burst() {
    let config = ImageManagerConfig { registry_pull_qps: 5, registry_burst: 10, ..unlimited() };
    let (node, results) = pull_many(node_with(&config, vec![]), 30).await;
    let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 20);
    assert!(refused.iter().all(|error| {
        (error.reason, error.message.as_str()) == ("ErrImagePull", "pull QPS exceeded")
    }));
    assert_eq!(node.runtime.pulls().len(), 10);
}

fn annotations(seen: &str, team: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("kubernetes.io/config.seen".to_owned(), seen.to_owned()),
        ("team".to_owned(), team.to_owned()),
    ])
}

#[tokio::test(start_paused = true)]
async fn overlapping_pulls_of_one_image_are_one_pull() {
    let node = node();
    node.runtime.state().pull_takes = Duration::from_secs(5);
    let never = CancellationToken::new();
    let (one, two, other) =
        (annotations("1", "red"), annotations("2", "red"), annotations("3", "blue"));
    let (a, b, c) = tokio::join!(
        node.ensure_for("u1", "a:1", PullPolicy::Always, &one, &never),
        node.ensure_for("u2", "a:1", PullPolicy::IfNotPresent, &two, &never),
        node.ensure_for("u3", "a:1", PullPolicy::Always, &other, &never),
    );
    assert_eq!(a.unwrap(), b.unwrap());
    c.unwrap();
    assert_eq!(node.runtime.pulls(), ["a:1", "a:1"], "pods that differ pull on their own");
    node.ensure_for("u1", "a:1", PullPolicy::Always, &one, &never).await.unwrap();
    assert_eq!(node.runtime.pulls().len(), 3, "a pull that ended is no longer shared");
}

#[tokio::test(start_paused = true)]
async fn a_shared_pull_ends_with_its_last_waiter() {
    let node = node();
    node.runtime.state().pull_takes = Duration::from_secs(60);
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let none = BTreeMap::new();
    let script = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        first.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(node.runtime.state().running, 1, "somebody still waits");
        let state = node.manager.pull_state(&PodUid::new("u2"), "a:1").unwrap();
        assert!(state.in_flight && state.last_error.is_none());
        second.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(node.runtime.state().running, 0, "nobody waits any more");
        assert_eq!(node.manager.pull_state(&PodUid::new("u2"), "a:1"), None);
    };
    let (a, b, ()) = tokio::join!(
        node.ensure_for("u1", "a:1", PullPolicy::Always, &none, &first),
        node.ensure_for("u2", "a:1", PullPolicy::Always, &none, &second),
        script,
    );
    assert_eq!(failure(a), ("ErrImagePull", "context canceled".to_owned()));
    assert_eq!(failure(b), ("ErrImagePull", "context canceled".to_owned()));
    assert_eq!(node.take_events(), vec!["Normal Pulling Pulling image \"a:1\""; 2]);

    // Giving up is no failure: the next attempt does not wait.
    node.ensure("a:1", PullPolicy::Always).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_pull_gives_its_turn_back() {
    let config = ImageManagerConfig { serialize_image_pulls: true, ..unlimited() };
    let node = node_with(&config, vec![]);
    node.runtime.state().pull_takes = Duration::from_secs(3600);
    let cancel = CancellationToken::new();
    let none = BTreeMap::new();
    let script = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        node.runtime.state().pull_takes = Duration::from_secs(1);
        cancel.cancel();
    };
    let (stuck, next, ()) = tokio::join!(
        node.ensure_for("u1", "slow:1", PullPolicy::Always, &none, &cancel),
        node.ensure("a:1", PullPolicy::Always),
        script,
    );
    assert!(stuck.is_err());
    next.unwrap();
    assert!(node.started.elapsed() < Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_pod_uses_a_present_image_only_if_it_could_pull_it() {
    let node = node_with(&unlimited(), vec!["node", "secret:alice"]);
    let users = |names: &[&'static str]| *node.users.lock().unwrap() = names.to_vec();
    let lookups = || std::mem::take(&mut *node.lookups.lock().unwrap());
    node.runtime.state().private.insert("a:1".to_owned(), "alice".to_owned());
    node.runtime.has("old:1", image("sha256:old"));
    node.manager.open().await.unwrap();
    let present = |image: &str| {
        format!(
            "Normal Pulled Container image {image:?} already present on machine and can be \
             accessed by the pod"
        )
    };

    // What was there before is everybody's, and nobody's credentials are looked at.
    node.ensure("old:1", PullPolicy::IfNotPresent).await.unwrap();
    assert_eq!((node.take_events(), lookups()), (vec![present("old:1")], 0));

    // Alice's password was the one that worked.
    node.ensure("a:1", PullPolicy::IfNotPresent).await.unwrap();
    assert_eq!(node.runtime.pulls(), ["a:1", "a:1"]);
    node.take_events();
    for policy in [PullPolicy::IfNotPresent, PullPolicy::Never] {
        node.ensure("a:1", policy).await.unwrap();
        assert_eq!(node.take_events(), [present("a:1")]);
    }
    assert_eq!(lookups(), 3);

    // Bob has to show that he could pull it, and cannot; nor can who has nothing.
    for (names, denied) in
        [(vec!["secret:bob"], "denied for bob"), (vec![], "denied for anonymous")]
    {
        users(&names);
        let never = failure(node.ensure("a:1", PullPolicy::Never).await);
        assert_eq!(never.0, "ErrImageNeverPull");
        assert_eq!(lookups(), 1);
        node.take_events();
        let pod = format!("pod of {names:?}");
        let ensure = || async {
            let (none, go_on) = (BTreeMap::new(), CancellationToken::new());
            node.ensure_for(&pod, "a:1", PullPolicy::IfNotPresent, &none, &go_on).await
        };
        assert_eq!(failure(ensure().await), ("ErrImagePull", denied.to_owned()));
        assert_eq!(lookups(), 1, "they are looked up once for both");
        assert_eq!(
            node.take_events(),
            [
                "Normal Pulling Pulling image \"a:1\"".to_owned(),
                format!("Warning Failed Failed to pull image \"a:1\": {denied}"),
            ]
        );
        assert_eq!(failure(ensure().await).0, "ImagePullBackOff");
        lookups();
    }

    // Who could pull it once need not do so again.
    node.runtime.state().private.insert("a:1".to_owned(), "bob".to_owned());
    users(&["secret:bob"]);
    node.ensure("a:1", PullPolicy::IfNotPresent).await.unwrap();
    let pulls = node.runtime.pulls().len();
    node.ensure("a:1", PullPolicy::IfNotPresent).await.unwrap();
    users(&["secret:alice"]);
    node.ensure("a:1", PullPolicy::IfNotPresent).await.unwrap();
    assert_eq!(node.runtime.pulls().len(), pulls);
    let left = std::fs::read_dir(node.records.path().join("image_manager/pulling")).unwrap();
    assert_eq!(left.count(), 0, "no pull is under way");

    let text = Registry::new().with(node.manager.metrics()).expose(Format::Prometheus);
    let asked = "kubelet_image_manager_ensure_image_requests_total";
    for line in [
        "kubelet_imagemanager_ondisk_pullintents 0".to_owned(),
        "kubelet_imagemanager_ondisk_pulledrecords 1".to_owned(),
        "kubelet_imagemanager_image_mustpull_checks_total{result=\"credentialPolicyAllowed\"} 1"
            .to_owned(),
        "kubelet_imagemanager_image_mustpull_checks_total{result=\"credentialRecordFound\"} 4"
            .to_owned(),
        "kubelet_imagemanager_image_mustpull_checks_total{result=\"mustAuthenticate\"} 7"
            .to_owned(),
        // As it was there, and as it had to be pulled for the first time.
        format!(
            "{asked}{{present_locally=\"false\",pull_policy=\"ifnotpresent\",\
             pull_required=\"true\"}} 1"
        ),
        format!(
            "{asked}{{present_locally=\"true\",pull_policy=\"never\",pull_required=\"false\"}} 1"
        ),
        "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"0-10MB\"} 2".to_owned(),
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_nobody_waits_for_leaves_no_intent() {
    let node = node();
    node.runtime.state().pull_takes = Duration::from_secs(60);
    let pulling = node.records.path().join("image_manager/pulling");
    let intents = || std::fs::read_dir(&pulling).map_or(0, Iterator::count);
    let cancel = CancellationToken::new();
    let none = BTreeMap::new();
    let script = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(intents(), 1);
        cancel.cancel();
    };
    let (given_up, ()) =
        tokio::join!(node.ensure_for("u1", "a:1", PullPolicy::Always, &none, &cancel), script);
    assert!(given_up.is_err());
    let gone = async {
        while intents() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_verification_a_present_image_is_everybodys() {
    let runtime = Runtime::default();
    runtime.has("a:1", image("sha256:a"));
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let recorder = EventRecorder::new(move |event| sink.lock().unwrap().push(event.message));
    let users = Users { names: Arc::default(), lookups: Arc::default() };
    let clock = Clock::from_fn(|| Timestamp::UNIX_EPOCH);
    let manager = ImageManager::new(&unlimited(), runtime, users, recorder, clock);
    manager.open().await.unwrap();
    manager.reconcile_records().await;
    let request = EnsureImage {
        pod: &PodRef::new("u1", "default", "web"),
        pod_object: &Pod::default(),
        image: "a:1",
        policy: PullPolicy::IfNotPresent,
        field_path: "spec.containers{app}",
        sandbox_config: &PodSandboxConfig::default(),
    };
    manager.ensure_image(request, &CancellationToken::new()).await.unwrap();
    assert_eq!(*events.lock().unwrap(), ["Container image \"a:1\" already present on machine"]);
}

#[tokio::test(start_paused = true)]
async fn credentials_that_cannot_be_told_are_a_failed_pull() {
    let node = node_with(&unlimited(), vec!["secret:alice"]);
    node.ensure("a:1", PullPolicy::IfNotPresent).await.unwrap();
    node.take_events();
    *node.users.lock().unwrap() = vec!["broken"];
    let problem = "image pull secret default/key: no such format";
    for (image, pod) in [("a:1", "u2"), ("b:1", "u3")] {
        let ensure = || async {
            let (none, go_on) = (BTreeMap::new(), CancellationToken::new());
            node.ensure_for(pod, image, PullPolicy::IfNotPresent, &none, &go_on).await
        };
        assert_eq!(failure(ensure().await), ("ErrImagePull", problem.to_owned()));
        assert_eq!(
            node.take_events(),
            [format!("Warning Failed Failed to pull image {image:?}: {problem}")]
        );
        assert_eq!(
            failure(ensure().await),
            (
                "ImagePullBackOff",
                format!("Back-off pulling image {image:?}: ErrImagePull: {problem}")
            )
        );
        node.take_events();
    }
    assert_eq!(node.runtime.pulls(), ["a:1"]);
}
