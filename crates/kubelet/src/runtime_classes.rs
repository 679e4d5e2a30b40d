//! Which handler of the container runtime a pod is run by.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_apiserver::Store;

/// Classes that were never heard of are waited for this long.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

/// The handler that the pod's `runtimeClassName` stands for; the default one is the empty text, also
/// of a kubelet that is alone, as it knows no classes.
///
/// # Errors
///
/// There is no such class; with the text of upstream.
pub(crate) async fn look_up_runtime_handler(
    pod: &Pod,
    classes: Option<&Store<RuntimeClass>>,
) -> Result<String, String> {
    let name = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    let (Some(name), Some(classes)) = (name.filter(|name| !name.is_empty()), classes) else {
        return Ok(String::new());
    };
    if tokio::time::timeout(SYNC_LIMIT, classes.synced()).await.is_err() {
        return Err(format!("runtimeclass {name:?} is not known: no list of classes yet"));
    }
    let class = classes.get("", name);
    class.map(|class| class.handler.clone()).ok_or_else(|| {
        format!("failed to get RuntimeClass: runtimeclass.node.k8s.io {name:?} not found")
    })
}

/// The same, as far as it is known now; the default handler otherwise.
pub(crate) fn known_runtime_handler(pod: &Pod, classes: Option<&Store<RuntimeClass>>) -> String {
    let name = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    let class = name.filter(|name| !name.is_empty()).zip(classes);
    class
        .and_then(|(name, classes)| classes.get("", name))
        .map(|class| class.handler.clone())
        .unwrap_or_default()
}
