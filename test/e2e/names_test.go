package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// namesManifest allows names alone. big.example has more addresses than a segment of TCP holds.
const namesManifest = `apiVersion: k8s.ovn.org/v1
kind: EgressFirewall
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {type: Allow, to: {dnsName: www.example.com}}
  - {type: Allow, to: {dnsName: BIG.example.}}
  - {type: Allow, to: {dnsName: "*.shop.example"}}
  - {type: Allow, to: {dnsName: "*.tcp.example"}, ports: [{protocol: TCP, port: 8080}]}
  - {type: Deny, to: {cidrSelector: 0.0.0.0/0}}
  - {type: Deny, to: {cidrSelector: "::/0"}}
`

// at returns an address that ext-default answers, by its number.
func at(typ dnsmessage.Type, number int) netip.Addr {
	if typ == dnsmessage.TypeA {
		return netip.AddrFrom4([4]byte{198, 18, byte(number >> 8), byte(number)})
	}
	a := netip.MustParseAddr("2001:db8:77::").As16()
	a[14], a[15] = byte(number>>8), byte(number)
	return netip.AddrFrom16(a)
}

// Numbers of addresses.
const (
	ofWWW = 0xf000 + iota
	ofOther
	ofDeep
	ofForged
	ofNone
	ofBig = 0xe000
)

// exampleZone has all names of the tests. n17.shop.example has the address with number 17.
func exampleZone(name string, typ dnsmessage.Type) ([]lab.Record, bool) {
	one := func(ttl uint32, number int) ([]lab.Record, bool) {
		return []lab.Record{{Name: name, TTL: ttl, Addr: at(typ, number)}}, true
	}
	var n int
	switch first, rest, _ := strings.Cut(name, "."); {
	case typ != dnsmessage.TypeA && typ != dnsmessage.TypeAAAA:
		return nil, true
	case name == "www.example.com":
		return one(30, ofWWW)
	case name == "other.example.com":
		return one(300, ofOther)
	case name == "a.b.shop.example":
		return one(300, ofDeep)
	case name == "inside.shop.example":
		inside := map[dnsmessage.Type]string{dnsmessage.TypeA: "10.0.0.11", dnsmessage.TypeAAAA: "fd00::11"}
		return []lab.Record{{Name: name, TTL: 300, Addr: netip.MustParseAddr(inside[typ])}}, true
	case name == "big.example":
		var all []lab.Record
		for i := range 450 {
			all = append(all, lab.Record{Name: name, TTL: 300, Addr: at(typ, ofBig+i)})
		}
		return all, true
	case strings.HasPrefix(first, "c") && scanned(first[1:], &n): // by other names
		return []lab.Record{
			{Name: "end.cdn.example", TTL: 0, Addr: at(typ, n)},
			{Name: "way.cdn.example", TTL: 5, Alias: "end.cdn.example"},
			{Name: name, TTL: 300, Alias: "way.cdn.example"},
		}, true
	case strings.HasPrefix(first, "n") && strings.HasSuffix(rest, "example") && scanned(first[1:], &n):
		return one(0, n)
	}
	return nil, false
}

func scanned(text string, n *int) bool {
	_, err := fmt.Sscan(text, n)
	return err == nil
}

// namesStage has pod c-p1 under namesManifest, the resolver in its pod, and many addresses outside.
func namesStage(t *testing.T) (*stage.Stage, *lab.Resolver) {
	t.Helper()
	pods := podManifests()
	for _, pod := range []string{"a-p2", "b-p2"} {
		pods = strings.Replace(pods, "shop, name: "+pod, "open, name: "+pod, 1)
	}
	s := play(t, stage.Options{
		Nodes: stage.Nodes, Config: func(c string) string { return c + "steering: {mode: vxlan}\n" },
		Exec: map[string][]string{
			"gw":          {"ip route add 198.18.0.0/16 via 172.31.30.2", "ip route add 2001:db8:77::/64 via fd31:30::2"},
			"ext-default": {"ip route add local 198.18.0.0/16 dev lo", "ip route add local 2001:db8:77::/64 dev lo"},
		},
		Manifests: map[string]string{
			"cluster.yaml": manifest(t, "cluster.yaml"), "pods.yaml": pods, "dns.yaml": stage.ResolverManifest, "firewall.yaml": namesManifest,
		},
	})
	r, err := s.Lab.Resolve(s.Node(stage.ResolverPod), exampleZone)
	require.NoError(t, err)
	return s, r
}

