#!/bin/bash
# Builds the deb and the rpm of one architecture: build.sh NFPM VERSION ARCH PROGRAM FOLDER. The manual and the completion come from a program
# that this machine can run. Two builds of one commit are the same.
set -euo pipefail
nfpm=$1 version=$2 arch=$3 program=$4 folder=$(realpath "$5")
here=$(realpath "$(dirname "$0")/../..")
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
program=$(realpath "$program")
cd "$here"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH

cp "$program" "$parts/egressway"
cli=$program
if ! "$cli" --version >/dev/null 2>&1; then # another architecture
	cli=$parts/cli
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "-X main.version=$version" -o "$cli" ./cmd/egressway
fi
"$cli" man "$parts/man8"
gzip -9n "$parts"/man8/*
for shell in bash zsh fish; do "$cli" completion $shell >"$parts/egressway.$shell"; done

# A version without a tag comes before all others, a release candidate ('~') before its release, and commits after a tag after it. Neither kind
# of package may have '-' in it, nor may the names of a release's files have '~'.
number=${version#v}
[[ $number == [0-9]*.[0-9]*.* ]] || number=0.0.0+$number
name=egressway-${number//-/+}-$arch
if [[ $number =~ ^[0-9.]+-[a-z] ]]; then number=${number/-/\~}; fi
export ARCH=$arch PARTS=$parts PACKAGE_VERSION=${number//-/+}
for kind in deb rpm; do
	"$nfpm" package --config deploy/packages/nfpm.yaml --packager $kind --target "$folder/$name.$kind"
done
