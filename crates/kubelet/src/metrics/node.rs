//! What the node and this kubelet are: constants with the value 1, and which functions are on.

use rubelet_config::{FeatureGates, Stage};
use rubelet_metrics::{Collector, Desc, Exposition, Stability};
use rubelet_node_status::go_architecture;

use crate::version::{KUBERNETES_MINOR, KUBERNETES_VERSION};

const BUILD: Desc = Desc::gauge(
    "kubernetes_build_info",
    "Always 1: the version of Kubernetes that this kubelet stands for, and what it was built with.",
)
.with(&[
    "build_date",
    "compiler",
    "git_commit",
    "git_tree_state",
    "git_version",
    "go_version",
    "major",
    "minor",
    "platform",
])
.of(Stability::Beta);
const FEATURES: Desc = Desc::gauge(
    "kubernetes_feature_enabled",
    "1 for each feature gate that is on, 0 if it is off.",
)
.with(&["name", "stage"])
.of(Stability::Beta);
const NAME: Desc =
    Desc::gauge("kubelet_node_name", "Always 1: the name of the node.").with(&["node"]);
const CGROUP_VERSION: Desc =
    Desc::gauge("kubelet_cgroup_version", "Which version of cgroups the machine uses.");

/// What is known of the node from the start.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    pub(crate) name: String,
    pub(crate) gates: FeatureGates,
    /// None if the machine was not looked at.
    pub(crate) is_cgroup_v2: Option<bool>,
}

impl Collector for NodeMetrics {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&BUILD, &FEATURES, &NAME, &CGROUP_VERSION]
    }

    fn collect(&self, to: &mut Exposition) {
        let platform = format!("linux/{}", go_architecture());
        let (major, minor) = KUBERNETES_MINOR.split_once('.').unwrap_or((KUBERNETES_MINOR, ""));
        // Of what upstream's build leaves behind there is nothing to tell here.
        let labels = ["", "rustc", "", "", KUBERNETES_VERSION, "", major, minor, &platform];
        to.family(&BUILD).count(&labels, 1);
        let mut features = to.family(&FEATURES);
        for (gate, is_on) in self.gates.iter() {
            let stage = match gate.stage() {
                // That is how upstream writes it here.
                Stage::Ga => "",
                stage => stage.as_str(),
            };
            features.count(&[gate.name(), stage], u64::from(is_on));
        }
        to.family(&NAME).count(&[&self.name], 1);
        if let Some(is_v2) = self.is_cgroup_v2 {
            to.family(&CGROUP_VERSION).count(&[], if is_v2 { 2 } else { 1 });
        }
    }
}
