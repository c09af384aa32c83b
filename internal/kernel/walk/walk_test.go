package walk

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// plannedTable is a table as planned, without a kernel.
type plannedTable struct {
	chains   map[string][][]expression
	elements map[string]map[string]found
	ranges   map[string][]netip.Prefix
	local    []netip.Addr
}

func planned(t *testing.T, d plan.DataPlane) *plannedTable {
	t.Helper()
	p := &plannedTable{chains: map[string][][]expression{}, elements: map[string]map[string]found{}, ranges: map[string][]netip.Prefix{}}
	for _, c := range ruleset.Chains(d) {
		for _, r := range c.Rules {
			var rule []expression
			for _, e := range r {
				b, err := expr.Marshal(unix.NFPROTO_INET, e)
				require.NoError(t, err)
				rule = append(rule, expression{text(attribute(b, unix.NFTA_EXPR_NAME)), attribute(b, unix.NFTA_EXPR_DATA)})
			}
			p.chains[c.Name] = append(p.chains[c.Name], rule)
		}
		if c.OwnOf == 0 {
			continue
		}
		own, err := ruleset.OwnSourceRules(d.Marks, c.OwnOf)
		require.NoError(t, err)
		for _, m := range own {
			p.chains[c.Name] = append(p.chains[c.Name], decodeExpressions(attribute(m.Data[nl.NfgenmsgLen:], unix.NFTA_RULE_EXPRESSIONS)))
		}
	}
	put := func(set string, key []byte, f found) {
		if p.elements[set] == nil {
			p.elements[set] = map[string]found{}
		}
		p.elements[set][string(key)] = f
	}
	for _, s := range ruleset.Sets(d) {
		for _, e := range s.Elements {
			if !s.Interval {
				put(s.Name, e.Key, found{verdict: e.VerdictData})
			}
		}
	}
	ruleset.EachElement(&d, func(all []ruleset.Element) {
		for i := range all {
			e := &all[i]
			name := e.Name().String()
			key := e.Key.AsSlice()
			switch e.Set {
			case ruleset.InEgress, ruleset.InStrays:
				put(name, key, found{value: ruleset.PathValue(e.Path)})
			case ruleset.InSource:
				put(name, key, found{value: e.With.AsSlice()})
			case ruleset.InSources:
				put(name, append(key, e.With.AsSlice()...), found{})
			default:
				put(name, key, found{})
			}
		}
	})
	for _, f := range ruleset.Families {
		p.ranges[ruleset.SetCluster+f.Suffix], p.ranges[ruleset.SetPods+f.Suffix], p.ranges[ruleset.SetGuests+f.Suffix] = d.Cluster, d.Pods, d.Guests
	}
	return p
}

func (p *plannedTable) rules(chain string) [][]expression { return p.chains[chain] }

func (p *plannedTable) keyLength(set string) (int, error) {
	length := 4
	if bytes.HasSuffix([]byte(set), []byte("6")) || bytes.Contains([]byte(set), []byte("6-")) {
		length = 16
	}
	switch setKind(set) {
	case ruleset.SetUplinks, ruleset.SetDevices:
		return unix.IFNAMSIZ, nil
	case ruleset.SetReplies, ruleset.SetGuards, ruleset.SetGoing, ruleset.SetPaths:
		return 4, nil
	case ruleset.SetSources:
		return 2 * length, nil
	}
	return length, nil
}

func (p *plannedTable) element(set string, key []byte) (*found, error) {
	if ranges, ok := p.ranges[set]; ok {
		a, _ := netip.AddrFromSlice(key)
		for _, r := range ranges {
			if r.Contains(a) {
				return &found{span: r.String()}, nil
			}
		}
		return nil, nil
	}
	if f, ok := p.elements[set][string(key)]; ok {
		return &f, nil
	}
	return nil, nil
}

