#!/bin/bash
# state.sh: prints on a node what a program could change of its network: links, addresses, routes, rules, nftables, settings, connections
# with marks, and files with Egressway's name. It omits what belongs to pods, CNI and kube-proxy, which come and go meanwhile, and what
# differs after each boot: indexes, MACs and the addresses made of them.
set -eu
pods='cni0|veth|flannel|cbr0|cali|lxc[0-9a-f]|proto 80 |kube-ipvs0'
foreign='^(ip|ip6) (filter|nat|mangle|raw|kube-proxy)$'

link() { grep -vE "$pods" | sed -E 's/^[0-9]+: //; s/@[^: ]+//; s/ *\\.*//'; }
ip -o link | link | sort
ip -o address | grep -v ' fe80:' | link | sort
for family in -4 -6; do
	ip $family rule | grep -v 'lookup \[l3mdev-table\]' # the kernel's: it comes with the first VRF device, and stays
	ip $family route show table all | grep -vE "$pods|fe80:" | sort
done
tc qdisc show | grep -vE "$pods" | sort
nft list tables | sed 's/^table //' | sort | while read -r family table; do
	grep -qE "$foreign" <<<"$family $table" || nft -s list table "$family" "$table"
done
sysctl -a -r '^net\.' 2>/dev/null | grep -vE "$pods|conntrack_count|fastopen_key|rss_key|stable_secret|sunrpc" | sort
conntrack -L --mark 0x2000/0x2000 2>/dev/null | sed 's/^/connection with a mark: /'
# An empty /run/egressway is kubelet's: it makes the folder of a volume, and leaves it.
find /etc /run /opt /var/lib -xdev -name '*egressway*' -not \( -type d -empty \) -not -path '/var/lib/containerd/*' -not -path '/var/lib/kubelet/*' -not -path '/run/containerd/*'
