use serde_json::{Value, json};

use super::{merge, spec, table};

fn volume(extra: Value) -> Value {
    let mut volume = json!({"name": "v"});
    merge(&mut volume, &extra);
    json!({"spec": {"volumes": [volume]}})
}

#[test]
fn names_and_number_of_sources() {
    table(&[
        (volume(json!({})), &[]),
        (
            spec(json!({"volumes": [
                {"name": ""}, {"name": "a.b"}, {"name": "v"}, {"name": "v"}]})),
            &[
                "spec.volumes[0].name: Required value",
                "spec.volumes[1].name: Invalid value: \"a.b\": must not contain dots",
                "spec.volumes[3].name: Duplicate value: \"v\"",
            ],
        ),
        (
            volume(json!({"emptyDir": {}, "hostPath": {"path": "/x"}})),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
    ]);
}

#[test]
fn local_sources() {
    table(&[
        (volume(json!({"hostPath": {"path": "/etc", "type": "Directory"}})), &[]),
        (
            volume(json!({"hostPath": {"path": "/a/../b", "type": "Dir"}})),
            &[
                "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
                "spec.volumes[0].hostPath.type: Unsupported value: \"Dir\": supported values: \
                 \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \
                 \"File\", \"FileOrCreate\", \"Socket\"",
            ],
        ),
        (
            volume(json!({"hostPath": {"path": ""}})),
            &["spec.volumes[0].hostPath.path: Required value"],
        ),
        (volume(json!({"emptyDir": {"medium": "HugePages-2Mi", "sizeLimit": "1Gi"}})), &[]),
        (
            volume(json!({"emptyDir": {"medium": "Disk", "sizeLimit": "-1"}})),
            &[
                "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid \
                 resource quantity",
                "spec.volumes[0].emptyDir.medium: Unsupported value: \"Disk\": supported values: \
                 \"\", \"Memory\", \"HugePages\", \"HugePages-<size>\"",
            ],
        ),
        (
            volume(json!({"emptyDir": {"sizeLimit": "many"}})),
            &["spec.volumes[0].emptyDir.sizeLimit: Invalid value: \"many\": quantities must..."],
        ),
        (volume(json!({"image": {}})), &["spec.volumes[0].image.reference: Required value"]),
    ]);
}

#[test]
fn sources_from_the_api() {
    table(&[
        (
            volume(json!({"secret": {"defaultMode": 0o1000, "items": [
                {"key": "", "path": "..x"}, {"key": "k", "path": "/abs", "mode": -1}]}})),
            &[
                "spec.volumes[0].secret.secretName: Required value",
                "spec.volumes[0].secret.defaultMode: Invalid value: 512: must be a number between \
                 0 and 0777 (octal), both inclusive",
                "spec.volumes[0].secret.items[0].key: Required value",
                "spec.volumes[0].secret.items[0].path: Invalid value: \"..x\": must not start \
                 with '..'",
                "spec.volumes[0].secret.items[1].path: Invalid value: \"/abs\": must be a \
                 relative path",
                "spec.volumes[0].secret.items[1].mode: Invalid value: -1: must be a number \
                 between 0 and 0777 (octal), both inclusive",
            ],
        ),
        (
            volume(json!({"configMap": {"name": ""}})),
            &["spec.volumes[0].configMap.name: Required value"],
        ),
        (
            volume(json!({"downwardAPI": {"items": [
                {"path": "a"},
                {"path": "b", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "c", "resourceFieldRef": {"resource": "limits.cpu"}}]}})),
            &[
                "spec.volumes[0].downwardAPI: Required value: one of fieldRef and \
                 resourceFieldRef is required",
                "spec.volumes[0].downwardAPI.resourceFieldRef.containerName: Required value",
            ],
        ),
        (
            volume(json!({"projected": {"sources": [
                {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]},
                    "secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}},
                {"clusterTrustBundle": {"path": "x"}},
                {"podCertificate": {"signerName": "example.com/s", "keyType": "RSA"}}]}})),
            &[
                "spec.volumes[0].projected: Invalid value: \"c\": conflicting duplicate paths",
                "spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 \
                 volume type per source",
                "spec.volumes[0].projected.sources[1].clusterTrustBundle: Required value: either \
                 name or signerName must be specified",
                "spec.volumes[0].projected.sources[2].podCertificate.keyType: Unsupported \
                 value: \"RSA\"...",
                "spec.volumes[0].projected.sources[2].podCertificate: Required value: specify at \
                 least one of credentialBundlePath, keyPath, and certificateChainPath",
            ],
        ),
        (
            json!({"spec": {"serviceAccountName": "s", "volumes": [{"name": "v",
                "projected": {"sources": [
                    {"serviceAccountToken": {"path": "", "expirationSeconds": 5}}]}}]}}),
            &[
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: \
                 Invalid value: 5: may not specify a duration less than 10 minutes",
                "spec.volumes[0].projected.sources[0].serviceAccountToken.path: Required value",
            ],
        ),
        (
            volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
            &["spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be \
               specified when serviceAccountName is not set"],
        ),
        (
            spec(json!({"volumes": [
                {"name": "e", "ephemeral": {}},
                {"name": "p", "persistentVolumeClaim": {"claimName": "web-e"}}]})),
            &[
                "spec.volumes[0].ephemeral.volumeClaimTemplate: Required value",
                "spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: \"web-e\": must \
                 not reference a PVC that gets created for an ephemeral volume",
            ],
        ),
        (
            volume(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}}})),
            &[],
        ),
    ]);
}

