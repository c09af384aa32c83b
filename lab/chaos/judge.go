package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/lab"
)

// incident is a fault that happened.
type incident struct {
	step step
	dead func(lab.Question) bool // selects questions without an answer before it is healed, whichever way the daemon acts

	began, settled, ended time.Time
	healed                time.Time // zero for a fault that needs no healing

	errs []error // of its steps, and from a lab that stays broken
}

// over is from when on the lab is left to itself.
func (in incident) over() time.Time {
	if in.healed.IsZero() {
		return in.began
	}
	return in.healed
}

// Row holds the effects of one kind of fault, over all times that it happened.
type Row struct {
	Fault    string
	Count    int
	Lost     int           // questions by new flows that were not answered within a second
	Broken   int           // sessions that ended
	Leaks    int           // packets that a router should not have seen, and answers with a wrong source
	Excused  int           // lost while the machine was too busy to judge
	Late     time.Duration // how long, at most, the machine did nothing in any one second
	Recovery time.Duration
	Stall    time.Duration // the longest that a session waited for an answer
	Settled  time.Duration // the longest until everything was as it should be, from the healing
	Limit    Limit
	Failed   int // times that a limit was not kept
}

// verdict is the result of one incident.
type verdict struct {
	Row
	failures []string

	down, back, unchanged, wrong felt
	seen                         lab.Answerer // one that was wrong
	slowest                      string       // who felt the fault for the longest time
}

