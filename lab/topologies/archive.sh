# shellcheck shell=bash
# archive.sh, for other scripts to source: writes an archive for "docker load" or "ctr images import", in the folder $work. Layers come first,
# then the images that are made of them, then "archive".
declare -A sums=()
manifest=()

layer() { # NAME FOLDER
	mkdir -p "$work/out/$1"
	tar -C "$2" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$work/out/$1/layer.tar" .
	sums[$1]=$(sha256sum <"$work/out/$1/layer.tar" | cut -d' ' -f1)
}

image() { # NAME SETTINGS LAYER...: the settings are JSON, of the image's configuration
	local name=$1 settings=$2 ids=() files=()
	shift 2
	for l; do ids+=("\"sha256:${sums[$l]}\"") files+=("\"$l/layer.tar\""); done
	local IFS=, config
	config=$(printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/usr/local/bin:/usr/sbin:/usr/bin"],%s},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
		"$(dpkg --print-architecture)" "$settings" "${ids[*]}")
	echo "$config" >"$work/out/$l.json"
	manifest+=("{\"Config\":\"$l.json\",\"RepoTags\":[\"$name\"],\"Layers\":[${files[*]}]}")
}

archive() {
	local IFS=,
	echo "[${manifest[*]}]" >"$work/out/manifest.json"
	tar -C "$work/out" -c .
}
