package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

var (
	well     = cluster.NetworkState{Usable: true, IPv4: true, IPv6: true, Sessions: 2, Up: 2}
	busy     = cluster.NetworkState{Usable: true, IPv4: true, IPv6: true, Sessions: 2, Up: 1}
	routless = cluster.NetworkState{Usable: true, Sessions: 2, Up: 2}
	silenced = cluster.NetworkState{Usable: true, IPv4: true, IPv6: true, Sessions: 2}
)

// believer believes reports of network red by nodes, and of blue, which is always well.
type believer struct {
	t     *testing.T
	began time.Time
	damping
}

func (l *believer) hears(after time.Duration, reported, want map[string]cluster.NetworkState, wait time.Duration) {
	l.t.Helper()
	reports := func(of map[string]cluster.NetworkState) map[string]cluster.Report {
		all := map[string]cluster.Report{}
		for node, state := range of {
			all[node] = cluster.Report{Applied: 7, Networks: map[string]cluster.NetworkState{"red": state, "blue": well}}
		}
		return all
	}
	given := reports(reported)
	believed, again := l.dampen(given, l.began.Add(after))
	require.Equal(l.t, reports(reported), given, "what is given is not changed")
	require.Equal(l.t, reports(want), believed)
	require.Equal(l.t, wait, again)
}

func TestNetworkIsBelievedOnceSteady(t *testing.T) {
	type states = map[string]cluster.NetworkState
	const ms = time.Millisecond
	l := &believer{t: t, began: time.Now()}
	all := states{"a": well, "b": well}
	l.hears(0, all, all, 0)
	l.hears(10*ms, states{"a": busy, "b": well}, states{"a": busy, "b": well}, 0) // makes no difference

	// One loses its routes: it is believed half a second later, without another report.
	ill := states{"a": routless, "b": well}
	l.hears(1000*ms, ill, states{"a": busy, "b": well}, steadyFor)
	l.hears(1400*ms, ill, states{"a": busy, "b": well}, 100*ms)
	l.hears(1500*ms, ill, ill, 0)
	l.hears(1501*ms, ill, ill, 0)

	// It is well for a moment.
	l.hears(2000*ms, all, ill, steadyFor)
	l.hears(2100*ms, ill, ill, 0)
	l.hears(3000*ms, ill, ill, 0)

	// All lose them, one after the other, and have them again: they are believed at once.
	l.hears(4000*ms, all, ill, steadyFor)
	l.hears(4500*ms, all, all, 0)
	l.hears(5000*ms, ill, all, steadyFor)
	both := states{"a": routless, "b": routless}
	l.hears(5300*ms, both, all, steadyFor)
	l.hears(5799*ms, both, all, ms)
	l.hears(5800*ms, both, both, 0)

	// What comes and goes is not believed.
	for i := range 10 {
		at := 7000*ms + time.Duration(i)*400*ms
		if i%2 == 0 {
			l.hears(at, ill, both, steadyFor)
		} else {
			l.hears(at, both, both, 0)
		}
	}

	// One after the other changes: what is known after two seconds is believed.
	before, now := states{}, states{}
	for _, node := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		before[node], now[node] = well, well
	}
	l = &believer{t: t, began: time.Now()}
	l.hears(0, before, before, 0)
	for i, node := range []string{"a", "b", "c", "d", "e"} {
		at := time.Duration(i) * 450 * ms
		now[node] = routless
		l.hears(1000*ms+at, now, before, min(steadyFor, steadyWithin-at))
	}
	l.hears(2999*ms, now, before, ms)
	l.hears(3000*ms, now, now, 0)
}

func TestNodesThatComeAndGoAreBelieved(t *testing.T) {
	type states = map[string]cluster.NetworkState
	l := &believer{t: t, began: time.Now()}
	l.hears(0, states{"a": well}, states{"a": well}, 0)
	l.hears(1, states{"a": well, "b": silenced}, states{"a": well, "b": silenced}, 0)
	l.hears(2, states{"a": silenced, "b": silenced, "c": well}, states{"a": well, "b": silenced, "c": well}, steadyFor)
	l.hears(3, states{"b": silenced}, states{"b": silenced}, 0)
	l.hears(4, states{"a": silenced, "b": silenced}, states{"a": silenced, "b": silenced}, 0)
}