func (p *plannedTable) addressType(netip.Addr) (uint32, error) { return unix.RTN_UNICAST, nil }
func (p *plannedTable) ownAddress(a netip.Addr, _ string) bool {
	return slices.Contains(p.local, a)
}

func walkDataPlane() plan.DataPlane {
	d := stories.DataPlane()
	d.Guests = []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}
	d.Between = []string{"eth1"}
	d.Ingress = sorted.Of(
		plan.IngressIP{Addr: netip.MustParseAddr("203.0.113.10"), Path: 2, Stray: 3}, plan.IngressIP{Addr: netip.MustParseAddr("203.0.113.11"), Path: 2},
		plan.IngressIP{Addr: netip.MustParseAddr("2001:db8:203::10"), Path: 2},
	)
	return d
}

// meeting is a packet with the expected effect of our chains.
type meeting struct {
	name   string
	packet Packet
	chain  string
	out    string
	source string // after NAT, for the guard

	dropped bool
	decided string
	mark    uint32
	ctMark  uint32
	nat     string
}

func meetings() []meeting {
	a := netip.MustParseAddr
	tcp := func(from, to, in string, c Connection) Packet {
		return Packet{From: a(from), To: a(to), Proto: unix.IPPROTO_TCP, Port: 80, In: in, Connection: c}
	}
	const pod, other, masked, lost, none = "10.244.1.11", "10.244.1.12", "10.244.1.13", "10.244.1.14", "10.244.1.99"
	const outside, inside = "198.51.100.10", "10.244.2.7"
	return []meeting{
		{name: "selected", packet: tcp(pod, outside, "cni0", Connection{}), chain: "prerouting", decided: "path-2", mark: 0x2200, ctMark: 0x2200},
		{name: "selected IPv6", packet: tcp("fd44:1::11", "2001:db8::1", "cni0", Connection{}), chain: "prerouting", decided: "path-2", mark: 0x2200, ctMark: 0x2200},
		{name: "steered", packet: tcp(other, outside, "cni0", Connection{}), chain: "prerouting", decided: "path-3", mark: 0x2300, ctMark: 0x2300},
		{name: "other bits of marks stay", packet: func() Packet {
			p := tcp(pod, outside, "cni0", Connection{Mark: 0x10000001})
			p.Mark = 0xff0000ff
			return p
		}(), chain: "prerouting", decided: "path-2", mark: 0xff0022ff, ctMark: 0x10002201},
		{name: "exempt", packet: tcp(pod, inside, "cni0", Connection{}), chain: "prerouting", decided: "exempt"},
		{name: "without a path", packet: tcp(lost, outside, "cni0", Connection{}), chain: "prerouting", dropped: true, decided: "no-path"},
		{name: "without a path, exempt", packet: tcp(lost, inside, "cni0", Connection{}), chain: "prerouting", decided: "exempt"},
		{name: "not selected", packet: tcp(none, outside, "cni0", Connection{}), chain: "prerouting"},
		{name: "flow that goes on", packet: tcp(pod, outside, "cni0", Connection{Known: true, Mark: 0x2200}), chain: "prerouting", decided: "going-2", mark: 0x2200, ctMark: 0x2200},
		{name: "flow of another path", packet: tcp(pod, outside, "cni0", Connection{Known: true, Mark: 0x2300}), chain: "prerouting", decided: "going-3", mark: 0x2300, ctMark: 0x2300},
		{name: "flow of a path that is gone", packet: tcp(pod, outside, "cni0", Connection{Known: true, Mark: 0x2500}), chain: "prerouting", dropped: true, decided: "path-2", ctMark: 0x2500},
		{name: "flow from before the selection", packet: tcp(pod, outside, "cni0", Connection{Known: true}), chain: "prerouting", dropped: true, decided: "path-2"},
		{name: "guest", packet: tcp("10.244.2.9", outside, "eth1", Connection{}), chain: "prerouting", dropped: true, decided: ruleset.ChainBetween},
		{name: "comes in, taken by a Service", packet: tcp(outside, "10.244.1.11", "eth2", Connection{DNAT: true}), chain: "prerouting", decided: "from-2", mark: 0x1f00, ctMark: 0x0200},
		{name: "stray", packet: tcp(outside, "203.0.113.10", "vrf-red", Connection{}), chain: "prerouting", decided: "stray-3", mark: 0x2300, ctMark: 0x0300},
		{name: "no stray", packet: tcp(outside, "203.0.113.11", "vrf-red", Connection{}), chain: "prerouting", decided: "from-2", mark: 0x1f00, ctMark: 0x0200},
		{name: "straight to a pod", packet: tcp(outside, pod, "eth2", Connection{}), chain: "prerouting", dropped: true, decided: "from-2"},
		{name: "answer to an egress flow", packet: tcp(outside, pod, "eth2", Connection{Known: true, Reply: true, Mark: 0x2200}), chain: "prerouting", decided: "from-2", mark: 0x1f00, ctMark: 0x2200},
		{name: "reply", packet: tcp(none, outside, "cni0", Connection{Known: true, Reply: true, Mark: 0x0200}), chain: "prerouting", decided: "reply-2", mark: 0x2200, ctMark: 0x0200},
		{name: "unclaimed", packet: tcp(outside, "203.0.113.10", "eth2", Connection{}), chain: "nat", out: "eth1", dropped: true, decided: "unclaimed"},
		{name: "unclaimed, the node's own", packet: tcp(outside, "203.0.113.10", "", Connection{}), chain: "nat", out: "eth1"},
		{name: "a stray goes on", packet: func() Packet {
			p := tcp(outside, "203.0.113.10", "eth2", Connection{Mark: 0x0300})
			p.Mark = 0x2300
			return p
		}(), chain: "nat", out: "egressway", decided: "unclaimed", ctMark: 0x0300},
		{name: "SNAT", packet: tcp(pod, outside, "cni0", Connection{Mark: 0x2200}), chain: "nat", decided: "snat", ctMark: 0x2200, nat: "203.0.113.10"},
		{name: "identity SNAT", packet: tcp(other, outside, "cni0", Connection{Mark: 0x2300}), chain: "nat", decided: "snat", ctMark: 0x2300, nat: other},
		{name: "masquerade", packet: tcp(masked, outside, "cni0", Connection{Mark: 0x2200}), chain: "nat", decided: "snat", ctMark: 0x2200, nat: "device"},
		{name: "no SNAT", packet: tcp(none, outside, "cni0", Connection{}), chain: "nat"},
		{name: "leaves", packet: tcp(pod, outside, "cni0", Connection{Mark: 0x2200}), chain: "guard", out: "eth2", source: "203.0.113.10", decided: "own-source-2", ctMark: 0x2200},
		{name: "leaves by the path of another pod", packet: tcp(other, outside, "cni0", Connection{Known: true, Mark: 0x2200}), chain: "guard", out: "eth2", source: other, dropped: true, decided: "guard-2", ctMark: 0x2200},
		{name: "leaves by its former path, with a source that both have", packet: tcp(pod, outside, "cni0", Connection{Known: true, Mark: 0x2100}), chain: "guard", out: "eth1", source: "203.0.113.10", dropped: true, decided: "guard-1", ctMark: 0x2100},
		{name: "leaves with the device's address by its former path", packet: tcp(masked, outside, "cni0", Connection{Known: true, Mark: 0x2100}), chain: "guard", out: "eth1", source: "10.1.0.11", dropped: true, decided: "guard-1", ctMark: 0x2100},
		{name: "leaves by another device", packet: tcp(pod, outside, "cni0", Connection{Mark: 0x2200}), chain: "guard", out: "eth1", source: "203.0.113.10", dropped: true, decided: "guard-2", ctMark: 0x2200},
		{name: "leaves with another source", packet: tcp(pod, outside, "cni0", Connection{Mark: 0x2200}), chain: "guard", out: "eth2", source: pod, dropped: true, decided: "guard-2", ctMark: 0x2200},
		{name: "leaves with the device's address", packet: tcp(masked, outside, "cni0", Connection{Mark: 0x2200}), chain: "guard", out: "eth2", source: "10.1.0.11", decided: "own-source-2", ctMark: 0x2200},
		{name: "a pod's address by an uplink", packet: tcp(none, outside, "cni0", Connection{}), chain: "guard", out: "eth2", source: none, dropped: true, decided: "outwards"},
		{name: "reply leaves", packet: tcp(none, outside, "cni0", Connection{Known: true, Reply: true, Mark: 0x0200}), chain: "guard", out: "vrf-red", source: "203.0.113.10", decided: "guard-reply-2", ctMark: 0x0200},
	}
}

