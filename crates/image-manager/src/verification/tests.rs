use std::fs;

use super::*;
use crate::credentials::{CredentialOrigin, ObjectCoordinates};

struct Bench {
    dir: tempfile::TempDir,
    records: PullRecords,
}

fn records(dir: &tempfile::TempDir, policy: VerificationPolicy) -> PullRecords {
    let directory = dir.path().join("image_manager");
    let clock = Clock::from_fn(|| "2026-06-01T12:00:00Z".parse().unwrap());
    PullRecords::new(CredentialVerification { policy, directory }, clock, Default::default())
}

async fn bench(policy: VerificationPolicy) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir, policy);
    records.open().await.unwrap();
    Bench { dir, records }
}

impl Bench {
    /// The files of `pulling` or `pulled`.
    fn files(&self, directory: &str) -> Vec<PathBuf> {
        let directory = self.dir.path().join("image_manager").join(directory);
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn counts(&self) -> (usize, usize) {
        (self.files("pulling").len(), self.files("pulled").len())
    }

    /// The kubelet was killed and is there again.
    fn restart(&mut self) {
        self.records = records(&self.dir, VerificationPolicy::NeverVerifyPreloadedImages);
    }
}

fn secret(uid: &str, password: &str) -> PullCredential {
    let (namespace, name, uid) = ("ns".into(), "key".into(), uid.into());
    let origin = CredentialOrigin::Secret(ObjectCoordinates { namespace, name, uid });
    PullCredential::new("u", password.into(), origin)
}

fn image(id: &str, tags: &[&str]) -> Image {
    let repo_tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    Image { id: id.to_owned(), repo_tags, ..Image::default() }
}

#[tokio::test]
async fn a_pull_leaves_a_record_and_no_intent() {
    let mut bench = bench(VerificationPolicy::NeverVerifyPreloadedImages).await;
    assert_eq!(bench.records.judge("r.io/a:1", "id").await, Judgement::Accessible, "preloaded");
    bench.records.begin_pull("r.io/a:1").await.unwrap();
    assert_eq!(bench.counts(), (1, 0));
    assert_eq!(bench.records.judge("r.io/a:1", "id").await, Judgement::MustPull, "it is coming");
    let key = secret("s", "p");
    bench.records.end_pull("r.io/a:1", "id", Some(&key)).await;
    assert_eq!(bench.counts(), (0, 1));
    for file in bench.files("pulled") {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.contains("\"lastUpdatedTime\":\"2026-06-01T12:00:00Z\""), "{text}");
        assert!(!text.contains("\"p\""), "{text}");
    }

    // Another tag of the same image is the same; another name is not, and an unknown image neither.
    bench.restart();
    let known = ImagePullCredentials::of_pull(Some(&key));
    for written in ["r.io/a:1", "r.io/a:2", "r.io/a"] {
        let judged = bench.records.judge(written, "id").await;
        assert_eq!(judged, Judgement::Depends(known.clone()), "{written}");
    }
    assert_eq!(bench.records.judge("r.io/b:1", "id").await, Judgement::MustPull);
    assert_eq!(bench.records.judge("r.io/b:1", "other").await, Judgement::Accessible);

    let good = |credentials: Vec<PullCredential>| {
        let (records, known) = (&bench.records, &known);
        async move { records.accepts("r.io/a:1", "id", known, &credentials).await }
    };
    assert!(good(vec![key.clone()]).await);
    assert!(!good(vec![secret("t", "q")]).await);
    assert!(!good(Vec::new()).await);
    // A Secret that is known has a new password, which from now on is good elsewhere, too.
    assert!(good(vec![secret("s", "new")]).await);
    let Judgement::Depends(learnt) = bench.records.judge("r.io/a:1", "id").await else { panic!() };
    assert!(bench.records.accepts("r.io/a:1", "id", &learnt, &[secret("t", "new")]).await);
}

