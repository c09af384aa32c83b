#!/bin/sh
# modfile.sh: writes go.mod and go.sum of kubelab and kubebin for a release of Kubernetes: ./modfile.sh v1.37.1
#
# k8s.io/kubernetes requires the modules of its staging folder at v0.0.0 and replaces them by that folder. Others must
# replace each of them by the module that was published with the release.
set -eu
cd "$(dirname "$0")/.."
release=${1:?usage: modfile.sh v1.X.Y}
staging=v0.${release#v1.}
upstream=$(go mod download -json "k8s.io/kubernetes@$release" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
[ -n "$upstream" ]
for folder in kubelab cluster/kubebin; do
	{
		printf 'module github.com/egressway/egressway/lab/%s\n\n' "$folder"
		grep '^go ' "$upstream"
		printf '\nrequire k8s.io/kubernetes %s\n\nreplace (\n' "$release"
		sed -n 's|^\t\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$upstream" | while read -r module; do
			printf '\t%s => %s %s\n' "$module" "$module" "$staging"
		done
		printf ')\n'
	} >"$folder/go.mod"
	(cd "$folder" && go mod tidy)
done