func (m meeting) fly() *flyer {
	f := &flyer{Packet: m.packet, out: m.out, nextHop: m.packet.To}
	if m.source != "" {
		f.Connection.Source, f.From = f.From, netip.MustParseAddr(m.source)
	}
	return f
}

func (m meeting) check(t *testing.T, p *Passage) {
	t.Helper()
	require.Equal(t, m.dropped, p.Dropped, "dropped by rule %d of %s", p.Rule, p.Decided)
	require.Equal(t, m.decided, p.Decided)
	require.Equal(t, fmt.Sprintf("%#x", m.ctMark), fmt.Sprintf("%#x", p.ConnectionMark))
	if !p.Dropped && m.chain == "prerouting" {
		require.Equal(t, fmt.Sprintf("%#x", m.mark), fmt.Sprintf("%#x", p.Mark))
	}
	require.Equal(t, m.nat == "device", p.Masquerade)
	if m.nat != "" && m.nat != "device" {
		require.Equal(t, m.nat, p.Source.String())
	}
	require.Empty(t, p.Unknown)
}

// TestWalkOfPlannedRules applies the planned rules without a kernel.
func TestWalkOfPlannedRules(t *testing.T) {
	table := planned(t, walkDataPlane())
	table.local = []netip.Addr{netip.MustParseAddr("10.1.0.11")}
	for _, m := range meetings() {
		t.Run(m.name, func(t *testing.T) {
			p, err := cross(table, m.fly(), m.chain)
			require.NoError(t, err)
			m.check(t, p)
		})
	}
}

