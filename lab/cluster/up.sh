#!/bin/bash
# up.sh CNI PROXY: makes a cluster of three real nodes on this machine, deploys Egressway, and serves an EgressService. Nothing is
# installed, and no interface, rule or setting of this machine's network changes: the cluster is in namespaces of its own, and only its API
# is reachable, at a port of 127.0.0.1. Programs are cached under ${XDG_CACHE_HOME:-$HOME/.cache}/egressway; all else ends with down.sh.
set -eu
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
state=/run/egressway-cluster
recipe=${CLUSTER_RECIPE-} # "kind": three nodes with the names of kind's and no more, see kind.sh
nodes=(node1 node2 node3) bare=()
[ -z "$recipe" ] || nodes=(egressway-control-plane egressway-worker egressway-worker2) bare=(-bare)
steps=10 step=0 began=$SECONDS

fail() { echo "cluster: $*" >&2; exit 1; }
one_of() { # KEY VALUE KNOWN...
	local key=$1 value=$2 k
	shift 2
	for k; do [ "$k" != "$value" ] || return 0; done
	fail "$key: $value: must be one of: $*"
}
begin() {
	step=$((step + 1)) since=$SECONDS
	echo "cluster: $step of $steps: $*"
}
end() { echo "cluster: $step of $steps: done in $((SECONDS - since)) s${*:+: $*}"; }

# await repeats a command until it succeeds, at most for five minutes, which only a machine that hangs needs.
await() { # MEANING COMMAND...
	local meaning=$1 limit=$((SECONDS + 300))
	shift
	until "$@" >/dev/null 2>&1; do
		kill -0 "$(cat "$state/pid")" 2>/dev/null || fail "the machine of the cluster has ended: $(tail -n 5 "$state/log/machine.log")"
		((SECONDS < limit)) || fail "no $meaning after 300 s; logs are in $state/log, and make cluster-down removes the cluster"
		sleep 0.2
	done
}

