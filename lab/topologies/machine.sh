#!/bin/bash
# machine.sh FILE...: process 1 of the machine that encloses the containers, started by "box hold": a Docker engine, and bin/topologies.
set -eu
exec 3<&-
state=/lab/state
export DOCKER_HOST=unix:///run/docker.sock
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
dockerd -H "$DOCKER_HOST" --bridge=none --iptables=false --ip6tables=false >"$state/log/dockerd.log" 2>&1 &
until docker version >/dev/null 2>&1; do
	kill -0 $! 2>/dev/null || { tail -n 5 "$state/log/dockerd.log"; exit 1; }
	sleep 0.2
done
echo "topologies: Docker engine ready after $SECONDS s"
docker load -q -i /lab/images.tar
echo "topologies: images loaded after $SECONDS s"
cd "$state"
code=0
topologies "$@" || code=$?
echo $code >"$state/status"