// TestWalkOfLiveRules applies the same rules as the kernel lists them.
func TestWalkOfLiveRules(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth2", "10.1.0.11/24")
	netns.Uplink(t, "eth1", "10.0.0.11/24")
	netns.IP(t, "route add default via 10.0.0.1")
	d := walkDataPlane()
	var n nft.Table
	_, err := n.Apply(t.Context(), nft.Held{}, &d, false)
	require.NoError(t, err)
	t.Cleanup(n.Close)

	live := func() *Live {
		t.Helper()
		l, err := ReadLive(context.Background())
		require.NoError(t, err)
		t.Cleanup(l.Close)
		return l
	}
	l := live()
	require.True(t, l.Table)
	require.NotZero(t, l.Owner)
	require.Len(t, l.Paths, 3)
	require.Equal(t, LivePath{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Devices: []string{"eth2", "vrf-red"}}, l.Paths[1])
	require.Equal(t, []Uplink{{"eth1", 0}, {"eth2", 2}, {"vrf-red", 2}}, l.Uplinks)
	for _, m := range meetings() {
		if m.packet.From.Is6() {
			continue // without an IPv6 route, fib would report that the destination is not unicast
		}
		t.Run(m.name, func(t *testing.T) {
			p, err := cross(l.kernel, m.fly(), m.chain)
			require.NoError(t, err)
			m.check(t, p)
		})
	}
	found, err := l.Lookup(ruleset.SetCluster, netip.MustParseAddr("10.244.200.1"))
	require.NoError(t, err)
	require.Equal(t, Lookup{Set: "cluster4", Key: "10.244.200.1", Found: true, Value: "10.244.0.0/16"}, found)
	found, err = l.Lookup(ruleset.SetPods, netip.MustParseAddr("10.244.1.1"))
	require.NoError(t, err)
	require.Equal(t, "10.244.1.0/24", found.Value)
	for kind, filled := range map[string]bool{ruleset.SetPods: true, ruleset.SetHanded: false} {
		has, err := l.Filled(kind, netip.MustParseAddr("9.9.9.9"))
		require.NoError(t, err)
		require.Equal(t, filled, has, kind)
	}
	found, err = l.Lookup(ruleset.SetCluster, netip.MustParseAddr("9.9.9.9"))
	require.NoError(t, err)
	require.False(t, found.Found)

	other := d
	other.Marks.Mask = 0x7f0000
	_, err = n.Apply(t.Context(), nft.Held{}, &other, false)
	require.NoError(t, err)
	require.Equal(t, uint32(0x7f0000), live().Marks.Mask, "known without routing rules too")
	_, err = n.Apply(t.Context(), nft.Held{}, &d, false)
	require.NoError(t, err)
	require.Contains(t, l.Damage, "the IPv4 rule for mark 0x2100/0x2100 (egress without a route: unreachable) is missing")
	require.Contains(t, l.Damage, "the IPv4 rule for mark 0x3000/0x3000 (egress without a route: unreachable) is missing")
	require.NoError(t, addSomeRules(t, d))
	require.Empty(t, live().Damage)

	// Another program changes the table once it has no owner.
	n.Close()
	for _, damage := range []struct{ command, says string }{
		{"flush chain inet egressway ours", "chain ours of table inet egressway has no rules"},
		{"flush chain inet egressway own-source-2", "chain own-source-2 of table inet egressway has no rules"},
		{"delete chain inet egressway guard", "chain guard of table inet egressway is missing"},
	} {
		out, err := exec.Command("nft", damage.command).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, live().Damage, damage.says)
	}
	out, err := exec.Command("nft", "delete table inet egressway").CombinedOutput()
	require.NoError(t, err, string(out))
	l = live()
	require.False(t, l.Table)
	require.Equal(t, []string{"nftables table inet egressway is missing although our routing rules exist"}, l.Damage)
}

