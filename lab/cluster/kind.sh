#!/bin/bash
# kind.sh CNI:PROXY: follows containerlab/kind/README.md on a cluster of real nodes that have the names of kind's containers. Other programs stand in
# for make, kind and containerlab; all other commands are those of the page, one block after another, and its promises are checked. The cable that
# is pulled is that of the host.
set -eu
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
state=/run/egressway-cluster
"$here/down.sh" -dead
leave() {
	local code=$? results=${MATRIX_RESULTS:-$top/dist/matrix}/kind
	if [ $code != 0 ] && mkdir -p "$results" && cp -r "$state/log" "$results/"; then echo "kind: logs are in $results" >&2; fi
	"$here/down.sh"
}
trap leave EXIT
CLUSTER_RECIPE=kind "$here/up.sh" "${1%:*}" "${1#*:}"
export PATH=$state/bin:$PATH KUBECONFIG=$state/kubeconfig
cd "$top"

# The images of the topology, and the topology, by the engine of the cluster.
cp -r "$top/containerlab" "$state/" # FRR's start changes the owner of its files
cp "$top/bin/topologies" "$top/bin/box" "$state/bin/"
cp "$top/dist/images.tar" "$state/topologies.tar"
docker load -q -i /lab/state/topologies.tar
nsenter -t "$(cat "$state/pid")" -m -n -p env PATH=/usr/sbin:/usr/bin:/lab/bin DOCKER_HOST=unix:///lab/state/docker.sock \
	/lab/state/bin/topologies -keep /lab/state/containerlab/kind/tors.clab.yml

blocks=()
while IFS= read -r -d '' block; do blocks+=("$block"); done < <(awk '/^```/ { if (inside) printf "%c", 0; inside = !inside; next } inside' containerlab/kind/README.md)
follow() { # WORDS: runs the lines of the block that has the words, but for those of programs that are not here; output goes to $said
	local block found=
	for block in "${blocks[@]}"; do [[ $block != *"$1"* ]] || found=$block; done
	[ -n "$found" ] || { echo "kind: no block of the page has \"$1\"" >&2; exit 1; }
	found=$(grep -v -E '^(make|kind|sudo containerlab) ' <<<"$found")
	echo "kind: $found"
	said=$(bash -c "$found" 2>&1) || { echo "$said"; return 1; }
	echo "$said"
}
has() { grep -q -E -- "$1" <<<"$said" || { echo "kind: the output has no $1" >&2; exit 1; }; }

docker exec --detach clab-egressway-kind-ext-red box answer :80 # as the server of that image
kubectl taint node egressway-control-plane node-role.kubernetes.io/control-plane:NoSchedule # as kind does
follow 'kubectl apply -k' || follow 'kubectl apply -k' # as the page says
kubectl -n shop rollout status deployment/web --timeout=300s
follow 'kubectl -n shop patch service'
kubectl -n shop wait --for=condition=Ready egressservice/web --timeout=300s
follow 'egressway status -o wide'
has 'shop/web'
has '203\.0\.113\.10'
follow 'timeout 20 tcpdump'
has '203\.0\.113\.10\.[0-9]+ > 198\.51\.100\.10\.80'
has '^web-[0-9a-z]+-[0-9a-z]+'

host=$(kubectl -n shop get egressservice web -o jsonpath='{.status.host}')
declare -A port=([egressway-control-plane]=eth1 [egressway-worker]=eth2 [egressway-worker2]=eth3)
pull=$(grep -x -E 'docker exec [a-z0-9-]+ ip link set eth[0-9] down .*' containerlab/kind/README.md)
pull=${pull/eth[0-9]/${port[$host]}}
echo "kind: $pull, of $host"
bash -c "$pull"
for _ in $(seq 300); do
	next=$(kubectl -n shop get egressservice web -o jsonpath='{.status.host}')
	[ "$next" = "$host" ] || [ "$next" = "" ] || break
	sleep 0.2
done
[ "$next" != "$host" ] || { echo "kind: $host is still the host" >&2; exit 1; }
echo "kind: $next is the host"
follow 'timeout 20 tcpdump'
has '203\.0\.113\.10\.[0-9]+ > 198\.51\.100\.10\.80'
has '^web-[0-9a-z]+-[0-9a-z]+'
echo "kind: the page was followed"
