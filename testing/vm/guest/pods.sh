#!/bin/bash
# Ten static pods of all classes on a node with cgroup v2 and systemd: their cgroups, a restart and a
# crash of the kubelet, manifests that go, and what is left at the end.
. ./lib.sh
. ./node_api.sh
. ./storage.sh

mebi=$((1024 * 1024))

# Documented formulas, by hand: shares are 1024 per CPU and at least 2; a weight is 1 for 2 shares and
# 10000 for 262144, linear between; a quota is per 100 ms, and systemd keeps whole percents of a CPU.
shares() { local s=$(($1 * 1024 / 1000)); echo $((s < 2 ? 2 : s)); }
weight() { local s; s=$(shares "$1"); echo $((1 + (s - 2) * 9999 / 262142)); }
quota() {
  if [[ $1 == max ]]; then echo "max 100000"; else echo "$(((($1 * 100) + 999) / 1000 * 1000)) 100000"; fi
}
bytes() { if [[ $1 == max ]]; then echo max; else echo $(($1 * mebi)); fi; }

# Pod, requested milli-CPU, limit of CPU, limit of memory (Mi), huge pages of 2 Mi (Mi).
expected_pods="
guaranteed-fraction    125 125 48   0
guaranteed-hugepages   200 200 32   4
guaranteed-init        150 150 64   0
burstable-requests     100 max max  0
burstable-limits       100 200 128  0
burstable-partial       50 max max  0
burstable-sidecar       50 100 96   0
burstable-pod-level    100 200 96   0
besteffort-probed        0 max max  0
besteffort-host          0 max max  0
"
# Pod, container, limit of CPU, limit of memory, oom_score_adj if it is a constant.
expected_containers="
guaranteed-fraction    app       125 48  -997
guaranteed-hugepages   app       200 32  -997
guaranteed-init        one        50 32  -997
guaranteed-init        two        50 32  -997
burstable-requests     app       max max -
burstable-limits       one       100 64  -
burstable-limits       two       100 64  -
burstable-partial      bounded   100 64  -
burstable-partial      unbounded max max -
burstable-sidecar      sidecar    40 32  -
burstable-sidecar      app        60 64  -
burstable-pod-level    app       200 96  -
besteffort-probed      app       max max 1000
besteffort-host        app       max max 1000
"
count=10

check_upper() { # milli-CPU that burstable pods ask for together
  local top=$cgroups/kubepods.slice total pid_max threads_max
  total=$(awk '/^MemTotal:/ {print $2 * 1024}' /proc/meminfo)
  pid_max=$(</proc/sys/kernel/pid_max)
  threads_max=$(</proc/sys/kernel/threads-max)
  check "kubepods cpu.weight" "$(value $top/cpu.weight)" "$(weight $(($(nproc) * 1000 - 200)))"
  check "kubepods memory.max" "$(value $top/memory.max)" $((total - 100 * mebi))
  check "kubepods pids.max" "$(value $top/pids.max)" \
    $(((pid_max < threads_max ? pid_max : threads_max) - 1000))
  check "kubepods cpu.max" "$(value $top/cpu.max)" "max 100000"
  check "besteffort cpu.weight" "$(value $top/kubepods-besteffort.slice/cpu.weight)" 1
  check "burstable cpu.weight" "$(value $top/kubepods-burstable.slice/cpu.weight)" "$(weight "$1")"
  local tier
  for tier in burstable besteffort; do
    check "$tier memory.max" "$(value $top/kubepods-$tier.slice/memory.max)" max
    check "$tier cpu.max" "$(value $top/kubepods-$tier.slice/cpu.max)" "max 100000"
  done
}