// addSomeRules adds the rules of a plan.
func addSomeRules(t *testing.T, d plan.DataPlane) error {
	t.Helper()
	m := d.Marks
	var own route.Socket // each call opens its own socket
	rules := []plan.Rule{
		{Priority: 700, Mark: m.Cluster(), Mask: m.Mask, Table: link.MainTable},
		{Priority: 701, Mark: m.Egress(2), Mask: m.Mask, Table: 1001},
		{Priority: 798, Mark: m.Cluster(), Mask: m.Mask, Unreachable: true},
	}
	for _, mark := range m.Floors() {
		rules = append(rules, plan.Rule{Priority: 799, Mark: mark, Mask: mark, Unreachable: true})
	}
	return own.AddRules(t.Context(), rules)
}

// TestMasqueradeAs looks for the address of a masquerade on the outgoing device and on others.
func TestMasqueradeAs(t *testing.T) {
	device := func(name string, index int, master string, addrs ...string) plan.Link {
		l := plan.Link{Name: name, Index: index, Master: master}
		for _, a := range addrs {
			l.Addrs = append(l.Addrs, netip.MustParsePrefix(a))
		}
		return l
	}
	lo, vrf := device("lo", 1, "", "127.0.0.1/8", "10.255.0.11/32"), device("vrf-red", 9, "", "10.1.0.99/32")
	vrf.VRFTable = 1001
	a := netip.MustParseAddr
	for name, c := range map[string]struct {
		links []plan.Link
		want  netip.Addr
	}{
		"towards the next hop":    {[]plan.Link{lo, device("eth2", 5, "", "fd01::11/64", "10.2.0.11/24", "10.1.0.11/24")}, a("10.1.0.11")},
		"another of the device":   {[]plan.Link{lo, device("eth2", 5, "", "10.2.0.11/24")}, a("10.2.0.11")},
		"the loopback device's":   {[]plan.Link{device("eth1", 4, "", "10.0.0.11/24"), device("eth2", 5, "", "fe80::11/64"), lo}, a("10.255.0.11")},
		"another device's":        {[]plan.Link{device("eth1", 4, "", "10.0.0.11/24"), device("eth2", 5, ""), device("lo", 1, "", "127.0.0.1/8")}, a("10.0.0.11")},
		"the VRF device's":        {[]plan.Link{lo, device("eth2", 5, "vrf-red"), device("eth3", 6, "vrf-red", "10.3.0.11/24"), vrf}, a("10.1.0.99")},
		"none outside of the VRF": {[]plan.Link{lo, device("eth2", 5, "vrf-blue"), {Name: "vrf-blue", VRFTable: 1002}, vrf}, netip.Addr{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &Live{Links: c.links}
			require.Equal(t, c.want, l.masqueradeAs(&Route{Device: "eth2", Gateway: a("10.1.0.1")}, a("198.51.100.10")))
		})
	}
}

