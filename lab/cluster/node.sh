#!/bin/bash
# node.sh NAME IPV4 IPV6: process 1 of a node, in a container: containerd, the images, and kubelet.
set -eu
node=$1 ip4=$2 ip6=$3 state=/lab/state
exec </dev/null >"$state/log/$node.log" 2>&1

# kubelet sets these for the whole kernel. It gets files of its own, so that this machine's settings stay.
for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	mkdir -p "/run/settings/${f%/*}"
	cat "/proc/sys/$f" >"/run/settings/$f"
	mount --bind "/run/settings/$f" "/proc/sys/$f"
done
if ! grep -q '^cpu MHz' /proc/cpuinfo; then # as in user-mode Linux: kubelet does not start without
	{ cat /proc/cpuinfo; echo 'cpu MHz : 1000.000'; } >/run/settings/cpuinfo
	mount --bind /run/settings/cpuinfo /proc/cpuinfo
fi
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1

mkdir -p /etc/containerd /etc/kubernetes /etc/cni/net.d /opt/cni/bin
cp /lab/src/etc/containerd.toml /etc/containerd/config.toml
cp /lab/src/etc/kubelet.yaml "$state/ca.crt" /etc/kubernetes/
cp "$state/kubelet-$node.conf" /etc/kubernetes/kubelet.conf
printf '127.0.0.1 localhost\n%s %s\n%s %s\n' "$ip4" "$node" "$ip6" "$node" >/etc/hosts
echo 'nameserver 192.0.2.53' >/etc/resolv.conf # there is no resolver
tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id

if [ -e "$state/boot.nft" ]; then # as egressway-boot.service does, see docs/install.md
	nft -f "$state/boot.nft"
	{
		until curl -fsS http://127.0.0.1:9479/readyz; do sleep 0.2; done
		nft delete table inet egressway-boot
		echo "boot table deleted after $SECONDS s"
	} >"$state/log/boot-$node.log" 2>&1 &
fi

containerd >"$state/log/containerd-$node.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.2; done
echo "containerd ready after $SECONDS s"
for image in "$state"/images/*.tar; do ctr -n k8s.io images import --all-platforms "$image"; done
echo "images imported after $SECONDS s"
kubebin kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/etc/kubernetes/kubelet.yaml --hostname-override="$node" \
	--node-ip="$ip4,$ip6" >"$state/log/kubelet-$node.log" 2>&1 &
set +e
while :; do wait -n 2>/dev/null || sleep 1; done
