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
