package sorted_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/sorted"
)

type parts struct {
	Number int
	Addr   netip.Addr
	Slice  []part
	Map    map[string]bool
	Target *part
	List   sorted.List[pair]
	Inside struct{ Array [2]string }
}

type part struct {
	Name string
	List sorted.List[pair]
}

func someParts() parts {
	p := parts{
		Number: 1, Addr: netip.MustParseAddr("fe80::1%eth0"), Slice: []part{{"a", sorted.Of(pair{1, 1})}, {Name: "b"}},
		Map: map[string]bool{"x": false}, Target: &part{Name: "c"}, List: sorted.Of(pair{1, 1}, pair{2, 2}),
	}
	p.Inside.Array = [2]string{"d", "e"}
	return p
}

// TestSameLooksAtEveryPart changes the parts of a value one by one. Share keeps all others.
func TestSameLooksAtEveryPart(t *testing.T) {
	former := someParts()
	for name, change := range map[string]func(*parts){
		"number":             func(p *parts) { p.Number++ },
		"address":            func(p *parts) { p.Addr = netip.MustParseAddr("fe80::1%eth1") },
		"element":            func(p *parts) { p.Slice[1].Name = "" },
		"list of an element": func(p *parts) { p.Slice[0].List = sorted.Of(pair{1, 2}) },
		"shorter slice":      func(p *parts) { p.Slice = p.Slice[:1] },
		"entry":              func(p *parts) { p.Map["x"] = true },
		"key":                func(p *parts) { p.Map = map[string]bool{"y": false} },
		"no map":             func(p *parts) { p.Map = nil },
		"target":             func(p *parts) { p.Target.Name = "" },
		"no target":          func(p *parts) { p.Target = nil },
		"list":               func(p *parts) { p.List = p.List.With(nil, []pair{{Key: 1}}) },
		"array":              func(p *parts) { p.Inside.Array[1] = "" },
	} {
		next := someParts()
		change(&next)
		require.False(t, sorted.Same(&former, &next), name)
		require.False(t, sorted.Same(&next, &former), name)
		changed := next
		require.False(t, sorted.Share(&former, &next), name)
		require.True(t, sorted.Same(&changed, &next), name)
		kept := 0
		for _, same := range []bool{sorted.OneSlice(former.Slice, next.Slice), former.Target == next.Target} {
			if same {
				kept++
			}
		}
		require.GreaterOrEqual(t, kept, 1, name)
	}
	next := someParts()
	require.True(t, sorted.Same(&former, &next))
	require.True(t, sorted.Share(&former, &next))
	require.True(t, sorted.OneSlice(former.Slice, next.Slice) && former.Target == next.Target)
	next.Slice = []part{}
	former.Slice = nil
	require.True(t, sorted.Same(&former, &next))
	require.Panics(t, func() {
		of := []any{1}
		sorted.Same(&of, &[]any{2})
	})
}
