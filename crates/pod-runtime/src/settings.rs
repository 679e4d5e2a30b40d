use crate::dns::DnsSettings;

/// What the kubelet's configuration says about running pods.
#[derive(Clone, Debug)]
pub struct PodRuntimeSettings {
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// Name resolution of pods.
    pub dns: DnsSettings,
    /// `seccompDefault`: containers without a profile get the runtime's default one.
    pub seccomp_default: bool,
    /// Sandbox creations and container starts that the runtime works on at once.
    pub concurrent_starts: usize,
}
