#!/bin/bash
# Makes the archive of one architecture for kubectl's plugin manager krew and for installation by hand: archive.sh VERSION ARCH FOLDER. The
# folder has the program and the licences of its parts. Two builds of one commit are the same.
set -euo pipefail
version=$1 arch=$2 folder=$(realpath "$3")
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
cd "$(dirname "$0")/.."
install -m 755 "$folder/egressway-linux-$arch" "$parts/egressway"
install -m 644 "$folder/egressway-linux-$arch.licenses.txt" "$parts/licenses.txt"
install -m 644 LICENSE CHANGELOG.md "$parts"
tar -C "$parts" --sort=name --mtime="@$(git log -1 --format=%ct)" --owner=0 --group=0 --numeric-owner -cf - CHANGELOG.md LICENSE egressway licenses.txt |
	gzip -9n >"$folder/egressway_${version}_linux_$arch.tar.gz"
