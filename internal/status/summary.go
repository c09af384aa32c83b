package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/text"
)

// Summary is a report with the number of EgressServices instead of the EgressServices: a cluster's nodes all have the same ones.
type Summary struct {
	Node           string    `json:"node"`
	Version        string    `json:"version"`
	Started        time.Time `json:"started"`
	Ready          bool      `json:"ready"`
	Draining       bool      `json:"draining"`
	Unknowing      bool      `json:"unknowing,omitempty"` // not all objects are known, so the numbers of EgressServices say nothing
	ConfigStale    bool      `json:"configStale"`
	Errors         []string  `json:"errors"`
	EgressServices int       `json:"egressServices"`
	HostOf         int       `json:"hostOf"`    // EgressServices whose host the node is
	StandbyOf      int       `json:"standbyOf"` // EgressServices whose standby the node is
	Sessions       []Session `json:"sessions"`
	Networks       []Network `json:"networks"`

	ProblemsByReason map[cluster.Reason]int `json:"problemsByReason"`
}

// Summary returns the summary of the report.
func (r Report) Summary() Summary {
	return Summary{
		Node: r.Node, Version: r.Version, Started: r.Started, Ready: r.Ready, Draining: r.Draining,
		Unknowing: r.Unknowing, ConfigStale: r.ConfigStale,
		Errors: r.Errors, EgressServices: len(r.Services), HostOf: len(r.Hosted()), StandbyOf: len(r.Backed()),
		Sessions: r.Sessions, Networks: r.Networks, ProblemsByReason: r.ProblemsByReason,
	}
}

// Answer is what the daemon of one node answers.
type Answer struct {
	Node    string   `json:"node"`
	Pod     string   `json:"pod,omitempty"`
	Error   string   `json:"error,omitempty"` // why there is no answer
	Summary *Summary `json:"status,omitempty"`
}

// WriteNodes writes a table with a row for each node. A wide one adds versions, ages, and the reasons of problems.
func WriteNodes(out io.Writer, answers []Answer, wide bool, now time.Time) error {
	w := &textWriter{out: out, colours: text.ColoursOf(out)}
	head := []string{"NODE", "READY", "NETWORKS", "SESSIONS", "HOST OF", "STANDBY OF", "PROBLEMS"}
	if wide {
		head = append(head, "EGRESSSERVICES", "VERSION", "UP", "POD", "REASONS")
	}
	w.titles(head...)
	var silent []Answer
	for _, a := range answers {
		if a.Summary == nil {
			silent = append(silent, a)
			w.row(a.Node, w.judged("no answer", false))
			continue
		}
		w.node(a, wide, now)
	}
	if len(silent) > 0 {
		w.gap()
		w.painted(w.colours.Head, "No answer:")
	}
	for _, a := range silent {
		w.painted(w.colours.Bad, "  node %s: %s", a.Node, a.Error)
	}
	w.flush()
	return w.err
}

// node writes the row of a node that answers.
func (w *textWriter) node(a Answer, wide bool, now time.Time) {
	s := a.Summary
	usable, sessions := tally(s)
	state, problems := "no", 0
	if s.Ready {
		state = "yes"
	}
	if s.Draining {
		state += ", draining"
	}
	for _, n := range s.ProblemsByReason {
		problems += n
	}
	number := func(n int) string {
		if s.Unknowing {
			return "?"
		}
		return strconv.Itoa(n)
	}
	row := []any{
		s.Node, w.judged(state, s.Ready), w.upOf(usable), w.upOf(sessions), number(s.HostOf), number(s.StandbyOf),
		w.judged(strconv.Itoa(problems), problems == 0),
	}
	if wide {
		row = append(row, number(s.EgressServices), cmp.Or(s.Version, "unknown"), age(now.Sub(s.Started)), a.Pod, reasonsOf(s))
	}
	w.row(row...)
}

// tally counts usable networks of those that are to be on the node, and sessions that are up, as "up/all"; empty: there are none.
func tally(s *Summary) (usable, sessions string) {
	count := func(up, all int) string {
		if all == 0 {
			return ""
		}
		return fmt.Sprintf("%d/%d", up, all)
	}
	networks, here, up := 0, 0, 0
	for _, n := range s.Networks {
		if n.Usable {
			networks++
		}
		if !n.Elsewhere {
			here++
		}
	}
	for i := range s.Sessions {
		if s.Sessions[i].Up {
			up++
		}
	}
	return count(networks, here), count(up, len(s.Sessions))
}

// reasonsOf lists the reasons of a node's problems.
func reasonsOf(s *Summary) string {
	reasons := make([]string, 0, len(s.ProblemsByReason))
	for reason, n := range s.ProblemsByReason {
		if n > 0 {
			reasons = append(reasons, string(reason))
		}
	}
	slices.Sort(reasons)
	return strings.Join(reasons, ",")
}

// WriteSessions writes a table with a row for each session of each node. A wide one adds families, BFD and the number of routes.
func WriteSessions(out io.Writer, answers []Answer, wide bool, now time.Time) error {
	w := &textWriter{out: out, colours: text.ColoursOf(out)}
	head := []string{"NODE", "NETWORK", "PEER", "AS", "STATE", "FOR", "LAST ERROR"}
	if wide {
		head = []string{
			"NODE", "NETWORK", "PEER", "AS", "STATE", "FOR", "FAMILIES", "RECEIVED", "ACCEPTED", "ANNOUNCED", "BFD", "LAST ERROR",
		}
	}
	w.titles(head...)
	for _, a := range answers {
		if a.Summary == nil {
			w.row(a.Node, "", "", "", w.judged("no answer", false), "", a.Error)
			continue
		}
		for i := range a.Summary.Sessions {
			s := &a.Summary.Sessions[i]
			cells := append([]any{a.Node}, w.session(s, now)...)
			if !wide {
				cells = append(cells[:6], s.LastError)
			}
			w.row(cells...)
		}
	}
	w.flush()
	return w.err
}
