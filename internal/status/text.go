package status

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/text"
)

// WriteText writes a report as text, as of the time now. A wide one adds the networks, their VLAN sub-interfaces, the
// sessions and every problem in full; the other lists those problems that belong to no row of its table. On a terminal it
// has colours.
func WriteText(out io.Writer, r Report, wide bool, now time.Time) error {
	w := &textWriter{out: out, colours: text.ColoursOf(out)}
	w.head(r, now)
	w.services(r, wide)
	w.egressQoSes(r)
	w.egressFirewalls(r)
	if wide {
		names(r.Names).write(w, now)
		w.networks(r)
		w.vlans(r)
		w.sessions(r, now)
	}
	w.problems(r, wide)
	w.flush()
	return w.err
}

// textWriter writes lines and tables.
type textWriter struct {
	out     io.Writer
	colours text.Colours
	table   text.Table
	err     error // the first one
}

func (w *textWriter) line(format string, args ...any) { w.painted(nil, format, args...) }

// painted writes a line in a colour.
func (w *textWriter) painted(paint func(string) string, format string, args ...any) {
	w.flush()
	line := text.Line(fmt.Sprintf(format, args...))
	if paint != nil {
		line = paint(line)
	}
	if _, err := io.WriteString(w.out, line+"\n"); w.err == nil {
		w.err = err
	}
}

// row writes the cells of a table's row: strings, or text.Cell.
func (w *textWriter) row(cells ...any) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	w.table.Row(cells...)
}

// titles writes the titles of columns.
func (w *textWriter) titles(titles ...string) {
	cells := make([]any, len(titles))
	for i, t := range titles {
		cells[i] = text.Cell(t, w.colours.Head)
	}
	w.row(cells...)
}

// flush ends a table.
func (w *textWriter) flush() {
	if err := w.table.Write(w.out); w.err == nil {
		w.err = err
	}
	w.table = text.Table{}
}

// gap writes an empty line, which separates tables: columns do not align across it.
func (w *textWriter) gap() { w.line("") }

// judged returns a cell in the colour for good or bad; an empty one has none.
func (w *textWriter) judged(s string, good bool) any {
	switch {
	case s == "":
		return "-"
	case good:
		return text.Cell(s, w.colours.Good)
	}
	return text.Cell(s, w.colours.Bad)
}

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
	paint := w.colours.Head
	if !r.Ready {
		paint = w.colours.Bad
	}
	w.painted(paint, "Node %s: %s, egressway %s, up %s, %s", r.Node, state, cmp.Or(r.Version, "unknown"), age(now.Sub(r.Started)), last)
	if r.ConfigStale {
		w.painted(w.colours.Bad, "The configuration file has errors: the last good configuration is in force.")
	}
	for _, e := range r.Errors {
		w.painted(w.colours.Bad, "Error: %s", strings.ReplaceAll(e, "\n", "; "))
	}
	w.gap()
}

func (w *textWriter) services(r Report, wide bool) {
	sessions, heldDown := map[string]string{}, map[string]bool{}
	for _, n := range r.Networks {
		sessions[n.Name], heldDown[n.Name] = sessionCount(n), n.HeldDown
	}
	defer w.egressIPs(r, sessions, heldDown)
	switch {
	case r.Unknowing:
		w.painted(w.colours.Bad, "Not all objects are known yet: the former state stays in force.")
		return
	case len(r.Services) == 0:
		w.line("No EgressServices.")
		return
	}
	head := []string{"EGRESSSERVICE", "NETWORK", "HOST", "STANDBY", "INGRESS IPS", "ENDPOINTS", "SESSIONS", "ANNOUNCED", "PROBLEM"}
	if wide {
		head = []string{
			"EGRESSSERVICE", "SOURCE IP BY", "NETWORK", "HOST", "STANDBY", "INGRESS IPS", "ENDPOINTS", "HERE",
			"SESSIONS", "ANNOUNCED", "PROBLEM",
		}
	}
	w.titles(head...)
	for _, s := range r.Services {
		name := s.Namespace + "/" + s.Name
		endpoints, problem := strconv.Itoa(s.Endpoints), reasons(r, s)
		here, announced := strconv.Itoa(s.Local), announced(r, s)
		switch {
		case heldDown[s.Network] && len(s.IngressIPs) > 0 && (s.Host == cluster.AllHosts || s.role(r.Node) != ""):
			announced = "held down"
		case wide:
			announced = addrs(s.Announced)
		}
		if wide {
			w.row(name, string(s.SourceIPBy), s.Network, s.Host, s.Standby, addrs(s.IngressIPs), endpoints, here,
				w.upOf(sessions[s.Network]), announced, w.judged(problem, false))
			continue
		}
		w.row(name, s.Network, s.Host, s.Standby, addrs(s.IngressIPs), endpoints,
			w.upOf(sessions[s.Network]), announced, w.judged(problem, false))
	}
}

// egressIPs writes a row for each address of an EgressIP.
func (w *textWriter) egressIPs(r Report, sessions map[string]string, heldDown map[string]bool) {
	if len(r.EgressIPs) == 0 {
		return
	}
	w.gap()
	w.titles("EGRESSIP", "ADDRESS", "NETWORK", "HOST", "STANDBY", "PODS", "HERE", "SESSIONS", "ANNOUNCED", "ON LINK", "PROBLEM")
	for _, s := range r.EgressIPs {
		announced := announced(r, s)
		if heldDown[s.Network] && len(s.IngressIPs) > 0 && s.role(r.Node) != "" {
			announced = "held down"
		}
		w.row(s.Name, cmp.Or(addrs(s.IngressIPs), "none"), s.Network, s.Host, s.Standby, strconv.Itoa(s.Endpoints), strconv.Itoa(s.Local),
			w.upOf(sessions[s.Network]), announced, cmp.Or(s.OnLink, "no"), w.judged(reasons(r, s), false))
	}
}

