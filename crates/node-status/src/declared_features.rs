use rubelet_config::{FeatureGates, Gate};

/// What is declared only if the runtime can do it as well.
const OF_THE_RUNTIME: Gate = Gate::UserNamespacesHostNetworkSupport;

/// `status.declaredFeatures` as far as feature gates decide: what the scheduler and admission must
/// know before they send this node a pod that needs it. Sorted by name.
pub fn declared_features(gates: &FeatureGates) -> Vec<String> {
    const DECLARED: [Gate; 5] = [
        Gate::ExtendWebSocketsToKubelet,
        Gate::InPlacePodLevelResourcesVerticalScaling,
        Gate::InPlacePodVerticalScalingInitContainers,
        Gate::RestartAllContainersOnContainerExits,
        OF_THE_RUNTIME,
    ];
    DECLARED
        .into_iter()
        .filter(|gate| gates.enabled(*gate))
        .map(|gate| gate.name().to_owned())
        .collect()
}

/// Those of them that the runtime can do, too.
pub(crate) fn supported_features(
    declared: &[String],
    user_namespaces_host_network: bool,
) -> Vec<String> {
    let is_supported =
        |name: &&String| user_namespaces_host_network || **name != OF_THE_RUNTIME.name();
    declared.iter().filter(is_supported).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_sorted_and_follow_gate_and_runtime() {
        let gates = FeatureGates::default();
        assert_eq!(
            declared_features(&gates),
            [
                "ExtendWebSocketsToKubelet",
                "InPlacePodLevelResourcesVerticalScaling",
                "InPlacePodVerticalScalingInitContainers",
                "RestartAllContainersOnContainerExits",
            ]
        );
        let settings = [
            ("UserNamespacesHostNetworkSupport".to_owned(), true),
            ("ExtendWebSocketsToKubelet".to_owned(), false),
        ];
        let (gates, _) = FeatureGates::resolve(&settings.into()).unwrap();
        let declared = declared_features(&gates);
        assert_eq!(declared.first().unwrap(), "InPlacePodLevelResourcesVerticalScaling");
        assert_eq!(declared.last().unwrap(), "UserNamespacesHostNetworkSupport");
        assert!(declared.is_sorted());
        assert_eq!(supported_features(&declared, true), declared);
        assert_eq!(supported_features(&declared, false), declared[..3]);
    }
}