#[tokio::test]
async fn what_was_pulled_without_a_secret_is_everybodys() {
    let bench = bench(VerificationPolicy::AlwaysVerify).await;
    assert_eq!(bench.records.judge("a", "id").await, Judgement::MustPull);
    bench.records.begin_pull("a").await.unwrap();
    bench.records.end_pull("a", "id", Some(&secret("s", "p"))).await;
    bench.records.begin_pull("a").await.unwrap();
    let node = PullCredential::new("u", "p".into(), CredentialOrigin::Node);
    bench.records.end_pull("a", "id", Some(&node)).await;
    assert_eq!(bench.records.judge("a", "id").await, Judgement::Accessible);
    assert_eq!(bench.counts(), (0, 1));
}

#[tokio::test]
async fn the_last_of_several_pulls_takes_the_intent_away() {
    let bench = bench(VerificationPolicy::NeverVerifyPreloadedImages).await;
    bench.records.begin_pull("a").await.unwrap();
    bench.records.begin_pull("a").await.unwrap();
    bench.records.end_failed_pull("a").await;
    assert_eq!(bench.counts(), (1, 0));
    assert_eq!(bench.records.judge("a", "id").await, Judgement::MustPull);
    bench.records.end_failed_pull("a").await;
    assert_eq!(bench.counts(), (0, 0));
    assert_eq!(bench.records.judge("a", "id").await, Judgement::Accessible);
}

#[tokio::test]
async fn what_a_killed_kubelet_was_pulling_is_not_taken_for_preloaded() {
    let mut bench = bench(VerificationPolicy::NeverVerifyPreloadedImages).await;
    for written in ["r.io/a:1", "busybox", "gone:1", "still:1"] {
        bench.records.begin_pull(written).await.unwrap();
    }
    bench.restart();
    assert_eq!(bench.records.judge("r.io/a:1", "a").await, Judgement::MustPull);
    bench.records.begin_pull("still:1").await.unwrap();
    let images = vec![
        image("a", &["r.io/a:1"]),
        image("b", &["docker.io/library/busybox:latest"]),
        image("c", &["docker.io/library/still:1"]),
    ];
    let now = "2026-06-01T11:00:00Z".parse().unwrap();
    bench.records.reconcile(images, now).await;
    assert_eq!(bench.counts(), (2, 2), "what is not there, and what is being pulled, stays");
    for (written, id) in [("r.io/a:1", "a"), ("busybox", "b"), ("still:1", "c"), ("gone:1", "d")] {
        assert_eq!(bench.records.judge(written, id).await, Judgement::MustPull, "{written}");
    }
}

#[tokio::test]
async fn records_of_images_that_are_gone_go() {
    let bench = bench(VerificationPolicy::NeverVerifyPreloadedImages).await;
    for id in ["here", "gone"] {
        bench.records.begin_pull("a").await.unwrap();
        bench.records.end_pull("a", id, None).await;
    }
    let reconcile = |listed: &str| {
        let listed = listed.parse().unwrap();
        bench.records.reconcile(vec![image("here", &[])], listed)
    };
    reconcile("2026-06-01T11:59:59Z").await;
    assert_eq!(bench.counts(), (0, 2), "it was pulled after the list was made");
    reconcile("2026-06-01T12:00:01Z").await;
    assert_eq!(bench.counts(), (0, 1));
    assert!(bench.files("pulled")[0].exists());
}

#[tokio::test]
async fn a_damaged_record_is_no_leave_and_the_next_pull_mends_it() {
    let bench = bench(VerificationPolicy::NeverVerifyPreloadedImages).await;
    bench.records.begin_pull("a").await.unwrap();
    bench.records.end_pull("a", "id", None).await;
    let file = &bench.files("pulled")[0];
    fs::write(file, "{").unwrap();
    assert_eq!(bench.records.judge("a", "id").await, Judgement::MustPull);
    bench.records.begin_pull("a").await.unwrap();
    bench.records.end_pull("a", "id", None).await;
    assert_eq!(bench.records.judge("a", "id").await, Judgement::Accessible);

    // What is not a record is left alone.
    let stranger = file.with_file_name("sha256-0.tmp");
    fs::write(&stranger, "{").unwrap();
    bench.records.reconcile(vec![image("id", &[])], Timestamp::MAX).await;
    assert!(stranger.exists() && file.exists());
}
