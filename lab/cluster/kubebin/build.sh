#!/bin/sh
# build.sh: makes kubebin, Kubernetes' programs of a node in one file, and prints the path of the cached binary (lab/kubebuild).
set -eu
here=$(dirname "$(readlink -f "$0")")
exec "$here/../../kubebuild" "$here" "about 10 minutes on 2 cores after kubelab, seconds after a change here"
