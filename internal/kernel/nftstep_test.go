package kernel

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// anyDataPlane returns a random plan that shares addresses with the plan before.
func anyDataPlane(r *rand.Rand, before plan.DataPlane) plan.DataPlane {
	d := plan.DataPlane{Marks: plan.Marks{Mask: 0x3f00, Priority: 700}, ClampMSS4: 1410, ClampMSS6: 1390, CountSent: r.IntN(3) > 0}
	networks, steered := []plan.PathID{}, []plan.PathID{}
	for id := plan.PathID(1); id <= 6; id++ {
		switch p := (plan.Path{ID: id, Table: 1000 + uint32(id)}); {
		case id == 1:
			p.Key = plan.PathKey{Kind: plan.PathNetwork, Name: "default"}
			d.Paths = append(d.Paths, p)
		case r.IntN(4) == 0:
		case id <= 3:
			p.Key, p.Devices = plan.PathKey{Kind: plan.PathNetwork, Name: named("net", id)}, []string{named("eth", id), named("vrf", id)}
			networks = append(networks, id)
			d.Paths = append(d.Paths, p)
			for _, device := range p.Devices {
				d.Uplinks = append(d.Uplinks, plan.Uplink{Device: device, Path: id})
			}
		default:
			p.Key, p.Devices, p.Tunneled = plan.PathKey{Kind: plan.PathSteer, Name: named("node", id)}, []string{"egressway"}, r.IntN(2) == 0
			steered = append(steered, id)
			d.Paths = append(d.Paths, p)
		}
	}
	anyOf := func(ids []plan.PathID) plan.PathID {
		if len(ids) == 0 {
			return 0
		}
		return ids[r.IntN(len(ids))]
	}
	address := func(v6 bool, four, six string, n int) netip.Addr {
		if v6 {
			return addr(fmt.Sprintf(six, n))
		}
		return addr(fmt.Sprintf(four, n))
	}
	endpoint := func(n int) plan.Endpoint {
		v6 := n%2 == 1
		e := plan.Endpoint{Addr: address(v6, "10.244.1.%d", "fd44:1::%d", n), Path: anyOf(slices.Concat(networks, steered, []plan.PathID{0, 1}))}
		sources := []netip.Addr{{}, e.Addr, address(v6, "203.0.113.%d", "2001:db8:203::%d", r.IntN(3)), address(v6, "203.0.113.%d", "2001:db8:203::%d", r.IntN(3))}
		e.Source = sources[r.IntN(len(sources))]
		if r.IntN(2) == 0 {
			e.Kept = plan.Way{Path: plan.PathID(r.IntN(7)), Source: sources[r.IntN(len(sources))]}
		}
		return e
	}
	// Most endpoints stay unchanged if their path still exists.
	stands := pathsOf(&d)
	for e := range before.Endpoints.All() {
		if r.IntN(3) > 0 && (e.Path == 0 || stands[e.Path]) {
			d.Endpoints = d.Endpoints.With([]plan.Endpoint{e}, nil)
		}
	}
	for range r.IntN(40) {
		d.Endpoints = d.Endpoints.With([]plan.Endpoint{endpoint(r.IntN(120))}, nil)
	}
	var ingress []plan.IngressIP
	for range r.IntN(6) {
		i := plan.IngressIP{
			Addr: address(r.IntN(2) == 0, "203.0.113.%d", "2001:db8:203::%d", r.IntN(3)), Path: anyOf(networks), Resumed: r.IntN(2) == 0,
			Counted: d.CountSent && r.IntN(2) == 0,
		}
		if r.IntN(2) == 0 {
			i.Stray = anyOf(steered)
		}
		ingress = append(ingress, i)
	}
	d.Ingress = sorted.Of(ingress...)
	let := func(hold bool) (list sorted.List[plan.Address]) {
		for range r.IntN(20) {
			if n := r.IntN(30); hold {
				list = list.With([]plan.Address{{Addr: address(n%2 == 1, "10.244.9.%d", "fd44:9::%d", n)}}, nil)
			}
		}
		return list
	}
	d.Hold = r.IntN(2) == 0
	d.Let = let(d.Hold)
	for _, p := range []string{"10.244.0.0/16", "10.96.0.0/12", "255.255.255.255/32", "fd44::/16", "ff00::/8"} {
		if r.IntN(3) > 0 {
			d.Cluster = append(d.Cluster, prefix(p))
		}
		if r.IntN(3) == 0 {
			d.Pods, d.Guests = append(d.Pods, prefix(p)), append(d.Guests, prefix(p))
		}
	}
	if r.IntN(2) == 0 { // only endpoints and ingress IPs change, as in most passes
		fixed := before
		fixed.Endpoints, fixed.Ingress = sorted.List[plan.Endpoint]{}, sorted.List[plan.IngressIP]{}
		fixed.Let = let(fixed.Hold)
		stands := pathsOf(&before)
		for e := range d.Endpoints.All() {
			if e.Path == 0 || stands[e.Path] {
				fixed.Endpoints = fixed.Endpoints.With([]plan.Endpoint{e}, nil)
			}
		}
		for i := range d.Ingress.All() {
			if i.Stray == 0 || stands[i.Stray] {
				i.Counted = i.Counted && fixed.CountSent
				fixed.Ingress = fixed.Ingress.With([]plan.IngressIP{i}, nil)
			}
		}
		return fixed
	}
	return d
}

