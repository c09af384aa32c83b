#!/bin/bash
# machine.sh NODE...: process 1 of the machine that encloses the cluster, started by "box hold". It runs a Docker engine with the
# networks "kind" and "red", the control plane, and each node and router as a container of that engine. Its file 3 is the listener on $PORT outside.
#
#   /lab/tree           root file system of Debian's packages      /lab/state   files for the operator: kubeconfig, log
#   /lab/bin, /lab/src  programs, this folder
set -eu
. /lab/src/net.sh
state=/lab/state api=/run/api
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
secret() { od -An -tx1 -N16 /dev/urandom | tr -d ' \n'; }

box forward "127.0.0.1:$PORT" <&3 >"$state/log/forward.log" 2>&1 &
exec 3<&-
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
export DOCKER_HOST=unix://$state/docker.sock
dockerd -H "$DOCKER_HOST" >"$state/log/dockerd.log" 2>&1 &
dockerd=$!

# The process table of the machine shows arguments to all users, so secrets are in files and variables.
KUBELAB_TOKEN=$(secret) nodes=$(secret)
export KUBELAB_TOKEN
echo "$KUBELAB_TOKEN,admin,admin,\"system:masters\"" >/run/users.csv
for node; do
	echo "$nodes-$node,system:node:$node,$node,\"system:nodes\"" >>/run/users.csv
	sed "s|SERVER|https://$gateway4:$PORT|; s|TOKEN|$nodes-$node|" /lab/src/etc/kubelet.conf >"$state/kubelet-$node.conf"
done
kubelab -dir "$api" -listen "0.0.0.0:$PORT" -server "https://127.0.0.1:$PORT" -name "$gateway4" -name 10.96.0.1 -advertise "$gateway4" \
	-service-nets "$services" -endpointslice=false -run-pods=false -flag --token-auth-file=/run/users.csv >"$state/log/kubelab.log" 2>&1 &
kubelab=$!

await $dockerd dockerd docker version
echo "Docker engine ready after $SECONDS s"
docker network create kind --subnet "$net4" --gateway "$gateway4" --ip-range 172.18.1.0/24 --ipv6 --subnet "$net6" --gateway "$gateway6" \
	-o com.docker.network.bridge.name=br-kind -o com.docker.network.driver.mtu=1500
docker network create red --subnet "$red4.0/24" --gateway "$red4.1" --ipv6 --subnet "$red6::/64" --gateway "$red6::1" \
	-o com.docker.network.bridge.name=br-red -o com.docker.network.driver.mtu=1500
if [ -e /proc/sys/net/bridge ]; then # packets in the bridge are the nodes'
	sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0
fi
docker load -q -i "$state/images/box.tar"

await $kubelab kubelab [ -s "$api/kubeconfig" ]
echo "API server ready after $SECONDS s"
cp "$api/ca.crt" "$state/ca.crt"
kubebin kube-controller-manager --kubeconfig="$api/kubeconfig" --leader-elect=false --service-account-private-key-file="$api/tokens.key" \
	--root-ca-file="$api/ca.crt" --use-service-account-credentials=false --allocate-node-cidrs --cluster-cidr="$pods" \
	--service-cluster-ip-range="$services" --cluster-signing-cert-file= --secure-port=0 >"$state/log/kube-controller-manager.log" 2>&1 &
kubebin kube-scheduler --kubeconfig="$api/kubeconfig" --leader-elect=false --secure-port=0 >"$state/log/kube-scheduler.log" 2>&1 &

i=10
for node; do
	i=$((i + 1))
	# shellcheck disable=SC2046 # words
	docker run -d --name "$node" --hostname "$node" $(in_kind $i) $(in_red $i) $(container) \
		bash /lab/src/node.sh "$node" "$prefix4.$i" "$prefix6::$i"
done
# shellcheck disable=SC2046 # words
docker run -d --name outside --hostname outside $(in_kind 101) $(container) bash /lab/src/router.sh kind
# shellcheck disable=SC2046 # words
docker run -d --name outside-red --hostname outside-red $(in_red 101) $(container) bash /lab/src/router.sh red
cp "$api/kubeconfig" "$state/.kubeconfig" && mv "$state/.kubeconfig" "$state/kubeconfig" # the last step: the operator waits for it
echo "containers of nodes and routers started after $SECONDS s"
set +e
while :; do wait -n 2>/dev/null || sleep 1; done