func (v *verdict) fail(format string, args ...any) {
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

// before is how long before its beginning a fault may be felt: by questions under way then.
const before = 100 * time.Millisecond

// judge counts the effects of an incident and compares them with its limits.
func (r *run) judge(number int, in incident) {
	v := verdict{Row: Row{Fault: in.step.kind, Count: 1, Limit: limits[in.step.kind].with(r.Slack), Settled: in.settled.Sub(in.over())}}
	from := in.began.Add(-before)
	delays := r.probe.Delays(from, in.ended.Add(judged))
	v.Late = stood(delays)
	busy := r.busy(from, in.ended, delays)
	for _, report := range r.probe.Between(from, in.ended) {
		if report.Question.Node != control && !isDenied(report.Question) {
			v.flow(r, in, report, busy)
		}
	}
	v.sum()
	wrong := r.Wrong(r.allowed())
	if v.Leaks += wrong.Total(); len(wrong) > 0 {
		v.fail("%d packets at routers with a wrong source or in a wrong network: %s", wrong.Total(), r.some(wrong))
	}
	for what, packets := range map[string]lab.Packets{
		"that an EgressFirewall denies": r.trespassers(), "with a foreign DSCP value": r.miscolored(),
	} {
		if v.Leaks += packets.Total(); len(packets) > 0 {
			v.fail("%d packets at routers %s: %s", packets.Total(), what, r.some(packets))
		}
	}
	for _, err := range in.errs {
		v.fail("%v", err)
	}
	row := r.rows[in.step.kind]
	if row == nil {
		row = &Row{Fault: in.step.kind, Limit: v.Limit}
		r.rows[in.step.kind] = row
	}
	row.add(v)
	mark := "ok"
	if len(v.failures) > 0 {
		mark = "FAILED"
	}
	r.say("%3d %-50s lost %4d  broken %2d  leaks %2d  recovery %5d ms  stall %5d ms  whole after %4.1f s  late %4d ms  %s",
		number+1, in.step, v.Lost, v.Broken, v.Leaks, v.Recovery.Milliseconds(), v.Stall.Milliseconds(), v.Settled.Seconds(),
		v.Late.Milliseconds(), mark)
	if v.slowest != "" {
		r.say("      the latest that was felt: %s", v.slowest)
	}
	for _, f := range v.failures {
		r.failures = append(r.failures, fmt.Sprintf("fault %d, %s: %s", number+1, in.step, f))
		r.say("      %s", f)
	}
}

func (row *Row) add(v verdict) {
	row.Count++
	row.Lost += v.Lost
	row.Broken += v.Broken
	row.Leaks += v.Leaks
	row.Excused += v.Excused
	row.Late = max(row.Late, v.Late)
	row.Recovery = max(row.Recovery, v.Recovery)
	row.Stall = max(row.Stall, v.Stall)
	row.Settled = max(row.Settled, v.Settled)
	if len(v.failures) > 0 {
		row.Failed++
	}
}

// flow judges one kind of question.
func (v *verdict) flow(r *run, in incident, report lab.Report, busy func(lab.Question, time.Time) bool) {
	q := report.Question
	dead := in.dead != nil && in.dead(q)
	changed := r.now[q.Node] != r.before[q.Node]
	for _, at := range report.Lost {
		healed := !in.healed.IsZero() && !at.Before(in.healed)
		if healed || !dead {
			v.loss(in, q, at, healed, changed, busy)
		}
	}
	if !changed && !dead {
		v.session(in, report)
	}
	for _, w := range report.Wrong {
		if slices.Contains(wanted(r.before)(q), w.Seen) { // not changed yet
			v.former(in, q, w.At)
			continue
		}
		v.Leaks++
		v.wrong.add(q, w.At.Sub(in.began))
		v.seen = w.Seen
	}
}

// loss judges a question that was lost at a time; healed: since the fault was; changed: the pod has another identity.
func (v *verdict) loss(in incident, q lab.Question, at time.Time, healed, changed bool, busy func(lab.Question, time.Time) bool) {
	p, since, limit, phase := &v.down, in.began, v.Limit.Down, "began"
	if healed {
		p, since, limit, phase = &v.back, in.healed, v.Limit.Back, "ended"
	}
	if changed { // the nodes learn the change one after the other, and end its sessions
		limit = max(limit, v.Limit.Change)
	}
	took := max(0, at.Sub(since)) + q.Every
	late := limit == 0 || took > limit
	if late && (v.Late > starved || busy(q, at)) {
		v.Excused++
		return
	}
	v.Lost++
	v.recovered(took, fmt.Sprintf("%s, after it %s", q, phase))
	if late {
		p.add(q, at.Sub(since))
	}
}

// session judges connections that stay.
func (v *verdict) session(in incident, report lab.Report) {
	v.Stall = max(v.Stall, report.Stalled)
	if v.Broken += len(report.Broken); len(report.Broken) > 0 && !v.Limit.Breaks && v.Late <= starved {
		v.fail("%s: the connection was broken %d ms after it began: %s",
			report.Question, report.Broken[0].Sub(in.began).Milliseconds(), report.Why)
	}
}

// former judges an answer that was right before the fault.
func (v *verdict) former(in incident, q lab.Question, at time.Time) {
	took := at.Sub(in.over())
	v.recovered(took, q.String()+", after the change")
	if took > v.Limit.Change {
		v.unchanged.add(q, took)
	}
}

// recovered notes how long a kind of question felt the fault.
func (v *verdict) recovered(took time.Duration, who string) {
	if took > v.Recovery {
		v.Recovery, v.slowest = took, who
	}
}

// felt holds the effects of a fault in many flows at a time when it may have none.
type felt struct {
	count       int
	first, last time.Duration
	questions   []string
}

func (f *felt) add(q lab.Question, after time.Duration) {
	if f.count == 0 {
		f.first, f.last = after, after
	}
	f.count++
	f.first, f.last = min(f.first, after), max(f.last, after)
	if name := q.String(); !slices.Contains(f.questions, name) {
		f.questions = append(f.questions, name)
	}
}

func (f *felt) String() string {
	return fmt.Sprintf("%d, from %d to %d ms: %s", f.count, f.first.Milliseconds(), f.last.Milliseconds(), strings.Join(f.questions, ", "))
}

// sum fails the verdict for each kind of effect that occurred when it may not.
func (v *verdict) sum() {
	for _, p := range []struct {
		felt
		what  string
		limit time.Duration
	}{
		{v.down, "lost after it began", v.Limit.Down},
		{v.back, "lost after it ended", v.Limit.Back},
		{v.unchanged, "answered as before the change after it ended", v.Limit.Change},
	} {
		if p.count > 0 {
			v.fail("%s, which may be so for %d ms: %s", p.what, p.limit.Milliseconds(), &p.felt)
		}
	}
	if v.wrong.count > 0 {
		v.fail("answered to somebody else (%s) after it began: %s", v.seen, &v.wrong)
	}
}

// busy returns a function that reports whether a lost question means nothing, since the machine was too busy: questions
// that no fault touches were lost at that time too, or TCP was to send something again (after 200 ms) while nothing
// ran.
func (r *run) busy(from, to time.Time, delays []lab.Delay) func(lab.Question, time.Time) bool {
	var bad []time.Time
	for _, report := range r.probe.Between(from, to) {
		if report.Question.Node == control {
			bad = append(bad, report.Lost...)
		}
	}
	const around = time.Second
	return func(q lab.Question, at time.Time) bool {
		near := func(t time.Time) bool { return t.Sub(at).Abs() < around }
		return slices.ContainsFunc(bad, near) || q.Protocol == lab.TCP &&
			slices.ContainsFunc(delays, func(d lab.Delay) bool { return near(d.At) })
	}
}

// stood is for how long, at most, the machine did nothing in any one second.
func stood(delays []lab.Delay) (most time.Duration) {
	for i, d := range delays {
		sum := time.Duration(0)
		for _, next := range delays[i:] {
			if next.At.Sub(d.At) < time.Second {
				sum += next.By
			}
		}
		most = max(most, sum)
	}
	return most
}

// starved is how long nothing may run before the nodes find each other dead: BFD waits for 300 ms. Losses after that
// are not losses by a fault.
const starved = 200 * time.Millisecond

// some names a few packets.
func (r *run) some(packets lab.Packets) string {
	var all []string
	for p, n := range packets {
		what := fmt.Sprintf("%d × %s", n, p)
		if h, ok := r.Witness.Latest(p); ok {
			what += ", the latest " + h.String()
		}
		all = append(all, what)
	}
	slices.Sort(all)
	return strings.Join(all[:min(5, len(all))], "; ")
}