cni=${1:-static} proxy=${2:-nftables}
mapfile -t cnis < <(cd "$here/cni" && basename -s .sh ./*.sh)
one_of CNI "$cni" "${cnis[@]}"
one_of PROXY "$proxy" nftables iptables ipvs
[ "$proxy" != ipvs ] || [ -e /proc/net/ip_vs ] || fail "PROXY: ipvs: this kernel has no IPVS, as /proc/net/ip_vs shows; make cluster-lab has it"
[ "$(id -u)" = 0 ] || fail "run as root: namespaces, mounts and containers need it"
[ ! -e "$state" ] || fail "a cluster is here already, in $state: make cluster-down removes it"
for program in go apt-get dpkg-deb flock nsenter; do
	command -v "$program" >/dev/null || fail "$program is missing: of Debian's packages golang, apt, dpkg, util-linux"
done
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || fail "Debian's package debian-archive-keyring is missing: make deps installs it"

[ -z "${CLUSTER_PROGRAMS-}" ] || steps=5 # lab.sh or test.sh has built them
# shellcheck source=programs.sh
. "${CLUSTER_PROGRAMS:-$here/programs.sh}"
mkdir -p -m 700 "$state"
mkdir -p "$state"/{bin,log,images,cache,modules} "$state.root"
binds=(${CLUSTER_CONTROL:+-bind "$CLUSTER_CONTROL:/lab/control"})
for other in "${!module[@]}"; do
	ln -s "${module[$other]}" "$state/modules/$other"
	binds+=(-bind "${program[$other]}:/lab/bin/$other")
done
cp "$top/dist/egressway.tar" "$top/dist/box.tar" ${recipe:+"$top/dist/agnhost.tar"} "$state/images/"

begin "containers of a Docker engine: three nodes with containerd and kubelet, two routers with FRR"
instances=/proc/sys/fs/inotify/max_user_instances
if [ "$(cat $instances)" -lt 512 ]; then # each kubelet and containerd needs some
	echo "cluster: fs.inotify.max_user_instances is $(cat $instances): 512 until make cluster-down"
	cat $instances >"$state/inotify"
	echo 512 >$instances
fi
"$top/bin/box" hold -dir "$state" -cgroup egressway-cluster -- -at "$state.root" -tree "$tree" -bind "$tree:/lab/tree" -bind "$state:/lab/state" \
	-bind "$here:/lab/src" -bind "$top/bin/box:/lab/bin/box" -bind "$kubelab:/lab/bin/kubelab" -bind "$kubebin:/lab/bin/kubebin" \
	"${binds[@]}" -- \
	bash /lab/src/machine.sh "${bare[@]}" "${nodes[@]}"
if [ -n "${CLUSTER_CONTROL-}" ]; then # see lab-control.sh
	(. "$here/net.sh"
	ip link add machine type veth peer name control netns "$(cat "$state/pid")"
	ip link set machine master mgmt up
	nsenter -t "$(cat "$state/pid")" -n ip -batch - <<<"addr add $machine4/24 dev control
link set control up")
fi
ln -s "$kubebin" "$state/bin/kubectl"
cat >"$state/bin/docker" <<END
#!/bin/sh
exec nsenter -t $(cat "$state/pid") -m env PATH=/usr/sbin:/usr/bin DOCKER_HOST=unix:///lab/state/docker.sock docker "\$@"
END
chmod +x "$state/bin/docker"
export PATH=$state/bin:$PATH KUBECONFIG=$state/kubeconfig KUBECACHEDIR=$state/cache
await "control plane" [ -s "$KUBECONFIG" ]
await "registered nodes" kubectl get node "${nodes[@]}"
end "registered"

begin "CNI $cni, kube-proxy in mode $proxy"
sed "s|MODE|$proxy|; s|SERVER|https://$(cat "$state/address")|" "$here/kube-proxy.yaml" | kubectl apply -f - >/dev/null
"$here/cni/$cni.sh"
kubectl wait --for=condition=Ready node --all --timeout=300s >/dev/null
kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=300s >/dev/null
end "three nodes Ready"
[ -z "$recipe" ] || exit 0

for node in "${nodes[@]}"; do docker exec "$node" bash /lab/src/state.sh >"$state/before-$node"; done
begin "Egressway, of deploy/kustomize/base"
vrf= red="a table, since this kernel has no VRF devices"
if docker exec node1 unshare -n ip link add probe type vrf table 1 2>/dev/null; then vrf='vrf: vrf-red' red="a VRF"; fi
[ -z "${CLUSTER_CONTROL-}" ] || [ -n "$vrf" ] || fail "a node cannot make VRF devices, although the lab's kernel has them"
own=
case $cni in
calico) own=$(. "$here/net.sh"; echo "podCIDRs: [\"$pods4\", \"$pods6\"]") ;; # its pools are not the Nodes' podCIDRs
cilium) own='marks: {mask: "0x3f", allowConflicts: [antrea, cilium]}' ;;
esac
kubectl kustomize "$here/egressway" | sed "s|^\( *\)bgp:|${own:+\\1$own\\n}&|; s|^\( *\)table: 1001|${vrf:+\\1$vrf\\n}&|" | kubectl apply -f - >/dev/null
kubectl -n egressway-system rollout status daemonset/egressway --timeout=300s >/dev/null
kubectl -n egressway-system wait --for=condition=Ready pod --all --timeout=300s >/dev/null # the speaker's rollout, OnDelete, has no status
end "its DaemonSets are ready; the network red is $red"

begin "MetalLB's controller, with pools of ingress IPs"
"$here/metallb.sh" "$state/modules/metallb"
end "its Deployment is ready"

begin "an EgressService, three pods and a host outside the cluster"
"$here/serve.sh"
end

groups=$(grep -E '/memory/|^/sys/fs/cgroup/egressway-cluster$' "$state/cgroups" | head -n 1)
used=$(cat "$groups/memory.usage_in_bytes" "$groups/memory.current" 2>/dev/null || true)
cat <<END
cluster: ready after $((SECONDS - began)) s${used:+, $((used >> 20)) MiB of memory with its disks and page cache}

  export KUBECONFIG=$KUBECONFIG
  export PATH=$state/bin:\$PATH      # kubectl, and docker of the cluster's engine

  kubectl get nodes,pods,egressservices -A -o wide
  kubectl -n egressway-system exec ds/egressway -- egressway status
  docker exec -it node1 bash                       # or a router, "outside" and "outside-red": vtysh, box

Logs are in $state/log. Remove all of it: make cluster-down
END
