#!/bin/bash
# down.sh [-dead]: ends the cluster that up.sh made, and removes all of it but the cache; -dead: only what a machine that went down left, and
# fails if the cluster is alive. The end of process 1 of the cluster's namespaces ends every process in there, and with the last one go mounts,
# interfaces and rules.
set -eu
state=${CLUSTER_STATE:-/run/egressway-cluster}
[ -e "$state" ] || { [ "${1-}" = -dead ] || echo "cluster: there is none"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "cluster: run as root" >&2; exit 1; }

pid=$(cat "$state/pid" 2>/dev/null || true)
if [ -n "$pid" ] && grep -qs machine.sh "/proc/$pid/cmdline"; then # the id may be another process's since a reboot
	[ "${1-}" != -dead ] || { echo "cluster: one is here already, in $state, of process $pid" >&2; exit 1; }
	kill -KILL "$pid"
	while grep -qs machine.sh "/proc/$pid/cmdline"; do sleep 0.1; done
fi

# removed succeeds when a cgroup and those below it are gone; the kernel keeps them until the last process is.
removed() {
	[ ! -d "$1" ] || find "$1" -depth -type d -exec rmdir {} + 2>/dev/null
	[ ! -d "$1" ]
}
while read -r group; do
	for _ in $(seq 100); do
		removed "$group" && break
		sleep 0.1
	done
	[ ! -d "$group" ] || { echo "cluster: processes remain in $group: $(cat "$group/cgroup.procs")" >&2; exit 1; }
done < <(cat "$state/cgroups" 2>/dev/null)

[ ! -e "$state/inotify" ] || cat "$state/inotify" >/proc/sys/fs/inotify/max_user_instances
rm -rf "$state" "$state.root"
echo "cluster: removed"
