#!/bin/bash
# lab.sh JOB [OPTION...] CNI:PROXY...: runs matrix.sh or kind.sh in the lab's kernel, which has VRF devices and IPVS: there, the network red is a VRF.
# That kernel has one processor, so the control plane runs outside of it (lab-control.sh), and programs are built before it starts.
set -eu
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
job=$here/$1
shift
options=() nodes=(node1 node2 node3)
[ "${job##*/}" != kind.sh ] || nodes=(egressway-control-plane egressway-worker egressway-worker2)
while [[ ${1-} == -* ]]; do
	options+=("$1")
	shift
done
if LAB_VERBOSE=1 "$top/bin/labexec" true 2>&1 | grep -q 'mode native'; then # this kernel has VRF devices
	exec "$job" "${options[@]}" "$@"
fi

begin() { echo "matrix: $*"; }
end() { :; }
files=$(mktemp -d) memory=$(mktemp -d -p /dev/shm) # where that kernel has a folder of its own
trap 'rm -rf "$files" "$memory"' EXIT
export MATRIX_RESULTS=$top/dist/matrix-lab KUBELAB=$here/lab-control.sh LAB_API=1 LAB_MEM=4G
failed=() kernel_ended=124 # labexec's status then
programs=${CLUSTER_PROGRAMS:-$here/programs.sh} # or what test.sh has from it
for pair; do
	cni=${pair%:*}
	unset program module
	# shellcheck source=programs.sh
	. "$programs"
	for attempt in 1 2; do
		control=$files/${pair/:/-}-$attempt
		mkdir "$control" "$memory/${pair/:/-}-$attempt"
		ln -s "$memory/${pair/:/-}-$attempt" "$control/etcd" # on a disk, it would wait for that
		declare -p nodes tree kubelab kubebin program module >"$control/programs"
		export CLUSTER_CONTROL=$control CLUSTER_PROGRAMS=$control/programs
		begin "$pair in the lab's kernel"
		code=0
		"$top/bin/labexec" "$job" "${options[@]}" "$pair" || code=$?
		[ $code = $kernel_ended ] || break
		echo "matrix: the lab's kernel ended before its job did, in attempt $attempt of 2" >&2
	done
	[ $code = 0 ] || {
		failed+=("$pair")
		mkdir -p "$MATRIX_RESULTS/${pair/:/-}"
		cp "$control"/*.log "$MATRIX_RESULTS/${pair/:/-}/" || true
	}
done
((${#failed[@]} == 0)) || { echo "matrix: failed in the lab's kernel: ${failed[*]}" >&2; exit 1; }
