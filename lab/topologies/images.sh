#!/bin/bash
# images.sh EGRESSWAY: writes the images that containerlab/*.clab.yml name to standard output, as an archive for "docker load". All have the
# same root file system of Debian's packages, whose FRR and tools stand in for those of the other projects' images; egressway:dev
# has the program EGRESSWAY beside them.
set -eu
here=$(dirname "$(readlink -f "$0")")
tree=$("$here/../debian.sh" topologies)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/archive.sh"

install -D "$1" "$work/egressway/usr/local/bin/egressway"
install -D "$here/frr.sh" "$work/frr/usr/lib/frr/docker-start"
mkdir -p "$work/tools/usr/local/bin" # for one's own programs
layer debian "$tree"
for name in egressway frr tools; do layer $name "$work/$name"; done
image egressway:dev '"Entrypoint":["egressway"]' debian egressway
image quay.io/frrouting/frr:8.4.4 '"Entrypoint":["/usr/lib/frr/docker-start"]' debian frr
image ghcr.io/srl-labs/network-multitool:latest '"Cmd":["sleep","infinity"]' debian tools
archive
