#!/bin/bash
# debian.sh NAME PACKAGE...: makes a root file system, and prints its cached folder. It is made of packages of Debian's unstable release
# (containerd 2, runc, CNI plugins 1.9 are not in the stable ones) and those that they depend on, unpacked and not installed:
# no script of a package runs, and this machine stays as it is.
#
#   cache: ${XDG_CACHE_HOME:-$HOME/.cache}/egressway/NAME-<hash of this file and the packages>; its file "packages" lists their versions
set -eu
name=$1
shift
here=$(dirname "$(readlink -f "$0")")
. "$here/sid.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/egressway
packages="base-files base-passwd bash coreutils dash findutils grep sed mawk util-linux mount procps
	iproute2 nftables iputils-ping tcpdump curl ca-certificates frr libpam-modules $*"
# Other packages depend on these for their installation only.
unwanted='^(apt|cron|cron-daemon-common|debconf|dpkg|systemd|logrotate|perl.*|libperl.*|libapt.*|sqv|debian-archive-keyring|libsystemd-shared|init-system-helpers|sensible-utils)_'
target=$cache/$name-$({ cat "$0"; echo "$packages"; } | sha256sum | cut -c1-12)
say() { echo "$name: $*" >&2; }

mkdir -p "$cache"
exec 9>"$cache/$name.lock"
flock 9
[ ! -d "$target" ] || { echo "$target"; exit 0; }

work=$(mktemp -d "$cache/$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
started=$SECONDS
say "fetching the lists of Debian's unstable release"
sid "$work"
# shellcheck disable=SC2086 # words
get() { apt-get $apt install --yes --no-install-recommends "$@" $packages; }
say "fetching $(get --print-uris | awk '/^.http/ { n++; size += $3 } END { printf "%d packages, %d MB", n, size / 1e6 }')"
get --download-only >&2
root=$work/root
mkdir "$root"
debs=("$work"/cache/archives/*.deb)
for i in "${!debs[@]}"; do
	((i % 25)) || say "$i of ${#debs[@]} packages unpacked, $((SECONDS - started)) s"
	package=$(basename "${debs[i]}" .deb)
	[[ $package =~ $unwanted ]] && continue
	dpkg-deb -x "${debs[i]}" "$root"
	echo "$package" >>"$root/packages"
	rm "${debs[i]}"
done

# The scripts of packages would have done the rest.
rm -rf "$root"/usr/share/{doc,man,locale,lintian,bash-completion,info}
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
printf '%s:/nonexistent:/usr/sbin/nologin\n' frr:x:92:92: tcpdump:x:94:94: >>"$root/etc/passwd"
printf 'frr:x:92:\nfrrvty:x:93:frr\ntcpdump:x:94:\n' >>"$root/etc/group"
printf '%s sufficient pam_permit.so\n' auth account | tee "$root/etc/pam.d/other" >"$root/etc/pam.d/frr" # vtysh
rm -f "$root/etc/frr/frr.conf" # its presence would hide the files of single daemons
if [ -e "$root/usr/sbin/xtables-nft-multi" ]; then
	for program in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		ln -sf xtables-nft-multi "$root/usr/sbin/$program"
	done
fi
ln -sf mawk "$root/usr/bin/awk"
ln -sf dash "$root/usr/bin/sh"
mkdir -p "$root"/{proc,sys,dev,run,tmp,lab}

find "$cache" -maxdepth 1 -name "$name-*" -mtime +2 -exec rm -rf {} + # up to half a GB each
mv "$root" "$target"
say "done in $((SECONDS - started)) s: $target"
echo "$target"
