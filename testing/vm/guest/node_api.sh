# What the node's API needs an init system and a kernel of its own for: the journal, and CRIU, which
# the kernel of the machine that builds this may be too new for.
# shellcheck shell=bash

node_api() { # path, arguments of curl
  local path=$1
  shift
  curl -sk --max-time 120 "$@" "https://127.0.0.1:10250$path"
}

# The node's API reads the journal of a service.
node_logs() {
  local answer
  answer=$(node_api '/logs/?query=containerd&tailLines=5')
  check "lines of the journal that were asked for" "$(wc -l <<< "$answer")" 5
  check "whose they are" "$(grep -vc 'containerd' <<< "$answer")" 0
  answer=$(node_api '/logs/?query=containerd&pattern=nothing-that-it-says')
  check "lines that nobody wrote" "$(grep -c containerd <<< "$answer")" 0
}

# checkpoints POD CONTAINER: a running container is written to a file, and runs on.
checkpoints() {
  local answer file
  containers | grep "^$1-node/$2 " > /run/checkpointed.before
  answer=$(node_api "/checkpoint/default/$1-node/$2" -X POST -w '\n%{http_code}')
  check "how a checkpoint is answered" "$(tail -n 1 <<< "$answer")" 200
  file=$(head -n 1 <<< "$answer" | jq -r '.items[]?')
  check "where it is" "${file%-*}" "/var/lib/kubelet/checkpoints/checkpoint-$1-node_default-$2-$(date -u +%Y-%m)"
  check "who may read it" "$(stat -c '%U %a' "$file" 2>&1)" "root 600"
  check "whether it has the processes" "$(tar -tf "$file" 2>&1 | grep -c '^checkpoint/core-1\.img$')" 1
  eventually 30 "the kubelet tells of the container" fetch_pods
  check "the container runs on" "$(containers | grep "^$1-node/$2 " | diff /run/checkpointed.before -)" ""
  answer=$(node_api "/checkpoint/default/$1-node/nobody" -X POST -o /dev/null -w '%{http_code}')
  check "a container that is not there" "$answer" 404
}
