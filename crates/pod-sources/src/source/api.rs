//! The pods that the API server binds to this node.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use rubelet_apiserver::{ApiServer, Event, Selector, Undecodable};
use rubelet_types::{EventObject, EventRecorder, PodRef, PodUid};
use tracing::{info, warn};

use crate::PodSourceHandle;

/// Hands over the pods of the node named `node_name` as the API server has them, until the future is
/// dropped. While the API server is away, what it said last stands.
pub async fn watch_api_pods(
    api: &ApiServer,
    node_name: &str,
    handle: PodSourceHandle,
    events: EventRecorder,
) {
    let selector = Selector::fields(format!("spec.nodeName={node_name}"));
    let mut watch = api.all_namespaces::<Pod>().watch(&selector);
    let mut complaints = Complaints { told: HashMap::new(), events };
    let mut is_interrupted = false;
    loop {
        let event = watch.next().await;
        if let Event::Interrupted(error) = &event {
            if !std::mem::replace(&mut is_interrupted, true) {
                warn!(error = error as &dyn std::error::Error, "Pods are not heard of any more");
            }
            continue;
        }
        if std::mem::replace(&mut is_interrupted, false) {
            info!("Pods are heard of again");
        }
        let is_heard = match event {
            Event::Replaced(set) => {
                complaints.retain(&set.undecodable);
                let unreadable =
                    set.undecodable.into_iter().map(|object| complaints.tell(object)).collect();
                handle.set_keeping(set.objects, unreadable).await
            }
            Event::Applied(pod) => {
                complaints.forget(pod.metadata.uid.as_deref().unwrap_or_default());
                handle.apply(pod).await
            }
            Event::Deleted(key) => {
                complaints.forget(&key.uid);
                handle.remove(PodUid::new(key.uid)).await
            }
            Event::Undecodable(object) => {
                complaints.tell(object);
                true
            }
            Event::Interrupted(_) => true,
        };
        if !is_heard {
            return;
        }
    }
}

/// Says once of each pod that it cannot be made out, and why.
struct Complaints {
    told: HashMap<String, String>,
    events: EventRecorder,
}

impl Complaints {
    fn tell(&mut self, object: Undecodable) -> PodUid {
        let Undecodable { key, error } = object;
        let pod = PodRef::new(&*key.uid, &*key.namespace, &*key.name);
        let uid = pod.uid.clone();
        if self.told.get(&key.uid) != Some(&error) {
            warn!(%pod, error, "Pod cannot be read, it stays as it was");
            let message =
                format!("Error reading pod {pod} from api, keeping it as it was: {error}");
            self.events.warning(EventObject::Pod(pod), "FailedValidation", message);
            self.told.insert(key.uid, error);
        }
        uid
    }

    fn forget(&mut self, uid: &str) {
        self.told.remove(uid);
    }

    fn retain(&mut self, present: &[Undecodable]) {
        self.told.retain(|uid, _| present.iter().any(|object| object.key.uid == *uid));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use jiff::Timestamp;
    use rubelet_fake_apiserver::{FakeApiServer, FakeOptions};
    use rubelet_types::{Clock, pod_ref};
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::{PodConfig, PodOperation, PodSource, PodSourceSettings};

    fn pod(name: &str, containers: Value) -> Value {
        json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "nodeName": "node", "containers": containers },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_cannot_be_read_is_told_of_once_and_hides_no_other() {
        let server = FakeApiServer::new(FakeOptions::default());
        let readable = || json!([{ "name": "c", "image": "i" }]);
        // Of a version to come, say.
        let strange = || json!([{ "name": "c", "image": { "digest": "d" } }]);
        server.put_raw("pods", pod("known", readable()));
        server.put_raw("pods", pod("new", strange()));
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let events = {
            let told = Arc::clone(&told);
            EventRecorder::new(move |event| {
                told.lock().unwrap().push(format!("{} {}", event.reason, event.message));
            })
        };
        let settings = PodSourceSettings {
            static_pod_path: None,
            file_check_frequency: Duration::from_secs(20),
            manifest_url: None,
            manifest_url_headers: Vec::new(),
            http_check_frequency: Duration::from_secs(20),
            node_name: "node".to_owned(),
            prevent_api_references: true,
        };
        let clock = Clock::from_fn(|| Timestamp::UNIX_EPOCH);
        let (mut config, mut out) =
            PodConfig::new(settings, clock, EventRecorder::discard()).unwrap();
        let handle = config.register_source(PodSource::Api);
        let _running = AbortOnDropHandle::new(tokio::spawn(config.run(CancellationToken::new())));
        let api = server.client();
        let watching =
            tokio::spawn(async move { watch_api_pods(&api, "node", handle, events).await });
        let _watching = AbortOnDropHandle::new(watching);
        let mut next = async || {
            let change = out.changes.recv().await.unwrap();
            let names: Vec<_> =
                change.pods.iter().map(|pod| pod_ref(pod).name.to_string()).collect();
            (change.op, names.join(" "))
        };
        assert_eq!(next().await, (PodOperation::Add, "known".to_owned()));
        // What runs stays as it was, and what comes later comes.
        server.put_raw("pods", pod("known", strange()));
        server.put_raw("pods", pod("known", strange()));
        server.put_raw("pods", pod("later", readable()));
        assert_eq!(next().await, (PodOperation::Add, "later".to_owned()));
        let told = std::mem::take(&mut *told.lock().unwrap());
        let about = |name: &str| {
            let start =
                format!("FailedValidation Error reading pod {name}_default({name}) from api");
            told.iter().filter(|text| text.starts_with(&start)).count()
        };
        assert_eq!((about("new"), about("known"), told.len()), (1, 1, 2), "{told:#?}");
    }
}
