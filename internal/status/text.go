package status

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressway/egressway/internal/text"
)

// WriteText writes a report for a person who reads it at the time now. A wide one adds the networks, the sessions and
// every problem in full; the other lists those problems that belong to no row of its table.
func WriteText(out io.Writer, r Report, wide bool, now time.Time) error {
	w := &textWriter{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	w.head(r, now)
	w.services(r, wide)
	if wide {
		w.networks(r)
		w.sessions(r, now)
	}
	w.problems(r, wide)
	return w.Flush()
}

type textWriter struct{ *tabwriter.Writer }

func (w *textWriter) line(format string, args ...any) {
	_, _ = io.WriteString(w.Writer, text.Line(fmt.Sprintf(format, args...))+"\n") // the tabwriter keeps the error for Flush
}

// row writes cells that a column aligns.
func (w *textWriter) row(cells ...string) {
	for i := range cells {
		cells[i] = text.Line(cmp.Or(cells[i], "-"))
	}
	_, _ = io.WriteString(w.Writer, strings.Join(cells, "\t")+"\n")
}

// gap separates tables; columns do not align across it.
func (w *textWriter) gap() { _, _ = io.WriteString(w.Writer, "\n") }

func (w *textWriter) head(r Report, now time.Time) {
	state := "not ready"
	if r.Ready {
		state = "ready"
	}
	if r.Draining {
		state += ", draining"
	}
	last := "no pass yet"
	if !r.Applied.IsZero() {
		last = fmt.Sprintf("last pass %s ago in %s", age(now.Sub(r.Applied)), r.Duration.Round(10*time.Microsecond))
	}
	w.line("Node %s: %s, egressway %s, up %s, %s", r.Node, state, cmp.Or(r.Version, "unknown"), age(now.Sub(r.Started)), last)
	if r.ConfigStale {
		w.line("The configuration file has errors: the last good configuration is in force.")
	}
	for _, e := range r.Errors {
		w.line("Error: %s", strings.ReplaceAll(e, "\n", "; "))
	}
	w.gap()
}

func (w *textWriter) services(r Report, wide bool) {
	if len(r.Services) == 0 {
		w.line("No EgressServices.")
		return
	}
	sessions := map[string]string{}
	for _, n := range r.Networks {
		sessions[n.Name] = sessionCount(n)
	}
	head := []string{"EGRESSSERVICE", "NETWORK", "HOST", "STANDBY", "INGRESS IPS", "ENDPOINTS", "SESSIONS", "ANNOUNCED", "PROBLEM"}
	if wide {
		head = []string{"EGRESSSERVICE", "SOURCE IP BY", "NETWORK", "HOST", "STANDBY", "INGRESS IPS", "ENDPOINTS", "HERE", "SESSIONS", "ANNOUNCED", "PROBLEM"}
	}
	w.row(head...)
	for _, s := range r.Services {
		name, here := s.Namespace+"/"+s.Name, strconv.Itoa(s.Local)
		endpoints, problem := strconv.Itoa(s.Endpoints), reasons(r, s)
		if wide {
			w.row(name, string(s.SourceIPBy), s.Network, s.Host, s.Standby, addrs(s.IngressIPs), endpoints, here, sessions[s.Network], addrs(s.Announced), problem)
			continue
		}
		w.row(name, s.Network, s.Host, s.Standby, addrs(s.IngressIPs), endpoints, sessions[s.Network], announced(r, s), problem)
	}
}

// announced says whether this node announces the service, and whether as the one that would take over.
func announced(r Report, s Service) string {
	switch {
	case len(s.Announced) == 0:
		return "no"
	case s.Standby == r.Node && s.Host != r.Node:
		return "standby"
	case len(s.Announced) == len(s.IngressIPs):
		return "yes"
	}
	return fmt.Sprintf("%d/%d", len(s.Announced), len(s.IngressIPs))
}

// reasons is what is wrong with a service or, where nothing is, with its network.
func reasons(r Report, s Service) string {
	found := s.Problems
	if len(found) == 0 {
		for _, p := range r.Problems {
			if p.Kind == "Network" && p.Object == s.Network {
				found = append(found, p)
			}
		}
	}
	seen, words := map[string]bool{}, []string{}
	for _, p := range found {
		if word := string(p.Reason); !seen[word] {
			seen[word] = true
			words = append(words, word)
		}
	}
	return strings.Join(words, ", ")
}

func (w *textWriter) networks(r Report) {
	if len(r.Networks) == 0 {
		return
	}
	w.gap()
	w.row("NETWORK", "VRF", "TABLE", "USABLE", "LEARNED ROUTES", "SESSIONS")
	for _, n := range r.Networks {
		usable := "no"
		if n.Usable {
			usable = "yes"
		}
		w.row(n.Name, n.VRF, orNothing(n.Table), usable, strconv.Itoa(n.Learned), sessionCount(n))
	}
}

func (w *textWriter) sessions(r Report, now time.Time) {
	w.gap()
	if len(r.Sessions) == 0 {
		w.line("No BGP sessions.")
		return
	}
	w.row("NETWORK", "PEER", "AS", "STATE", "FOR", "FAMILIES", "RECEIVED", "ACCEPTED", "ANNOUNCED", "BFD", "LAST ERROR")
	for _, s := range r.Sessions {
		since, families := "", make([]string, len(s.Families))
		if !s.Since.IsZero() {
			since = age(now.Sub(s.Since))
		}
		for i, f := range s.Families {
			families[i] = string(f)
		}
		w.row(s.Network, s.Peer, orNothing(s.ASN), s.State, since, strings.Join(families, ","),
			strconv.Itoa(s.Received), strconv.Itoa(s.Accepted), strconv.Itoa(s.Announced), s.BFD, s.LastError)
	}
}

func (w *textWriter) problems(r Report, all bool) {
	rows := map[string]bool{}
	for _, s := range r.Services {
		rows[s.Namespace+"/"+s.Name] = true
	}
	begun := false
	for _, p := range r.Problems {
		if !all && ofService(p.Kind) && rows[p.Object] {
			continue
		}
		if !begun {
			begun = true
			w.gap()
			w.line("Problems:")
		}
		w.line("  %s: %s", p.Reason, p)
	}
}

// orNothing writes a number that is unknown when it is 0.
func orNothing(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

func sessionCount(n Network) string {
	if n.Sessions == 0 {
		return "" // no peers
	}
	return fmt.Sprintf("%d/%d", n.SessionsUp, n.Sessions)
}

func addrs(all []netip.Addr) string {
	s := make([]string, len(all))
	for i, a := range all {
		s[i] = a.String()
	}
	return strings.Join(s, ",")
}

// age writes a span of time as exactly as a person needs it.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 48*time.Hour:
		return d.Truncate(time.Second).String()
	default:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}
