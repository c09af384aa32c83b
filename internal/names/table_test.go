package names

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// of returns addresses that have a TTL in seconds.
func of(ttl int, addrs ...string) (all []Addr) {
	for _, a := range addrs {
		all = append(all, Addr{netip.MustParseAddr(a), time.Duration(ttl) * time.Second})
	}
	return all
}

const grace = time.Minute

func TestMatching(t *testing.T) {
	x := newIndex([]Set{
		{Name: "exact", Patterns: []string{"a.shop.example", "shop.example"}},
		{Name: "wild", Patterns: []string{"*.shop.example"}},
		{Name: "both", Patterns: []string{"*.shop.example", "a.shop.example"}},
		{Name: "top", Patterns: []string{"*.example"}},
	})
	for name, want := range map[string][]string{
		"a.shop.example":   {"exact", "both", "wild"},
		"b.shop.example":   {"wild", "both"},
		"a.b.shop.example": nil,
		"shop.example":     {"exact", "top"},
		".shop.example":    {"wild", "both"}, // no question has such a name
		"example":          nil,
		"":                 nil,
		"*.shop.example":   {"wild", "both"}, // a question may have it
	} {
		var got []string
		for _, s := range x.matching(name) {
			got = append(got, s.Name)
		}
		require.ElementsMatch(t, want, got, name)
		require.Equal(t, len(want) > 0, x.matches(name), name)
	}
}

func TestOutside(t *testing.T) {
	for _, a := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:192.0.2.1"} {
		require.False(t, outside(netip.MustParseAddr(a)), a)
	}
	require.False(t, outside(netip.Addr{}))
	require.True(t, outside(netip.MustParseAddr("192.0.2.1")))
	require.True(t, outside(netip.MustParseAddr("2001:db8::1")))
}

func TestTimeouts(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		0: 65 * time.Second, time.Second: 65 * time.Second, 6 * time.Second: 66 * time.Second, time.Hour: time.Hour + time.Minute,
		24 * time.Hour: 24 * time.Hour, (1<<31 - 1) * time.Second: 24 * time.Hour,
	} {
		require.Equal(t, want, timeoutOf(ttl, grace), ttl)
	}
}

// tableLab is a table with two sets for IPv4, and one for IPv6.
func tableLab() (*table, *index) {
	return newTable(), newIndex([]Set{
		{Name: "wild", Patterns: []string{"*.example"}},
		{Name: "exact", Patterns: []string{"www.example"}},
		{Name: "wild6", IPv6: true, Patterns: []string{"*.example"}},
	})
}

// write writes all that sets lack of a name, and returns the elements.
func (t *table) write(x *index, name string, at time.Time) (all []string) {
	for _, s := range x.matching(name) {
		add := addition{until: map[netip.Addr]time.Time{}}
		t.collect(&add, s, name, at)
		for _, e := range elements(s.Name, add.until, t.force[s.Name], at) {
			all = append(all, fmt.Sprint(e.Set, " ", e.Addr, " ", e.Timeout, " ", e.There))
		}
		t.written(s.Name, add.until)
	}
	slices.Sort(all)
	return all
}

