package election

import (
	"cmp"
	"iter"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// ServiceSeat returns the seat of the EgressService with a key.
func ServiceSeat(key cluster.Key) Seat { return Seat{cluster.KindEgressService.ID(key)} }

// egressServices makes contenders of EgressServices: one each.
type egressServices struct{}

func (egressServices) seats(o *cluster.Objects) iter.Seq[Seat] {
	return func(yield func(Seat) bool) {
		for key := range o.EgressServices.Keys() {
			if !yield(ServiceSeat(key)) {
				return
			}
		}
	}
}

func (egressServices) seatsOf(_ *cluster.Objects, key cluster.Key) []Seat {
	return []Seat{ServiceSeat(key)}
}

func (egressServices) tenure(o *cluster.Objects, s Seat) (t tenure, exists bool) {
	spec, exists := o.EgressServices.Get(s.Key)
	return tenureOf(spec), exists
}

func tenureOf(spec cluster.EgressService) tenure {
	return tenure{spec.Status.Host, spec.Status.Standby, spec.Status.Term, spec.Created}
}

func (egressServices) awaited(o *cluster.Objects, _ []config.Network, reports map[string]cluster.Report) iter.Seq[awaited] {
	return func(yield func(awaited) bool) {
		if reports == nil {
			return
		}
		for _, spec := range o.EgressServices.All() {
			r, reports := reports[spec.Status.Host]
			_, known := r.Networks[networkOf(spec)]
			if reports && !known && r.Applied < spec.Version && !yield(awaited{spec.Status.Host, networkOf(spec)}) {
				return
			}
		}
	}
}

func (egressServices) addresses(o *cluster.Objects, s Seat) (all []netip.Addr) {
	for _, in := range o.Services.At(s.Key).Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// contender checks one EgressService on its own.
func (egressServices) contender(e *elector, s Seat) (c *contender, all bool, problem *cluster.Problem) {
	spec := e.objects.EgressServices.At(s.Key)
	service, exists := e.objects.Services.Get(s.Key)
	switch {
	case !exists:
		return nil, false, noHost(s.ID, "", "", cluster.ReasonServiceNotFound, "no Service of this namespace and name")
	case !service.LoadBalancer:
		return nil, false, noHost(s.ID, "", "", cluster.ReasonNotLoadBalancer, "its Service is not of type LoadBalancer")
	}
	switch spec.SourceIPBy {
	case cluster.SourceIPByNetwork:
		return nil, true, nil
	case cluster.SourceIPByLoadBalancer, "":
	default:
		return nil, false, noHost(s.ID, "spec.sourceIPBy", string(spec.SourceIPBy), cluster.ReasonInvalidValue,
			"one of %s, %s", cluster.SourceIPByLoadBalancer, cluster.SourceIPByNetwork)
	}
	selector, err := selectorOf(spec)
	if err != nil {
		return nil, false, noHost(s.ID, "spec.nodeSelector", "", cluster.ReasonInvalidSelector, "not a label selector: %s", err)
	}
	c = &contender{
		seat: s, network: networkOf(spec), sharing: service.SharingKey, since: Since(spec), had: tenureOf(spec), selector: selector,
	}
	if c.addresses, problem = e.ingress(s, service); problem != nil {
		return nil, false, problem
	}
	endpoints := e.objects.Endpoints.At(s.Key)
	var found bool
	if c.need, found = e.need(endpoints, c.addresses); !found {
		return nil, false, noHost(s.ID, "", "", cluster.ReasonNoEndpoints, "its Service has no endpoint with an address of its own")
	}
	matching := e.selected(selector)
	fit := e.fit(selector, matching, c.network)
	c.candidates = fit
	if service.LocalTraffic {
		c.candidates = e.withEndpoint(fit, endpoints)
	}
	if len(c.candidates) == 0 {
		return nil, false, e.noCandidate(c, matching, fit)
	}
	return c, false, nil
}

func networkOf(e cluster.EgressService) string { return cmp.Or(e.Network, config.DefaultNetwork) }

// selectorOf parses the spec's nodeSelector; a spec without one selects every node.
func selectorOf(spec cluster.EgressService) (labels.Selector, error) {
	if spec.NodeSelector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(spec.NodeSelector)
}

// ingress lists the Service's ingress IPs that are no addresses of nodes. A Service without any has a problem.
func (e *elector) ingress(s Seat, service cluster.Service) (ips []netip.Addr, problem *cluster.Problem) {
	hostname := ""
	for _, in := range service.Ingress {
		if a, err := cluster.ParseAddr(in.IP); err == nil && !e.nodeAddrs[a] {
			ips = append(ips, a)
		}
		hostname = cmp.Or(hostname, in.Hostname)
	}
	if len(ips) == 0 {
		problem = noIngress(s, hostname)
	}
	return ips, problem
}

// noIngress describes that a Service has no ingress IP, but maybe a host name.
func noIngress(s Seat, hostname string) *cluster.Problem {
	if hostname != "" {
		return noHost(s.ID, "", hostname, cluster.ReasonHostnameIngress, "its Service has a host name as ingress: an IP is needed")
	}
	return noHost(s.ID, "", "", cluster.ReasonNoIngressIP,
		"its Service has no usable ingress IP yet: something must assign one, such as MetalLB")
}

// need returns the families for which a service needs routes: those that have an ingress IP and an endpoint. found reports
// whether the service has any endpoint with an address of its own.
func (e *elector) need(endpoints []cluster.Endpoint, ingress []netip.Addr) (f families, found bool) {
	source := familiesOf(ingress)
	for _, p := range endpoints {
		with := f.and(familyOf(p.Address).among(source))
		if found && with == f || !e.hasOwnAddress(p) { // the cheap question first: most endpoints cannot change the result
			continue
		}
		if f, found = with, true; f == source {
			break
		}
	}
	return f, found
}

// hasOwnAddress reports whether an endpoint is a pod with an address of its own.
func (e *elector) hasOwnAddress(p cluster.Endpoint) bool {
	a, err := cluster.ParseAddr(p.Address)
	return err == nil && !e.nodeAddrs[a] && p.Target == cluster.TargetPod
}

// familiesOf returns the families of addresses.
func familiesOf(all []netip.Addr) (f families) {
	for _, a := range all {
		f = f.and(families{a.Is4(), a.Is6()})
	}
	return f
}

// familyOf returns the family of an address in text form.
func familyOf(address string) families {
	ipv6 := strings.Contains(address, ":")
	return families{!ipv6, ipv6}
}

// withEndpoint lists those nodes that hold a pod of the endpoints.
func (e *elector) withEndpoint(nodes []int, endpoints []cluster.Endpoint) (holders []int) {
	holds := map[string]bool{}
	for _, p := range endpoints {
		holds[p.Node] = holds[p.Node] || p.Target == cluster.TargetPod
	}
	for _, i := range nodes {
		if holds[e.nodes[i]] {
			holders = append(holders, i)
		}
	}
	return holders
}

// noCandidate describes why no node may be the contender's host. Its selector matches the nodes in matching, of which those
// in fit are fit for its network.
func (e *elector) noCandidate(c *contender, matching, fit []int) *cluster.Problem {
	field, why := "", "no node is Ready"
	switch {
	case len(fit) > 0:
		why = "no eligible node holds an endpoint, as externalTrafficPolicy: Local asks"
	case len(matching) > 0:
		why = e.lacking(matching, c.network)
	case len(e.nodes) > 0:
		field, why = "spec.nodeSelector", "matches no Ready node"
	}
	return noHost(c.seat.ID, field, "", cluster.ReasonNoEligibleNode, "%s", why)
}

// Since returns the time since which an EgressService has had a host without interruption, by the condition that the leader
// writes. Without that condition in the status, it is the time when the object was created.
func Since(e cluster.EgressService) time.Time {
	c := meta.FindStatusCondition(e.Status.Conditions, ConditionHostAssigned)
	if c == nil || c.Status != metav1.ConditionTrue || e.Status.Host == "" {
		return e.Created
	}
	return c.LastTransitionTime.Time
}
