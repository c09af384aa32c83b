# shellcheck shell=sh
# sid.sh, for other scripts to source: "sid FOLDER" sets the variable apt to options by which apt-get and apt-cache know Debian's unstable
# release, from the mirror that this machine uses, and fetches its lists. Their state is in FOLDER: the machine's own package sources
# and installed packages stay as they are, and count for nothing.
sid() {
	mirror=$(apt-get indextargets --format '$(SITE) $(ORIGIN) $(COMPONENT)' 'Created-By: Packages' |
		awk '$2 == "Debian" && $3 == "main" && $1 !~ /security/ { print $1; exit }')
	[ -n "$mirror" ] || { echo "${0##*/}: apt knows no Debian mirror (apt-get indextargets)" >&2; return 1; }
	mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$1/sources.list"
	apt="-o Dir::Etc::sourcelist=$1/sources.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State=$1 -o Dir::State::lists=$1/lists
		-o Dir::State::status=/dev/null -o Dir::Cache=$1/cache -o Acquire::Languages=none -o APT::Sandbox::User=root -qq"
	# shellcheck disable=SC2086 # words
	apt-get $apt update >&2
}
