#!/bin/bash
# flannel.sh [BACKEND]: flannel, with pods' packets between nodes by VXLAN or, with the backend host-gw, by routes. It masquerades by nftables
# where kube-proxy uses nftables, else by iptables.
set -eu
here=$(dirname "$(readlink -f "$0")")
. "$here/../net.sh"
backend=${1:-vxlan}
nftables=false
[ "$(kubectl -n kube-system get configmap kube-proxy -o jsonpath='{.data.config\.yaml}' | sed -n 's/^mode: //p')" != nftables ] || nftables=true
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "${KUBECONFIG%/*}"/modules/flannel/Documentation/kube-flannel.yml "$folder/"
sed "s|PODS4|$pods4|; s|PODS6|$pods6|; s|NFTABLES|$nftables|; s|BACKEND|$backend|" "$here/../flannel/kustomization.yaml" >"$folder/kustomization.yaml"
kubectl apply -k "$folder" >/dev/null
for n in $(kubectl get nodes -o jsonpath='{.items[*].metadata.name}'); do
	docker exec -i "$n" bash -eu <<'END'
until [ -s /run/flannel/subnet.env ]; do sleep 0.3; done
. /run/flannel/subnet.env # with the gateway's addresses as subnets
cat >/etc/cni/net.d/.flannel <<CNI
{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [
  {"type": "bridge", "bridge": "cni0", "hairpinMode": true, "isDefaultGateway": true, "ipMasq": false, "mtu": $FLANNEL_MTU,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "${FLANNEL_SUBNET/.1\//.0/}"}], [{"subnet": "${FLANNEL_IPV6_SUBNET/::1\//::/}"}]],
            "routes": [{"dst": "$FLANNEL_NETWORK"}, {"dst": "$FLANNEL_IPV6_NETWORK"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CNI
mv /etc/cni/net.d/.flannel /etc/cni/net.d/10-flannel.conflist
END
done
