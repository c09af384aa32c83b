package conntrack

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// TestConnectionsThatAPolicyDenies compares connections with a policy that allows one port of one network, and denies all others.
func TestConnectionsThatAPolicyDenies(t *testing.T) {
	d := stories.DataPlane()
	before := d
	d.Inside = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	d.Policies = []firewall.Policy{{ID: 7, Stretches: []firewall.Stretch{{
		Ranges: []firewall.Range{
			{First: addr("0.0.0.0"), Last: addr("198.51.99.255"), Outcome: firewall.Deny},
			{First: addr("198.51.100.0"), Last: addr("198.51.100.255"), Outcome: firewall.FirstPorts},
			{First: addr("198.51.101.0"), Last: addr("255.255.255.255"), Outcome: firewall.Deny},
		},
		Ports: []firewall.Ports{{Allow: []cluster.FirewallPort{{Protocol: unix.IPPROTO_TCP, Number: 443}}, Otherwise: firewall.Deny}},
	}}}}
	d.Firewalled = sorted.Of(firewall.Firewalled{Addr: addr("10.244.1.11"), Policy: 7})
	check := newFlowCheck(d)
	for _, c := range []struct {
		what, source, target string
		protocol             uint8
		port                 uint16
		denied               bool
	}{
		{"the allowed port", "10.244.1.11", "198.51.100.10", unix.IPPROTO_TCP, 443, false},
		{"another port", "10.244.1.11", "198.51.100.10", unix.IPPROTO_TCP, 80, true},
		{"another protocol", "10.244.1.11", "198.51.100.10", unix.IPPROTO_UDP, 443, true},
		{"a protocol without ports", "10.244.1.11", "198.51.100.10", unix.IPPROTO_ICMP, 0, true},
		{"another destination", "10.244.1.11", "203.0.113.9", unix.IPPROTO_TCP, 443, true},
		{"in the cluster", "10.244.1.11", "10.244.2.5", unix.IPPROTO_TCP, 80, false},
		{"of a pod without a policy", "10.244.1.12", "203.0.113.9", unix.IPPROTO_TCP, 80, false},
		{"from outside", "203.0.113.9", "10.244.1.11", unix.IPPROTO_TCP, 80, false},
	} {
		of := Connection{source: addr(c.source), Target: addr(c.target), port: cluster.FirewallPort{Protocol: c.protocol, Number: c.port}}
		require.Equal(t, c.denied, check.denies(of), c.what)
		of.zoned = true
		require.False(t, check.denies(of), c.what)
	}

	named := d
	named.Policies = []firewall.Policy{{ID: 7, Stretches: []firewall.Stretch{{Names: []string{"example.com"}, Named: firewall.Allow}, d.Policies[0].Stretches[0]}}}
	of := Connection{source: addr("10.244.1.11"), Target: addr("203.0.113.9")}
	check = newFlowCheck(named)
	require.False(t, check.denies(of), "a name may have had the address")
	check.doubt.put(of.source, false)
	require.False(t, check.denies(of), "its host is another")
	check.doubt.put(of.source, true)
	require.True(t, check.denies(of), "its policy is another")

	pod := map[netip.Addr]bool{addr("10.244.1.11"): true}
	require.Equal(t, doubt{endpoints: pod}, doubtOf(&before, &d), "it has a policy now")
	again := d
	require.True(t, new(doubtOf(&d, &again)).none())
	may := map[netip.Addr]bool{addr("10.244.1.11"): false}
	require.Equal(t, doubt{endpoints: may}, doubtOf(&d, &before), "without a policy, all is allowed: what was barred may begin again")

	barred := Connection{source: addr("10.244.1.11"), Target: addr("203.0.113.9"), mark: d.Marks.Cluster()}
	require.True(t, newFlowCheck(d).contradicts(barred), "the policy allows it now")
	require.True(t, newFlowCheck(before).contradicts(barred), "there is no policy")
	notYet := d
	notYet.Policies = nil
	require.False(t, newFlowCheck(notYet).contradicts(barred), "see EndKept")
	again.Inside = nil
	require.True(t, doubtOf(&d, &again).all, "destinations are not spared any more")
	again = d
	again.Policies = []firewall.Policy{{ID: 7, Stretches: []firewall.Stretch{{Ranges: d.Policies[0].Stretches[0].Ranges[:1]}}}}
	require.Equal(t, doubt{all: true, endpoints: pod}, doubtOf(&d, &again), "the number means another policy")

	// A change of a policy beside one that puts all in doubt is no less strict.
	again = d
	again.Cluster = nil
	before.Cluster = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	other := addr("10.244.1.12")
	var a Audit
	a.doubt.put(other, false)
	a.Applied(&before, &again)
	require.Equal(t, doubt{all: true, endpoints: pod}, a.doubt)
	a.Reset()
	require.Equal(t, doubt{all: true, endpoints: pod}, a.doubt)
}

// TestNamesThatCannotBeRead ends no connection by a set of names that cannot be read, and ends it by the same doubt once it can. A barred
// connection stays barred.
func TestNamesThatCannotBeRead(t *testing.T) {
	netns.Enter(t)
	var audit Audit
	t.Cleanup(audit.Close)
	d := stories.DataPlane()
	before := d
	e := d.Endpoints.Slice()[0]
	d.Policies = []firewall.Policy{{ID: 7, Stretches: []firewall.Stretch{{Names: []string{"example.com"}, Named: firewall.Deny}}}}
	d.Firewalled = sorted.Of(firewall.Firewalled{Addr: e.Addr, Policy: 7})
	r, err := InjectFlows(Injection{Marks: d.Marks}, []Flow{{
		Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(e.Addr, 1000), Dst: netip.MustParseAddrPort("198.51.100.10:443"),
		SNAT: netip.AddrPortFrom(e.Source, 1000), Path: e.Path, State: TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
	}})
	require.NoError(t, err)
	require.Equal(t, 1, r.Created)
	unread := errors.New("unread")
	reads := func(holds bool, err error) func() firewall.Reads {
		return func() firewall.Reads {
			return func(firewall.PolicyID, int, netip.Addr) (bool, error) { return holds, err }
		}
	}
	audit.whole = time.Now()
	require.True(t, audit.Applied(&before, &d))
	for range 2 {
		ended, err := audit.End(t.Context(), d, reads(true, unread), time.Now)
		require.ErrorIs(t, err, unread)
		require.Zero(t, ended)
	}
	ended, err := audit.End(t.Context(), d, reads(true, nil), time.Now)
	require.NoError(t, err)
	require.EqualValues(t, 1, ended, "the doubt has stayed")

	check := newFlowCheck(d)
	check.holds = reads(true, unread)()
	barred := Connection{source: e.Addr, Target: addr("198.51.100.10"), mark: d.Marks.Cluster()}
	require.False(t, check.denies(barred))
	require.False(t, check.contradicts(barred), "it would begin again")
	check.holds = reads(false, nil)()
	require.False(t, check.denies(barred))
	require.True(t, check.contradicts(barred), "the policy allows it now")
}
