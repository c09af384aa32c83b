#!/bin/sh
# build.sh: makes the lab kernel, a user-mode Linux binary with VRF, nftables, VXLAN and conntrack built in,
# and prints the path of the cached binary. Nothing is done when it is cached already.
#
#   cache:  ${XDG_CACHE_HOME:-$HOME/.cache}/egressway/uml-<kernel version>-<hash of lab.config>
#   source: Debian's newest linux-source-* package, fetched through a private apt state, so that the
#           machine's own package sources stay as they are
#   LAB_KERNEL_SOURCE: an unpacked kernel tree to build instead
set -eu
here=$(dirname "$(readlink -f "$0")")
. "$here/../sid.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/egressway
hash=$(sha256sum <"$here/lab.config" | cut -c1-12)
say() { echo "lab kernel: $*" >&2; }

mkdir -p "$cache"
exec 9>"$cache/kernel.lock"
flock 9
for have in "$cache"/uml-*-"$hash"; do
	[ -x "$have" ] && { echo "$have"; exit 0; }
done

work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

# fetch downloads the newest linux-source package of Debian's unstable release from the mirror that this machine uses.
fetch() {
	sid "$work"
	package=$(apt-cache $apt search --names-only '^linux-source-[0-9.]+$' | awk '{ print $1 }' | sort -V | tail -n 1)
	[ -n "$package" ] || { say "no linux-source package on $mirror"; exit 1; }
	say "fetching $package (about 160 MB)"
	(cd "$work" && apt-get $apt download "$package" >&2 && dpkg-deb -x ./"$package"_*.deb pkg && rm -f ./*.deb)
	say "unpacking"
	mkdir "$work/src"
	tar -C "$work/src" --strip-components=1 -xf "$work"/pkg/usr/src/linux-source-*.tar.xz
	rm -rf "$work/pkg"
}

compiled() { grep -c '^  CC' "$work/build.log" || true; }

started=$(date +%s)
src=${LAB_KERNEL_SOURCE:-}
[ -n "$src" ] || { fetch; src=$work/src; }
out=$work/out
mkdir "$out"
make -s -C "$src" ARCH=um O="$out" KCONFIG_ALLCONFIG="$here/lab.config" allnoconfig >&2
# CONFIG_EXPERT would silently take FUTEX, EPOLL and more away; NET_VRF missing means a renamed option.
grep -q '^CONFIG_NET_VRF=y' "$out/.config" && grep -q '^CONFIG_NFT_NAT=y' "$out/.config" || { say "config lacks VRF or nft NAT"; exit 1; }
version=$(make -s -C "$src" ARCH=um O="$out" kernelversion)
files=1109 # that lab.config compiles of 7.2; make -n would take minutes to count them
say "building $version with $(nproc) jobs: about $files files, 7 to 15 minutes on 2 quiet cores"
make -C "$src" ARCH=um O="$out" -j"$(nproc)" linux >"$work/build.log" 2>&1 &
pid=$!
while kill -0 $pid 2>/dev/null; do
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do kill -0 $pid 2>/dev/null && sleep 1; done
	say "$(compiled) of about $files files compiled, $(($(date +%s) - started)) s"
done
wait $pid || { tail -n 30 "$work/build.log" >&2; exit 1; }
[ $(($(compiled) * 10)) -ge $((files * 9)) ] && [ $(($(compiled) * 9)) -le $((files * 10)) ] || say "$(compiled) files were compiled, not about $files: correct it in $0"
strip -o "$out/linux.stripped" "$out/linux"
target=$cache/uml-$version-$hash
mv "$out/linux.stripped" "$target"
say "done in $(($(date +%s) - started)) s: $target"
echo "$target"
