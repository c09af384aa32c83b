#!/bin/bash
# tree.sh: prints the folder of the root file system that nodes have, and the machine that encloses them.
exec "$(dirname "$(readlink -f "$0")")/../debian.sh" nodes docker.io docker-cli containerd runc containernetworking-plugins util-linux-extra \
	iptables ipset ipvsadm conntrack ethtool kmod