check_pod_cgroups() {
  local pod request cpu memory huge dir container oom scope
  locate_pods
  while read -r pod request cpu memory huge; do
    [[ -n $pod ]] || continue
    dir=$cgroups/${slice_of[$pod]}
    check "$pod: its slice is there" "$([[ -d $dir ]] && echo yes)" yes
    check "$pod cpu.weight" "$(value "$dir/cpu.weight")" "$(weight "$request")"
    check "$pod cpu.max" "$(value "$dir/cpu.max")" "$(quota "$cpu")"
    check "$pod memory.max" "$(value "$dir/memory.max")" "$(bytes "$memory")"
    check "$pod pids.max" "$(value "$dir/pids.max")" 300
    check "$pod hugetlb.2MB.max" "$(value "$dir/hugetlb.2MB.max")" "$(bytes "$huge")"
    check "$pod hugetlb.1GB.max" "$(value "$dir/hugetlb.1GB.max")" 0
    check "$pod scopes" "$(find "$dir" -mindepth 1 -maxdepth 1 -type d | wc -l)" \
      $((1 + $(grep -c "^$pod " <<< "$expected_containers")))
  done <<< "$expected_pods"
  while read -r pod container cpu memory oom; do
    [[ -n $pod ]] || continue
    scope=$cgroups/${slice_of[$pod]}/cri-containerd-${id_of[$pod/$container]}.scope
    check "$pod/$container: its scope is there" "$([[ -d $scope ]] && echo yes)" yes
    check "$pod/$container cpu.max" "$(value "$scope/cpu.max")" "$(quota "$cpu")"
    check "$pod/$container memory.max" "$(value "$scope/memory.max")" "$(bytes "$memory")"
    check "$pod/$container memory.oom.group" "$(value "$scope/memory.oom.group")" 1
    [[ $oom == - ]] || check "$pod/$container oom_score_adj" "$(oom_score_adj "$scope")" "$oom"
  done <<< "$expected_containers"
}

# undisturbed TEXT PID COMMAND...: COMMAND brings another kubelet; nothing else changes.
undisturbed() {
  local text=$1 pid=$2 samples=0 until
  shift 2
  containers > /run/containers.before
  processes > /run/processes.before
  ready_since > /run/ready.before
  dump_tree before
  "$@"
  eventually 240 "$text: another kubelet runs" kubelet_is_another "$pid" || return
  eventually 120 "$text: it answers" fetch_pods || return
  until=$((SECONDS + 30))
  : > /run/flips
  while ((SECONDS < until)); do
    if fetch_pods; then
      samples=$((samples + 1))
      ask '.items[] | .metadata.name as $pod | .status.conditions[]?
        | select(.type == "Ready" and .status != "True") | "\($pod) \(.reason) \(.message)"' \
        >> /run/flips
    fi
    sleep 1
  done
  check "$text: pods that were not ready in $samples samples" "$(sort /run/flips | uniq -c)" ""
  eventually 120 "$text: all pods are ready" all_ready $count
  containers > /run/containers.after
  processes > /run/processes.after
  ready_since > /run/ready.after
  dump_tree after
  check "$text: containers" "$(diff /run/containers.before /run/containers.after)" ""
  check "$text: processes" "$(diff /run/processes.before /run/processes.after)" ""
  check "$text: ready since" "$(diff /run/ready.before /run/ready.after)" ""
  check "$text: cgroups" "$(diff /work/out/tree-before.txt /work/out/tree-after.txt)" ""
  rm -f /work/out/tree-{before,after}.txt
}

kill_kubelet() { kill -9 "$1"; }

slices_left() { (($(pod_slices | wc -l) == $1)); }
burstable_weighs() {
  [[ $(value $cgroups/kubepods.slice/kubepods-burstable.slice/cpu.weight) == "$(weight "$1")" ]]
}
no_containers() { [[ -z $(ctr -n k8s.io containers list -q) ]]; }
mounts_of_pods() { grep -c " /var/lib/kubelet/pods/" /proc/self/mountinfo; }
no_mounts() { [[ $(mounts_of_pods) == 0 ]]; }
no_pod_directories() { [[ -z $(ls -A /var/lib/kubelet/pods) ]]; }

