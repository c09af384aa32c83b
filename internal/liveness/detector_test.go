package liveness

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
)

const detection = 300 * time.Millisecond

var began = time.Unix(1000, 0)

// watched returns a session with a watched node that was heard recently.
func watched(node string) bfd.Session {
	return bfd.Session{Node: node, Active: true, State: bfd.Up, Heard: true, Since: began, Detection: detection}
}

// quiet returns a session that is up, with a node that was not heard recently.
func quiet(node string) bfd.Session {
	s := watched(node)
	s.Heard = false
	return s
}

// failed returns a session that failed some time after the test began.
func failed(node string, after time.Duration) bfd.Session {
	return bfd.Session{Node: node, Active: true, State: bfd.Down, Failed: true, Since: began.Add(after), Detection: detection}
}

func nodes(names ...string) map[string]bool {
	all := map[string]bool{}
	for _, name := range names {
		all[name] = true
	}
	return all
}

// TestDetector runs whole stories of a node's neighbours, by an injected clock.
func TestDetector(t *testing.T) {
	type step struct {
		at       time.Duration
		sessions []bfd.Session
		want     View
	}
	for name, steps := range map[string][]step{
		"no other node": {{0, nil, View{}}},
		"a node that was never up": {
			{0, []bfd.Session{{Node: "a", Active: true, State: bfd.Down}}, View{}},
		},
		"a node dies while another is heard, and returns": {
			{0, []bfd.Session{watched("a"), watched("b")}, View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b")}},
			{
				time.Second,
				[]bfd.Session{failed("a", time.Second), watched("b")},
				View{
					Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("b"),
					Failed: []Failure{{Node: "a", Silent: detection}},
				},
			},
			{
				time.Minute,
				[]bfd.Session{failed("a", time.Second), watched("b")},
				View{Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("b")},
			},
			{ // it answers, and is not trusted yet
				2 * time.Minute,
				[]bfd.Session{watched("a"), watched("b")},
				View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("a", "b"), Wait: TrustAfter},
			},
			{
				2*time.Minute + TrustAfter,
				[]bfd.Session{watched("a"), watched("b")},
				View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b"), Returned: []string{"a"}},
			},
		},
		"the only other node dies": {
			{0, []bfd.Session{watched("a")}, View{Watched: map[string]bool{"a": true}, Heard: nodes("a"), Answering: nodes("a")}},
			{time.Second, []bfd.Session{failed("a", 900*time.Millisecond)}, View{
				Watched: map[string]bool{"a": false}, Heard: nodes("a"), Dead: nodes("a"), Answering: nodes(), Failed: []Failure{{Node: "a", Silent: detection + 100*time.Millisecond}},
			}},
		},
		"this node is isolated": {
			{0, []bfd.Session{watched("a"), watched("b")}, View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b")}},
			{ // one session failed, the other one may be about to
				time.Second,
				[]bfd.Session{failed("a", time.Second), quiet("b")},
				View{Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b"), Wait: detection * 2 / 3},
			},
			{
				time.Second + 90*time.Millisecond,
				[]bfd.Session{failed("a", time.Second), failed("b", time.Second+90*time.Millisecond)},
				View{Watched: map[string]bool{"a": false, "b": false}, Heard: nodes("a", "b"), Answering: nodes(), Isolated: true},
			},
		},
		"all sessions are gone, as after a reload with a port that cannot be bound": {
			{0, []bfd.Session{watched("a"), watched("b")}, View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b")}},
			{
				time.Second,
				[]bfd.Session{failed("a", time.Second), watched("b")},
				View{
					Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("b"),
					Failed: []Failure{{Node: "a", Silent: detection}},
				},
			},
			{2 * time.Second, nil, View{Heard: nodes("a", "b"), Answering: nodes("b"), Returned: []string{"a"}}},
			{time.Hour, nil, View{Heard: nodes("a", "b"), Answering: nodes("b")}},
		},
		"nodes answer one after another after an isolation": {
			{0, []bfd.Session{watched("a"), watched("b")}, View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b")}},
			{
				time.Second,
				[]bfd.Session{failed("a", time.Second), failed("b", time.Second+90*time.Millisecond)},
				View{Watched: map[string]bool{"a": false, "b": false}, Heard: nodes("a", "b"), Answering: nodes(), Isolated: true},
			},
			{
				2 * time.Second,
				[]bfd.Session{failed("a", time.Second), watched("b")},
				View{Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Answering: nodes("b"), Wait: backWithin},
			},
			{
				2*time.Second + backWithin/2,
				[]bfd.Session{watched("a"), watched("b")},
				View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b"), Wait: TrustAfter - backWithin/2},
			},
		},
		"a node died while this one was isolated": {
			{0, []bfd.Session{watched("a"), watched("b")}, View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b")}},
			{
				time.Second,
				[]bfd.Session{failed("a", time.Second), failed("b", time.Second)},
				View{Watched: map[string]bool{"a": false, "b": false}, Heard: nodes("a", "b"), Answering: nodes(), Isolated: true},
			},
			{
				2 * time.Second,
				[]bfd.Session{failed("a", time.Second), watched("b")},
				View{Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Answering: nodes("b"), Wait: backWithin},
			},
			{
				2*time.Second + backWithin,
				[]bfd.Session{failed("a", time.Second), watched("b")},
				View{
					Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("b"), Wait: TrustAfter - backWithin,
					Failed: []Failure{{Node: "a", Silent: detection + time.Second + backWithin}},
				},
			},
			{ // it answers, and is not trusted yet
				time.Minute,
				[]bfd.Session{watched("a"), watched("b")},
				View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("a", "b"), Wait: TrustAfter},
			},
		},
		"a node that has long been dead, and an isolation": {
			{0, []bfd.Session{failed("a", -time.Hour), watched("b"), watched("c")}, View{
				Watched: map[string]bool{"a": false, "b": true, "c": true}, Heard: nodes("a", "b", "c"), Dead: nodes("a"), Answering: nodes("b", "c"),
				Failed: []Failure{{Node: "a", Silent: detection + time.Hour}},
			}},
			{
				time.Second,
				[]bfd.Session{failed("a", -time.Hour), failed("b", time.Second), quiet("c")},
				View{
					Watched: map[string]bool{"a": false, "b": false, "c": true}, Heard: nodes("a", "b", "c"), Dead: nodes("a"), Answering: nodes("b", "c"),
					Wait: detection * 2 / 3,
				},
			},
			{
				time.Second + 90*time.Millisecond,
				[]bfd.Session{failed("a", -time.Hour), failed("b", time.Second), failed("c", time.Second)},
				View{
					Watched: map[string]bool{"a": false, "b": false, "c": false}, Heard: nodes("a", "b", "c"), Dead: nodes("a"), Answering: nodes(),
					Isolated: true,
				},
			},
		},
		"the last of two nodes dies": {
			{0, []bfd.Session{failed("a", -time.Hour), watched("b")}, View{
				Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("b"),
				Failed: []Failure{{Node: "a", Silent: detection + time.Hour}},
			}},
			{time.Second, []bfd.Session{failed("a", -time.Hour), failed("b", time.Second)}, View{
				Watched: map[string]bool{"a": false, "b": false}, Heard: nodes("a", "b"), Dead: nodes("a", "b"), Answering: nodes(),
				Failed: []Failure{{Node: "b", Silent: detection}},
			}},
		},
		"a node dies while the other one may be about to fail": {
			{0, []bfd.Session{watched("a"), watched("b")}, View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b")}},
			{
				time.Second,
				[]bfd.Session{failed("a", time.Second), quiet("b")},
				View{Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b"), Wait: detection * 2 / 3},
			},
			{
				time.Second + detection*2/3,
				[]bfd.Session{failed("a", time.Second), quiet("b")},
				View{
					Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("b"),
					Failed: []Failure{{Node: "a", Silent: detection + detection*2/3}},
				},
			},
		},
		"a node that is not watched any more is not dead": {
			{0, []bfd.Session{watched("a"), watched("b")}, View{Watched: map[string]bool{"a": true, "b": true}, Heard: nodes("a", "b"), Answering: nodes("a", "b")}},
			{time.Second, []bfd.Session{failed("a", time.Second), watched("b")}, View{
				Watched: map[string]bool{"a": false, "b": true}, Heard: nodes("a", "b"), Dead: nodes("a"), Answering: nodes("b"), Failed: []Failure{{Node: "a", Silent: detection}},
			}},
			{time.Minute, []bfd.Session{watched("b")}, View{Watched: map[string]bool{"b": true}, Heard: nodes("a", "b"), Answering: nodes("b"), Returned: []string{"a"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d Detector
			var former View
			for i, s := range steps {
				before := maps.Clone(former.Heard)
				v := d.See(s.sessions, detection, began.Add(s.at))
				require.Equal(t, before, former.Heard, "step %d modified a view that a plan holds", i)
				require.Equal(t, len(s.want.Failed)+len(s.want.Returned) > 0, v.Changed(), "step %d", i)
				require.NotNil(t, v.Heard, "nil would mean that all nodes run a daemon")
				require.NotNil(t, v.Answering, "nil would mean that all nodes answer")
				for _, m := range []*map[string]bool{&v.Watched, &v.Heard, &v.Dead, &v.Answering, &s.want.Watched, &s.want.Heard, &s.want.Dead, &s.want.Answering} {
					if len(*m) == 0 {
						*m = nil
					}
				}
				require.Equal(t, s.want, v, "step %d", i)
				former = v
			}
		})
	}
}

// TestDetectorPresumes checks that a node of an earlier run answers until its deadline, and again after a new speaker.
func TestDetectorPresumes(t *testing.T) {
	var d Detector
	d.Presume([]string{"a"}, began)
	v := d.See(nil, detection, began.Add(time.Second))
	require.Equal(t, nodes("a"), v.Answering)
	require.Equal(t, presumeFor-time.Second, v.Wait)
	require.Zero(t, d.See([]bfd.Session{watched("a")}, detection, began.Add(2*time.Second)).Wait)
	d.Restart(began.Add(time.Minute))
	v = d.See(nil, detection, began.Add(time.Minute))
	require.Equal(t, nodes("a"), v.Answering)
	require.Equal(t, presumeFor, v.Wait)
	require.Empty(t, d.See(nil, detection, began.Add(time.Minute+presumeFor)).Answering)
}

// TestDetectorRestarts expects dead nodes to stay dead when a new speaker takes over: it watches none at first, and never heard them.
func TestDetectorRestarts(t *testing.T) {
	var d Detector
	up, dead := []bfd.Session{watched("a"), watched("b")}, []bfd.Session{failed("a", time.Second), watched("b")}
	d.See(up, detection, began)
	require.Equal(t, nodes("a"), d.See(dead, detection, began.Add(time.Second)).Dead)
	d.Restart(began.Add(time.Minute))
	for i, sessions := range [][]bfd.Session{nil, {}, {{Node: "a", Active: true, State: bfd.Down}, watched("b")}} {
		v := d.See(sessions, detection, began.Add(time.Minute))
		require.Equal(t, nodes("a"), v.Dead, "step %d", i)
		require.False(t, v.Changed(), "step %d", i)
	}
	v := d.See(up, detection, began.Add(2*time.Minute))
	require.Equal(t, TrustAfter, v.Wait, "it answers, and is not trusted yet")
	require.Equal(t, []string{"a"}, d.See(up, detection, began.Add(2*time.Minute+TrustAfter)).Returned)

	d.See(dead, detection, began.Add(time.Hour))
	d.Restart(began.Add(time.Hour))
	require.Equal(t, nodes("a"), d.See(nil, detection, began.Add(time.Hour)).Dead)
	d.Watching()
	require.Empty(t, d.See(nil, detection, began.Add(time.Hour)).Dead, "the speaker is to watch no node")
}

func TestSilence(t *testing.T) {
	now := began
	sessions := []bfd.Session{
		{Node: "b", Failed: true, Since: now.Add(-200 * time.Millisecond)},
		{Node: "c", Failed: true, Since: now.Add(-time.Hour)},
		{Node: "slow", Failed: true, Since: now, Slowed: 4},
	}
	require.Equal(t, 500*time.Millisecond, silence(sessions, "b", detection, now))
	require.Equal(t, 200*time.Millisecond, silence(sessions, "b", 0, now))
	require.Equal(t, 4*detection, silence(sessions, "slow", detection, now))
	require.Zero(t, silence(sessions, "d", detection, now))
}
