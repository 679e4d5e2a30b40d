use serde_json::{Value, json};

use super::{container, merge, spec, table};

fn containers(list: Value) -> Value {
    json!({"spec": {"containers": list}})
}

#[test]
fn names_images_and_ports() {
    table(&[
        (containers(json!([])), &["spec.containers: Required value"]),
        (
            containers(json!([{"name": "", "image": ""}, {"name": "A_b", "image": " i"}])),
            &[
                "spec.containers[0].name: Required value",
                "spec.containers[0].image: Required value",
                "spec.containers[1].name: Invalid value: \"A_b\": a lowercase RFC 1123 label must \
                 consist of lower case alphanumeric characters or '-', and must start and end with \
                 an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
                "spec.containers[1].image: Invalid value: \" i\": must not have leading or \
                 trailing whitespace",
            ],
        ),
        (
            spec(json!({
                "initContainers": [{"name": "c", "image": "i"}],
                "containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}],
            })),
            &[
                "spec.containers[1].name: Duplicate value: \"c\"",
                "spec.initContainers[0].name: Duplicate value: \"c\"",
            ],
        ),
        (
            container(json!({"ports": [
                {"containerPort": 0},
                {"containerPort": 65536, "hostPort": -1},
                {"containerPort": 80, "protocol": "udp"},
                {"containerPort": 80, "name": "Web--x-"},
                {"containerPort": 81, "name": "a"},
                {"containerPort": 82, "name": "a"},
            ]})),
            &[
                "spec.containers[0].ports[0].containerPort: Required value",
                "spec.containers[0].ports[1].containerPort: Invalid value: 65536: must be between \
                 1 and 65535, inclusive",
                "spec.containers[0].ports[1].hostPort: Invalid value: -1: must be between 1 and \
                 65535, inclusive",
                "spec.containers[0].ports[2].protocol: Unsupported value: \"udp\": supported \
                 values: \"SCTP\", \"TCP\", \"UDP\"",
                "spec.containers[0].ports[3].name: Invalid value: \"Web--x-\": must contain only \
                 alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                "spec.containers[0].ports[3].name: Invalid value: \"Web--x-\": must not contain \
                 consecutive hyphens",
                "spec.containers[0].ports[3].name: Invalid value: \"Web--x-\": must not begin or \
                 end with a hyphen",
                "spec.containers[0].ports[5].name: Duplicate value: \"a\"",
            ],
        ),
        (
            containers(json!([
                {"name": "a", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]},
                {"name": "b", "image": "i", "ports": [
                    {"containerPort": 2, "hostPort": 80},
                    {"containerPort": 3, "hostPort": 80, "protocol": "UDP"},
                    {"containerPort": 4, "hostPort": 80, "hostIP": "1.2.3.4"}]},
            ])),
            &["spec.containers[1].ports[0].hostPort: Duplicate value: \"TCP//80\""],
        ),
        (
            spec(json!({"hostNetwork": true, "containers": [
                {"name": "a", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]}]})),
            &["spec.containers[0].ports[0].hostPort: Invalid value: 80: must match \
               `containerPort` when `hostNetwork` is true"],
        ),
        (
            container(json!({"imagePullPolicy": "Sometimes", "terminationMessagePolicy": "Log"})),
            &[
                "spec.containers[0].terminationMessagePolicy: Unsupported value: \"Log\": \
                 supported values: \"File\", \"FallbackToLogsOnError\"",
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported \
                 values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        ),
        (
            spec(json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i",
                "resizePolicy": [
                    {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                    {"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}]})),
            &[
                "spec.containers[0].resizePolicy[1]: Duplicate value: \"cpu\"",
                "spec.containers[0].resizePolicy: Invalid value: \"RestartContainer\": must be \
                 'NotRequired' when `restartPolicy` is 'Never'",
            ],
        ),
        (
            spec(json!({"ephemeralContainers": [{"name": "c", "image": "i",
                "targetContainerName": "x", "ports": [{"containerPort": 1}]}]})),
            &[
                "spec.ephemeralContainers[0].targetContainerName: Not found: \"x\"",
                "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral \
                 Container",
                "spec.ephemeralContainers[0].name: Duplicate value: \"c\"",
                "spec.ephemeralContainers: Forbidden: cannot be set on create",
            ],
        ),
    ]);
}

#[test]
fn init_containers_and_restart_rules() {
    let init = |extra: Value| {
        let mut container = json!({"name": "i", "image": "i"});
        merge(&mut container, &extra);
        spec(json!({"initContainers": [container]}))
    };
    let probe = json!({"exec": {"command": ["x"]}});
    table(&[
        (
            init(json!({"livenessProbe": probe, "lifecycle": {"preStop": probe}})),
            &[
                "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers \
                 without restartPolicy=Always",
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init \
                 containers without restartPolicy=Always",
            ],
        ),
        (init(json!({"restartPolicy": "Always", "livenessProbe": probe})), &[]),
        (
            init(json!({"restartPolicy": "Perhaps"})),
            &["spec.initContainers[0].restartPolicy: Unsupported value: \"Perhaps\": supported \
               values: \"Always\", \"Never\", \"OnFailure\""],
        ),
        (
            container(json!({"restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]})),
            &["spec.containers[0].restartPolicy: Required value: must specify restartPolicy when \
               restart rules are used"],
        ),
        (
            container(json!({"restartPolicy": "Never", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0]}},
                {"action": "Stop"},
                {"action": "RestartAllContainers", "exitCodes": {"operator": "Is"}}]})),
            &[
                "spec.containers[0].restartPolicyRules[1].action: Unsupported value: \"Stop\": \
                 supported values: \"Restart\", \"RestartAllContainers\"",
                "spec.containers[0].restartPolicyRules[1].exitCodes: Required value: must be \
                 specified",
                "spec.containers[0].restartPolicyRules[2].exitCodes.operator: Unsupported value: \
                 \"Is\": supported values: \"In\", \"NotIn\"",
            ],
        ),
    ]);
}

#[test]
fn environment() {
    let env =
        |value_from: Value| container(json!({"env": [{"name": "A", "valueFrom": value_from}]}));
    table(&[
        (
            container(json!({"env": [
                {"name": "a b-1", "value": "ok"}, {"name": ""}, {"name": "a=b"}, {"name": "ä"}]})),
            &[
                "spec.containers[0].env[1].name: Required value",
                "spec.containers[0].env[2].name: Invalid value: \"a=b\": a valid environment \
                 variable name must consist only of printable ASCII characters other than '='",
                "spec.containers[0].env[3].name: Invalid value: \"ä\": a valid environment \
                 variable name must consist only of printable ASCII characters other than '='",
            ],
        ),
        (
            env(json!({})),
            &["spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: \
               `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"],
        ),
        (
            env(json!({"fieldRef": {"fieldPath": "metadata.name"},
                "secretKeyRef": {"name": "s", "key": "k"}})),
            &["spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not have more than \
               one field specified at a time"],
        ),
        (
            container(json!({"env": [{"name": "A", "value": "x",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]})),
            &["spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified \
               when `value` is not empty"],
        ),
        (env(json!({"fieldRef": {"fieldPath": "metadata.labels['app.kubernetes.io/x']"}})), &[]),
        (
            env(json!({"fieldRef": {"fieldPath": "spec.volumes"}})),
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \
               \"spec.volumes\": supported values: \"metadata.name\", \"metadata.namespace\", \
               \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \
               \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\""],
        ),
        (
            env(json!({"fieldRef": {"fieldPath": "spec.nodeName['x']"}})),
            &["spec.containers[0].env[0].valueFrom.fieldRef: Invalid value: \"spec.nodeName\": \
               does not support subscript"],
        ),
        (
            env(json!({"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}})),
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \
               \"metadata.name\": error converting fieldPath: unsupported pod version: v2"],
        ),
        (
            env(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Mi"}})),
            &["spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: \
               \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource"],
        ),
        (env(json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}})), &[]),
        (
            env(json!({"resourceFieldRef": {"resource": "limits.gpu"}})),
            &["spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Unsupported \
               value: \"limits.gpu\": supported values: \"limits.cpu\"..."],
        ),
        (
            env(json!({"configMapKeyRef": {"name": "c", "key": "..x"}})),
            &["spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Invalid value: \"..x\": \
               must not start with '..'"],
        ),
        (
            env(json!({"fileKeyRef": {"volumeName": "v", "path": "../x", "key": ""}})),
            &[
                "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"v\"",
                "spec.containers[0].env[0].valueFrom.fileKeyRef.path: Invalid value: \"../x\": \
                 must not contain '..'",
                "spec.containers[0].env[0].valueFrom.fileKeyRef.key: Required value",
            ],
        ),
        (
            container(json!({"envFrom": [{"prefix": "a="}, {"secretRef": {"name": ""}}]})),
            &[
                "spec.containers[0].envFrom[0].prefix: Invalid value: \"a=\": a valid...",
                "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: \
                 `configMapRef` or `secretRef`",
                "spec.containers[0].envFrom[1].secretRef.name: Required value",
            ],
        ),
    ]);
}

#[test]
fn mounts_and_devices() {
    let mounts = |list: Value, extra: Value| {
        let mut container = json!({"name": "c", "image": "i", "volumeMounts": list});
        merge(&mut container, &extra);
        spec(json!({"containers": [container], "volumes": [{"name": "v", "emptyDir": {}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "x"}}]}))
    };
    table(&[
        (mounts(json!([{"name": "v", "mountPath": "/a:b"}]), json!({})), &[]),
        (
            mounts(
                json!([{"name": "x", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"},
                    {"name": "v", "mountPath": ""}]),
                json!({}),
            ),
            &[
                "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
                "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be \
                 unique",
                "spec.containers[0].volumeMounts[2].mountPath: Required value",
            ],
        ),
        (
            mounts(
                json!([{"name": "v", "mountPath": "/a", "subPath": "/x"},
                    {"name": "v", "mountPath": "/b", "subPath": "a/../b", "subPathExpr": "$(X)"}]),
                json!({}),
            ),
            &[
                "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"/x\": must be a \
                 relative path",
                "spec.containers[0].volumeMounts[1].subPath: Invalid value: \"a/../b\": must not \
                 contain '..'",
                "spec.containers[0].volumeMounts[1].subPathExpr: Invalid value: \"$(X)\": \
                 subPathExpr and subPath are mutually exclusive",
            ],
        ),
        (
            mounts(
                json!([{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"},
                    {"name": "v", "mountPath": "/b", "mountPropagation": "Both"}]),
                json!({}),
            ),
            &[
                "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional \
                 mount propagation is available only to privileged containers",
                "spec.containers[0].volumeMounts[1].mountPropagation: Unsupported value: \
                 \"Both\": supported values: \"Bidirectional\", \"HostToContainer\", \"None\"",
            ],
        ),
        (
            mounts(
                json!([{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]),
                json!({"securityContext": {"privileged": true}}),
            ),
            &[],
        ),
        (
            mounts(
                json!([{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled"},
                    {"name": "v", "mountPath": "/b", "recursiveReadOnly": "Yes"}]),
                json!({}),
            ),
            &[
                "spec.containers[0].volumeMounts[0].recursiveReadOnly: Forbidden: may only be \
                 specified when readOnly is true",
                "spec.containers[0].volumeMounts[1].recursiveReadOnly: Unsupported value: \
                 \"Yes\": supported values: \"Disabled\", \"Enabled\", \"IfPossible\"",
            ],
        ),
        (
            mounts(
                json!([{"name": "b", "mountPath": "/dev/x"}]),
                json!({"volumeDevices": [{"name": "b", "devicePath": "/dev/x"},
                    {"name": "v", "devicePath": "/dev/../y"}]}),
            ),
            &[
                "spec.containers[0].volumeMounts[0].name: Invalid value: \"b\": must not already \
                 exist in volumeDevices",
                "spec.containers[0].volumeMounts[0].mountPath: Invalid value: \"/dev/x\": must \
                 not already exist as a path in volumeDevices",
                "spec.containers[0].volumeDevices[0].name: Invalid value: \"b\": must not already \
                 exist in volumeMounts",
                "spec.containers[0].volumeDevices[0].devicePath: Invalid value: \"/dev/x\": must \
                 not already exist as a path in volumeMounts",
                "spec.containers[0].volumeDevices[1].name: Invalid value: \"v\": can only use \
                 volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                "spec.containers[0].volumeDevices[1].devicePath: Invalid value: \"/dev/../y\": \
                 can not contain backsteps ('..')",
            ],
        ),
    ]);
}

#[test]
fn probes_and_hooks() {
    table(&[
        (
            container(json!({
                "livenessProbe": {"exec": {"command": ["x"]}, "tcpSocket": {"port": 80},
                    "successThreshold": 2, "periodSeconds": -1},
                "readinessProbe": {"terminationGracePeriodSeconds": 5},
                "startupProbe": {"httpGet": {"port": "1", "scheme": "FTP",
                    "httpHeaders": [{"name": "a b", "value": ""}]},
                    "terminationGracePeriodSeconds": 0},
            })),
            &[
                "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than \
                 1 handler type",
                "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be \
                 greater than or equal to 0",
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
                "spec.containers[0].readinessProbe: Required value: must specify a handler type",
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: \
                 5: must not be set for readinessProbes",
                "spec.containers[0].startupProbe.httpGet.port: Invalid value: \"1\": must contain \
                 at least one letter (a-z)",
                "spec.containers[0].startupProbe.httpGet.scheme: Unsupported value: \"FTP\": \
                 supported values: \"HTTP\", \"HTTPS\"",
                "spec.containers[0].startupProbe.httpGet.httpHeaders: Invalid value: \"a b\": a \
                 valid HTTP header must consist of alphanumeric characters or '-' (e.g. \
                 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
                "spec.containers[0].startupProbe.terminationGracePeriodSeconds: Invalid value: 0: \
                 must be greater than 0",
            ],
        ),
        (
            container(json!({
                "livenessProbe": {"exec": {}},
                "readinessProbe": {"grpc": {"port": 0}, "successThreshold": 3},
                "lifecycle": {"postStart": {}, "preStop": {"sleep": {"seconds": 31}}},
            })),
            &[
                "spec.containers[0].lifecycle.postStart: Required value: must specify a handler \
                 type",
                "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be \
                 non-negative and less than terminationGracePeriodSeconds (30)",
                "spec.containers[0].livenessProbe.exec.command: Required value",
                "spec.containers[0].readinessProbe.grpc.port: Invalid value: 0: must be between 1 \
                 and 65535, inclusive",
            ],
        ),
        (
            container(json!({"lifecycle": {"stopSignal": "SIGUSR1"}})),
            &["spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers \
               with empty `spec.os.name`"],
        ),
        (
            spec(json!({"os": {"name": "linux"}, "containers": [
                {"name": "a", "image": "i", "lifecycle": {"stopSignal": "SIGRTMIN+15"}},
                {"name": "b", "image": "i", "lifecycle": {"stopSignal": "SIGRTMIN+16"}}]})),
            &["spec.containers[1].lifecycle.stopSignal: Unsupported value: \"SIGRTMIN+16\"..."],
        ),
    ]);
}

#[test]
fn resources() {
    let resources = |value: Value| container(json!({"resources": value}));
    table(&[
        (
            resources(json!({"limits": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2"},
                "requests": {"cpu": "500m"}})),
            &[],
        ),
        (
            resources(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1.5", "memory": "-1"}})),
            &[
                "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be \
                 greater than or equal to 0",
                "spec.containers[0].resources.requests: Invalid value: \"1500m\": must be less \
                 than or equal to cpu limit of 1",
            ],
        ),
        (
            resources(json!({"requests": {"cpu": "lots", "disk": "1", "kubernetes.io/x": "1",
                "example.com/gpu": "1.5"}})),
            &[
                "spec.containers[0].resources.requests[cpu]: Invalid value: \"lots\": quantities \
                 must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$', got \"lots\"",
                "spec.containers[0].resources.requests[disk]: Invalid value: \"disk\": must be a \
                 standard resource for containers",
                "spec.containers[0].resources.requests[example.com/gpu]: Invalid value: \"1500m\": \
                 must be an integer",
                "spec.containers[0].resources.limits: Required value: Limit must be set for non \
                 overcommitable resources",
            ],
        ),
        (
            resources(json!({"limits": {"hugepages-2Mi": "3Mi"}})),
            &[
                "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi \
                 is not positive integer multiple of hugepages-2Mi",
                "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": \
                 3Mi is not positive integer multiple of hugepages-2Mi",
                "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
            ],
        ),
        (
            resources(json!({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"},
                "requests": {"hugepages-2Mi": "2Mi"}})),
            &["spec.containers[0].resources.requests: Invalid value: \"2Mi\": must be equal to \
               hugepages-2Mi limit of 4Mi"],
        ),
        (
            json!({"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "x"},
                {"name": "a"}], "containers": [{"name": "c", "image": "i", "resources":
                {"claims": [{"name": "a", "request": "r"}, {"name": "a"}, {"name": "z"}]}}]}}),
            &[
                "spec.resourceClaims[1].name: Duplicate value: \"a\"",
                "spec.resourceClaims[1]: Invalid value: \"a\": must specify one of: \
                 `resourceClaimName`, `resourceClaimTemplateName`",
                "spec.containers[0].resources.claims[1]: Duplicate value: \"a\"",
                "spec.containers[0].resources.claims[2]: Not found: \"z\": must be one of the \
                 names in pod.spec.resourceClaims: a",
            ],
        ),
        (
            spec(json!({"resources": {"limits": {"cpu": "1", "ephemeral-storage": "1"},
                "requests": {"cpu": "100m"}},
                "containers": [{"name": "c", "image": "i",
                    "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "200m"}}}]})),
            &[
                "spec.resources.limits[ephemeral-storage]: Unsupported value: \
                 \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
                "spec.resources.requests[cpu]: Invalid value: \"100m\": must be greater than or \
                 equal to aggregate container requests of 200m",
                "spec.resources.containers[0][cpu].limits: Invalid value: \"2\": must be less \
                 than or equal to pod limits of 1",
            ],
        ),
        (
            spec(json!({"overhead": {"cpu": "-1"}})),
            &[
                "spec.overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to \
               0",
            ],
        ),
    ]);
}
