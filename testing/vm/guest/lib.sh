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

# Where the last answer says that things are: slice_of[POD] as its uid and class name it, and
# id_of[POD/CONTAINER]. A static pod has the node's name behind its own.
declare -A slice_of id_of
locate_pods() {
  local pod slice container id
  slice_of=() id_of=()
  while read -r pod slice; do slice_of[${pod%-node}]=$slice; done < <(ask '.items[]
    | (.metadata.uid | gsub("-"; "_")) as $uid
    | {Guaranteed: "", Burstable: "burstable", BestEffort: "besteffort"}[.status.qosClass] as $tier
    | if $tier == "" then "\(.metadata.name) kubepods.slice/kubepods-pod\($uid).slice"
      else "\(.metadata.name) kubepods.slice/kubepods-\($tier).slice/kubepods-\($tier)-pod\($uid).slice"
      end')
  while read -r pod container id; do id_of[${pod%-node}/$container]=$id; done < <(ask '.items[]
    | .metadata.name as $pod
    | .status | (.initContainerStatuses[]?, .containerStatuses[]?) | select(.state.running)
    | "\($pod) \(.name) \(.containerID | split("//")[1])"')
}

pod_slices() { find $cgroups/kubepods.slice -name 'kubepods*-pod*.slice' | sort; }

oom_score_adj() { # of the first process in a cgroup
  local pid text
  read -r pid < "$1/cgroup.procs" && read -r text < "/proc/$pid/oom_score_adj" && echo "$text"
}

# dump_tree NAME: every cgroup of pods with its values and with what systemd knows about it, one
# fact per line, in a form that two boots can be compared by: containers have their names for ids.
dump_tree() {
  local container scope
  locate_pods
  for container in "${!id_of[@]}"; do
    echo "s|${id_of[$container]}|${container#*/}|"
  done > /run/names.sed
  # What has no name is the sandbox.
  echo 's|cri-containerd-[0-9a-f]\{64\}\.scope|cri-containerd-(sandbox).scope|' >> /run/names.sed
  (
    cd $cgroups || exit
    find kubepods.slice '(' -name 'cgroup.controllers' -o -name 'cgroup.subtree_control' \
      -o -name 'cgroup.type' -o -name 'cpu.weight' -o -name 'cpu.max' -o -name 'cpu.idle' \
      -o -name 'cpuset.cpus' -o -name 'cpuset.mems' -o -name 'memory.min' -o -name 'memory.low' \
      -o -name 'memory.high' -o -name 'memory.max' -o -name 'memory.swap.max' \
      -o -name 'memory.oom.group' -o -name 'pids.max' -o -name 'hugetlb.*.max' -o -name 'io.weight' \
      ')' -print0 | xargs -0 grep -H '' | sed 's|/\([^/:]*\):| \1 |'
    find kubepods.slice -name '*.scope' | while read -r scope; do
      echo "$scope oom_score_adj $(oom_score_adj "$scope")"
    done
    find kubepods.slice -name '*.slice' -printf '%f\n' | xargs systemctl show -p Id -p Transient \
      -p DefaultDependencies -p Slice -p CPUWeight -p CPUQuotaPerSecUSec -p CPUQuotaPeriodUSec \
      -p MemoryMax -p MemoryMin -p MemoryLow -p MemoryHigh -p TasksMax -p AllowedCPUs -p Delegate \
      -p CPUAccounting -p MemoryAccounting -p TasksAccounting -p IOAccounting -p ActiveState \
      -p Wants -p After -p Requires \
      | awk -v RS= -F '\n' '{
          for (i = 1; i <= NF; i++) if ($i ~ /^Id=/) id = substr($i, 4)
          for (i = 1; i <= NF; i++) if ($i !~ /^Id=/) print id " systemd " $i
        }'
  ) | sed -f /run/names.sed | sort > "/work/out/tree-$1.txt"
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