// freshAt returns the address of the fresh name with a number.
func freshAt(n int) netip.Addr { return at(freshType(n), n) }

func freshType(n int) dnsmessage.Type {
	return []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}[n/8%2]
}

// nameCheck is a pod that asks for names and connects to their addresses.
type nameCheck struct {
	*stage.Stage
	pod    string
	number atomic.Int64 // of fresh names
}

// connect connects to an address.
func (c *nameCheck) connect(ctx context.Context, to netip.Addr) error {
	_, err := c.Node(c.pod).AskTCP(ctx, netip.AddrPortFrom(to, lab.ResponderPort))
	return err
}

// ask asks for a name, and again if the answer is lost, as the resolvers of pods do: the kernel drops all packets that wait in a queue when a
// chain of any program goes.
func (c *nameCheck) ask(ctx context.Context, server netip.AddrPort, name string, typ dnsmessage.Type, overTCP bool) (addrs []netip.Addr, err error) {
	lost := lab.Wait(ctx, patience, func() error {
		if addrs, err = c.Node(c.pod).Lookup(ctx, server, name, typ, overTCP); errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		return nil
	})
	return addrs, cmp.Or(lost, err)
}

// visit asks for a name, and connects to each address as soon as it has the answer: no packet may be lost.
func (c *nameCheck) visit(ctx context.Context, server netip.AddrPort, name string, typ dnsmessage.Type, overTCP bool) error {
	addrs, err := c.ask(ctx, server, name, typ, overTCP)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no address")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, a := range addrs[:min(len(addrs), 3)] {
		if err := c.connect(ctx, a); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// fresh visits names that nothing has asked for: several at once, by each family, by UDP and TCP, with and without aliases.
func (c *nameCheck) fresh(ctx context.Context, count int) error {
	var g errgroup.Group
	g.SetLimit(8)
	for range count {
		g.Go(func() error {
			n := int(c.number.Add(1))
			name := fmt.Sprintf("%s%d.%s.example", []string{"n", "c"}[n/2%2], n, []string{"shop", "tcp"}[n/4%2])
			return c.visit(ctx, stage.Resolvers[n%2], name, freshType(n), n/16%2 == 1)
		})
	}
	return g.Wait()
}

// denied waits until connections to addresses are denied.
func (c *nameCheck) denied(t *testing.T, what string, numbers ...int) {
	t.Helper()
	var all []question
	for _, n := range numbers {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			all = append(all, func(ctx context.Context) error { return c.connect(ctx, at(typ, n)) })
		}
	}
	awaitDenied(t, what, all...)
}

// replaceFile replaces a manifest. Unlike Stage.Write it leaves the service proxies alone: they make their chains again, and when a chain
// of any program goes, the kernel drops all packets that wait in queues (nf_queue_nf_hook_drop).
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".next", []byte(content), 0o600))
	require.NoError(t, os.Rename(path+".next", path))
}

