# Shared by the scenarios: checks, waits, the node's services, and what they say.
# shellcheck shell=bash

failed=0
passed=0
pods=/run/pods.json
cgroups=/sys/fs/cgroup

say() { echo "[$SECONDS s] $*"; }

# check TEXT ACTUAL EXPECTED
check() {
  if [[ $2 == "$3" ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $1: is '$2', should be '$3'"
  fi
}

# eventually SECONDS TEXT COMMAND...: until COMMAND succeeds. Emulation is slow and so are the
# deadlines; what matters is that it happens.
eventually() {
  local deadline=$((SECONDS + $1)) text=$2
  shift 2
  until "$@"; do
    if ((SECONDS > deadline)); then
      failed=$((failed + 1))
      echo "FAILED: not in time: $text"
      return 1
    fi
    sleep 1
  done
  passed=$((passed + 1))
  say "$text"
}

# The value in a cgroup file, or why there is none.
value() {
  local text
  if [[ -r $1 ]] && text=$(<"$1"); then echo "$text"; else echo "(no file)"; fi
}

install_services() {
  mkdir -p /etc/cni/net.d /etc/kubernetes/manifests
  cp node.conflist /etc/cni/net.d/10-node.conflist
  cp containerd.service kubelet.service /etc/systemd/system/
  systemctl daemon-reload
}

start_runtime() {
  systemctl start containerd || { journalctl -u containerd --no-pager -o cat | tail -n 30; return 1; }
  local image
  for image in /work/images/*.tar; do
    ctr -n k8s.io images import --local "$image" > /dev/null || return 1
  done
  say "containerd runs, images are imported"
}

# What the kubelet says about its pods; fails while it does not answer.
fetch_pods() {
  timeout 20 bash http-get.sh 10255 /pods > $pods.new 2> /dev/null \
    && [[ -s $pods.new ]] && mv $pods.new $pods
}

# ask FILTER [ARGUMENTS]: over the last answer.
ask() { jq -r "$@" < $pods; }

all_ready() { # how many pods, all Running and Ready
  fetch_pods && ask -e --argjson count "$1" '
    [.items[]? | select(.status.phase == "Running")
      | select(any(.status.conditions[]?; .type == "Ready" and .status == "True"))]
    | length == $count' > /dev/null
}

# Name, id and number of restarts of every container.
containers() {
  ask '.items[] | .metadata.name as $pod
    | (.status.initContainerStatuses[]?, .status.containerStatuses[]?)
    | "\($pod)/\(.name) \(.containerID) restarts=\(.restartCount)"' | sort
}

# When every pod became ready.
ready_since() {
  ask '.items[] | .metadata.name as $pod | .status.conditions[]? | select(.type == "Ready")
    | "\($pod) \(.status) \(.lastTransitionTime)"' | sort
}

# Every scope of a container or sandbox with its first process, and when that began. Other processes
# in there, such as probes, come and go.
processes() {
  local scope pid stat
  find $cgroups/kubepods.slice -name '*.scope' | sort | while read -r scope; do
    pid=$(head -n 1 "$scope/cgroup.procs")
    stat=$(<"/proc/$pid/stat")
    # Behind the name, which may have spaces in it.
    echo "${scope##*/} $pid $(cut -d' ' -f20 <<< "${stat##*) }")"
  done
}

# The kubelet's own process id; 0 when it is down.
kubelet_pid() { systemctl show kubelet --property MainPID --value; }

kubelet_is_another() { # the process id it had
  local pid
  pid=$(kubelet_pid)
  [[ $pid != 0 && $pid != "$1" ]] && systemctl --quiet is-active kubelet
}

# slice_of POD: as the pod's uid and class name it.
slice_of() {
  ask --arg pod "$1" '.items[] | select(.metadata.name == $pod)
    | (.metadata.uid | gsub("-"; "_")) as $uid
    | {Guaranteed: "", Burstable: "burstable", BestEffort: "besteffort"}[.status.qosClass] as $tier
    | if $tier == "" then "kubepods.slice/kubepods-pod\($uid).slice"
      else "kubepods.slice/kubepods-\($tier).slice/kubepods-\($tier)-pod\($uid).slice" end'
}

pod_slices() { find $cgroups/kubepods.slice -name 'kubepods*-pod*.slice' | sort; }

# dump_tree NAME: every cgroup of pods with its values, one per line, in a form that two boots can
# be compared by: the containers' names stand for their ids.
dump_tree() {
  local -A name_of=()
  local id name scope dir file path
  while read -r id name; do name_of[$id]=$name; done < <(ask '
    .items[].status | (.initContainerStatuses[]?, .containerStatuses[]?)
    | select(.state.running) | "\(.containerID | split("//")[1]) \(.name)"')
  find $cgroups/kubepods.slice -type d | while read -r dir; do
    path=${dir#"$cgroups/"}
    if [[ $path == *.scope ]]; then
      scope=${path##*/}
      id=${scope#cri-containerd-}
      id=${id%.scope}
      path=${path%/*}/cri-containerd-${name_of[$id]:-(sandbox)}.scope
      echo "$path oom_score_adj $(cat "/proc/$(head -n 1 "$dir/cgroup.procs")/oom_score_adj")"
    else
      systemctl show "${dir##*/}" -p Transient -p DefaultDependencies -p Slice -p CPUWeight \
        -p CPUQuotaPerSecUSec -p CPUQuotaPeriodUSec -p MemoryMax -p MemoryMin -p MemoryLow \
        -p MemoryHigh -p TasksMax -p AllowedCPUs -p Delegate -p CPUAccounting -p MemoryAccounting \
        -p TasksAccounting -p IOAccounting -p ActiveState -p Wants -p After -p Requires \
        | sed "s|^|$path systemd |"
    fi
    for file in cgroup.controllers cgroup.subtree_control cgroup.type cpu.weight cpu.max cpu.idle \
      cpuset.cpus cpuset.mems memory.min memory.low memory.high memory.max memory.swap.max \
      memory.oom.group pids.max hugetlb.2MB.max hugetlb.2MB.rsvd.max hugetlb.1GB.max io.weight; do
      echo "$path $file $(value "$dir/$file")"
    done
  done | sort > "/work/out/tree-$1.txt"
}

# Everything that tells what went wrong.
keep_evidence() {
  journalctl --no-pager -o short-monotonic > /work/out/journal.log
  journalctl -u kubelet --no-pager -o cat > /work/out/kubelet.log
  [[ -s $pods ]] && cp $pods /work/out/
  if ((failed > 0)); then
    systemctl --no-pager --failed
    echo "--- the kubelet's last words"
    tail -n 40 /work/out/kubelet.log
  fi
}