// TestStepsAreWhatIsMadeFresh applies random plans one after another, by difference, and compares each with the same
// plan in a new table.
func TestStepsAreWhatIsMadeFresh(t *testing.T) {
	listing := func(machine *netNS) (text string) {
		t.Helper()
		require.NoError(t, machine.do(func() error {
			out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
			text = string(out)
			return err
		}))
		return text
	}
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		here, fresh := newNetNS(t), newNetNS(t)
		n := new(nft)
		d := plan.DataPlane{Marks: plan.Marks{Mask: 0x3f00, Priority: 700}, Paths: []plan.Path{{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "default"}}}}
		for step := range 12 {
			next := anyDataPlane(r, d)
			wanted := map[netip.Addr]bool{} // addresses that had an element before and are gone or changed
			differs := false
			had, have := pathsOf(&d), pathsOf(&next)
			for x, y := range d.Endpoints.Changes(next.Endpoints) {
				a, b := had.ofEndpoint(nil, cmpOr(x)), have.ofEndpoint(nil, cmpOr(y))
				differs = differs || x == nil || y == nil || !slices.Equal(a, b)
				if x != nil && (y == nil || x.Path != y.Path || x.Path != 0 && x.Source.IsValid() && x.Source != y.Source) {
					wanted[x.Addr] = true
				}
			}
			again := r.IntN(8) == 0
			if again { // another daemon takes the table over
				n.close()
				n = new(nft)
			}
			require.NoError(t, here.do(func() error {
				changed, err := n.apply(t.Context(), next)
				require.True(t, changed || !differs, "seed %d, step %d", seed, step)
				return err
			}))
			n.trusted = r.IntN(3) > 0
			one := new(nft)
			require.NoError(t, fresh.do(func() error { _, err := one.apply(t.Context(), next); return err }))
			text := listing(here)
			require.Equal(t, sortedListing(listing(fresh)), sortedListing(withoutFormer(text)), "seed %d, step %d", seed, step)
			if step > 0 {
				former := map[netip.Addr]bool{}
				require.NoError(t, here.do(func() error {
					for _, set := range []string{setFormer + "4", setFormer + "6"} {
						all, err := readElements(set)
						if err != nil {
							return err
						}
						for key := range all {
							a, _ := netip.AddrFromSlice([]byte(key))
							former[a] = true
						}
					}
					return nil
				}))
				for a := range wanted {
					require.True(t, former[a], "seed %d, step %d: %s is not remembered", seed, step, a)
				}
			}
			require.NoError(t, here.do(func() error {
				paths, err := n.pathsInForce()
				if err != nil {
					return err
				}
				read, err := n.readPaths()
				require.Equal(t, read, paths)
				return err
			}))
			require.NoError(t, fresh.do(one.cleanup))
			one.close()
			d = next
		}
		n.close()
	}
}

