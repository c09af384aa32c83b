#!/bin/bash
# control.sh DIR ADDRESS PORT ADMIN NODE...: runs the control plane of a cluster: etcd and kube-apiserver in one process,
# kube-controller-manager and kube-scheduler. Nodes reach its API at ADDRESS, and the administrator at ADMIN, an address too. DIR gets
# kubeconfig, when the API server answers, and ca.crt, address, and kubelet-NODE.conf for each node. It ends when the API server does. Logs
# are in $LOG.
set -eu
dir=$1 address=$2 port=$3 admin=$4
shift 4
here=$(dirname "$(readlink -f "$0")")
. "$here/net.sh"
umask 077
secret() { od -An -tx1 -N16 /dev/urandom | tr -d ' \n'; }

# The process table of the machine shows arguments to all users, so secrets are in files and variables.
KUBELAB_TOKEN=$(secret) nodes=$(secret)
export KUBELAB_TOKEN
echo "$KUBELAB_TOKEN,admin,admin,\"system:masters\"" >"$dir/tokens.csv"
for node; do
	echo "$nodes-$node,system:node:$node,$node,\"system:nodes\"" >>"$dir/tokens.csv"
	sed "s|SERVER|https://$address:$port|; s|TOKEN|$nodes-$node|" "$here/etc/kubelet.conf" >"$dir/kubelet-$node.conf"
done
echo "$address:$port" >"$dir/address"
trap 'kill -KILL $(jobs -p) 2>/dev/null' EXIT
kubelab -dir "$dir" -listen "0.0.0.0:$port" -server "https://$admin:$port" -name "$address" -name 10.96.0.1 -advertise "$address" \
	-service-nets "$services" -endpointslice=false -run-pods=false -flag "--token-auth-file=$dir/tokens.csv" >"$LOG/kubelab.log" 2>&1 &
kubelab=$!
until [ -s "$dir/kubeconfig" ]; do
	kill -0 $kubelab 2>/dev/null || { tail -n 5 "$LOG/kubelab.log" >&2; exit 1; }
	sleep 0.2
done
kubebin kube-controller-manager --kubeconfig="$dir/kubeconfig" --leader-elect=false --service-account-private-key-file="$dir/tokens.key" \
	--root-ca-file="$dir/ca.crt" --use-service-account-credentials=false --allocate-node-cidrs --cluster-cidr="$pods" \
	--service-cluster-ip-range="$services" --cluster-signing-cert-file= --secure-port=0 >"$LOG/kube-controller-manager.log" 2>&1 &
kubebin kube-scheduler --kubeconfig="$dir/kubeconfig" --leader-elect=false --secure-port=0 >"$LOG/kube-scheduler.log" 2>&1 &
echo "API server ready after $SECONDS s"
wait $kubelab
