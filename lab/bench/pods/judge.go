package main

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// verdict counts a pod's packets.
type verdict struct {
	first time.Time // of the first packet with the right source; zero: no such packet was seen
	right int

	// With another source. The last two are not to be.
	early      int // before the endpoint was written
	underway   int // from then to the first right one
	afterEvent int // of these, after a watch received the endpoint
	late       int // after the first right one, of new flows
	lateAgain  int // and of the pod's first flow
}

// judge counts the packets seen of a pod, in the order of time. right is its source, and device the one by which they
// leave, as soon as the endpoint was written (at written; a watch received it at told).
func judge(seen []sight, right netip.Addr, device string, written, told time.Time) (v verdict) {
	for _, x := range seen {
		switch good := x.source == right && x.device == device; {
		case good:
			v.right++
			if v.first.IsZero() {
				v.first = x.at
			}
		case !v.first.IsZero() && x.again:
			v.lateAgain++
		case !v.first.IsZero():
			v.late++
		case x.at.Before(written):
			v.early++
		default:
			v.underway++
			if !told.IsZero() && x.at.After(told) {
				v.afterEvent++
			}
		}
	}
	return v
}

// tally adds up verdicts.
type tally struct {
	pods, unseen, leaked int // leaked: those with a packet of another source

	early, underway, afterEvent, late, lateAgain int

	fromSent, fromAnswer, fromEvent figures.Spans
}

func (t *tally) add(v verdict, w write, told time.Time) {
	t.pods++
	if v.first.IsZero() {
		t.unseen++
	}
	if v.early+v.underway+v.late+v.lateAgain > 0 {
		t.leaked++
	}
	t.early += v.early
	t.underway += v.underway
	t.afterEvent += v.afterEvent
	t.late += v.late
	t.lateAgain += v.lateAgain
	t.fromSent.Add(w.sent, v.first)
	t.fromAnswer.Add(w.answered, v.first)
	t.fromEvent.Add(told, v.first)
}

// report prints the sums.
func (b *bed) report(out io.Writer, all []*pod, seen []sight) {
	of := make([][]sight, len(all))
	for _, x := range seen {
		if x.pod < len(of) {
			of[x.pod] = append(of[x.pod], x)
		}
	}
	var selected, others tally
	for _, p := range all {
		slices.SortFunc(of[p.number], func(a, b sight) int { return a.at.Compare(b.at) })
		if p.service != nil {
			told := b.api.Told(p.slice.version, p.slice.sent)
			selected.add(judge(of[p.number], p.service.ingress, "eth2", p.slice.sent, told), p.slice, told)
		} else {
			told := b.api.Told(p.address.version, p.address.sent)
			others.add(judge(of[p.number], nodeAddress, "eth1", p.address.sent, told), p.address, told)
		}
	}
	fmt.Fprintf(out, "### %s\n\n%s packets came out of %s pods.\n\n", b.says, figures.Count(len(seen)), figures.Count(len(all)))
	if b.denied {
		for _, x := range seen {
			if x.pod < len(all) {
				fmt.Fprintf(out, "- pod %d, %s after its first SYN, from %s by %s\n", x.pod, x.at.Sub(all[x.pod].begun), x.source, x.device)
			}
		}
		return
	}
	t := figures.NewTable("from", "to", "n", "p50", "p90", "p99", "most")
	row := func(from, to string, s figures.Spans) { t.Add(append([]string{from, to}, s.Columns()...)...) }
	const right = "first packet with the ingress IP outside"
	row("request that makes it an endpoint", right, selected.fromSent)
	row("its answer", right, selected.fromAnswer)
	row("its event at a watch beside the daemon's", right, selected.fromEvent)
	if others.pods > 0 {
		const out = "first packet outside, of a pod that is not selected"
		row("request that writes its address", out, others.fromSent)
		row("its answer", out, others.fromAnswer)
		row("its event at a watch beside the daemon's", out, others.fromEvent)
	}
	t.Print(out)
	t = figures.NewTable("packets with another source", "selected pods", "others")
	line := func(what string, of func(*tally) int) {
		x := ""
		if others.pods > 0 {
			x = figures.Count(of(&others))
		}
		t.Add(what, figures.Count(of(&selected)), x)
	}
	line("before that request", func(t *tally) int { return t.early })
	line("from then to the first right one", func(t *tally) int { return t.underway })
	line("of these, after the event", func(t *tally) int { return t.afterEvent })
	line("after the first right one, of new flows", func(t *tally) int { return t.late })
	line("after it, of the pod's first flow", func(t *tally) int { return t.lateAgain })
	line("pods with any", func(t *tally) int { return t.leaked })
	line("pods in all", func(t *tally) int { return t.pods })
	line("of which no right packet was seen", func(t *tally) int { return t.unseen })
	t.Print(out)
}
