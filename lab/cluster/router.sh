#!/bin/bash
# router.sh NETWORK: process 1 of a router, in a container: FRR with a BGP session to each node, and the host beyond it, an address of its
# loopback device. The router of the nodes' own network announces the host's prefix, that of red a default route.
set -eu
. /lab/src/net.sh
network=$1 log=/lab/state/log/router-$1.log
exec </dev/null >"$log" 2>&1

case $network in
kind) asn=64601 prefix=$prefix4 announced="network 198.51.100.0/24" announced6="network 2001:db8:51::/64" ;;
red) asn=64602 prefix=$red4 announced="neighbor NODES default-originate" announced6=$announced ;;
esac
bfd=300
[ ! -d /lab/control ] || bfd=1000 # the lab's kernel, whose processor may be busy for longer than three times that
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip address add "$outside4/24" dev lo
ip address add "$outside6/64" dev lo nodad
cat >/etc/frr/bfdd.conf <<END
bfd
 profile nodes
  detect-multiplier 3
  receive-interval $bfd
  transmit-interval $bfd
END
{
	cat <<END
router bgp $asn
 bgp router-id $prefix.101
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 neighbor NODES peer-group
 neighbor NODES remote-as 64512
 neighbor NODES bfd
 neighbor NODES bfd profile nodes
 neighbor NODES timers 3 9
 neighbor NODES timers connect 1
END
	for i in 11 12 13; do echo " neighbor $prefix.$i peer-group NODES"; done
	printf ' address-family %s unicast\n  neighbor NODES activate\n  %s\n  maximum-paths 8\n exit-address-family\n' \
		ipv4 "$announced" ipv6 "$announced6"
} >/etc/frr/bgpd.conf
mkdir -p /run/frr /var/tmp/frr /var/log/frr
chown -R frr:frr /etc/frr /run/frr /var/tmp/frr /var/log/frr
/usr/lib/frr/zebra -d -F traditional -A 127.0.0.1 -s 90000000 --v6-rr-semantics
for daemon in bfdd bgpd; do /usr/lib/frr/$daemon -d -F traditional -A 127.0.0.1; done
exec box outside :8080 "$outside4:9000" "[$outside6]:9000"