// TestLiveRoute asks the kernel for routes, on a node with a VRF.
func TestLiveRoute(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "cni0", "10.244.1.1/24")
	netns.Uplink(t, "eth1", "10.0.0.11/24")
	netns.IP(t, "link add vrf-red type vrf table 1001", "link set vrf-red up")
	netns.Uplink(t, "eth2", "10.1.0.11/24")
	netns.IP(t, "link set eth2 master vrf-red", "route add default via 10.0.0.1", "route add 198.51.100.0/24 via 10.1.0.1 table 1001 proto 142")
	netns.IP(t, "rule add pref 701 fwmark 0x2200/0x3f00 lookup 1001 protocol 142", "rule add pref 799 fwmark 0x2200/0x2200 unreachable protocol 142")
	exec.Command("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward").Run() //nolint:errcheck // the routes below fail without it
	l, err := ReadLive(t.Context())
	require.NoError(t, err)
	defer l.Close()
	a := netip.MustParseAddr
	packet := Packet{From: a("10.244.1.11"), To: a("198.51.100.10"), Proto: unix.IPPROTO_TCP, Port: 80, In: "cni0"}

	r, err := l.Route(packet)
	require.NoError(t, err)
	require.Equal(t, &Route{Table: 254, Prefix: netip.MustParsePrefix("0.0.0.0/0"), Gateway: a("10.0.0.1"), Device: "eth1", Protocol: unix.RTPROT_BOOT, Legs: 1}, r)

	packet.Mark = 0x2200
	r, err = l.Route(packet)
	require.NoError(t, err)
	require.Equal(t, &Route{Table: 1001, Prefix: netip.MustParsePrefix("198.51.100.0/24"), Gateway: a("10.1.0.1"), Device: "eth2", Protocol: route.Protocol, Legs: 1}, r)
	require.True(t, r.Ours())
	require.Equal(t, "vrf-red", l.VRF(1001))

	packet.To = a("203.0.113.1")
	r, err = l.Route(packet)
	require.NoError(t, err)
	require.Error(t, r.Err)
	require.Len(t, l.RulesFor(0x2200, false), 2)

	packet.To, packet.Mark = a("10.1.0.11"), 0
	r, err = l.Route(packet)
	require.NoError(t, err)
	require.Equal(t, "eth1", r.Device, "the VRF's own addresses are not the main table's")
	packet.To = a("10.0.0.11")
	r, err = l.Route(packet)
	require.NoError(t, err)
	require.True(t, r.Local)
}
