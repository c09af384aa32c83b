package cluster

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Roster is a digest of all Nodes, which the leader publishes. Kubelets write the status of their Nodes all the time, but
// the facts that daemons need of other nodes hardly ever change: a daemon whose own digest equals the leader's need not
// watch them. The roster holds no facts, only which Nodes to read.
type Roster struct {
	Nodes   string        `json:"nodes"`             // digest of all Nodes' facts
	Changed []RosterEntry `json:"changed,omitempty"` // the latest changes, newest first, one for each Node
}

// RosterEntry is a Node that has changed.
type RosterEntry struct {
	Node  string `json:"node"`
	Facts string `json:"facts,omitempty"` // digest of its facts; empty: the Node is gone
}

// rosterMost bounds the changes in a Roster. A daemon that misses more of them lists all Nodes.
const rosterMost = 64

// HostLabelPrefix is the prefix of the labels that name the EgressServices of which a node is the host.
const HostLabelPrefix = "egress-service.k8s.ovn.org/"

// Facts returns a digest of the facts that the daemons of other nodes need of a Node. The leader alone needs more: whether
// it is Ready and cordoned. Labels that the leader writes do not count either. Daemons of different versions compare these
// digests: if a version computes others, all daemons watch all Nodes until the leader and they have the same version again.
func Facts(name string, n Node, problems []Problem) string {
	labels := maps.Clone(n.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return strings.HasPrefix(key, HostLabelPrefix) })
	var faults [][2]string
	for _, p := range problems {
		faults = append(faults, [2]string{p.Field, p.Value})
	}
	text, err := json.Marshal(struct {
		Name, UID           string
		Labels              map[string]string `json:",omitempty"`
		Addresses, Internal []netip.Addr
		PodCIDRs            []netip.Prefix
		Faults              [][2]string
		Secondary           Secondary `json:",omitzero"`
	}{name, n.UID, labels, n.Addresses, n.Internal, n.PodCIDRs, faults, n.Secondary})
	if err != nil {
		return err.Error() // never: these types have JSON
	}
	return digest(text)
}

func digest(text []byte) string {
	const enough = 12 // bytes
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:enough])
}

// Digest returns the digest of all Nodes, of whose facts it gets the digests by name.
func Digest(facts map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(facts)) {
		fmt.Fprintln(&text, name, facts[name])
	}
	return digest([]byte(text.String()))
}

// Next returns the Roster after a change of the Nodes' facts.
func (r Roster) Next(before, now map[string]string) Roster {
	differ := differing(before, now)
	next := Roster{Nodes: Digest(now)}
	for _, name := range slices.Sorted(maps.Keys(differ)) {
		if differ[name] {
			next.Changed = append(next.Changed, RosterEntry{name, now[name]})
		}
	}
	for _, e := range r.Changed {
		if !differ[e.Node] {
			next.Changed = append(next.Changed, RosterEntry{e.Node, now[e.Node]})
		}
	}
	next.Changed = slices.Clip(next.Changed[:min(len(next.Changed), rosterMost)])
	return next
}

// differing returns for each name in one of two maps whether its values differ.
func differing(before, now map[string]string) map[string]bool {
	differ := map[string]bool{}
	for name := range before {
		differ[name] = before[name] != now[name]
	}
	for name := range now {
		differ[name] = before[name] != now[name]
	}
	return differ
}

// Unlike returns the entries of changed Nodes whose facts differ from those known here.
func (r Roster) Unlike(facts map[string]string) (unlike []RosterEntry) {
	for _, e := range r.Changed {
		if facts[e.Node] != e.Facts {
			unlike = append(unlike, e)
		}
	}
	return unlike
}
