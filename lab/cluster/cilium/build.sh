#!/bin/bash
# build.sh VERSION FOLDER: builds Cilium's daemon and CNI plugin of a version into bin/ and cni/, with its eBPF programs' source in bpf/, which
# the daemon compiles on each node by the clang of Debian's packages in clang/. The Go module proxy lacks Cilium's forks of other modules: the
# originals serve.
set -eu
here=$(dirname "$(readlink -f "$0")")
cilium=github.com/cilium/cilium
programs=("$cilium"/{daemon,plugins/cilium-cni})
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
mkdir -p "$2/bin" "$2/cni"
folder=$(readlink -f "$2")
cd "$module"
{
	go mod init cilium-build
	go get "${programs[@]/%/@$1}"
	cp -r --no-preserve=mode "$(go list -m -f '{{.Dir}}' "$cilium")/bpf" "$folder/bpf"
	. "$here/../../sid.sh"
	sid "$module/apt"
	cd "$module/apt"
	# shellcheck disable=SC2086 # words
	apt-get $apt download clang-19 libclang-cpp19 libclang-common-19-dev libllvm19 libstdc++6 libgcc-s1 libz3-4 libedit2 libxml2-16 libffi8 \
		libtinfo6 libzstd1 zlib1g libbsd0 libmd0
	for package in ./*.deb; do dpkg-deb -x "$package" "$folder/clang"; done
	rm -rf "$folder/clang/usr/share"
	cd "$module" && [ -x "$folder/clang/usr/lib/llvm-19/bin/clang" ]
} >said 2>&1 || { cat "$module/said" >&2; exit 1; }
export CGO_ENABLED=0
TOTAL=$(go list -deps "${programs[@]}" | sort -u | wc -l) "$here/../../gobuild" cilium nice go build -v -o "$folder/bin/" \
	-ldflags "-s -w -X $cilium/pkg/version.ciliumVersion=${1#v}" "${programs[@]}"
mv "$folder/bin/daemon" "$folder/bin/cilium-agent"
mv "$folder/bin/cilium-cni" "$folder/cni/"
