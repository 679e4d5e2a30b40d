use serde_json::json;

use super::{container, spec, table};

#[test]
fn security() {
    table(&[
        (
            container(json!({"securityContext": {"runAsUser": -1, "procMount": "Unmasked",
                "seccompProfile": {"type": "Localhost"},
                "appArmorProfile": {"type": "RuntimeDefault", "localhostProfile": "x"}}})),
            &[
                "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between \
                 0 and 2147483647, inclusive",
                "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": \
                 `hostUsers` must be false to use `Unmasked`",
                "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required \
                 value: must be set when seccomp type is Localhost",
                "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid \
                 value: \"x\": can only be set when AppArmor type is Localhost",
            ],
        ),
        (
            container(json!({"securityContext": {"privileged": true,
                "allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}})),
            &[
                "spec.containers[0].securityContext: Invalid value: \
                 {\"allowPrivilegeEscalation\":false,\"capabilities\":{\"add\":[\"CAP_SYS_ADMIN\"]},\
                 \"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and \
                 `privileged` to true",
                "spec.containers[0].securityContext: Invalid value: {...",
            ],
        ),
        (
            spec(json!({"securityContext": {
                "seccompProfile": {"type": "Localhost", "localhostProfile": "../x"},
                "sysctls": [{"name": "net.core.somaxconn", "value": "1"},
                    {"name": "net.core.somaxconn", "value": "1"}, {"name": "A", "value": "1"}],
                "fsGroup": -5, "fsGroupChangePolicy": "Never",
                "supplementalGroupsPolicy": "Loose", "supplementalGroups": [1, -1]}})),
            &[
                "spec.securityContext.fsGroup: Invalid value: -5: must be between 0 and \
                 2147483647, inclusive",
                "spec.securityContext.supplementalGroups[1]: Invalid value: -1: must be between 0 \
                 and 2147483647, inclusive",
                "spec.securityContext.sysctls[1].name: Duplicate value: \"net.core.somaxconn\"",
                "spec.securityContext.sysctls[2].name: Invalid value: \"A\": must have at most \
                 253 characters and match regex ...",
                "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"Never\": \
                 supported values: \"Always\", \"OnRootMismatch\"",
                "spec.securityContext.supplementalGroupsPolicy: Unsupported value: \"Loose\": \
                 supported values: \"Merge\", \"Strict\"",
                "spec.securityContext.seccompProfile.localhostProfile: Invalid value: \"../x\": \
                 must not contain '..'",
            ],
        ),
        (
            spec(json!({"hostNetwork": true, "hostIPC": true, "securityContext": {"sysctls": [
                {"name": "net/ipv4/ip_forward", "value": "1"},
                {"name": "kernel.shmmax", "value": "1"},
                {"name": "kernel.pid_max", "value": "1"}]}})),
            &[
                "spec.securityContext.sysctls[0].name: Invalid value: \"net/ipv4/ip_forward\": \
                 may not be specified when 'hostNetwork' is true",
                "spec.securityContext.sysctls[1].name: Invalid value: \"kernel.shmmax\": may not \
                 be specified when 'hostIPC' is true",
            ],
        ),
        (
            spec(json!({"hostUsers": false, "hostNetwork": true, "hostPID": true,
                "shareProcessNamespace": true})),
            &[
                "spec.securityContext.shareProcessNamespace: Invalid value: true: \
                 ShareProcessNamespace and HostPID cannot both be enabled",
                "spec.hostNetwork: Forbidden: when `pod.Spec.HostUsers` is false",
                "spec.HostPID: Forbidden: when `pod.Spec.HostUsers` is false",
            ],
        ),
        (
            spec(json!({"os": {"name": "windows"}, "hostPID": true,
                "securityContext": {"runAsUser": 1}})),
            &[
                "spec.hostPID: Forbidden: cannot be set for a windows pod",
                "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
            ],
        ),
        (
            spec(json!({"os": {"name": "linux"}, "containers": [{"name": "c", "image": "i",
                "securityContext": {"windowsOptions": {}}}]})),
            &["spec.containers[0].securityContext.windowsOptions: Forbidden: windows options \
               cannot be set for a linux pod"],
        ),
        (
            json!({
                "metadata": {"annotations":
                    {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}},
                "spec": {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
            }),
            &["spec.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type \
               in annotation and field must match"],
        ),
    ]);
}

#[test]
fn names_and_choices() {
    table(&[
        (
            spec(json!({"restartPolicy": "Maybe", "dnsPolicy": "Own", "preemptionPolicy": "No",
                "os": {"name": "plan9"}})),
            &[
                "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \
                 \"OnFailure\", \"Never\"",
                "spec.dnsPolicy: Unsupported value: \"Own\": supported values: \
                 \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
                "spec.preemptionPolicy: Unsupported value: \"No\": supported values: \
                 \"PreemptLowerPriority\", \"Never\"",
                "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\"",
            ],
        ),
        (
            spec(json!({"activeDeadlineSeconds": 0, "terminationGracePeriodSeconds": -1})),
            &["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, \
               inclusive"],
        ),
        (
            spec(json!({"hostname": "a.b", "subdomain": "C", "priorityClassName": "p_",
                "runtimeClassName": "", "nodeName": "n/"})),
            &[
                "spec.nodeName: Invalid value: \"n/\": a lowercase RFC 1123 subdomain...",
                "spec.priorityClassName: Invalid value: \"p_\": a lowercase RFC 1123 subdomain...",
                "spec.runtimeClassName: Invalid value: \"\": a lowercase RFC 1123 subdomain...",
                "spec.hostname: Invalid value: \"a.b\": must not contain dots",
                "spec.subdomain: Invalid value: \"C\": a lowercase RFC 1123 label...",
            ],
        ),
        (
            spec(json!({"hostnameOverride": "a.b", "setHostnameAsFQDN": true,
                "hostNetwork": true})),
            &[
                "spec.hostnameOverride: Forbidden: may not be set when `setHostnameAsFQDN` is true",
                "spec.hostnameOverride: Forbidden: may not be set when `hostNetwork` is true",
            ],
        ),
        (
            spec(json!({"hostAliases": [{"ip": "300.1.1.1", "hostnames": ["ok", "Not_ok"]}]})),
            &[
                "spec.hostAliases[0].ip: Invalid value: \"300.1.1.1\": must be a valid IP...",
                "spec.hostAliases[0].hostnames[1]: Invalid value: \"Not_ok\": a lowercase...",
            ],
        ),
        (
            spec(json!({"readinessGates": [{"conditionType": "a/b/c"}]})),
            &["spec.readinessGates[0].conditionType: Invalid value: \"a/b/c\": a valid label..."],
        ),
    ]);
}

#[test]
fn dns() {
    table(&[
        (
            spec(json!({"dnsPolicy": "None"})),
            &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            spec(json!({"dnsPolicy": "None", "dnsConfig": {}})),
            &["spec.dnsConfig.nameservers: Required value: must provide at least one DNS \
               nameserver when `dnsPolicy` is None"],
        ),
        (
            spec(json!({"dnsConfig": {
                "nameservers": ["1.1.1.1", "010.1.1.1", "::ffff:1.2.3.4", "x"],
                "searches": [".", "a_b.c.", "-x"], "options": [{"value": "1"}]}})),
            &[
                "spec.dnsConfig.nameservers: Invalid value: \
                 [\"1.1.1.1\",\"010.1.1.1\",\"::ffff:1.2.3.4\",\"x\"]: must not have more than 3 \
                 nameservers",
                "spec.dnsConfig.nameservers[1]: Invalid value: \"010.1.1.1\": must not have \
                 leading 0s",
                "spec.dnsConfig.nameservers[2]: Invalid value: \"::ffff:1.2.3.4\": must not be an \
                 IPv4-mapped IPv6 address",
                "spec.dnsConfig.nameservers[3]: Invalid value: \"x\": must be a valid IP address, \
                 (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "spec.dnsConfig.searches[2]: Invalid value: \"-x\": a lowercase RFC 1123...",
                "spec.dnsConfig.options[0]: Required value: must not be empty",
            ],
        ),
        (
            spec(json!({"dnsConfig": {"searches": vec!["a"; 33]}})),
            &["spec.dnsConfig.searches: Invalid value: [\"a\"..."],
        ),
    ]);
}

#[test]
fn scheduling() {
    table(&[
        (
            spec(json!({"tolerations": [
                {"operator": "Exists", "effect": "NoExecute"},
                {"key": "k", "value": "v", "effect": "Never"},
                {"value": "v"},
                {"key": "k", "operator": "Exists", "value": "v", "tolerationSeconds": 1},
                {"key": "k", "operator": "Like"}]})),
            &[
                "spec.tolerations[1].effect: Unsupported value: \"Never\": supported values: \
                 \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
                "spec.tolerations[2].operator: Invalid value: \"\": operator must be Exists when \
                 `key` is empty, which means \"match all values and all keys\"",
                "spec.tolerations[3].effect: Invalid value: \"\": effect must be 'NoExecute' when \
                 `tolerationSeconds` is set",
                "spec.tolerations[3].operator: Invalid value: \"v\": value must be empty when \
                 `operator` is 'Exists'",
                "spec.tolerations[4].operator: Unsupported value: \"Like\": supported values: \
                 \"Equal\", \"Exists\"",
            ],
        ),
        (
            spec(json!({"nodeName": "n", "schedulingGates": [{"name": "g"}, {"name": "g"}]})),
            &[
                "spec.schedulingGates[1]: Duplicate value: \"g\"",
                "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been \
                 cleared",
            ],
        ),
        (
            spec(json!({"nodeSelector": {"a b": "c"}})),
            &["spec.nodeSelector: Invalid value: \"a b\": name part must consist of..."],
        ),
        (
            spec(json!({"affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "k", "operator": "In"},
                            {"key": "k", "operator": "Gt", "values": ["1", "2"]}],
                         "matchFields": [{"key": "x", "operator": "In", "values": ["n"]}]}]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 0, "preference": {}}]},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "zone", "labelSelector": {"matchExpressions": [
                        {"key": "k", "operator": "Exists", "values": ["v"]}]}}]}}})),
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
                 nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be \
                 specified when `operator` is 'In' or 'NotIn'",
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
                 nodeSelectorTerms[0].matchExpressions[1].values: Required value: must be \
                 specified single value when `operator` is 'Lt' or 'Gt'",
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
                 nodeSelectorTerms[0].matchFields[0].key: Invalid value: \"x\": not a valid field \
                 selector key",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].\
                 weight: Invalid value: 0: must be in the range 1-100",
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].\
                 labelSelector.matchExpressions[0].values: Forbidden: may not be specified when \
                 `operator` is 'Exists' or 'DoesNotExist'",
            ],
        ),
        (
            spec(json!({"topologySpreadConstraints": [
                {"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Now", "minDomains": 0},
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
                    "matchLabelKeys": ["a"]},
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
                    "nodeTaintsPolicy": "Obey"}]})),
            &[
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater \
                 than zero",
                "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Now\": \
                 supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
                "spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: must be greater \
                 than zero",
                "spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: can only use \
                 minDomains if whenUnsatisfiable=DoNotSchedule, not Now",
                "spec.topologySpreadConstraints[1].matchLabelKeys: Forbidden: must not be \
                 specified when labelSelector is not set",
                "spec.topologySpreadConstraints[2].{topologyKey, whenUnsatisfiable}: Duplicate \
                 value: \"{z, DoNotSchedule}\"",
                "spec.topologySpreadConstraints[2].nodeTaintsPolicy: Unsupported value: \
                 \"Obey\": supported values: \"Honor\", \"Ignore\"",
            ],
        ),
    ]);
}
