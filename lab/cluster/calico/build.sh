#!/bin/bash
# build.sh VERSION FOLDER: builds Calico's programs of a version without cgo, and so without its eBPF data plane: bin/ has those of its
# pods, cni/ its CNI plugins. A module that requires Calico's has to repeat what that replaces. The types of its API are a module of their
# own, which Calico replaces by a folder of its repository; the published module of the same time has what Calico 3.28 uses.
set -eu
here=$(dirname "$(readlink -f "$0")")
calico=github.com/projectcalico/calico
api=github.com/projectcalico/api@v0.0.0-20240708202104-e3f70b269c2c
programs=("$calico"/{node/cmd/calico-node,cni-plugin/cmd/{calico,install},kube-controllers/cmd/{kube-controllers,check-status}})
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
mkdir -p "$2/bin" "$2/cni"
folder=$(readlink -f "$2")
cd "$module"
{
	go mod init calico-build
	upstream=$(go mod download -json "$calico@$1" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
	# shellcheck disable=SC2046 # words
	go mod edit $(sed -n 's/^\t\([^ ]*\) => \([^ .][^ ]*\) \(v[^ ]*\)$/-replace=\1=\2@\3/p' "$upstream") -replace="${api%@*}=$api"
	go get "${programs[@]/%/@$1}"
	release=$(sed -n 's/^version: //p' "$(go list -m -f '{{.Dir}}' "$calico")/charts/calico/values.yaml")
} >said 2>&1 || { cat said >&2; exit 1; }
export CGO_ENABLED=0
TOTAL=$(go list -deps "${programs[@]}" | sort -u | wc -l) "$here/../../gobuild" calico nice go build -v -o "$folder/bin/" \
	-ldflags "-s -w -X $calico/node/pkg/lifecycle/startup.VERSION=$release -X main.VERSION=$release" "${programs[@]}"
mv "$folder/bin/calico" "$folder/cni/calico"
ln "$folder/cni/calico" "$folder/cni/calico-ipam" # its name says what it does
