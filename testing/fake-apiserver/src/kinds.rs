//! The kinds it keeps, and what sets each apart.

/// A kind, as the API serves it.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) is_namespaced: bool,
    /// Writes to the object leave `status` alone, and writes to `status` the rest.
    pub(crate) has_status: bool,
    /// What a field selector may name, beside name and namespace.
    pub(crate) selectable: &'static [&'static str],
}

impl Kind {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

const fn kind(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> Kind {
    Kind { group, version, plural, kind, is_namespaced: true, has_status: false, selectable: &[] }
}

impl Kind {
    const fn in_cluster(self) -> Self {
        Self { is_namespaced: false, ..self }
    }

    const fn with_status(self) -> Self {
        Self { has_status: true, ..self }
    }

    const fn selectable(self, selectable: &'static [&'static str]) -> Self {
        Self { selectable, ..self }
    }
}

/// All of them.
pub(crate) static KINDS: &[Kind] = &[
    kind("", "v1", "pods", "Pod").with_status().selectable(&[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ]),
    kind("", "v1", "nodes", "Node").in_cluster().with_status().selectable(&["spec.unschedulable"]),
    kind("", "v1", "events", "Event").selectable(&[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ]),
    kind("", "v1", "configmaps", "ConfigMap"),
    kind("", "v1", "secrets", "Secret").selectable(&["type"]),
    kind("", "v1", "services", "Service")
        .with_status()
        .selectable(&["spec.clusterIP", "spec.type"]),
    kind("", "v1", "serviceaccounts", "ServiceAccount"),
    kind("", "v1", "namespaces", "Namespace")
        .in_cluster()
        .with_status()
        .selectable(&["status.phase"]),
    kind("", "v1", "persistentvolumes", "PersistentVolume").in_cluster().with_status(),
    kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim").with_status(),
    kind("coordination.k8s.io", "v1", "leases", "Lease"),
    kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass").in_cluster(),
    kind("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest")
        .in_cluster()
        .with_status()
        .selectable(&["spec.signerName"]),
    kind("certificates.k8s.io", "v1beta1", "clustertrustbundles", "ClusterTrustBundle")
        .in_cluster()
        .selectable(&["spec.signerName"]),
    kind("storage.k8s.io", "v1", "csinodes", "CSINode").in_cluster(),
    kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver").in_cluster(),
    kind("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment")
        .in_cluster()
        .with_status(),
    kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim").with_status(),
    kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
        .in_cluster()
        .selectable(&["spec.nodeName", "spec.driver"]),
    kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass").in_cluster(),
    // Answered, and not kept.
    kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview").in_cluster(),
    kind("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview").in_cluster(),
];

/// Lists that a strategic merge does not replace, by the kind that the patch is for and the path
/// of the list: the field by which an element is known, or nothing where the elements are plain
/// values. All other lists are replaced.
pub(crate) fn merge_key(kind: &str, path: &[&str]) -> Option<Option<&'static str>> {
    let key = match (kind, path) {
        (_, ["metadata", "ownerReferences"]) => "uid",
        (_, ["metadata", "finalizers"]) | ("Node", ["spec", "podCIDRs"]) => return Some(None),
        (
            "Pod" | "Node" | "Namespace" | "Service" | "PersistentVolumeClaim",
            ["status", "conditions"],
        ) => "type",
        ("Node", ["status", "addresses"]) => "type",
        ("Pod", ["status", "podIPs" | "hostIPs"]) => "ip",
        ("Pod", ["status", "resourceClaimStatuses"]) => "name",
        ("Pod", ["spec", "hostAliases"]) => "ip",
        ("Pod", ["spec", "topologySpreadConstraints"]) => "topologyKey",
        (
            "Pod",
            [
                "spec",
                "volumes"
                | "containers"
                | "initContainers"
                | "ephemeralContainers"
                | "imagePullSecrets"
                | "schedulingGates"
                | "resourceClaims",
            ],
        ) => "name",
        ("Pod", ["spec", "containers" | "initContainers" | "ephemeralContainers", list]) => {
            match *list {
                "ports" => "containerPort",
                "env" => "name",
                "volumeMounts" => "mountPath",
                "volumeDevices" => "devicePath",
                _ => return None,
            }
        }
        ("Service", ["spec", "ports"]) => "port",
        ("ServiceAccount", ["secrets"]) => "name",
        ("CSINode", ["spec", "drivers"]) => "name",
        ("ResourceClaim", ["status", "reservedFor"]) => "uid",
        _ => return None,
    };
    Some(Some(key))
}
