#!/bin/bash
# matrix.sh [OPTION...] CNI:PROXY...: for each of them starts a cluster, runs bin/matrix on it with the options, and removes it. Results and
# logs are in $MATRIX_RESULTS, dist/matrix unless set.
set -eu
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
state=/run/egressway-cluster
"$here/down.sh" -dead
trap '"$here/down.sh"' EXIT
results=${MATRIX_RESULTS:-$top/dist/matrix}
mkdir -p "$results"
options=() failed=() i=0
while [[ ${1-} == -* ]]; do
	options+=("$1")
	shift
done
for pair; do
	cni=${pair%:*} proxy=${pair#*:} i=$((i + 1)) name=$results/${pair/:/-}
	rm -f "$name.json"
	echo "matrix: $i of $#: $cni, kube-proxy in mode $proxy"
	if ! "$here/up.sh" "$cni" "$proxy" || ! "$top/bin/matrix" "${options[@]}" -cni "$cni" -proxy "$proxy" -o "$name.json"; then
		failed+=("$pair")
		mkdir -p "$name"
		cp -r "$state/log" "$name/" || true
		for pod in $("$state/bin/kubectl" --kubeconfig "$state/kubeconfig" -n egressway-system get pods -o name); do
			"$state/bin/kubectl" --kubeconfig "$state/kubeconfig" -n egressway-system logs "$pod" >"$name/${pod#pod/}.log" || true
		done
		echo "matrix: $pair failed; logs are in $name" >&2
	fi
	"$here/down.sh"
done
((${#failed[@]} == 0)) || { echo "matrix: failed: ${failed[*]}" >&2; exit 1; }
