//! Label and annotation keys that are contract with the runtime, with the API and with other
//! kubelets on the same node (a Go kubelet can take the node over, and back).

/// CRI label: pod name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// CRI label: pod namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// CRI label: pod uid.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// CRI label: container name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// CRI container annotation: hash of the container's spec, lower-case hexadecimal.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// CRI container annotation: how often the container was restarted before this instance.
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// CRI container annotation: path of the termination message inside the container.
pub const CONTAINER_TERMINATION_MESSAGE_PATH: &str =
    "io.kubernetes.container.terminationMessagePath";
/// CRI container annotation: `File` or `FallbackToLogsOnError`.
pub const CONTAINER_TERMINATION_MESSAGE_POLICY: &str =
    "io.kubernetes.container.terminationMessagePolicy";
/// CRI container annotation: the preStop hook, JSON.
pub const CONTAINER_PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
/// CRI container annotation: the container's ports, JSON.
pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
/// CRI container annotation: deletion grace period, decimal seconds.
pub const POD_DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
/// CRI container annotation: termination grace period, decimal seconds.
pub const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Pod annotation: the source the pod came from (`file`, `http`, `api`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Pod annotation: when this kubelet saw the pod first, RFC 3339 with nanoseconds.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Pod annotation: the static pod's hash, equal to its uid.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Pod annotation: marks a mirror pod and carries the hash of its static pod.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Deprecated per-container AppArmor annotation prefix; the container name follows.
pub const APPARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
