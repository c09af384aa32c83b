#!/bin/bash
# calico.sh: Calico, with its data plane of iptables, VXLAN between nodes, its own IPAM, and without BGP.
set -eu
here=$(dirname "$(readlink -f "$0")")
. "$here/../net.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed 's|"type": "calico-ipam"|&, "assign_ipv4": "true", "assign_ipv6": "true"|' \
	"${KUBECONFIG%/*}"/modules/calico/manifests/calico-vxlan.yaml >"$folder/calico-vxlan.yaml"
sed "s|PODS4|$pods4|; s|PODS6|$pods6|" "$here/../calico/kustomization.yaml" >"$folder/kustomization.yaml"
kubectl apply -k "$folder" >/dev/null
kubectl -n kube-system rollout status daemonset/calico-node --timeout=300s >/dev/null
