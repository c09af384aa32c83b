package speaker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

func address(i int) prefix {
	if i%3 == 0 {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)}), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 32)
}

// someSpeakers makes up what an agent may want.
func someSpeakers(r *rand.Rand) (all []plan.Speaker) {
	for n := range 3 {
		if r.IntN(4) == 0 {
			continue
		}
		s := plan.Speaker{Network: fmt.Sprintf("n%d", n), ASN: 64512, DeviceIndex: r.IntN(2)}
		for i := range 40 {
			if r.IntN(3) > 0 {
				s.Announce = s.Announce.With([]plan.Announcement{{Prefix: address(i), Standby: r.IntN(4) == 0, Term: r.Int64N(2)}}, nil)
			}
			if r.IntN(2) > 0 {
				s.Refuse = s.Refuse.With([]plan.Prefix{{Prefix: address(1000 + i)}}, nil)
			}
		}
		for i := range 3 {
			if r.IntN(3) > 0 {
				s.Peers = append(s.Peers, plan.Peer{Peer: config.Peer{Address: address(10 + 3*i).Addr(), ASN: uint32(r.IntN(2))}})
			}
		}
		all = append(all, s)
	}
	return all
}

// TestChangesAddUp has an agent change its mind again and again: the speaker has what it wants, and a withdrawal between
// leaves exactly what both of its minds hold.
func TestChangesAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	had := asked{}
	for range 2000 {
		desired := askedFor(someSpeakers(r))
		w := had.excess(desired)
		less := had.without(*send(t, message{Withdraw: &w}).Withdraw)
		require.Empty(t, less.excess(desired).Networks)
		for network, s := range less {
			require.Subset(t, had[network].Announce.Slice(), s.Announce.Slice())
			for a := range had[network].Announce.All() {
				_, kept := s.Announce.Get(a)
				_, wanted := desired[network].Announce.Get(a)
				require.Equal(t, wanted, kept, "%s", a.Prefix)
			}
		}
		c := less.changeTo(desired)
		next, err := less.changed(*send(t, message{Apply: &c}).Apply)
		require.NoError(t, err)
		require.Empty(t, next.changeTo(desired), "after %+v", c)
		require.Equal(t, laidOut(desired), laidOut(next))

		full := asked{}.changeTo(desired)
		full.Full = true
		anew, err := had.changed(full)
		require.NoError(t, err)
		require.Equal(t, laidOut(desired), laidOut(anew))
		had = next
	}
}

// laidOut is what was asked for, whatever its lists have in common with others.
func laidOut(a asked) (all []any) {
	for _, s := range a.speakers() {
		all = append(all, withoutLists(s), s.Announce.Slice(), s.Refuse.Slice())
	}
	return all
}

// TestSmallChangesAreSmall is about what is sent where 10,000 addresses are announced.
func TestSmallChangesAreSmall(t *testing.T) {
	s := plan.Speaker{Network: "red"}
	var announce []plan.Announcement
	var refuse []plan.Prefix
	for i := range 10000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
		announce, refuse = append(announce, plan.Announcement{Prefix: p}), append(refuse, plan.Prefix{Prefix: p})
	}
	s.Announce, s.Refuse = sorted.Of(announce...), sorted.Of(refuse...)
	had := askedFor([]plan.Speaker{s})
	s.Announce = s.Announce.With([]plan.Announcement{{Prefix: announce[7000].Prefix, Standby: true}}, []plan.Announcement{announce[30]})
	c := had.changeTo(askedFor([]plan.Speaker{s}))
	require.Equal(t, change{Speakers: []speakerChange{{Network: "red", Announce: listChange[plan.Announcement]{
		Set:  []plan.Announcement{{Prefix: netip.MustParsePrefix("10.0.27.88/32"), Standby: true}},
		Gone: []prefix{netip.MustParsePrefix("10.0.0.30/32")},
	}}}}, c)
}

func TestChangeOfUnknownNetwork(t *testing.T) {
	before := asked{"red": {Network: "red"}}
	next, err := before.changed(change{Speakers: []speakerChange{{Network: "blue", Refuse: listChange[plan.Prefix]{Set: []plan.Prefix{{Prefix: address(1)}}}}}})
	require.EqualError(t, err, "network blue has no speaker to change")
	require.Equal(t, before, next)
}
