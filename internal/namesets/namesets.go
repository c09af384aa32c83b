// Package namesets connects DNS names with the plan: it has the names of the plan in force looked up, and writes their addresses into
// the sets of our table.
package namesets

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/names"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

// portDNS is the port of DNS (RFC 1035, section 4.2).
const portDNS = 53

// Kernel has the table.
type Kernel interface {
	OnNames(contents func(ruleset.NameSet) []nft.NameElement)
	WriteNames(all []nft.NameElement) error
}

// Sets keeps the sets of names of the plan in force.
type Sets struct {
	service *names.Service
}

// New returns Sets of no plan. wake is called when the result of Problems changes.
func New(log *slog.Logger, k Kernel, wake func()) *Sets {
	s := &Sets{service: names.New(log, writer{k}, ruleset.QueueAnswers, wake)}
	k.OnNames(func(set ruleset.NameSet) []nft.NameElement { return elements(s.service.Contents(setOf(&set))) })
	return s
}

// Run reads answers, writes addresses and asks resolvers until ctx ends.
func (s *Sets) Run(ctx context.Context) error { return s.service.Run(ctx) }

// Follow follows the plan that the table holds.
func (s *Sets) Follow(d *plan.DataPlane, c config.Names) {
	settings := names.Settings{
		Inside: func(a netip.Addr) bool { return cluster.Within(d.Cluster, a) || cluster.Within(d.Inside, a) },
		Grace:  time.Duration(c.Grace), Wait: time.Duration(c.Wait),
	}
	for _, set := range ruleset.NameSets(d) {
		settings.Sets = append(settings.Sets, setOf(&set))
	}
	for _, a := range d.Asked {
		settings.Resolvers = append(settings.Resolvers, netip.AddrPortFrom(a, portDNS))
	}
	s.service.Serve(settings)
}

// NotMade makes the sets count as before a pass that could not write the table.
func (s *Sets) NotMade() { s.service.NotMade() }

// Problems returns the problems of names on a node.
func (s *Sets) Problems(node string) []cluster.Problem { return s.service.Problems(node) }

// Counts returns counts of answers.
func (s *Sets) Counts() names.Counts { return s.service.Counts() }

// Known lists the names with the addresses that are in force.
func (s *Sets) Known() (all []status.Name) {
	for _, k := range s.service.Known() {
		n := status.Name{Name: k.Name}
		for _, a := range k.Addresses {
			n.Addresses = append(n.Addresses, status.NameAddress{Address: a.Addr, Expires: a.Expiry})
		}
		all = append(all, n)
	}
	return all
}

// setOf returns a set of the table as names know it.
func setOf(s *ruleset.NameSet) names.Set {
	return names.Set{Name: s.Set, IPv6: s.IPv6, Patterns: s.Names}
}

// writer writes elements into the table.
type writer struct{ Kernel }

// WriteNames implements names.Filter.
func (w writer) WriteNames(all []names.Element) error { return w.Kernel.WriteNames(elements(all)) }

func elements(all []names.Element) []nft.NameElement {
	converted := make([]nft.NameElement, len(all))
	for i, e := range all {
		converted[i] = nft.NameElement{Set: e.Set, Addr: e.Addr, Timeout: e.Timeout}
	}
	return converted
}
