#!/bin/sh
# build.sh: makes kubelab, a Kubernetes control plane in one program, and prints the path of the cached binary. Nothing is
# done when it is cached already.
#
#   cache: ${XDG_CACHE_HOME:-$HOME/.cache}/egressway/kubelab-<Kubernetes version>-<hash of the sources here>
set -eu
here=$(dirname "$(readlink -f "$0")")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/egressway
cd "$here"
hash=$(cat ./*.go go.mod go.sum | sha256sum | cut -c1-12)
version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
target=$cache/kubelab-$version-$hash
say() { echo "kubelab: $*" >&2; }

mkdir -p "$cache"
exec 9>"$cache/kubelab.lock"
flock 9
[ ! -x "$target" ] || { echo "$target"; exit 0; }

say "building $version: about 6 minutes and 3 GB of cache on 2 cores from nothing, seconds after a change here"
started=$(date +%s)
minor=${version#v1.}
minor=${minor%%.*}
# Clients parse the version that the server tells.
stamp=k8s.io/component-base/version
export GOWORK=off CGO_ENABLED=0
TOTAL=$(go list -deps . | wc -l) ../gobuild kubelab nice go build -v -o "$cache/kubelab.new" \
	-ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$minor" .
find "$cache" -maxdepth 1 -name 'kubelab-v*' -mtime +2 -delete # 120 MB each
mv "$cache/kubelab.new" "$target"
say "done in $(($(date +%s) - started)) s: $target"
echo "$target"