// announced describes which of the service's ingress IPs this node announces, and whether as standby.
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

// reasons returns the reasons of a service's problems or, if it has none, of its network's problems.
func reasons(r Report, s Service) string {
	found := s.Problems
	if len(found) == 0 {
		found = networkProblems(r, s.Network)
	}
	return reasonsIn(found)
}

// reasonsIn lists the reasons of problems, each once.
func reasonsIn(found []Problem) string {
	seen, words := map[string]bool{}, []string{}
	for _, p := range found {
		if word := string(p.Reason); !seen[word] {
			seen[word] = true
			words = append(words, word)
		}
	}
	return strings.Join(words, ", ")
}

func networkProblems(r Report, name string) (found []Problem) {
	for _, p := range r.Problems {
		if p.Kind == "Network" && p.Object == name {
			found = append(found, p)
		}
	}
	return found
}

func (w *textWriter) networks(r Report) {
	if len(r.Networks) == 0 {
		return
	}
	w.gap()
	w.titles("NETWORK", "VRF", "TABLE", "USABLE", "LEARNED ROUTES", "SESSIONS")
	for _, n := range r.Networks {
		usable := w.judged("no", false)
		switch {
		case n.Usable:
			usable = w.judged("yes", true)
		case n.Elsewhere:
			usable = "not on this node"
		}
		w.row(n.Name, n.VRF, orNothing(n.Table), usable, strconv.Itoa(n.Learned), w.upOf(sessionCount(n)))
	}
}

func (w *textWriter) vlans(r Report) {
	if len(r.VLANs) == 0 {
		return
	}
	w.gap()
	w.titles("INTERFACE", "NETWORK", "VLAN", "PARENT", "ADDRESSES")
	for _, v := range r.VLANs {
		addresses := make([]string, len(v.Addresses))
		for i, a := range v.Addresses {
			addresses[i] = a.String()
		}
		w.row(v.Name, v.Network, strconv.Itoa(int(v.ID)), v.Parent, strings.Join(addresses, " "))
	}
}

func (w *textWriter) sessions(r Report, now time.Time) {
	w.gap()
	if len(r.Sessions) == 0 {
		w.line("No BGP sessions.")
		return
	}
	w.titles("NETWORK", "PEER", "AS", "STATE", "FOR", "FAMILIES", "RECEIVED", "ACCEPTED", "ANNOUNCED", "BFD", "LAST ERROR")
	for i := range r.Sessions {
		w.row(w.session(&r.Sessions[i], now)...)
	}
}

// session returns the cells of a session's row.
func (w *textWriter) session(s *Session, now time.Time) []any {
	since, families := "", make([]string, len(s.Families))
	if !s.Since.IsZero() {
		since = age(now.Sub(s.Since))
	}
	for i, f := range s.Families {
		families[i] = string(f)
	}
	return []any{
		s.Network, s.Peer, orNothing(s.ASN), w.judged(s.State, s.Up), since, strings.Join(families, ","),
		strconv.Itoa(s.Received), strconv.Itoa(s.Accepted), strconv.Itoa(s.Announced), s.BFD, s.LastError,
	}
}

func (w *textWriter) problems(r Report, all bool) {
	listed := r.Problems
	if !all {
		listed = notInRows(r)
	}
	if len(listed) > 0 {
		w.gap()
		w.painted(w.colours.Head, "Problems:")
	}
	for _, p := range listed {
		w.painted(w.colours.Bad, "  %s: %s", p.Reason, p)
	}
	if r.ProblemsOmitted > 0 && all {
		w.painted(w.colours.Bad, "  and %d more of namespaces with more than %d", r.ProblemsOmitted, problemsListed)
	}
}

// notInRows returns the problems that no service's row shows.
func notInRows(r Report) []Problem {
	rows := map[string]bool{}
	for s := range r.Rows() {
		rows[cluster.Key{Namespace: s.Namespace, Name: s.Name}.String()] = true
	}
	for _, e := range r.EgressFirewalls {
		rows[cluster.KindEgressFirewall.ID(cluster.Key{Namespace: e.Namespace, Name: e.Name}).String()] = true
	}
	for _, q := range r.EgressQoSes {
		rows[cluster.KindEgressQoS.ID(cluster.Key{Namespace: q.Namespace, Name: q.Name}).String()] = true
	}
	return slices.DeleteFunc(slices.Clone(r.Problems), func(p Problem) bool { return rows[rowOf(cluster.Problem(p))] })
}

// orNothing formats a number; 0 means unknown.
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

// upOf returns a cell with a count of sessions, good if all are up.
func (w *textWriter) upOf(count string) any {
	up, all, _ := strings.Cut(count, "/")
	return w.judged(count, up == all)
}

func addrs(all []netip.Addr) string {
	s := make([]string, len(all))
	for i, a := range all {
		s[i] = a.String()
	}
	return strings.Join(s, ",")
}

// age formats a duration, less exactly if it is long.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 48*time.Hour:
		return d.Truncate(time.Second).String()
	default:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}
