#!/bin/bash
# run.sh IMAGES FILE...: deploys topology files one after another as containerlab does, on a Docker engine of their own, and checks
# them, see main.go. $TREE is a root file system with Docker. It runs in the lab's kernel, or natively where that has VRF devices. All of it ends with the command.
set -eu
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
state=/run/egressway-topologies
tree=$TREE images=$1
shift
export CLUSTER_STATE=$state
"$top/lab/cluster/down.sh" -dead
trap '"$top/lab/cluster/down.sh" >/dev/null' EXIT
mkdir -p -m 700 "$state"
mkdir "$state/log" "$state.root"
cp -r "$top/containerlab" "$state/" # FRR's start changes the owner of its files
"$top/bin/box" hold -dir "$state" -cgroup egressway-topologies -- -at "$state.root" -tree "$tree" -bind "$state:/lab/state" -bind "$here:/lab/src" \
	-bind "$images:/lab/images.tar" -bind "$top/bin/box:/lab/bin/box" -bind "$top/bin/topologies:/lab/bin/topologies" -- \
	bash /lab/src/machine.sh "$@"
tail --pid="$(cat "$state/pid")" -n +1 -f "$state/log/machine.log"
[ "$(cat "$state/status" 2>/dev/null)" = 0 ]
