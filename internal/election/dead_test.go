package election

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// witnesses parses reports of nodes about others: "c: a- b+" is a report of c that a is dead and b alive.
func witnesses(lines ...string) map[string]cluster.Report {
	reports := map[string]cluster.Report{}
	for _, l := range lines {
		node, says, _ := strings.Cut(l, ": ")
		hosts := map[string]bool{}
		for word := range strings.FieldsSeq(says) {
			hosts[word[:len(word)-1]] = strings.HasSuffix(word, "+")
		}
		reports[node] = cluster.Report{Hosts: hosts}
	}
	return reports
}

func TestDead(t *testing.T) {
	tests := map[string]struct {
		say  []string
		want []string
	}{
		"nobody watches":                    {[]string{"a: ", "b: "}, nil},
		"all is well":                       {[]string{"a: b+ c+", "b: a+", "c: a+"}, nil},
		"one witness":                       {[]string{"b: a-"}, []string{"a"}},
		"one witness, and it knows others":  {[]string{"b: a- c+", "c: b+"}, []string{"a"}},
		"it died without a word":            {[]string{"a: b+ c+", "b: a- c+", "c: a- b+"}, []string{"a"}},
		"a tie":                             {[]string{"b: a- d+", "c: a+", "d: b+"}, nil},
		"more see it than do not":           {[]string{"b: a- d+", "c: a+", "d: a+ b+"}, nil},
		"more do not":                       {[]string{"b: a- d+", "c: a+", "d: a- b+"}, []string{"a"}},
		"itself is no witness":              {[]string{"a: a+", "b: a-"}, []string{"a"}},
		"cut off from everybody":            {[]string{"a: b- c- d-", "b: a- c+ d+", "c: a- b+", "d: a- b+"}, []string{"a"}},
		"cut off from those it steers to":   {[]string{"x: a- b-", "a: x-", "b: x-"}, []string{"x"}},
		"cut off, and the first to tell":    {[]string{"x: a- b-", "a: x+", "b: x+"}, nil},
		"cut off, and others see its hosts": {[]string{"x: a- b-", "y: a+ b+"}, nil},
		"two hosts die at once":             {[]string{"x: a- b-", "y: a- b-", "a: x+ y+", "b: x+ y+"}, []string{"a", "b"}},
		"two that accuse each other":        {[]string{"a: b-", "b: a-"}, []string{"a", "b"}},
		"and a third knows one of them":     {[]string{"a: b- c+", "b: a-", "c: a+"}, []string{"b"}},
		"two halves, the larger one is right": {
			[]string{"a: b+ c+ x- y-", "b: a+ c+ x- y-", "c: a+ b+ x- y-", "x: y+ a- b- c-", "y: x+ a- b- c-"}, []string{"x", "y"},
		},
		"a dead one's last word does not help another": {[]string{"a: b+ c+ d+", "b: a+ c+", "c: a- b- d+", "d: a- b- c+"}, []string{"a", "b"}},
		"it is back": {[]string{"a: b+ c+", "b: a+", "c: a+"}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reports := witnesses(test.say...)
			require.ElementsMatch(t, test.want, slices.Collect(maps.Keys(Dead(reports))))
			require.Equal(t, Dead(reports), Dead(maps.Clone(reports)))
		})
	}
}

// The nodes in the larger part of a split cluster are alive, and all others are dead, for any number of watched nodes.
func TestLargerPartLives(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		small := 1 + rng.IntN(5)
		large := small + 1 + rng.IntN(5)
		part := func(n int) bool { return n < small }
		reports := map[string]cluster.Report{}
		var lost []string
		name := func(n int) string { return string(rune('a' + n)) }
		for i := range small + large {
			hosts := map[string]bool{}
			for j := range small + large {
				if i != j {
					hosts[name(j)] = part(i) == part(j)
				}
			}
			reports[name(i)] = cluster.Report{Hosts: hosts}
			if part(i) {
				lost = append(lost, name(i))
			}
		}
		require.ElementsMatch(t, lost, slices.Collect(maps.Keys(Dead(reports))), "%v", reports)
	}
}

func TestFailover(t *testing.T) {
	const why = "node a does not answer the nodes that watch it"
	for name, c := range map[string]struct{ given, a, both Choice }{
		"both":    {Choice{Host: "a", Standby: "b", Term: 4}, Choice{Host: "b", Term: 5, Why: why}, Choice{Host: "a", Term: 4}}, // no node is better
		"other":   {Choice{Host: "b", Standby: "a", Term: 2}, Choice{Host: "b", Term: 2}, Choice{Host: "b", Term: 2}},
		"alone":   {Choice{Host: "a", Term: 9}, Choice{Host: "a", Term: 9}, Choice{Host: "a", Term: 9}},
		"third":   {Choice{Host: "c", Standby: "b", Term: 1}, Choice{Host: "c", Standby: "b", Term: 1}, Choice{Host: "c", Term: 1}},
		"no term": {Choice{Host: "a", Standby: "c"}, Choice{Host: "c", Why: why}, Choice{Host: "c", Why: why}},
		"all":     {Choice{Host: cluster.AllHosts, Term: 3}, Choice{Host: cluster.AllHosts, Term: 3}, Choice{Host: cluster.AllHosts, Term: 3}},
		"none":    {Choice{Why: "x"}, Choice{Why: "x"}, Choice{Why: "x"}},
	} {
		for _, dead := range []map[string]bool{nil, {}, {"x": true}, {"a": false}} {
			got, changed := c.given.Failover(dead)
			require.False(t, changed, "%s: %v changes nothing", name, dead)
			require.Equal(t, c.given, got, name)
		}
		got, changed := c.given.Failover(map[string]bool{"a": true})
		require.Equal(t, c.a, got, name)
		require.Equal(t, !got.Same(c.given), changed, name)
		got, _ = c.given.Failover(map[string]bool{"a": true, "b": true})
		require.Equal(t, c.both, got, name)
	}
}
