//! Reasons as users read them in `kubectl describe`, in status and in events.

/// A start attempt waits for its back-off to pass.
pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
/// The container has not been started yet.
pub const CONTAINER_CREATING: &str = "ContainerCreating";
/// The container waits for the init containers.
pub const POD_INITIALIZING: &str = "PodInitializing";
/// The container's configuration could not be made.
pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
/// A hook of the container manager refused the container.
pub const PRE_CREATE_HOOK_ERROR: &str = "PreCreateHookError";
/// The runtime refused to create the container.
pub const CREATE_CONTAINER_ERROR: &str = "CreateContainerError";
/// A hook of the container manager refused to start the container.
pub const PRE_START_HOOK_ERROR: &str = "PreStartHookError";
/// The runtime could not start the container.
pub const RUN_CONTAINER_ERROR: &str = "RunContainerError";
/// The postStart hook failed.
pub const POST_START_HOOK_ERROR: &str = "PostStartHookError";
/// The container could not be stopped.
pub const KILL_CONTAINER_ERROR: &str = "KillContainerError";
/// The image could not be pulled.
pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
/// The next pull of the image waits for its back-off to pass.
pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
/// The image is absent and its policy is `Never`.
pub const ERR_IMAGE_NEVER_PULL: &str = "ErrImageNeverPull";
/// The image reference cannot be parsed.
pub const INVALID_IMAGE_NAME: &str = "InvalidImageName";
/// The runtime could not tell whether the image is there.
pub const IMAGE_INSPECT_ERROR: &str = "ImageInspectError";
/// The registry cannot be reached.
pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
/// The image's signature was refused.
pub const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";
/// The container's end was never seen.
pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// `activeDeadlineSeconds` passed.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// The process ended with exit code 0.
pub const COMPLETED: &str = "Completed";
/// The process ended with another exit code.
pub const ERROR: &str = "Error";
/// The kernel killed the container for memory.
pub const OOM_KILLED: &str = "OOMKilled";
/// The container went down because a restart rule restarts every container of the pod.
pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";
