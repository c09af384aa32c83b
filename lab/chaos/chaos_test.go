package chaos

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
)

// first are the first steps of a schedule.
func first(n int, seed uint64, kinds []string) (all []step) {
	for _, s := range draw(seed, kinds) {
		if len(all) == n {
			break
		}
		all = append(all, s)
	}
	return all
}

func TestScheduleFollowsFromSeed(t *testing.T) {
	n := len(kinds())
	steps := first(3*n, 7, kinds())
	require.Equal(t, steps, first(3*n, 7, kinds()))
	require.NotEqual(t, steps, first(3*n, 8, kinds()))
	for round := range slices.Chunk(steps, n) {
		seen := map[string]bool{}
		for _, s := range round {
			seen[s.kind] = true
			hold := faults[s.kind].hold
			require.GreaterOrEqual(t, s.hold, hold[0], "%s", s)
			require.LessOrEqual(t, s.hold, hold[1], "%s", s)
			require.Contains(t, []int{theHost, theStandby, theThird}, s.role)
			require.GreaterOrEqual(t, s.pause, 500*time.Millisecond)
			require.LessOrEqual(t, s.pause, 3*time.Second)
		}
		require.Len(t, seen, n, "all kinds come before any comes again")
	}
	require.Empty(t, first(1, 7, nil))
}

func TestKinds(t *testing.T) {
	for kind := range limits {
		require.Contains(t, faults, kind, "limits")
	}
	for kind, f := range faults {
		require.NotNil(t, f.inject, kind)
		require.Equal(t, f.heal == nil, f.hold == [2]time.Duration{}, "%s: what nobody heals has no end", kind)
	}
	_, err := only([]string{"nothing", "rain"})
	require.ErrorContains(t, err, `no fault "rain"`)
	some, err := only([]string{"nothing"})
	require.NoError(t, err)
	require.Equal(t, []string{"nothing"}, some)
	all, err := only(nil)
	require.NoError(t, err)
	require.Equal(t, slices.Sorted(maps.Keys(faults)), all)
}

func TestLimit(t *testing.T) {
	for want, l := range map[string]Limit{
		"none lost":                        {},
		"500 after it":                     {Down: 500 * time.Millisecond},
		"20 after its end, 1 for a change": {Back: 20 * time.Millisecond, Change: time.Millisecond},
		"breaks sessions":                  {Breaks: true},
	} {
		require.Equal(t, want, l.String())
	}
	require.Equal(t, Limit{Back: 3 * time.Second}, Limit{Back: time.Second}.with(2*time.Second))
}

