#!/bin/bash
# The guest's only job: run the scenario, keep its exit status where the host looks for it, and
# switch the machine off. The image starts this as a systemd service.
export PATH=/work/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
cd /work/guest || exit
modprobe -a overlay br_netfilter veth bridge dummy
echo "guest up after $(cut -d. -f1 /proc/uptime) s, Linux $(uname -r)," \
  "$(systemctl --version | head -n 1 | cut -d'(' -f1)"
if [[ -f script.sh ]]; then bash ./script.sh; else bash ./pods.sh; fi
status=$?
echo "$status" > /work/out/exit-status
echo "guest scenario ended with $status"
sync
systemctl poweroff --force --force
