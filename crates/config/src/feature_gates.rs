use std::collections::BTreeMap;

/// How far a function has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off unless asked for.
    Alpha,
    /// On or off by default.
    Beta,
    /// Finished: the gate is locked on.
    Ga,
    /// A way back to old behaviour, which will go away.
    Deprecated,
}

impl Stage {
    /// As Kubernetes prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "GA",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

macro_rules! gates {
    ($($stage:ident $default:ident: $($name:ident)*;)*) => {
        /// A feature gate that the kubelet looks at, in the state of Kubernetes 1.36.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // The names are Kubernetes' and are documented there.
        pub enum Gate {
            $($($name,)*)*
        }

        impl Gate {
            /// All gates.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)*)*];

            /// The name, as in configuration.
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$name => stringify!($name),)*)*
                }
            }

            /// How far the function has come.
            pub fn stage(self) -> Stage {
                match self {
                    $($(Self::$name)|* => Stage::$stage,)*
                }
            }

            /// The state if nobody sets it.
            pub fn default_state(self) -> bool {
                match self {
                    $($(Self::$name)|* => gates!(@state $default),)*
                }
            }
        }
    };
    (@state on) => { true };
    (@state off) => { false };
}

gates! {
    Ga on:
        AppArmor AppArmorFields CPUManagerPolicyOptions KubeletCgroupDriverFromCRI
        CSIServiceAccountTokenSecrets CustomCPUCFSQuotaPeriod DynamicResourceAllocation
        ExecProbeTimeout ImageMaximumGCAge ImageVolume InPlacePodVerticalScaling
        KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesGet
        KubeletPodResourcesDynamicResources KubeletTracing MutableCSINodeAllocatableCount
        NodeLogQuery NodeSwap PodLifecycleSleepAction PodLifecycleSleepActionAllowZero
        PodObservedGenerationTracking ProcMountType RecoverVolumeExpansionFailure
        RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
        SELinuxChangePolicy SELinuxMountReadWriteOncePod SidecarContainers
        SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions
        UserNamespacesSupport VolumeAttributesClass;
    Beta on:
        ContainerCheckpoint ContainerRestartRules ContextualLogging CPUManagerPolicyBetaOptions
        DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaints DRAExtendedResource
        DRAPartitionableDevices DRAResourceClaimDeviceStatus EnvFiles ExtendWebSocketsToKubelet
        GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HostnameOverride
        InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScalingInitContainers
        KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletSeparateDiskGC
        KubeletServiceAccountTokenForCredentialProviders LoggingBetaOptions NodeDeclaredFeatures
        PLEGOnDemandRelist PodLevelResources PodReadyToStartContainersCondition
        PreventStaticPodAPIReferences ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile
        ResourceHealthStatus ResourceHealthStatusMessage RestartAllContainersOnContainerExits
        RotateKubeletServerCertificate ServiceAccountNodeAudienceRestriction
        TopologyManagerPolicyBetaOptions;
    Beta off:
        ClusterTrustBundle ClusterTrustBundleProjection
        LocalStorageCapacityIsolationFSQuotaMonitoring PodCertificateRequest SELinuxMount;
    Alpha off:
        ContainerStopSignals CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth
        DRAListTypeAttributes DRANodeAllocatableResources EventedPLEG ImageVolumeWithDigest
        InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
        KubeletInUserNamespace LoggingAlphaOptions MemoryQoS PodAndContainerStatsFromCRI
        PodLevelResourceManagers PodLogsQuerySplitStreams PodsAPI QOSReserved
        ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi
        TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions
        UserNamespacesHostNetworkSupport;
    Deprecated on:
        DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion
        KubeletPodResourcesListUseActivePods;
    Deprecated off:
        AllowDNSOnlyNodeCSR ChangeContainerStatusOnKubeletRestart GitRepoVolumeDriver
        KubeletRegistrationGetOnExistsOnly;
}