// TestVerdict judges what one kind of question met with.
func TestVerdict(t *testing.T) {
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	egress := lab.Question{Node: "a-p1", To: outside[0], Protocol: lab.UDP, Every: 10 * time.Millisecond}
	guests := lab.Question{Node: guest, To: outside[0], Protocol: lab.UDP, Every: 10 * time.Millisecond}
	session := lab.Question{Node: "a-p1", To: outside[0], Protocol: lab.TCP, Session: true, Every: 10 * time.Millisecond}
	was := lab.Answerer{Name: "ext-red", Source: netip.MustParseAddr(team.source4)}
	cases := map[string]struct {
		limit    Limit
		question lab.Question
		report   lab.Report
		dead     bool
		busy     bool
		late     time.Duration
		want     Row
		failures int
	}{
		"nothing lost":           {question: egress},
		"lost":                   {question: egress, report: lab.Report{Lost: []time.Time{at(5), at(15)}}, want: Row{Lost: 2, Recovery: 25 * time.Millisecond}, failures: 1},
		"lost, as may be":        {limit: Limit{Down: time.Second}, question: egress, report: lab.Report{Lost: []time.Time{at(5)}}, want: Row{Lost: 1, Recovery: 15 * time.Millisecond}},
		"lost for too long":      {limit: Limit{Down: time.Second}, question: egress, report: lab.Report{Lost: []time.Time{at(995)}}, want: Row{Lost: 1, Recovery: 1005 * time.Millisecond}, failures: 1},
		"lost after the healing": {limit: Limit{Down: time.Minute, Back: time.Second}, question: egress, report: lab.Report{Lost: []time.Time{at(2500)}}, want: Row{Lost: 1, Recovery: 510 * time.Millisecond}},
		"too long after it":      {limit: Limit{Down: time.Minute}, question: egress, report: lab.Report{Lost: []time.Time{at(2500)}}, want: Row{Lost: 1, Recovery: 510 * time.Millisecond}, failures: 1},
		"dead":                   {question: egress, dead: true, report: lab.Report{Lost: []time.Time{at(5)}}},
		"dead no more":           {question: egress, dead: true, report: lab.Report{Lost: []time.Time{at(2000)}}, want: Row{Lost: 1, Recovery: 10 * time.Millisecond}, failures: 1},
		"busy":                   {question: egress, busy: true, report: lab.Report{Lost: []time.Time{at(5)}}, want: Row{Excused: 1}},
		"starved":                {question: egress, late: time.Second, report: lab.Report{Lost: []time.Time{at(5)}}, want: Row{Excused: 1, Late: time.Second}},
		"broken":                 {question: session, report: lab.Report{Broken: []time.Time{at(5)}, Stalled: time.Second}, want: Row{Broken: 1, Stall: time.Second}, failures: 1},
		"broken, as may be":      {limit: Limit{Breaks: true}, question: session, report: lab.Report{Broken: []time.Time{at(5)}}, want: Row{Broken: 1}},
		"somebody else":          {question: egress, report: lab.Report{Wrong: []lab.Wrong{{At: at(5), Seen: was}}}, want: Row{Leaks: 1}, failures: 1},
		"changed":                {limit: Limit{Change: time.Second}, question: guests, report: lab.Report{Wrong: []lab.Wrong{{At: at(2100), Seen: was}}}, want: Row{Recovery: 100 * time.Millisecond}},
		"changed late":           {limit: Limit{Change: time.Second}, question: guests, report: lab.Report{Wrong: []lab.Wrong{{At: at(3100), Seen: was}}}, want: Row{Recovery: 1100 * time.Millisecond}, failures: 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := &run{before: asDeployed(), now: asDeployed().with(identities{guest: web})}
			v := verdict{Row: Row{Limit: c.limit, Late: c.late}}
			c.report.Question = c.question
			in := incident{began: began, healed: at(2000), dead: func(lab.Question) bool { return c.dead }}
			v.flow(r, in, c.report, func(lab.Question, time.Time) bool { return c.busy })
			v.sum()
			require.Len(t, v.failures, c.failures, "%s", v.failures)
			c.want.Limit = c.limit
			require.Equal(t, c.want, v.Row)
		})
	}
}

// TestBrains hears of routes as ip(8) tells of them.
func TestBrains(t *testing.T) {
	b := &brains{split: map[string]time.Time{}}
	now := time.Now()
	after := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	b.hear("red1", "192.0.2.10 nhid 20 via 10.1.0.11 dev eth1 proto bgp metric 20 ", after(0))
	b.hear("red1", `192.0.2.10 nhid 23 proto bgp metric 20 \	nexthop via 10.1.0.11 dev eth1 weight 1 \	nexthop via 10.1.0.12 dev eth1 weight 1 `, after(100))
	b.hear("red1", `2001:db8:2::10 nhid 23 proto bgp metric 20 \	nexthop via fd01::11 dev eth1 weight 1 \	nexthop via fd01::12 dev eth1 weight 1 pref medium`, after(150))
	b.hear("red1", `192.0.2.20 nhid 25 proto bgp metric 20 \	nexthop via 10.1.0.11 dev eth1 weight 1 \	nexthop via 10.1.0.12 dev eth1 weight 1 `, after(150))
	b.hear("red1", "192.0.2.10 nhid 20 via 10.1.0.12 dev eth1 proto bgp metric 20 ", after(400))
	b.hear("red1", `Deleted 2001:db8:2::10 nhid 23 proto bgp metric 20 \	nexthop via fd01::11 dev eth1 weight 1 \	nexthop via fd01::12 dev eth1 weight 1 pref medium`, after(550))
	b.hear("red1", "gibberish", after(600))
	require.Equal(t, Brains{Longest: 400 * time.Millisecond, Where: "red1 2001:db8:2::10", Times: 2}, b.longest())
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	result := Result{Rows: []Row{{Fault: "nothing", Count: 3}, {Fault: "rain", Count: 1, Lost: 2, Failed: 1}}, Questions: 17}
	require.NoError(t, result.Print(&out))
	require.Contains(t, out.String(), "✔ nothing  3      0")
	require.Contains(t, out.String(), "✘ rain     1      2")
	require.Contains(t, out.String(), "17 questions answered")
}
