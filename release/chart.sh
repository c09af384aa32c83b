#!/bin/bash
# Packs the chart in the release's version: chart.sh HELM VERSION FOLDER. The chart's image is the release's. Two builds of one commit are
# the same: helm writes the times of the files.
set -euo pipefail
helm=$1 version=$2 folder=$(realpath "$3")
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
cd "$(dirname "$0")/.."
export HELM_CONFIG_HOME=$parts/home HELM_CACHE_HOME=$parts/home HELM_DATA_HOME=$parts/home
cp -r deploy/helm/egressway "$parts/egressway"
# A version without a tag comes before all others.
number=${version#v}
[[ $number =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || number=0.0.0-$number
sed -i "s|^version: .*|version: $number|; s|^appVersion: .*|appVersion: $version|" "$parts/egressway/Chart.yaml"
find "$parts/egressway" -exec touch -d "@$(git log -1 --format=%ct)" {} +
"$helm" package "$parts/egressway" --destination "$folder" >/dev/null
mv "$folder/egressway-$number.tgz" "$folder/egressway-chart-$number.tgz"