/// Gates that make no sense without another one. Pairs whose second gate is locked on are left out.
const REQUIRES: &[(Gate, Gate)] = &[
    (Gate::ClusterTrustBundleProjection, Gate::ClusterTrustBundle),
    (Gate::DRADeviceBindingConditions, Gate::DRAResourceClaimDeviceStatus),
    (Gate::GracefulNodeShutdownBasedOnPodPriority, Gate::GracefulNodeShutdown),
    (Gate::InPlacePodLevelResourcesVerticalScaling, Gate::NodeDeclaredFeatures),
    (Gate::InPlacePodLevelResourcesVerticalScaling, Gate::PodLevelResources),
    (Gate::ResourceHealthStatusMessage, Gate::ResourceHealthStatus),
    (Gate::RestartAllContainersOnContainerExits, Gate::ContainerRestartRules),
    (Gate::RestartAllContainersOnContainerExits, Gate::NodeDeclaredFeatures),
];

/// Gates of other components of the same release. Installers pass one list to all components, so
/// the kubelet must know these names; it does nothing with them.
const OF_OTHER_COMPONENTS: &[&str] = &[
    "APIResponseCompression",
    "APIServerIdentity",
    "APIServerTracing",
    "APIServingWithRoutine",
    "AggregatedDiscoveryRemoveBetaType",
    "AllowInsecureKubeletCertificateSigningRequests",
    "AllowOverwriteTerminationGracePeriodSeconds",
    "AllowParsingUserUIDFromCertAuth",
    "AllowUnsafeMalformedObjectDeletion",
    "AnonymousAuthConfigurableEndpoints",
    "AnyVolumeDataSource",
    "AtomicFIFO",
    "AuthorizeNodeWithSelectors",
    "AuthorizePodWebsocketUpgradeCreatePermission",
    "AuthorizeWithSelectors",
    "BtreeWatchCache",
    "CBORServingAndStorage",
    "CRDObservedGenerationTracking",
    "CRDValidationRatcheting",
    "ClearingNominatedNodeNameAfterBinding",
    "ClientsAllowCARotation",
    "ClientsAllowCBOR",
    "ClientsAllowTLSCacheGC",
    "ClientsPreferCBOR",
    "CloudControllerManagerWatchBasedRoutesReconciliation",
    "CloudControllerManagerWebhook",
    "ComponentFlagz",
    "ComponentStatusz",
    "ConcurrentWatchObjectDecode",
    "ConsistentListFromCache",
    "ConstrainedImpersonation",
    "CoordinatedLeaderElection",
    "CrossNamespaceVolumeDataSource",
    "CustomResourceFieldSelectors",
    "DRAAdminAccess",
    "DRADeviceTaintRules",
    "DRAPrioritizedList",
    "DRASchedulerFilterTimeout",
    "DeclarativeValidation",
    "DeclarativeValidationTakeover",
    "DeploymentReplicaSetTerminatingReplicas",
    "DetectCacheInconsistency",
    "DisableAllocatorDualWrite",
    "ExternalServiceAccountTokenSigner",
    "GangScheduling",
    "GenericWorkload",
    "HPAConfigurableTolerance",
    "HPAScaleToZero",
    "HonorPVReclaimPolicy",
    "InOrderInformers",
    "InOrderInformersBatchProcess",
    "InPlacePodVerticalScalingAllocatedStatus",
    "InformerResourceVersion",
    "JobBackoffLimitPerIndex",
    "JobManagedBy",
    "JobPodReplacementPolicy",
    "JobSuccessPolicy",
    "KMSv1",
    "ListFromCacheSnapshot",
    "LogarithmicScaleDown",
    "MatchLabelKeysInPodAffinity",
    "MatchLabelKeysInPodTopologySpread",
    "MatchLabelKeysInPodTopologySpreadSelectorMerge",
    "MaxUnavailableStatefulSet",
    "MultiCIDRServiceAllocator",
    "MutablePVNodeAffinity",
    "MutablePodResourcesForSuspendedJobs",
    "MutableSchedulingDirectivesForSuspendedJobs",
    "MutatingAdmissionPolicy",
    "NFTablesProxyMode",
    "NodeInclusionPolicyInPodTopologySpread",
    "NominatedNodeNameForExpectation",
    "OpenAPIEnums",
    "OpportunisticBatching",
    "OrderedNamespaceDeletion",
    "PodDeletionCost",
    "PodSchedulingReadiness",
    "PodTopologyLabelsAdmission",
    "PortForwardWebsockets",
    "PreferSameTrafficDistribution",
    "RelaxedServiceNameValidation",
    "RemoteRequestHeaderUID",
    "ResilientWatchCacheInitialization",
    "RetryGenerateName",
    "SchedulerAsyncAPICalls",
    "SchedulerAsyncPreemption",
    "SchedulerPopFromBackoffQ",
    "SchedulerQueueingHints",
    "SeparateCacheWatchRPC",
    "SeparateTaintEvictionController",
    "ServiceAccountTokenJTI",
    "ServiceAccountTokenNodeBinding",
    "ServiceAccountTokenNodeBindingValidation",
    "ServiceAccountTokenPodNodeInfo",
    "SizeBasedListCostEstimate",
    "StatefulSetSemanticRevisionComparison",
    "StorageCapacityScoring",
    "StorageNamespaceIndex",
    "StorageVersionAPI",
    "StorageVersionHash",
    "StorageVersionMigrator",
    "StreamingCollectionEncodingToJSON",
    "StreamingCollectionEncodingToProtobuf",
    "StrictIPCIDRValidation",
    "StructuredAuthenticationConfiguration",
    "StructuredAuthenticationConfigurationEgressSelector",
    "StructuredAuthenticationConfigurationJWKSMetrics",
    "TokenRequestServiceAccountUIDValidation",
    "TranslateStreamCloseWebsocketRequests",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy",
    "UnlockWhileProcessingFIFO",
    "UserNamespacesPodSecurityStandards",
    "VolumeLimitScaling",
    "WatchCacheInitializationPostStartHook",
    "WatchList",
    "WatchListClient",
    "WinDSR",
    "WinOverlay",
    "WindowsCPUAndMemoryAffinity",
    "WindowsGracefulNodeShutdown",
    "WindowsHostNetwork",
];

