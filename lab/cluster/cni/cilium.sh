#!/bin/bash
# cilium.sh: Cilium beside kube-proxy, with legacy host routing and iptables' masquerade, so that pods' packets pass netfilter, and routes between
# nodes.
set -eu
here=$(dirname "$(readlink -f "$0")")
for n in $(kubectl get nodes -o jsonpath='{.items[*].metadata.name}'); do
	docker exec -i "$n" bash -eu <<'END'
cp /lab/bin/cilium/cni/cilium-cni /opt/cni/bin/
mkdir -p /run/cilium-cgroup
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
mountpoint -q /run/cilium-cgroup || mount -t cgroup2 cgroup2 /run/cilium-cgroup
END
done
kubectl apply --server-side -f "${KUBECONFIG%/*}/modules/cilium/pkg/k8s/apis/cilium.io/client/crds/v2" \
	-f "${KUBECONFIG%/*}/modules/cilium/pkg/k8s/apis/cilium.io/client/crds/v2alpha1" >/dev/null
kubectl apply -f "$here/../cilium/cilium.yaml" >/dev/null
kubectl -n kube-system rollout status daemonset/cilium --timeout=300s >/dev/null
