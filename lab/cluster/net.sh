# shellcheck shell=bash disable=SC2034
# net.sh, for the other scripts to source: the networks of the cluster, and the arguments of its containers. Nodes are .11 and on, routers
# .101. Beyond the router of each network is a host with the same address.
prefix4=172.18.0 net4=172.18.0.0/16 gateway4=172.18.0.1
prefix6=fc00:f853:ccd:e793 net6=fc00:f853:ccd:e793::/64 gateway6=fc00:f853:ccd:e793::1
red4=10.1.0 red6=fd00:10:1:0
pods4=10.244.0.0/16 pods6=fd00:10:244::/56
pods=$pods4,$pods6
services=10.96.0.0/16,fd00:10:96::/112
control4=10.98.0.1 machine4=10.98.0.3 # in the lab's kernel: its control plane outside of it, and the machine that encloses the cluster
outside4=198.51.100.7 outside6=2001:db8:51::7

# in_kind and in_red print the arguments of "docker run" for a container's NUMBER in a network: eth0 in the nodes' own, eth1 in red.
in_kind() { echo --network "name=kind,ip=$prefix4.$1,ip6=$prefix6::$1,gw-priority=1,driver-opt=com.docker.network.endpoint.ifname=eth0"; }
in_red() { echo --network "name=red,ip=$red4.$1,ip6=$red6::$1,driver-opt=com.docker.network.endpoint.ifname=eth1"; }
# container prints those for the root file system of the nodes, up to the command.
container() { echo --privileged --cgroupns private -v /lab:/lab -e PATH=/usr/sbin:/usr/bin:/lab/bin box:dev root -at /box -tree /lab/tree -bind /lab:/lab --; }
