#!/bin/bash
# test.sh ROWS PROXYROWS: checks rows of the matrix on clusters with kube-proxy in mode nftables, and others in its other modes. The one with
# IPVS is in the lab's kernel, after the others: beside them its one processor is too slow at times.
set -eu -o pipefail
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
rows=$1 proxyrows=$2 cni=static
programs=$(mktemp)
trap 'rm -f "$programs"' EXIT
begin() { echo "cluster-test: $*"; }
end() { :; }
# shellcheck source=programs.sh
. "$here/programs.sh"
declare -p tree kubelab kubebin program module >"$programs"
export CLUSTER_PROGRAMS=$programs
labelled() { sed -u "s/^/$1: /"; }

failed=
"$here/matrix.sh" -patient -only="$rows" static:nftables 2>&1 | labelled native || failed=1
"$here/matrix.sh" -patient -only="$proxyrows" static:iptables 2>&1 | labelled native || failed=1
"$here/lab.sh" matrix.sh -patient -only="$proxyrows" static:ipvs 2>&1 | labelled lab || failed=1
[ -z "$failed" ]