# A container that needs more than its limit dies as a whole, not just the process that asked.
out_of_memory() {
  cat > /etc/kubernetes/manifests/hungry.yaml << 'END'
apiVersion: v1
kind: Pod
metadata:
  name: hungry
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "(head -c 200m /dev/zero | tail); sleep 3600"]
    resources:
      limits:
        cpu: 500m
        memory: 24Mi
END
  eventually 240 "a container that uses too much memory ends" hungry_is Failed || return
  check "why it ended" "$(ask '.items[] | select(.metadata.name == "hungry-node")
    | .status.containerStatuses[].state.terminated | "\(.reason) \(.exitCode)"')" "OOMKilled 137"
}

hungry_is() { # phase
  fetch_pods && [[ $(ask '.items[] | select(.metadata.name == "hungry-node") | .status.phase') == "$1" ]]
}

scenario() {
  install_services
  # For the pod that asks for huge pages.
  echo 8 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
  check "huge pages" "$(</sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages)" 8
  start_runtime || { failed=$((failed + 1)); return; }
  cp /work/manifests/*.yaml /etc/kubernetes/manifests/
  if ! systemctl start kubelet; then
    failed=$((failed + 1))
    return
  fi
  say "the kubelet is ready, as systemd sees it"
  eventually 900 "all $count pods run and are ready" all_ready $count || return
  eventually 120 "the burstable tier weighs what its pods ask for" burstable_weighs 400
  check_upper 400
  check_pod_cgroups
  dump_tree running
  say "cgroups looked at"

  local pid
  pid=$(kubelet_pid)
  undisturbed "systemctl restart" "$pid" systemctl restart kubelet
  pid=$(kubelet_pid)
  undisturbed "kill -9" "$pid" kill_kubelet "$pid"

  # systemd writes everything it knows anew: it must know the same as the files say.
  systemctl daemon-reload
  eventually 60 "the kubelet answers after systemctl daemon-reload" fetch_pods
  dump_tree reloaded
  # But systemd 252 has its own mind about memory.oom.group of scopes, which are the runtime's.
  check "cgroups after systemctl daemon-reload" "$(diff \
    <(grep -v '\.scope memory\.oom\.group' /work/out/tree-running.txt) \
    <(grep -v '\.scope memory\.oom\.group' /work/out/tree-reloaded.txt))" ""

  # Connections to systemd break, and the way to it is found again.
  systemctl restart dbus
  rm /etc/kubernetes/manifests/{guaranteed-init,burstable-limits,besteffort-probed}.yaml
  eventually 300 "the slices of three removed pods are gone" slices_left $((count - 3))
  eventually 120 "the burstable tier weighs less" burstable_weighs 300
  eventually 60 "seven pods run and are ready" all_ready $((count - 3))
  check_upper 300
  dump_tree removed

  out_of_memory
  node_logs
  checkpoints burstable-requests app
  nfs_volumes

  rm /etc/kubernetes/manifests/*.yaml
  eventually 300 "all slices of pods are gone" slices_left 0
  eventually 120 "no container is left" no_containers
  eventually 120 "nothing of pods is mounted" no_mounts
  eventually 180 "no pod has a directory" no_pod_directories
  systemctl stop kubelet
  check "the kubelet stopped" "$(systemctl show kubelet -p Result --value)" success
  fetch_pods 2> /dev/null
  dump_tree empty
  check "units of pods" "$(systemctl list-units --all --plain --no-legend 'kubepods*-pod*' 'cri-containerd-*')" ""
  check "unit files of pods" "$(find /run/systemd -name 'kubepods*-pod*')" ""
  check "shims" "$(pgrep -f containerd-shim)" ""
  check "network devices of pods" "$(ip -o link show type veth)" ""
  systemctl stop containerd
  check "mounts of containers" "$(grep -E ' /run/(containerd/io|netns/)' /proc/self/mountinfo)" ""
  check "failed units" "$(systemctl list-units --failed --plain --no-legend)" ""
}

scenario
keep_evidence
echo "checks: $passed passed, $failed failed"
((failed == 0))
