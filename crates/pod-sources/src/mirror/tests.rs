use std::fmt::Write;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn pod(name: &str, uid: &str, annotations: &[(&str, &str)]) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    pod.metadata.uid = Some(uid.to_owned());
    let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    pod.metadata.annotations = Some(annotations.collect());
    pod.spec = Some(k8s_openapi::api::core::v1::PodSpec::default());
    Arc::new(pod)
}

fn static_pod(name: &str, hash: &str) -> Arc<Pod> {
    pod(name, hash, &[(labels::CONFIG_HASH, hash), (labels::CONFIG_SOURCE, "file")])
}

fn mirror(name: &str, uid: &str, hash: &str) -> Arc<Pod> {
    pod(name, uid, &[(labels::CONFIG_MIRROR, hash), (labels::CONFIG_SOURCE, "api")])
}

fn owner() -> MirrorOwner {
    MirrorOwner { name: "node".to_owned(), uid: "node-uid".to_owned() }
}

fn told(plan: &MirrorPlan) -> String {
    plan.actions.iter().fold(String::new(), |mut text, action| {
        match action {
            MirrorAction::Create(pod) => {
                let hash = pod_annotation(pod, labels::CONFIG_MIRROR).unwrap();
                write!(text, "create {} {hash}; ", pod.metadata.name.as_deref().unwrap()).unwrap();
            }
            MirrorAction::Delete(pod) => {
                write!(text, "delete {} {}; ", pod.name, pod.uid).unwrap();
            }
        }
        text
    })
}

#[test]
fn each_static_pod_has_its_mirror_and_nobody_else_has() {
    let none = |_: &PodFullName| WithoutPod::Goes;
    let a = [static_pod("a", "1")];
    let plan = |pods: &[Arc<Pod>], mirrors: &[Arc<Pod>]| {
        told(&plan_mirror_pods(pods, mirrors, Some(&owner()), none))
    };
    assert_eq!(plan(&a, &[]), "create a 1; ");
    assert_eq!(told(&plan_mirror_pods(&a, &[], None, none)), "");
    assert_eq!(plan(&a, &[mirror("a", "m", "1")]), "");
    assert_eq!(plan(&a, &[mirror("a", "m", "old")]), "delete a m; ");
    let mut deleting = (*mirror("a", "m", "1")).clone();
    deleting.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(plan(&a, &[Arc::new(deleting)]), "delete a m; ");
    assert_eq!(plan(&[], &[mirror("b", "m", "1")]), "delete b m; ");
    for (state, awaits) in [(WithoutPod::AwaitsItsEnd, true), (WithoutPod::IsKept, false)] {
        let plan = plan_mirror_pods(&[], &[mirror("b", "m", "1")], Some(&owner()), |_| state);
        assert_eq!((told(&plan).as_str(), plan.awaits_an_end), ("", awaits), "{state:?}");
    }
}

#[test]
fn a_mirror_names_its_owner_and_nothing_that_the_api_server_gives() {
    let pods = [static_pod("a", "1")];
    let plan = plan_mirror_pods(&pods, &[], Some(&owner()), |_| WithoutPod::Goes);
    let [MirrorAction::Create(mirror)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!((&mirror.metadata.uid, &mirror.status), (&None, &None));
    assert_eq!(mirror.spec, pods[0].spec);
    let owners = mirror.metadata.owner_references.as_ref().unwrap();
    assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("Node", "node-uid"));
    assert_eq!((owners[0].controller, owners[0].block_owner_deletion), (Some(true), None));
    assert_eq!(pod_annotation(mirror, labels::CONFIG_HASH), Some("1"));
}

/// An API server that shows what it holds after a while, and fails first.
struct Api {
    pods: Mutex<Vec<Arc<Pod>>>,
    mirrors: Arc<MirrorPods>,
    failures: Mutex<u32>,
    log: Mutex<Vec<String>>,
    created: Mutex<u32>,
    ending: AtomicBool,
}

impl Api {
    fn fails(&self) -> bool {
        let mut failures = self.failures.lock().unwrap();
        let fails = *failures > 0;
        *failures = failures.saturating_sub(1);
        fails
    }
}

impl MirrorPort for Arc<Api> {
    fn static_pods(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().unwrap().clone()
    }

    fn owner(&self) -> Option<MirrorOwner> {
        Some(owner())
    }

    fn is_ending(&self, _name: &PodFullName) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    async fn create(&self, pod: &Pod) -> Result<(), String> {
        self.log.lock().unwrap().push("create".to_owned());
        if self.fails() {
            return Err("away".to_owned());
        }
        let mut created = self.created.lock().unwrap();
        *created += 1;
        let mut mirror = pod.clone();
        mirror.metadata.uid = Some(format!("m{created}"));
        let mirrors = Arc::clone(&self.mirrors);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            mirrors.set(&Arc::new(mirror));
        });
        Ok(())
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), String> {
        self.log.lock().unwrap().push(format!("delete {}", pod.uid));
        let (mirrors, pod) = (Arc::clone(&self.mirrors), pod.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            mirrors.remove(&pod);
        });
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_and_success_is_not() {
    let mirrors = Arc::new(MirrorPods::default());
    let api = Arc::new(Api {
        pods: Mutex::new(vec![static_pod("a", "1")]),
        mirrors: Arc::clone(&mirrors),
        failures: Mutex::new(3),
        log: Mutex::default(),
        created: Mutex::default(),
        ending: AtomicBool::new(false),
    });
    mirrors.all_sources_heard();
    let (keeping, port) = (Arc::clone(&mirrors), Arc::clone(&api));
    let task = tokio::spawn(async move { keep_mirror_pods(&keeping, &port).await });
    let log = || std::mem::take(&mut *api.log.lock().unwrap()).join(" ");

    // 1 + 2 + 4 seconds.
    tokio::time::sleep(Duration::from_millis(6900)).await;
    assert_eq!(log(), "create create create");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(log(), "create");

    // Deleted by somebody, and changed on the node.
    mirrors.remove(&pod_ref(&mirrors.all()[0]));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(log(), "create");
    *api.pods.lock().unwrap() = vec![static_pod("a", "2")];
    mirrors.review();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(log(), "delete m2 create");
    *api.pods.lock().unwrap() = Vec::new();
    mirrors.review();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(log(), "delete m3");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_mirror_stays_until_all_sources_are_heard_and_its_pod_has_ended() {
    let mirrors = Arc::new(MirrorPods::default());
    let api = Arc::new(Api {
        pods: Mutex::default(),
        mirrors: Arc::clone(&mirrors),
        failures: Mutex::default(),
        log: Mutex::default(),
        created: Mutex::default(),
        ending: AtomicBool::new(true),
    });
    mirrors.set(&mirror("a", "m", "1"));
    let (keeping, port) = (Arc::clone(&mirrors), Arc::clone(&api));
    let task = tokio::spawn(async move { keep_mirror_pods(&keeping, &port).await });
    let log = || std::mem::take(&mut *api.log.lock().unwrap()).join(" ");
    let ends = |ending| api.ending.store(ending, Ordering::Relaxed);

    // A manifest by URL may come late, and its pod with it.
    ends(false);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(log(), "");
    ends(true);
    mirrors.all_sources_heard();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(log(), "");
    // Nobody says that a pod has ended.
    ends(false);
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(log(), "delete m");
    task.abort();
}
