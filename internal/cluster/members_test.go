package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
)

// memberWorld is a cluster that changes at random.
type memberWorld struct {
	*rand.Rand
	ips        Map[Key, EgressIP]
	namespaces Map[string, Namespace]
	pods       Map[Key, Pod]
	changed    map[Key]bool
}

func (w *memberWorld) flip(key, value string) map[string]string {
	if w.IntN(2) == 0 {
		return map[string]string{key: value}
	}
	return nil
}

func (w *memberWorld) step() {
	switch w.IntN(8) {
	case 0:
		key := Key{Name: fmt.Sprint("e", w.IntN(3))}
		e := EgressIP{
			IPv4: w.IntN(4) > 0, IPv6: w.IntN(2) > 0, Version: w.Uint64(),
			Namespaces: labels.SelectorFromSet(w.flip("egress", "yes")), Pods: labels.SelectorFromSet(w.flip("app", "web")),
		}
		if w.IntN(10) == 0 {
			e.Pods = nil
		}
		w.ips = w.ips.With(key, e)
	case 1:
		w.ips = w.ips.Without(Key{Name: fmt.Sprint("e", w.IntN(3))})
	case 2:
		w.namespaces = w.namespaces.With(fmt.Sprint("n", w.IntN(3)), Namespace{Labels: w.flip("egress", "yes")})
	case 3:
		key := Key{fmt.Sprint("n", w.IntN(3)), fmt.Sprint("p", w.IntN(6))}
		w.pods, w.changed[key] = w.pods.Without(key), true
	default:
		key := Key{fmt.Sprint("n", w.IntN(3)), fmt.Sprint("p", w.IntN(6))}
		p := Pod{Node: fmt.Sprint(w.IntN(3)), Labels: w.flip("app", "web"), HostNetwork: w.IntN(9) == 0, Ended: w.IntN(9) == 0}
		if w.IntN(9) == 0 {
			p.Node = ""
		}
		for _, format := range []string{"10.244.0.%d", "fd44::%d"}[:1+w.IntN(2)] {
			p.Addresses = append(p.Addresses, netip.MustParseAddr(fmt.Sprintf(format, 1+w.IntN(9))))
		}
		w.pods, w.changed[key] = w.pods.With(key, p), true
	}
}

// selected lists the members by the definition.
func (w *memberWorld) selected(key Key) (all []Member) {
	e, exists := w.ips.Get(key)
	for pod, p := range w.pods.All() {
		namespace := labels.Set(w.namespaces.At(pod.Namespace).Labels)
		if !exists || e.Pods == nil || !e.Namespaces.Matches(namespace) || !e.Pods.Matches(labels.Set(p.Labels)) || p.Node == "" || p.HostNetwork || p.Ended {
			continue
		}
		for _, a := range p.Addresses {
			if a.Is4() && e.IPv4 || a.Is6() && e.IPv6 {
				all = append(all, Member{a, p.Node, pod.Namespace})
			}
		}
	}
	slices.SortFunc(all, Member.Compare)
	return slices.Compact(all)
}

// TestSelectionFollows compares a Selection that follows changes with one that reads everything, and the EgressIPs that it names with
// those that differ.
func TestSelectionFollows(t *testing.T) {
	for seed := range uint64(40) {
		w := &memberWorld{Rand: rand.New(rand.NewPCG(seed, 1))}
		var s Selection
		before := map[Key][]Member{}
		for range 60 {
			w.changed = map[Key]bool{}
			for range 1 + w.IntN(3) {
				w.step()
			}
			touched := s.Update(w.ips, w.namespaces, w.pods, w.changed)
			var fresh Selection
			fresh.Update(w.ips, w.namespaces, w.pods, nil)
			for i := range 3 {
				key := Key{Name: fmt.Sprint("e", i)}
				now := s.Of(key)
				require.Equal(t, fresh.Of(key), now)
				require.True(t, touched[key] || slices.Equal(before[key], now), "seed %d: %s is not named", seed, key)
				before[key] = now
				require.Equal(t, w.selected(key), now)
			}
		}
	}
}

// manyMembers returns members, of which few are of IPv6.
func manyMembers(r *rand.Rand, n int) (all []Member) {
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 244, byte(r.IntN(4) + i>>8), byte(i)})
		if r.IntN(7) == 0 {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})
		}
		all = append(all, Member{a, fmt.Sprint("n", r.IntN(3)), "shop"})
	}
	slices.SortFunc(all, Member.Compare)
	return slices.Compact(all)
}

// apply returns the slices after PackMembers.
func apply(have map[string]MemberSlice, put map[string]MemberSlice, gone []string) map[string]MemberSlice {
	now := maps.Clone(have)
	maps.Copy(now, put)
	for _, name := range gone {
		delete(now, name)
	}
	return now
}

// TestPackMembers packs changing members: each is in one slice of its family, no slice is too large or empty, and nothing is written twice.
func TestPackMembers(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		have := map[string]MemberSlice{}
		for range 8 {
			want := manyMembers(r, r.IntN(4000))
			put, gone := PackMembers("team", have, want)
			have = apply(have, put, gone)
			var all []Member
			for name, s := range have {
				require.NotEmpty(t, s.Members)
				require.LessOrEqual(t, len(s.Members), mostMembers)
				require.True(t, IsMemberSlice(name, "team"))
				require.False(t, slices.ContainsFunc(s.Members, func(m Member) bool { return m.Addr.Is6() != s.IPv6 }))
				all = append(all, s.Members...)
			}
			slices.SortFunc(all, Member.Compare)
			require.True(t, slices.Equal(want, all), "seed %d", seed)
			put, gone = PackMembers("team", have, want)
			require.Empty(t, put)
			require.Empty(t, gone)
		}
	}
}

// TestPackMembersWritesLittle changes one member among many.
func TestPackMembersWritesLittle(t *testing.T) {
	want := manyMembers(rand.New(rand.NewPCG(1, 1)), 3500)
	have, _ := PackMembers("team", nil, want)
	put, gone := PackMembers("team", have, want[1:])
	require.Len(t, put, 1)
	require.Empty(t, gone)
	put, gone = PackMembers("team", apply(have, put, gone), want)
	require.Len(t, put, 1)
	require.Empty(t, gone)
	_, gone = PackMembers("team", have, nil)
	require.Len(t, gone, len(have))
}

// TestMemberSliceObjects reads the EndpointSlices that it writes, and no others.
func TestMemberSliceObjects(t *testing.T) {
	for _, name := range []string{"team", strings.Repeat("a", 253)} {
		for _, ipv6 := range []bool{false, true} {
			s := MemberSlice{IPv6: ipv6}
			for _, m := range manyMembers(rand.New(rand.NewPCG(3, 3)), 50) {
				if m.Addr.Is6() == ipv6 {
					s.Members = append(s.Members, m)
				}
			}
			o := s.EndpointSlice("egressway-system", "x", name)
			require.LessOrEqual(t, len(o.Labels[labelEgressIP]), 63)
			of, read := FromMemberSlice(o)
			require.Equal(t, name, of)
			require.Equal(t, s, read)
			service, _ := FromSlice(o)
			require.Empty(t, service.Name)
			delete(o.Labels, "endpointslice.kubernetes.io/managed-by")
			of, _ = FromMemberSlice(o)
			require.Empty(t, of)
		}
	}
}
