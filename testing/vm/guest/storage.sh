# Volumes that need a server in the kernel.
# shellcheck shell=bash

# A file server in the guest's kernel, NFS 4 alone, so that it needs no port mapper.
start_file_server() {
  modprobe -a nfsd nfs nfsv4 || return
  mkdir -p /srv/export
  echo "from the server" > /srv/export/greeting
  echo '/srv/export 127.0.0.1(rw,no_root_squash,insecure,no_subtree_check,fsid=0)' > /etc/exports
  mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd || return
  exportfs -r && rpc.nfsd --no-nfs-version 3 4 && rpc.mountd --no-nfs-version 3
}

stop_file_server() {
  rpc.nfsd 0
  pkill -x rpc.mountd
  exportfs -au
  umount /proc/fs/nfsd
}

nfs_mounts() { grep -c ' nfs4\? 127\.0\.0\.1:' < <(sed 's/.* - //; s/^/ /' /proc/self/mountinfo); }
has_nfs_mounts() { [[ $(nfs_mounts) == "$1" ]]; }

pod_is() { # pod, phase
  fetch_pods && [[ $(ask --arg pod "$1-node" '.items[] | select(.metadata.name == $pod) | .status.phase') == "$2" ]]
}

# A volume on a file server: containers read and write it, a restart of the kubelet leaves it
# mounted, a server that exports nothing of that name is told of, and the last mount goes with the pod.
nfs_volumes() {
  if ! start_file_server; then
    failed=$((failed + 1))
    echo "FAILED: no file server"
    return
  fi
  local name path script
  while read -r name path script; do
    cat > "/etc/kubernetes/manifests/$name.yaml" << END
apiVersion: v1
kind: Pod
metadata:
  name: $name
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: busybox
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "$script; exec sleep 3600"]
    volumeMounts:
    - {name: shared, mountPath: /shared}
  volumes:
  - name: shared
    nfs: {server: 127.0.0.1, path: $path}
END
  done << 'END'
shares / cp /shared/greeting /shared/answer
shareless /nothing true
END
  eventually 240 "a pod with a volume on a file server runs" pod_is shares Running || return
  eventually 60 "its container has written to the server" test -s /srv/export/answer
  check "what it has read" "$(</srv/export/answer)" "from the server"
  check "volumes that are mounted" "$(nfs_mounts)" 1
  eventually 120 "what is not exported is told of" journal_has 'MountVolume.SetUp failed for volume "shared"'
  check "who waits for what is not exported" "$(pod_is shareless Pending && echo yes)" yes

  local pid
  pid=$(kubelet_pid)
  containers | grep '^shares' > /run/shares.before
  systemctl restart kubelet
  eventually 240 "another kubelet runs, beside a mounted file server" kubelet_is_another "$pid" || return
  eventually 120 "the pod with the volume runs" pod_is shares Running
  check "its container" "$(containers | grep '^shares' | diff /run/shares.before -)" ""
  check "volumes that are mounted after a restart" "$(nfs_mounts)" 1

  rm /etc/kubernetes/manifests/{shares,shareless}.yaml
  eventually 120 "no volume on the file server is mounted" has_nfs_mounts 0
  check "what the server has" "$(ls /srv/export | xargs)" "answer greeting"
  stop_file_server
}

journal_has() { journalctl -u kubelet --no-pager -o cat | grep -qF "$1"; }
