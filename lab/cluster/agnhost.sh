#!/bin/bash
# agnhost.sh BOX: writes an image of the name of Kubernetes' agnhost, which serves as the pods of containerlab/kind, with "box netexec" and
# Debian's curl in place of its own programs.
set -eu
here=$(dirname "$(readlink -f "$0")")
tree=$("$here/../debian.sh" topologies)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../topologies/archive.sh"

install -D "$1" "$work/agnhost/agnhost"
layer debian "$tree"
layer agnhost "$work/agnhost"
image registry.k8s.io/e2e-test-images/agnhost:2.53 '"Entrypoint":["/agnhost"]' debian agnhost
archive
