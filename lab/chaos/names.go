package chaos

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// forger is the pod of an untrusted server, which answers questions of DNS with denied addresses.
const forger = "a-p2"

// family is what names are asked for in an address family.
type family struct {
	typ     dnsmessage.Type
	server  netip.AddrPort // the Service of the resolver
	forger  netip.AddrPort
	outside netip.Addr // the address of the listed name, which all pods ask
	denied  netip.Addr
	fresh   netip.Prefix // of addresses behind fresh names
}

var ipFamilies = []family{
	{
		dnsmessage.TypeA, stage.Resolvers[0], netip.MustParseAddrPort("10.244.1.12:53"),
		stage.Outside4.Addr(), denied[0].Addr(), netip.MustParsePrefix("198.18.0.0/16"),
	},
	{
		dnsmessage.TypeAAAA, stage.Resolvers[1], netip.MustParseAddrPort("[fd44:1::12]:53"),
		stage.Outside6.Addr(), denied[1].Addr(), netip.MustParsePrefix("2001:db8:77::/112"),
	},
}

// The names of the EgressFirewall's rules. Names of the wildcard are fresh: each is asked for once.
const (
	listed   = "www.example.com"
	wildcard = ".shop.example"
)

// nth returns an address behind fresh names by its number.
func (f family) nth(number int) netip.Addr {
	a := f.fresh.Addr().AsSlice()
	a[len(a)-2], a[len(a)-1] = byte(number>>8), byte(number)
	all, _ := netip.AddrFromSlice(a)
	return all
}

// zone has the names of the rules.
func zone(name string, typ dnsmessage.Type) ([]lab.Record, bool) {
	for _, f := range ipFamilies {
		if f.typ != typ {
			continue
		}
		var n int
		if name == listed {
			return []lab.Record{{Name: name, TTL: 5, Addr: f.outside}}, true
		}
		if _, err := fmt.Sscanf(name, "n%d"+wildcard, &n); err == nil {
			return []lab.Record{{Name: name, Addr: f.nth(n)}}, true
		}
	}
	return nil, false
}

// forged answers all questions with denied addresses.
func forged(name string, typ dnsmessage.Type) (all []lab.Record, found bool) {
	for _, f := range ipFamilies {
		if f.typ == typ {
			all = append(all, lab.Record{Name: name, TTL: 3600, Addr: f.denied})
		}
	}
	return all, true
}

// freshRoutes leads the addresses behind fresh names to the hosts outside, of every network.
func freshRoutes() map[string][]string {
	exec := map[string][]string{}
	for _, f := range ipFamilies {
		for router, link := range map[string]int{"red1": 11, "red2": 12, "blue1": 21, "blue2": 22, "gw": 30} {
			via := fmt.Sprintf("172.31.%d.2", link)
			if f.typ == dnsmessage.TypeAAAA {
				via = fmt.Sprintf("fd31:%d::2", link)
			}
			exec[router] = append(exec[router], fmt.Sprintf("ip route add %s via %s", f.fresh, via))
		}
		for _, host := range stage.Externals {
			exec[host] = append(exec[host], fmt.Sprintf("ip route add local %s dev lo", f.fresh))
		}
	}
	return exec
}

// names asks for names from pods.
type names struct {
	*stage.Stage
	number int // of fresh names
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// askNames starts both servers of names, and asks the forger from each pod for names of the rules, twice a second. Pods keep on sending to
// the addresses that it answers, as questions to denied addresses.
func askNames(ctx context.Context, s *stage.Stage) (*names, error) {
	for pod, zone := range map[string]lab.Zone{stage.ResolverPod: zone, forger: forged} {
		if _, err := s.Resolve(s.Node(pod), zone); err != nil {
			return nil, err
		}
	}
	n := &names{Stage: s}
	ctx, n.cancel = context.WithCancel(ctx)
	n.work.Go(func() {
		for i := 0; pause(ctx, 500*time.Millisecond) == nil; i++ {
			for _, pod := range stage.Pods {
				for _, f := range ipFamilies {
					name := []string{listed, fmt.Sprintf("f%d%s", i, wildcard)}[i%2]
					_, _ = s.Node(pod).Lookup(ctx, f.forger, name, f.typ, false) // a fault may keep it from an answer
				}
			}
		}
	})
	return n, nil
}

func (n *names) end() {
	n.cancel()
	n.work.Wait()
}

// known is an error unless each pod reaches the addresses of a fresh name as soon as it has them.
func (n *names) known(ctx context.Context) error {
	for _, pod := range stage.Pods {
		if pod == stage.ResolverPod { // it does not reach itself by its Service
			continue
		}
		for _, f := range ipFamilies {
			n.number++
			name := fmt.Sprintf("n%d%s", n.number, wildcard)
			if err := n.reaches(ctx, pod, f, name); err != nil {
				return fmt.Errorf("%s asks for %s: %w", pod, name, err)
			}
		}
	}
	return nil
}

// reaches is an error unless a pod gets an address of a name, and reaches it. An answer that passes while its node has no daemon yet leaves
// the address denied until the pod asks again, so neither is awaited for longer than an answer takes.
func (n *names) reaches(ctx context.Context, pod string, f family, name string) error {
	ctx, cancel := lab.Within(ctx, 2*lab.AskLimit)
	defer cancel()
	addrs, err := n.Node(pod).Lookup(ctx, f.server, name, f.typ, false)
	if err == nil && len(addrs) != 1 {
		err = fmt.Errorf("%d addresses", len(addrs))
	}
	if err != nil {
		return err
	}
	_, err = n.Node(pod).AskTCP(ctx, netip.AddrPortFrom(addrs[0], lab.ResponderPort))
	return err
}

// allowNames begins the rules of an EgressFirewall.
func allowNames(ports string) string {
	return strings.Join([]string{
		`  - {type: Allow, to: {dnsName: ` + listed + `}}`,
		`  - {type: Allow, to: {dnsName: "*` + wildcard + `"}` + ports + `}`,
		`  - {type: Deny, to: {cidrSelector: ` + ipFamilies[0].fresh.String() + `}}`,
		`  - {type: Deny, to: {cidrSelector: "` + ipFamilies[1].fresh.String() + `"}}`, "",
	}, "\n")
}
