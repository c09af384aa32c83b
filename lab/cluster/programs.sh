# shellcheck shell=bash disable=SC2034
# programs.sh, for up.sh and lab.sh to source: builds or fetches the programs of a cluster with the CNI $cni, says so by begin and end, and
# sets tree, kubelab, kubebin, program and module to their paths.
begin "Docker engine, containerd, runc, CNI plugins and tools, of Debian's packages, unpacked into the cache"
tree=$("$here/tree.sh")
end "$(wc -l <"$tree/packages") packages, $(grep -E -o '^(docker.io|containerd|runc|containernetworking-plugins)_[^_]*' "$tree/packages" | tr '_\n' '  ')"

begin "control plane, from the Go module proxy: etcd and kube-apiserver"
kubelab=$("$top/lab/kubelab/build.sh")
end "$kubelab"

begin "kubelet, kube-proxy, kube-controller-manager, kube-scheduler and kubectl, from the Go module proxy"
kubebin=$("$here/kubebin/build.sh")
end "$kubebin"

others=(metallb)
case $cni in
flannel*) others+=(flannel) ;;
calico | cilium) others+=("$cni") ;;
esac
begin "${others[*]}, from the Go module proxy"
declare -A program module
for other in "${others[@]}"; do
	made=$(make -s --no-print-directory -C "$top" "$other")
	read -r program["$other"] module["$other"] <<<"${made##*$'\n'}" # the last line
done
end "${module[*]##*/}"

begin "Egressway and the images"
make -s --no-print-directory -C "$top" image dist/box.tar
end "$(du -h --apparent-size "$top"/dist/{egressway,box}.tar | awk '{ sub(".*/", "", $2); printf "%s %s, ", $2, $1 }')"
