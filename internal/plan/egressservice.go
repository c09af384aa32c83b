package plan

import (
	"iter"
	"net/netip"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
)

// egressServices makes sources of Services, with their EgressServices if they have one: ingress IPs are the seats, and
// endpoints the members.
type egressServices struct{}

func (egressServices) sources(o *cluster.Objects) iter.Seq[cluster.ID] {
	return func(yield func(cluster.ID) bool) {
		for key := range o.EgressServices.Keys() {
			if !yield(cluster.KindEgressService.ID(key)) {
				return
			}
		}
		for key := range o.Services.Keys() {
			if !yield(cluster.KindEgressService.ID(key)) {
				return
			}
		}
	}
}

func (egressServices) size(o *cluster.Objects) (sources, addresses int) {
	for _, endpoints := range o.Endpoints.All() {
		addresses += len(endpoints)
	}
	return o.Services.Len(), addresses + 2*o.Services.Len()
}

func (egressServices) changed(_ *pass, c cluster.Changed) iter.Seq[cluster.ID] {
	return func(yield func(cluster.ID) bool) {
		for key := range c.Of[cluster.KindEgressService] {
			if !yield(cluster.KindEgressService.ID(key)) {
				return
			}
		}
	}
}

func (egressServices) strange(h *homes, key cluster.Key, a netip.Addr) stranger {
	return h.strange(a, key.Namespace)
}

func (egressServices) exists(o *cluster.Objects, id cluster.ID) bool {
	_, selects := o.EgressServices.Get(id.Key)
	_, exists := o.Services.Get(id.Key)
	return selects || exists
}

func (egressServices) words() words {
	return words{
		seats: "status.loadBalancer.ingress", members: "endpoints", network: "spec.network", seat: "ingress IP",
		seatInvalid: ReasonInvalidAddress, seatTaken: ReasonIngressConflict, memberTaken: ReasonEndpointConflict,
	}
}

func (egressServices) read(r *redone, p *pass) {
	s, key, o := r.source, r.id.Key, &p.Objects
	spec, selects := o.EgressServices.Get(key)
	service := o.Services.At(key)
	s.selects, s.clusterIPs = selects, fit(service.ClusterIPs)
	s.sourceIPBy, s.wanted, s.nodeSelector = spec.SourceIPBy, spec.Network, spec.NodeSelector
	s.localTraffic, s.sharing = service.LocalTraffic, service.SharingKey
	if r.barred = !service.LoadBalancer; !r.barred {
		r.addresses = service.Ingress
	}
	if !selects {
		s.created, s.since = service.Created, service.Created
		s.host, s.standby, s.term, s.former, r.election = "", "", 0, false, nil
		return
	}
	s.created, s.since = spec.Created, election.Since(spec)
	r.raw = o.Endpoints.At(key)
	r.serve(p.ground, p.Hosts[election.Seat{ID: r.id}])
}

// countNames counts how many EgressServices name each network.
func countNames(o *cluster.Objects) map[string]int {
	names := map[string]int{}
	for _, e := range o.EgressServices.All() {
		names[e.Network]++
	}
	return names
}

// rename updates the counts of named networks for a changed EgressService.
func (r *pass) rename(key cluster.Key) {
	if s := r.sources[cluster.KindEgressService.ID(key)]; s != nil && s.selects {
		if r.names[s.wanted]--; r.names[s.wanted] == 0 {
			delete(r.names, s.wanted)
			r.renamed = true
		}
	}
	if e, ok := r.Objects.EgressServices.Get(key); ok {
		r.names[e.Network]++
		r.renamed = r.renamed || r.names[e.Network] == 1
	}
}