func TestTableRenews(t *testing.T) {
	table, x := tableLab()
	learn := func(at int, addrs []Addr) lack {
		table.learn("www.example", addrs, x, grace, after(at))
		return table.lacks(x.matching("www.example"), addrs, grace, after(at))
	}
	require.Equal(t, lackNow, learn(0, of(300, "192.0.2.1", "2001:db8::1")))
	require.Equal(t, []string{"exact 192.0.2.1 6m0s false", "wild 192.0.2.1 6m0s false", "wild6 2001:db8::1 6m0s false"}, table.write(x, "www.example", start))
	require.Equal(t, lackNone, learn(0, of(300, "192.0.2.1")), "it has all")
	require.Equal(t, lackNone, learn(200, of(100, "192.0.2.1")), "a cache's TTL runs down with ours")
	require.Equal(t, lackNone, learn(29, of(300, "192.0.2.1")), "half of the grace is left")
	require.Equal(t, lackSoon, learn(31, of(300, "192.0.2.1")), "the pod may keep the answer for longer than the set has the address")
	require.Equal(t, lackSoon, learn(179, of(300, "192.0.2.1")))
	require.Equal(t, lackNow, learn(180, of(300, "192.0.2.1")), "half of its time is over")
	require.Equal(t, lackNow, learn(180, of(300, "192.0.2.1", "192.0.2.2")), "another address")
	require.Equal(t, []string{"exact 192.0.2.1 6m0s true", "exact 192.0.2.2 6m0s false", "wild 192.0.2.1 6m0s true", "wild 192.0.2.2 6m0s false"},
		table.write(x, "www.example", after(180)), "that of IPv6 was not answered")
	require.Empty(t, table.write(x, "www.example", after(180)))
	require.Equal(t, lackNone, learn(200, of(0, "192.0.2.1")), "a shorter TTL")
	require.Empty(t, table.write(x, "www.example", after(200)), "takes no time away")

	// Another name with the same address makes it last longer, and never shorter.
	table.learn("api.example", of(1000, "192.0.2.1"), x, grace, after(200))
	require.Equal(t, []string{"wild 192.0.2.1 17m40s true"}, table.write(x, "api.example", after(200)))
	table.learn("www.example", of(600, "192.0.2.1"), x, grace, after(201))
	require.Equal(t, []string{"exact 192.0.2.1 11m0s true"}, table.write(x, "www.example", after(201)))

	require.Equal(t, map[netip.Addr]time.Time{netip.MustParseAddr("192.0.2.1"): after(1260), netip.MustParseAddr("192.0.2.2"): after(540)},
		table.contents(x.sets["wild"], after(300)), "the latest end of all names")
	require.Equal(t, []Known{
		{"api.example", []KnownAddr{{netip.MustParseAddr("192.0.2.1"), after(1260)}}},
		{"www.example", []KnownAddr{{netip.MustParseAddr("192.0.2.1"), after(861)}, {netip.MustParseAddr("192.0.2.2"), after(540)}, {netip.MustParseAddr("2001:db8::1"), after(360)}}},
	}, table.known(x, after(359)))
	table.sweep(x, after(861))
	require.Equal(t, []string{"api.example"}, slices.Collect(maps.Keys(table.names)))
	require.Len(t, table.below, 1)
	table.sweep(newIndex(nil), after(1260))
	require.Equal(t, newTable(), table)
}

func numbered(from, count, ttl int) (all []Addr) {
	for i := range count {
		n := from + i
		all = append(all, Addr{netip.AddrFrom4([4]byte{192, byte(n >> 16), byte(n >> 8), byte(n)}), time.Duration(ttl) * time.Second})
	}
	return all
}

func TestBoundOfAName(t *testing.T) {
	table, x := tableLab()
	require.Len(t, table.learn("www.example", numbered(0, 999, 100), x, grace, start), 999)
	require.Len(t, table.learn("www.example", numbered(990, 20, 5), x, grace, start), 10, "renewed, and one more")
	require.True(t, table.names["www.example"].full)
	require.Len(t, table.write(x, "www.example", start), 2*mostAddrs)
	table.sweep(x, after(65)) // the last one runs out
	require.False(t, table.names["www.example"].full)
	require.Len(t, table.learn("www.example", numbered(2000, 2, 5), x, grace, after(65)), 1)
}

func TestBoundOfASet(t *testing.T) {
	table, x := tableLab()
	set := x.sets["wild"]
	names := mostInSet/mostAddrs + 1
	total := 0
	for i := range names {
		name := fmt.Sprintf("n%d.example", i)
		table.learn(name, numbered(i*mostAddrs, mostAddrs, 100), x, grace, start)
		add := addition{until: map[netip.Addr]time.Time{}}
		require.Equal(t, i < names-1, table.collect(&add, set, name, start))
		table.written(set.Name, add.until)
		total += len(add.until)
	}
	require.Equal(t, mostInSet, total)
	require.True(t, table.force[set.Name].full)
	require.Len(t, table.contents(set, start), mostInSet, "of a new set too")
	table.sweep(x, after(160))
	require.Empty(t, table.names)
	require.False(t, table.force[set.Name].full)
}

