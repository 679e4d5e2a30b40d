use rubelet_node_status::go_architecture;

/// The Kubernetes version this kubelet stands for: what it reports, and what its behaviour follows.
pub(crate) const KUBERNETES_VERSION: &str = "v1.36.2";
/// Major and minor, for user agents.
pub(crate) const KUBERNETES_MINOR: &str = "1.36";

/// What `--version` prints; with `raw` everything there is to say.
pub fn version_text(raw: bool) -> String {
    if raw {
        return format!(
            "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:\"{KUBERNETES_VERSION}\", \
             Implementation:\"rubelet {}\", Platform:\"linux/{}\"}}",
            env!("CARGO_PKG_VERSION"),
            go_architecture()
        );
    }
    format!("Kubernetes {KUBERNETES_VERSION}")
}

/// How this kubelet introduces itself to an API server.
pub(crate) fn user_agent() -> String {
    let (arch, version) = (go_architecture(), env!("CARGO_PKG_VERSION"));
    format!("kubelet/{KUBERNETES_VERSION} (linux/{arch}) rubelet/{version}")
}
