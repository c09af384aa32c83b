package main

import (
	"fmt"
	"strings"
)

// repeated is how often a part stands in its chain, so that it shows.
const repeated = 8

// parts are layouts of one thing each that rules are made of, which no packet matches.
func parts(own layout) (all []entry) {
	chain := func(hook, what string) func(layout) error {
		return func(layout) error {
			sets := `
	set pods { type ipv4_addr; elements = { ` + many("10.70.%d.%d") + ` } }
	map podmap { type ipv4_addr : verdict; elements = { ` + many("10.70.%d.%d : drop") + ` } }
	map devmap { type ifname : verdict; elements = { "eth7" : drop, "eth8" : drop } }
	map indexmap { type iface_index : verdict; elements = { 7777 : drop, 7778 : drop } }
	map marks { type mark : verdict; elements = { 0x2100 : drop, 0x2200 : drop, 0x2300 : drop } }
	map sizedmarks { type mark : verdict; size 64; elements = { 0x2100 : drop, 0x2200 : drop, 0x2300 : drop } }
	set ranges { type ipv4_addr; flags interval; elements = { 10.70.0.0/16, 10.80.0.0/14, 224.0.0.0/4 } }
	chain other { }
`
			return rules(tracked + "table inet parts {\n" + sets + "chain c {\n" + hook + "\n" + strings.Repeat(what+"\n", repeated) +
				"}\n}\n")
		}
	}
	const forward = "type filter hook forward priority 0; policy accept;"
	add := func(name string, setup func(layout) error) {
		l := own
		l.setup, l.endpoints = setup, 1000
		all = append(all, entry{name, l})
	}
	add("forwarding", plain)
	add("an empty chain", chain(forward, ""))
	add("an empty chain of nat before and after routing", func(layout) error {
		return rules(tracked + "table inet parts {\nchain a { type nat hook prerouting priority 0; }\n" +
			"chain b { type nat hook postrouting priority 0; }\n}\n")
	})
	for _, part := range []string{
		"meta nfproto ipv6 drop",
		"iifname vmap @devmap", "iif vmap @indexmap", `iifname "eth7" drop`,
		"ip saddr vmap @podmap", "ip saddr @pods drop", "ip saddr @ranges drop", "ip6 saddr ::1 drop",
		"ct mark & 0x3f00 vmap @marks", "ct mark & 0x3f00 vmap @sizedmarks", "ct mark & 0x3f00 == 0x2100 drop",
		"ct direction reply continue",
		"ct state new continue", "ct state invalid drop", "ct status dnat continue",
		"meta mark & 0x2000 != 0 drop", "jump other", "fib daddr type broadcast drop", "meta mark set meta mark & 0xffffc0ff",
		"ct mark vmap { 0x2100 : drop, 0x2200 : drop, 0x2300 : drop }",
	} {
		add(part, chain(forward, part))
	}
	for _, n := range []int{1, 5, 9} {
		add(fmt.Sprint(n, " routing rules"), func(layout) error {
			var b strings.Builder
			for i := range n {
				_, _ = fmt.Fprintf(&b, "rule add fwmark %#x/0x3f00 priority %d table 1001\n", 0x2100+i<<8, 700+i)
			}
			if err := script(b.String()); err != nil {
				return err
			}
			return plain(own)
		})
	}
	return all
}

// many is 10,000 elements.
func many(format string) string {
	all := make([]string, 10_000)
	for i := range all {
		all[i] = fmt.Sprintf(format, i>>8, i&255)
	}
	return strings.Join(all, ", ")
}
