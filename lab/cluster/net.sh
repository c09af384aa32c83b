# shellcheck shell=bash disable=SC2034
# net.sh, for the other scripts to source: the networks of the cluster, and the arguments of its containers. Nodes are .11 and on.
prefix4=172.18.0 net4=172.18.0.0/16 gateway4=172.18.0.1
prefix6=fc00:f853:ccd:e793 net6=fc00:f853:ccd:e793::/64 gateway6=fc00:f853:ccd:e793::1
pods4=10.244.0.0/16 pods6=fd00:10:244::/56
pods=$pods4,$pods6
services=10.96.0.0/16,fd00:10:96::/112

# container NUMBER prints the arguments of "docker run" for a container with the root file system of the nodes, up to its command.
container() {
	echo --privileged --cgroupns private --network kind --ip "$prefix4.$1" --ip6 "$prefix6::$1" -v /lab:/lab -e PATH=/usr/sbin:/usr/bin:/lab/bin \
		box:dev root -at /box -tree /lab/tree -bind /lab:/lab --
}
