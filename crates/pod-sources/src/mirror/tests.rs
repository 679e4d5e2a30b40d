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

fn told(plan: &[MirrorAction]) -> String {
    plan.iter().fold(String::new(), |mut text, action| {
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
    let none = |_: &PodFullName| false;
    let all = |_: &PodFullName| true;
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
    let ending = plan_mirror_pods(&[], &[mirror("b", "m", "1")], Some(&owner()), all);
    assert_eq!(told(&ending), "");
}

#[test]
fn a_mirror_names_its_owner_and_nothing_that_the_api_server_gives() {
    let pods = [static_pod("a", "1")];
    let plan = plan_mirror_pods(&pods, &[], Some(&owner()), |_| false);
    let [MirrorAction::Create(mirror)] = plan.as_slice() else { panic!("{plan:?}") };
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
        false
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
    });
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
