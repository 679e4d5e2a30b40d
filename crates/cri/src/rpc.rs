use std::fmt;

macro_rules! rpcs {
    ($($(#[$doc:meta])* $name:ident => $operation:literal,)*) => {
        /// A call of the CRI.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rpc {
            $($(#[$doc])* $name,)*
        }

        impl Rpc {
            /// Every call there is.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in the protocol, such as `RunPodSandbox`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The `operation_type` label of the kubelet's `runtime_operations` metrics, such as
            /// `run_podsandbox`. A call that streams a list counts as the list.
            pub const fn operation_type(self) -> &'static str {
                match self { $(Self::$name => $operation,)* }
            }
        }
    };
}

rpcs! {
    /// Name and versions of the runtime.
    Version => "version",
    /// Conditions, handlers and features of the runtime.
    Status => "status",
    /// The cgroup driver.
    RuntimeConfig => "runtime_config",
    /// Tells the runtime the node's pod CIDR.
    UpdateRuntimeConfig => "update_runtime_config",
    /// Creates and starts a sandbox.
    RunPodSandbox => "run_podsandbox",
    /// Stops a sandbox.
    StopPodSandbox => "stop_podsandbox",
    /// Removes a sandbox.
    RemovePodSandbox => "remove_podsandbox",
    /// Tells the runtime about changed pod resources.
    UpdatePodSandboxResources => "update_podsandbox_resources",
    /// Lists sandboxes.
    ListPodSandbox => "list_podsandbox",
    /// Lists sandboxes in parts.
    StreamPodSandboxes => "list_podsandbox",
    /// One sandbox in detail.
    PodSandboxStatus => "podsandbox_status",
    /// Creates a container.
    CreateContainer => "create_container",
    /// Starts a container.
    StartContainer => "start_container",
    /// Stops a container.
    StopContainer => "stop_container",
    /// Removes a container.
    RemoveContainer => "remove_container",
    /// Changes the resources of a container.
    UpdateContainerResources => "update_container",
    /// Opens the log file anew after a rotation.
    ReopenContainerLog => "reopen_container_log",
    /// Lists containers.
    ListContainers => "list_containers",
    /// Lists containers in parts.
    StreamContainers => "list_containers",
    /// One container in detail.
    ContainerStatus => "container_status",
    /// Runs a command in a container and waits for it.
    ExecSync => "exec_sync",
    /// Prepares a stream to a command.
    Exec => "exec",
    /// Prepares a stream to a container.
    Attach => "attach",
    /// Prepares streams to ports of a sandbox.
    PortForward => "port_forward",
    /// Saves a container.
    CheckpointContainer => "checkpoint_container",
    /// Saves a pod.
    CheckpointPod => "checkpoint_pod",
    /// Restores a pod.
    RestorePod => "restore_pod",
    /// Streams container events.
    GetContainerEvents => "get_container_events",
    /// Statistics of one container.
    ContainerStats => "container_stats",
    /// Statistics of many containers.
    ListContainerStats => "list_container_stats",
    /// Statistics of many containers in parts.
    StreamContainerStats => "list_container_stats",
    /// Statistics of one sandbox.
    PodSandboxStats => "podsandbox_stats",
    /// Statistics of many sandboxes.
    ListPodSandboxStats => "list_podsandbox_stats",
    /// Statistics of many sandboxes in parts.
    StreamPodSandboxStats => "list_podsandbox_stats",
    /// What metrics there are.
    ListMetricDescriptors => "list_metric_descriptors",
    /// Metrics of all sandboxes.
    ListPodSandboxMetrics => "list_podsandbox_metrics",
    /// Metrics of all sandboxes in parts.
    StreamPodSandboxMetrics => "list_podsandbox_metrics",
    /// Lists images.
    ListImages => "list_images",
    /// Lists images in parts.
    StreamImages => "list_images",
    /// One image in detail.
    ImageStatus => "image_status",
    /// Pulls an image.
    PullImage => "pull_image",
    /// Removes an image.
    RemoveImage => "remove_image",
    /// The file systems that hold images and containers.
    ImageFsInfo => "image_fs_info",
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
