#!/bin/bash
# machine.sh [-bare] NODE...: process 1 of the machine that encloses the cluster, started by "box hold". It runs a Docker engine with the
# networks "kind" and "red", the control plane, and each node and router as a container of that engine; -bare: without red and routers. Its file 3 is
# the listener on $PORT outside.
#
#   /lab/tree           root file system of Debian's packages      /lab/state   files for the operator: kubeconfig, log
#   /lab/bin, /lab/src  programs, this folder
set -eu
. /lab/src/net.sh
state=/lab/state api=/run/api bare=
[ "$1" != -bare ] || { bare=1; shift; }
mkdir -p "$api"
umask 077
# await waits until a command succeeds; it ends the cluster when the process that the command asks has ended.
await() { # PROCESS LOG COMMAND...
	local pid=$1 log=$state/log/$2.log
	shift 2
	until "$@" >/dev/null 2>&1; do
		kill -0 "$pid" 2>/dev/null || { tail -n 5 "$log"; exit 1; }
		sleep 0.2
	done
}
box forward "127.0.0.1:$PORT" <&3 >"$state/log/forward.log" 2>&1 &
exec 3<&-
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
export DOCKER_HOST=unix://$state/docker.sock
dockerd -H "$DOCKER_HOST" >"$state/log/dockerd.log" 2>&1 &
dockerd=$!

if [ -d /lab/control ]; then # outside of this kernel, see lab-control.sh
	api=/lab/control control=$$
else
	LOG=$state/log /lab/src/control.sh "$api" "$gateway4" "$PORT" 127.0.0.1 "$@" &
	control=$!
fi
await $dockerd dockerd docker version
echo "Docker engine ready after $SECONDS s"
# "nat-unprotected": a control plane outside reaches the kubelets by the nodes' addresses.
docker network create kind --subnet "$net4" --gateway "$gateway4" --ip-range 172.18.1.0/24 --ipv6 --subnet "$net6" --gateway "$gateway6" \
	-o com.docker.network.bridge.name=br-kind -o com.docker.network.driver.mtu=1500 -o com.docker.network.bridge.gateway_mode_ipv4=nat-unprotected
docker network create red --subnet "$red4.0/24" --gateway "$red4.1" --ipv6 --subnet "$red6::/64" --gateway "$red6::1" \
	-o com.docker.network.bridge.name=br-red -o com.docker.network.driver.mtu=1500
if [ -e /proc/sys/net/bridge ]; then # packets in the bridge are the nodes'
	sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0
fi
docker load -q -i "$state/images/box.tar"

await $control kubelab [ -s "$api/kubeconfig" ]
cp "$api"/{ca.crt,address} "$api"/kubelet-*.conf "$state/"

i=10
for node; do
	i=$((i + 1))
	# shellcheck disable=SC2046 # words
	docker run -d --name "$node" --hostname "$node" $(in_kind $i) $([ -n "$bare" ] || in_red $i) $(container) \
		bash /lab/src/node.sh "$node" "$prefix4.$i" "$prefix6::$i"
done
if [ -z "$bare" ]; then
	# shellcheck disable=SC2046 # words
	docker run -d --name outside --hostname outside $(in_kind 101) $(container) bash /lab/src/router.sh kind
	# shellcheck disable=SC2046 # words
	docker run -d --name outside-red --hostname outside-red $(in_red 101) $(container) bash /lab/src/router.sh red
fi
cp "$api/kubeconfig" "$state/.kubeconfig" && mv "$state/.kubeconfig" "$state/kubeconfig" # the last step: the operator waits for it
echo "containers of nodes and routers started after $SECONDS s"
set +e
while :; do wait -n 2>/dev/null || sleep 1; done