#[test]
fn drivers() {
    table(&[
        (
            volume(json!({"csi": {"driver": "Bad_Driver", "nodePublishSecretRef": {"name": ""}}})),
            &[
                "spec.volumes[0].csi.driver: Invalid value: \"Bad_Driver\": a lowercase RFC 1123...",
                "spec.volumes[0].csi.nodePublishSecretRef.name: Required value",
            ],
        ),
        (
            volume(json!({"nfs": {"server": "", "path": "rel"}})),
            &[
                "spec.volumes[0].nfs.server: Required value",
                "spec.volumes[0].nfs.path: Invalid value: \"rel\": must be an absolute path",
            ],
        ),
        (
            volume(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2001-04.com.example:disk",
                "lun": 256}})),
            &[
                "spec.volumes[0].iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ],
        ),
        (
            volume(json!({"iscsi": {"targetPortal": "p", "iqn": "disk", "lun": 0}})),
            &["spec.volumes[0].iscsi.iqn: Invalid value: \"disk\": must be valid format starting \
               with iqn, eui, or naa"],
        ),
        (
            volume(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2001-4.com:x", "lun": 0}})),
            &["spec.volumes[0].iscsi.iqn: Invalid value: \"iqn.2001-4.com:x\": must be valid \
               format"],
        ),
        (
            volume(json!({"rbd": {"image": "", "monitors": []}})),
            &[
                "spec.volumes[0].rbd.monitors: Required value",
                "spec.volumes[0].rbd.image: Required value",
            ],
        ),
        (
            volume(json!({"fc": {}})),
            &["spec.volumes[0].fc.targetWWNs: Required value: must specify either targetWWNs or \
               wwids, but not both"],
        ),
        (
            volume(json!({"quobyte": {"registry": "a:1,b", "volume": "v"}})),
            &["spec.volumes[0].quobyte.registry: Invalid value: \"a:1,b\": must be a host:port \
               pair or multiple pairs separated by commas"],
        ),
        (
            volume(json!({"flexVolume": {"driver": "d", "options": {"x.kubernetes.io/y": "z"}}})),
            &["spec.volumes[0].flexVolume.options[x.kubernetes.io/y]: Invalid value: \
               \"x.kubernetes.io/y\": kubernetes.io and k8s.io namespaces are reserved"],
        ),
    ]);
}