impl Gate {
    /// The gate of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|gate| gate.name() == name)
    }

    /// It can only have its default state.
    pub fn is_locked(self) -> bool {
        self.stage() == Stage::Ga
    }
}

/// Why a set of gates cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureGateError {
    /// No such gate in this release.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// The gate can no longer be changed.
    #[error(
        "cannot set feature gate {gate} to {wanted}, feature is locked to {locked}",
        gate = gate.name(),
        locked = gate.default_state()
    )]
    Locked {
        /// The gate.
        gate: Gate,
        /// What was asked for.
        wanted: bool,
    },
    /// A gate is on, one that it needs is off.
    #[error("{} is enabled, but depends on features that are disabled: {}", gate.name(), missing.name())]
    Dependency {
        /// The gate.
        gate: Gate,
        /// What it needs.
        missing: Gate,
    },
}

/// The state of every gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// In the order of [`Gate::ALL`].
    states: Vec<bool>,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self { states: Gate::ALL.iter().map(|gate| gate.default_state()).collect() }
    }
}

impl FeatureGates {
    /// Applies settings by name; `AllAlpha` and `AllBeta` move the gates of that stage that are not
    /// named. The second part of the result are warnings for people.
    pub fn resolve(
        settings: &BTreeMap<String, bool>,
    ) -> Result<(Self, Vec<String>), Vec<FeatureGateError>> {
        let mut gates = Self::default();
        let (mut warnings, mut errors) = (Vec::new(), Vec::new());
        for (all, stage) in [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)] {
            if let Some(state) = settings.get(all) {
                for gate in Gate::ALL.iter().filter(|gate| gate.stage() == stage) {
                    gates.set(*gate, *state);
                }
            }
        }
        for (name, state) in settings {
            let Some(gate) = Gate::by_name(name) else {
                if OF_OTHER_COMPONENTS.contains(&name.as_str()) {
                    warnings.push(format!("feature gate {name} has no effect on the kubelet"));
                } else if name != "AllAlpha" && name != "AllBeta" {
                    errors.push(FeatureGateError::Unknown(name.clone()));
                }
                continue;
            };
            if gate.is_locked() && *state != gate.default_state() {
                errors.push(FeatureGateError::Locked { gate, wanted: *state });
                continue;
            }
            match gate.stage() {
                Stage::Ga => warnings.push(format!(
                    "feature gate {name} is always {state} in this release and will be removed"
                )),
                Stage::Deprecated => {
                    warnings.push(format!("feature gate {name} is deprecated and will be removed"));
                }
                Stage::Alpha | Stage::Beta => {}
            }
            gates.set(gate, *state);
        }
        for (gate, missing) in REQUIRES {
            if gates.enabled(*gate) && !gates.enabled(*missing) {
                errors.push(FeatureGateError::Dependency { gate: *gate, missing: *missing });
            }
        }
        if errors.is_empty() { Ok((gates, warnings)) } else { Err(errors) }
    }

    /// The gate is on.
    pub fn enabled(&self, gate: Gate) -> bool {
        self.states[gate as usize]
    }

    /// All gates with their state.
    pub fn iter(&self) -> impl Iterator<Item = (Gate, bool)> + '_ {
        Gate::ALL.iter().copied().zip(self.states.iter().copied())
    }

    fn set(&mut self, gate: Gate, state: bool) {
        self.states[gate as usize] = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(list: &[(&str, bool)]) -> BTreeMap<String, bool> {
        list.iter().map(|(name, state)| ((*name).to_owned(), *state)).collect()
    }

    fn resolve(list: &[(&str, bool)]) -> Result<(FeatureGates, Vec<String>), Vec<String>> {
        FeatureGates::resolve(&settings(list))
            .map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn states_are_in_the_order_of_the_gates() {
        let gates = FeatureGates::default();
        for (gate, state) in gates.iter() {
            assert_eq!(state, gates.enabled(gate));
            assert_eq!(state, gate.default_state());
            assert_eq!(Gate::by_name(gate.name()), Some(gate));
        }
    }

    #[test]
    fn explicit_beats_all_of_a_stage_whatever_the_order() {
        let (gates, warnings) = resolve(&[
            ("AllAlpha", true),
            ("AllBeta", false),
            ("EventedPLEG", false),
            ("GracefulNodeShutdown", true),
        ])
        .unwrap();
        assert!(gates.enabled(Gate::MemoryQoS));
        assert!(!gates.enabled(Gate::EventedPLEG));
        assert!(gates.enabled(Gate::GracefulNodeShutdown));
        assert!(!gates.enabled(Gate::PodLevelResources));
        assert!(gates.enabled(Gate::SidecarContainers), "finished functions stay on");
        assert!(gates.enabled(Gate::DisableNodeKubeProxyVersion), "deprecated ones do not move");
        assert!(warnings.is_empty());
    }

    #[test]
    fn every_mistake_is_reported() {
        assert_eq!(
            resolve(&[("Nonsense", true), ("SidecarContainers", false)]).unwrap_err(),
            [
                "unrecognized feature gate: Nonsense",
                "cannot set feature gate SidecarContainers to false, feature is locked to true"
            ]
        );
        assert_eq!(
            resolve(&[("GracefulNodeShutdown", false)]).unwrap_err(),
            [
                "GracefulNodeShutdownBasedOnPodPriority is enabled, but depends on features that are \
              disabled: GracefulNodeShutdown"
            ]
        );
    }

    #[test]
    fn superfluous_settings_are_warnings() {
        let (gates, warnings) =
            resolve(&[("SidecarContainers", true), ("WatchList", false)]).unwrap();
        assert_eq!(gates, FeatureGates::default());
        assert_eq!(
            warnings,
            [
                "feature gate SidecarContainers is always true in this release and will be removed",
                "feature gate WatchList has no effect on the kubelet"
            ]
        );
    }

    #[test]
    fn no_name_is_listed_twice() {
        for name in OF_OTHER_COMPONENTS {
            assert_eq!(Gate::by_name(name), None, "{name}");
        }
        let mut sorted = OF_OTHER_COMPONENTS.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), OF_OTHER_COMPONENTS.len());
    }
}