// TestNames asks for names from a pod, and connects at once when the answer comes.
func TestNames(t *testing.T) {
	s, resolver := namesStage(t)
	ctx := t.Context()
	c := &nameCheck{Stage: s, pod: "c-p1"}
	asked := func(name string, server netip.AddrPort) {
		t.Helper()
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			_, err := c.ask(ctx, server, name, typ, false)
			require.NoError(t, err)
		}
	}
	c.denied(t, "the rules are in force", ofNone)
	t.Run("names that rules list need no question", func(t *testing.T) {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			for _, n := range []int{ofWWW, ofBig, ofBig + 449} {
				awaitAnswers(t, fmt.Sprint(typ, n), func(ctx context.Context) error { return c.connect(ctx, at(typ, n)) })
			}
		}
		require.NoError(t, c.visit(ctx, stage.Resolvers[0], "Big.Example", dnsmessage.TypeA, false))
		require.NoError(t, c.visit(ctx, stage.Resolvers[1], "www.example.com", dnsmessage.TypeAAAA, false))
	})

	t.Run("fresh names", func(t *testing.T) { require.NoError(t, c.fresh(ctx, 1000)) })

	t.Run("other names", func(t *testing.T) {
		for _, name := range []string{"other.example.com", "a.b.shop.example", "inside.shop.example"} {
			asked(name, stage.Resolvers[0])
		}
		require.NoError(t, c.fresh(ctx, 1))
		c.denied(t, "names of no rule, and of more labels", ofOther, ofDeep, ofNone)
		awaitDenied(t, "an address of the cluster", ping(s, c.pod, netip.MustParseAddr("10.0.0.11")))
		_, err := s.Node(c.pod).AskUDP(ctx, netip.AddrPortFrom(at(dnsmessage.TypeA, 4), lab.ResponderPort), 100)
		require.Error(t, err, "n4.tcp.example has TCP only")
	})

	t.Run("a server that is not trusted", func(t *testing.T) {
		_, err := s.Lab.Resolve(s.Node("a-p2"), func(name string, typ dnsmessage.Type) ([]lab.Record, bool) {
			return []lab.Record{{Name: name, TTL: 3600, Addr: at(typ, ofForged)}}, true
		})
		require.NoError(t, err)
		for _, f := range ipFamilies {
			for _, name := range []string{"www.example.com", "x.shop.example", "n1.tcp.example"} {
				asked(name, netip.AddrPortFrom(f.pod("a-p2"), 53))
			}
		}
		require.NoError(t, c.fresh(ctx, 1))
		c.denied(t, "its answers", ofForged)
	})

	t.Run("rules change meanwhile", func(t *testing.T) {
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				if err := c.fresh(ctx, 20); err != nil {
					ended <- err
					return
				}
			}
		}()
		const first = "  egress:\n"
		for i := range 20 {
			replaceFile(t, s.ManifestPath("firewall.yaml"), strings.Replace(namesManifest, first,
				fmt.Sprintf("%s  - {type: Allow, to: {cidrSelector: 192.0.2.%d/32}}\n", first, i), 1))
			require.NoError(t, c.fresh(ctx, 10))
		}
		close(stop)
		require.NoError(t, <-ended)
		last := int(c.number.Load())
		for n := range 40 {
			require.NoError(t, c.connect(ctx, freshAt(last-n)), "a name that no pod asks for again is still known")
		}
	})

	t.Run("the daemon dies", func(t *testing.T) {
		require.NoError(t, c.fresh(ctx, 16))
		last := int(c.number.Load())
		var work sync.WaitGroup
		stop := make(chan struct{})
		lost := make(chan error, 1)
		work.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := c.connect(ctx, freshAt(last-n%16)); err != nil {
					lost <- err
					return
				}
			}
		})
		s.Daemons["c"].Kill()
		before := resolver.Asked.Load()
		for n := range 20 {
			asked(fmt.Sprintf("n%d.shop.example", 0xd000+n), stage.Resolvers[n%2])
		}
		require.GreaterOrEqual(t, resolver.Asked.Load()-before, int64(40), "answers pass")
		c.denied(t, "new names", 0xd000, 0xd001)
		require.NoError(t, s.StartDaemon("c"))
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			n := int(c.number.Add(1))
			return c.visit(ctx, stage.Resolvers[0], fmt.Sprintf("n%d.shop.example", n), dnsmessage.TypeA, false)
		}), "the next daemon reads answers")
		require.NoError(t, c.fresh(ctx, 100))
		close(stop)
		work.Wait()
		select {
		case err := <-lost:
			require.NoError(t, err, "names that are known go on")
		default:
		}
	})

	t.Run("status", func(t *testing.T) {
		out, err := s.Egressway(ctx, "c", "status", "-o", "wide")
		require.NoError(t, err)
		require.Regexp(t, `(?m)^www\.example\.com +198\.18\.240\.0 `, out)
		require.NotContains(t, out, "other.example.com")
	})
}