func TestBoundOfANode(t *testing.T) {
	table, x := tableLab()
	for i := range mostNames - 1 {
		require.NotEmpty(t, table.learn(fmt.Sprintf("n%d.example", i), of(100, "192.0.2.1"), x, grace, start))
	}
	require.Empty(t, table.learn("one-more.example", of(100, "192.0.2.1"), x, grace, start), "wildcards leave room for names that rules list")
	require.True(t, table.full)
	require.NotEmpty(t, table.learn("www.example", of(100, "192.0.2.1"), x, grace, start))
	require.NotEmpty(t, table.learn("n1.example", of(100, "192.0.2.2"), x, grace, start), "known ones are renewed")
	require.Len(t, table.names, mostNames)

	x = newIndex([]Set{{Name: "exact", Patterns: []string{"www.example", "further.example"}}, {Name: "wild", Patterns: []string{"*.other"}}})
	require.NotEmpty(t, table.learn("a.other", of(100, "192.0.2.1"), x, grace, start), "names that no rule matches any more make room")
	require.Len(t, table.names, 2)
	for i := range mostNames - 2 {
		table.learn(fmt.Sprintf("n%d.other", i), of(100, "192.0.2.1"), x, grace, start)
	}
	require.Len(t, table.names, mostNames-2)
	require.NotEmpty(t, table.learn("further.example", of(100, "192.0.2.1"), x, grace, start))
	table.sweep(x, after(160))
	require.False(t, table.full)
	require.Empty(t, table.below)
}

// TestRoomIsNotSearchedForEachName has names come to a full table: each would cost a walk over all names.
func TestRoomIsNotSearchedForEachName(t *testing.T) {
	table, x := tableLab()
	for i := range mostNames - 1 {
		table.learn(fmt.Sprintf("n%d.example", i), of(100, "192.0.2.1"), x, grace, start)
	}
	learn := func(x *index, at time.Time) int {
		return len(table.learn("one-more.example", of(100, "192.0.2.1"), x, grace, at))
	}
	require.Zero(t, learn(x, start))
	table.drop("n0.example")
	table.add("no.rule", &name{})
	require.Zero(t, learn(x, start.Add(clearEvery-1)), "no search is due")
	require.NotZero(t, learn(x, start.Add(clearEvery)))
	require.NotContains(t, table.names, "no.rule")

	table.drop("one-more.example")
	table.add("no.rule", &name{})
	_, other := tableLab()
	require.NotZero(t, learn(other, start.Add(clearEvery)), "the rules have changed")
}

func TestBoundOfAllAddresses(t *testing.T) {
	table, x := tableLab()
	for i := range mostInAll / mostAddrs {
		require.Len(t, table.learn(fmt.Sprintf("n%d.example", i), numbered(i*mostAddrs, mostAddrs, 100), x, grace, start), mostAddrs)
	}
	require.Empty(t, table.learn("one-more.example", numbered(mostInAll, 1, 100), x, grace, start))
	require.True(t, table.names["one-more.example"].full)
	require.Len(t, table.learn("n0.example", numbered(0, mostAddrs, 200), x, grace, start), mostAddrs, "known ones are renewed")
	table.sweep(x, after(170))
	require.Equal(t, mostAddrs, table.addrs)
	require.Len(t, table.learn("one-more.example", numbered(mostInAll, 1, 100), x, grace, after(170)), 1)
	table.sweep(x, after(1000))
	require.Zero(t, table.addrs)
}

// TestSetsHaveAllThatIsKnown compares sets that were written step by step with fresh ones, after random answers.
func TestSetsHaveAllThatIsKnown(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		table, x := tableLab()
		at := start
		for range 200 {
			at = at.Add(time.Duration(random.IntN(20)) * time.Second)
			name := []string{"www.example", "a.example", "b.example"}[random.IntN(3)]
			var addrs []Addr
			for range random.IntN(4) {
				a := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"}[random.IntN(4)]
				addrs = append(addrs, of(random.IntN(400), a)...)
			}
			table.learn(name, addrs, x, grace, at)
			table.write(x, name, at)
			if random.IntN(5) == 0 {
				table.sweep(x, at)
			}
			for _, s := range x.sets {
				former := map[netip.Addr]time.Time{}
				for a, end := range table.forceOf(s.Name).until {
					if end.After(at) {
						former[a] = end
					}
				}
				fresh := table.contents(s, at)
				require.Equal(t, fresh, former, "seed %d, set %s", seed, s.Name)
				table.written(s.Name, fresh)
			}
		}
	}
}
