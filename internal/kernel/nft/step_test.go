package nft

import (
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// sortedTables returns the listing of each table, sorted.
func sortedTables(text string) (all []string) {
	for table := range strings.SplitSeq(text, "\ntable ") {
		all = append(all, netns.SortedListing(strings.TrimRight(table, "\n")+"\n"))
	}
	slices.Sort(all)
	return all
}

// loseShared deletes the chain of PathShared, as kernels before 6.16 do when its device goes.
func loseShared(n *keptTable) error {
	t, err := newTransaction()
	if err != nil {
		return err
	}
	shared := &nftables.Chain{Name: ruleset.ChainShared, Table: tableOf(ruleset.TableNetdev)}
	t.FlushChain(shared)
	t.DelChain(shared)
	return t.commit(n.writer, n.flags)
}

// TestStepsAreWhatIsMadeFresh applies random plans one after another, by difference, and compares each with the same
// plan in a new table. Now and then the table is written before the tunnel device is there.
func TestStepsAreWhatIsMadeFresh(t *testing.T) {
	listing := func(machine *netns.Machine) (text string) {
		t.Helper()
		require.NoError(t, machine.Do(func() error {
			out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
			text = string(out)
			return err
		}))
		return text
	}
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		here, fresh := netns.New(t), netns.New(t)
		here.Run("ip link add egressway type dummy")
		fresh.Run("ip link add egressway type dummy")
		n := new(keptTable)
		d := plan.DataPlane{Marks: plan.Marks{Mask: 0x3f00, Priority: 700}, Paths: []plan.Path{{ID: 1, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "default"}}}}
		for step := range 12 {
			next := stories.AnyDataPlane(r, d)
			wanted := map[netip.Addr]bool{} // addresses that had an element before and are gone or changed
			differs := false
			had, have := ruleset.PathsOf(&d), ruleset.PathsOf(&next)
			for x, y := range d.Endpoints.Changes(next.Endpoints) {
				a, b := had.OfEndpoint(nil, stories.CmpOr(x)), have.OfEndpoint(nil, stories.CmpOr(y))
				differs = differs || x == nil || y == nil || !slices.Equal(a, b)
				if x != nil && (y == nil || x.Path != y.Path || x.Path != 0 && x.Source.IsValid() && x.Source != y.Source) {
					wanted[x.Addr] = true
				}
			}
			again := r.IntN(8) == 0
			if again { // another daemon takes the table over
				n.Close()
				n = new(keptTable)
			}
			if r.IntN(4) == 0 && n.trusted && ruleset.SharedDevice(&d) != "" { // an older kernel, where the device is made again
				require.NoError(t, here.Do(func() error { return loseShared(n) }))
				n.DeviceMade()
			}
			n.Without = r.IntN(4) == 0 // the tunnel device is made only now
			require.NoError(t, here.Do(func() error {
				changed, err := n.Apply(t.Context(), next)
				require.True(t, changed || !differs, "seed %d, step %d", seed, step)
				if err == nil && n.Without {
					n.Without, n.trusted = false, true
					_, err = n.Apply(t.Context(), next)
				}
				return err
			}))
			n.trusted = r.IntN(3) > 0
			one := new(keptTable)
			require.NoError(t, fresh.Do(func() error { _, err := one.Apply(t.Context(), next); return err }))
			text := listing(here)
			want := sortedTables(listing(fresh))
			for i, got := range sortedTables(withoutFormer(text)) {
				require.Equal(t, want[i], got, "seed %d, step %d", seed, step)
			}
			if step > 0 {
				former := map[netip.Addr]bool{}
				require.NoError(t, here.Do(func() error {
					for _, set := range []string{ruleset.SetFormer + "4", ruleset.SetFormer + "6"} {
						all, err := readElements(set, ruleset.TableInet)
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
			require.NoError(t, here.Do(func() error {
				read, err := n.ReadPaths()
				require.Equal(t, read, n.held.Paths)
				return err
			}))
			require.NoError(t, fresh.Do(one.Cleanup))
			one.Close()
			d = next
		}
		n.Close()
	}
}

// BenchmarkElements measures the cost of a change among 100,000 endpoints and 10,000 ingress IPs.
func BenchmarkElements(b *testing.B) {
	d := stories.DataPlane()
	d.Endpoints = sorted.Of(stories.ManyEndpoints(100_000, 2)...)
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
	inSpace := func(b *testing.B, work func(n *keptTable) error) {
		b.Helper()
		require.NoError(b, netns.OnThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			n := new(keptTable)
			defer n.Close()
			return work(n)
		}))
	}
	for _, c := range []struct {
		name string
		to   plan.DataPlane
	}{{"one-endpoint", one}, {"one-ingress-IP", other}, {"10000-move", big}} {
		b.Run(c.name, func(b *testing.B) {
			inSpace(b, func(n *keptTable) error {
				if _, err := n.Apply(b.Context(), d); err != nil {
					return err
				}
				n.trusted = true
				defer netns.ProcessorTime(b)()
				for i := 0; b.Loop(); i++ {
					if _, err := n.Apply(b.Context(), []plan.DataPlane{c.to, d}[i%2]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	b.Run("whole", func(b *testing.B) {
		inSpace(b, func(n *keptTable) error {
			defer netns.ProcessorTime(b)()
			for b.Loop() {
				if _, err := n.Apply(b.Context(), d); err != nil {
					return err
				}
				b.StopTimer()
				if err := n.Cleanup(); err != nil {
					return err
				}
				b.StartTimer()
			}
			return nil
		})
	})
	b.Run("take-over", func(b *testing.B) {
		inSpace(b, func(n *keptTable) error {
			if _, err := n.Apply(b.Context(), d); err != nil {
				return err
			}
			defer netns.ProcessorTime(b)()
			for b.Loop() {
				b.StopTimer()
				n.Close()
				n.held = Held{}
				b.StartTimer()
				if _, err := n.Apply(b.Context(), d); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