// sortedListing returns the sets and chains of a listing, sorted: the kernel lists them in order of creation.
func sortedListing(text string) string {
	_, text, _ = strings.Cut(text, "\n")
	parts := strings.Split(strings.TrimSuffix(text, "}\n"), "\n\n")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n\n")
}

func cmpOr(e *plan.Endpoint) *plan.Endpoint {
	if e == nil {
		return &plan.Endpoint{}
	}
	return e
}

// manyEndpoints returns n IPv4 endpoints on a path.
func manyEndpoints(n int, path plan.PathID) []plan.Endpoint {
	all := make([]plan.Endpoint, n)
	for i := range all {
		a := netip.AddrFrom4([4]byte{10, byte(128 + i>>16), byte(i >> 8), byte(i)})
		all[i] = plan.Endpoint{Addr: a, Path: path, Source: netip.AddrFrom4([4]byte{203, 0, byte(i % 10_000 >> 8), byte(i % 10_000)})}
	}
	return all
}

// BenchmarkElements measures the cost of a change among 100,000 endpoints and 10,000 ingress IPs.
func BenchmarkElements(b *testing.B) {
	d := someDataPlane()
	d.Endpoints = sorted.Of(manyEndpoints(100_000, 2)...)
	var ingress []plan.IngressIP
	for i := range 10_000 {
		ingress = append(ingress, plan.IngressIP{Addr: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Path: 2})
	}
	d.Ingress = sorted.Of(ingress...)
	first := d.Endpoints.Slice()[5000]
	moved := make([]plan.Endpoint, 10_000)
	for i, e := range d.Endpoints.Slice()[:10_000] {
		moved[i] = plan.Endpoint{Addr: e.Addr, Path: 3, Source: e.Addr}
	}
	one, other, big := d, d, d
	one.Endpoints = d.Endpoints.With(nil, []plan.Endpoint{first})
	other.Ingress = d.Ingress.With(nil, []plan.IngressIP{ingress[77]})
	big.Endpoints = d.Endpoints.With(moved, nil)
	inSpace := func(b *testing.B, work func(n *nft) error) {
		b.Helper()
		require.NoError(b, onThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			n := new(nft)
			defer n.close()
			return work(n)
		}))
	}
	for _, c := range []struct {
		name string
		to   plan.DataPlane
	}{{"one-endpoint", one}, {"one-ingress-IP", other}, {"10000-move", big}} {
		b.Run(c.name, func(b *testing.B) {
			inSpace(b, func(n *nft) error {
				if _, err := n.apply(b.Context(), d); err != nil {
					return err
				}
				n.trusted = true
				defer processorTime(b)()
				for i := 0; b.Loop(); i++ {
					if _, err := n.apply(b.Context(), []plan.DataPlane{c.to, d}[i%2]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	b.Run("whole", func(b *testing.B) {
		inSpace(b, func(n *nft) error {
			defer processorTime(b)()
			for b.Loop() {
				if _, err := n.apply(b.Context(), d); err != nil {
					return err
				}
				b.StopTimer()
				if err := n.cleanup(); err != nil {
					return err
				}
				b.StartTimer()
			}
			return nil
		})
	})
	b.Run("take-over", func(b *testing.B) {
		inSpace(b, func(n *nft) error {
			if _, err := n.apply(b.Context(), d); err != nil {
				return err
			}
			defer processorTime(b)()
			for b.Loop() {
				b.StopTimer()
				n.close()
				n.inForce = nil
				b.StartTimer()
				if _, err := n.apply(b.Context(), d); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
