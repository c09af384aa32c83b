package chaos

import (
	"context"
	"fmt"
	"time"
)

// kernelFaults are changes by other programs to a node's kernel.
var kernelFaults = map[string]fault{
	"nft flush ruleset":       {inject: flushRuleset},
	"rules deleted":           {inject: onNode(deleteRules)},
	"learned routes flushed":  {inject: onNode(flushRoutes("1001"), flushRoutes("1002"))},
	"steering routes flushed": {inject: onNode(flushSteering)},
	"rival deletes a rule":    {inject: rival, heal: onNode("kill $(cat /run/rival)"), hold: [2]time.Duration{rivalry, rivalry}},
	"VRF deleted": {
		inject: onNode("ip link del vrf-red"), heal: restoreVRF,
		hold: [2]time.Duration{time.Second, 2 * time.Second},
	},
	"uplink renamed": {
		inject: onNode("ip link set eth2 name uplink2"), heal: onNode("ip link set uplink2 name eth2"),
		hold: [2]time.Duration{time.Second, 12 * time.Second},
	},
	"uplink without address": {
		inject: onNode("ip -4 addr flush dev eth2", "ip -6 addr flush dev eth2 scope global"), heal: addresses,
		hold: [2]time.Duration{time.Second, 12 * time.Second},
	},
}

// flushRoutes deletes our routes from a table.
func flushRoutes(table string) string {
	return fmt.Sprintf("ip route flush table %s proto 142; ip -6 route flush table %[1]s proto 142", table)
}

// flushSteering deletes our routes from the tables that lead to other nodes.
var flushSteering = `for t in $(ip route show table all proto 142 | sed -n 's/.* table \([0-9]*\) .*/\1/p' | sort -u); do
	case $t in 1001|1002) ;; *) ` + flushRoutes("$t") + `;; esac
done`

// deleteRules deletes every routing rule of ours.
const deleteRules = `for v in -4 -6; do
	ip $v rule | sed -n 's/^\(7[0-9][0-9]\):.*/rule del pref \1/p' | ip $v -batch -
done`

// flushRuleset acts like tools that rewrite all of a node's tables: it removes all, and adds those that the tool knows,
// in one transaction.
func flushRuleset(ctx context.Context, r *run, s *step) error {
	return r.shell(ctx, s.node,
		"{ echo flush ruleset; nft list tables | while read _ family name; do [ $name = egressway ] || nft -s list table $family $name; "+
			"done; } >/run/others.nft",
		"nft -f /run/others.nft")
}

// rival deletes one of our rules ten times a second.
func rival(ctx context.Context, r *run, s *step) error {
	priority := [...]int{700, 701, 799}[s.dice%3]
	return r.shell(ctx, s.node,
		fmt.Sprintf("(set +e; while :; do ip rule del pref %d; ip -6 rule del pref %[1]d; sleep 0.1; done) >/dev/null 2>&1 &", priority),
		"echo $! >/run/rival")
}

// restoreVRF makes the VRF where it was there before the daemon, which makes it everywhere else.
func restoreVRF(ctx context.Context, r *run, s *step) error {
	if s.node == "b" {
		if err := r.shell(ctx, s.node,
			"[ -e /sys/class/net/vrf-red ] || ip link add vrf-red type vrf table 1001",
			"ip link set vrf-red up", "ip link set eth2 master vrf-red"); err != nil {
			return err
		}
	}
	return addresses(ctx, r, s)
}

// addresses gives the uplink the addresses that the node's own network configuration has for it.
func addresses(ctx context.Context, r *run, s *step) error {
	a := inRed(s.node)
	return r.shell(ctx, s.node, "ip addr replace "+a[0]+"/24 dev eth2", "ip addr replace "+a[1]+"/64 dev eth2 nodad")
}
