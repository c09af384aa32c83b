#!/bin/bash
# Pushes image and chart of a release: publish.sh CRANE HELM VERSION FOLDER REGISTRY [plain]. The image becomes REGISTRY/egressway:VERSION, the
# chart oci://REGISTRY/charts/egressway. Prints both with their digests; plain: the registry has no TLS.
set -euo pipefail
crane=$1 helm=$2 version=$3 folder=$(realpath "$4") registry=$5 plain=${6:-}
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
tar -C "$layout" -xf "$folder/egressway-image.tar"
image=$("$crane" push ${plain:+--insecure} "$layout" "$registry/egressway:$version")
pushed=$("$helm" push ${plain:+--plain-http} "$folder"/egressway-chart-*.tgz "oci://$registry/charts" 2>&1)
digest=$(sed -n 's/^Digest: *//p' <<<"$pushed")
[ -n "$digest" ] || { echo "$pushed" >&2; exit 1; }
echo "image $image"
echo "chart $registry/charts/egressway@$digest"
