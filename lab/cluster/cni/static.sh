#!/bin/bash
# static.sh: the least CNI there is, of Debian's plugins bridge and host-local: each node's pods on a bridge, with addresses of the Node's
# podCIDRs, static routes between nodes, and a masquerade rule for packets that leave the pods' ranges. It is kindnet's way, done
# once and from outside. A node that is added later has no routes.
set -eu
. "$(dirname "$(readlink -f "$0")")/../net.sh"
nodes=$(kubectl get nodes -o jsonpath='{.items[*].metadata.name}')
declare -A cidr4 cidr6 ip4 ip6
for n in $nodes; do
	until read -r cidr4[$n] cidr6[$n] < <(kubectl get node "$n" -o jsonpath='{.spec.podCIDRs[0]} {.spec.podCIDRs[1]}{"\n"}') && [ -n "${cidr6[$n]}" ]; do
		sleep 0.3
	done
	read -r ip4[$n] ip6[$n] < <(kubectl get node "$n" -o jsonpath='{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}')
done
for n in $nodes; do
	routes=
	for o in $nodes; do
		[ "$o" = "$n" ] || routes+="ip route replace ${cidr4[$o]} via ${ip4[$o]}; ip route replace ${cidr6[$o]} via ${ip6[$o]};"
	done
	docker exec -i "$n" bash -eu <<END
$routes
nft -f - <<NFT
table inet cni-masquerade
delete table inet cni-masquerade
table inet cni-masquerade {
	chain postrouting {
		type nat hook postrouting priority srcnat
		ip saddr $pods4 ip daddr != $pods4 masquerade
		ip6 saddr $pods6 ip6 daddr != $pods6 masquerade
	}
}
NFT
cat >/etc/cni/net.d/.static <<CNI
{"cniVersion": "1.0.0", "name": "static", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "${cidr4[$n]}"}], [{"subnet": "${cidr6[$n]}"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CNI
mv /etc/cni/net.d/.static /etc/cni/net.d/10-static.conflist
END
done
