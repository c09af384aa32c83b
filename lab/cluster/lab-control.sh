#!/bin/bash
# lab-control.sh: runs a control plane beside the lab's kernel, whose processor is too slow for it. labexec starts it in the network namespace
# that holds the other end of the guest's wire, where it waits for a line on standard output. $CLUSTER_CONTROL is a folder that both see.
set -eu
. "$CLUSTER_CONTROL/programs"
here=$(dirname "$(readlink -f "$0")")
. "$here/net.sh"
mkdir -p "$CLUSTER_CONTROL/bin"
ln -s "$kubelab" "$CLUSTER_CONTROL/bin/kubelab"
ln -s "$kubebin" "$CLUSTER_CONTROL/bin/kubebin"
export PATH=$CLUSTER_CONTROL/bin:$PATH LOG=$CLUSTER_CONTROL
ip route add "$net4" via "$machine4"
exec "$here/control.sh" "$CLUSTER_CONTROL" "$control4" 6443 "$control4" "${nodes[@]}"
