package status

import (
	"net/netip"
	"runtime"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/text"
)

// reportCollector reads the metrics from the current report, so that they never contradict it. Labels are bounded:
// networks of the configuration, peers and reasons; a service whose network is not among them counts under an empty
// one.
type reportCollector struct{ status *Status }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("egressway_"+name, help, labels, nil)
}

var (
	descServices  = desc("egressservices", "EgressServices, by network.", "network")
	descEndpoints = desc("endpoints", "Selected pod addresses in the cluster, by network.", "network")
	descAnnounced = desc("announced_prefixes", "Ingress IPs that this node announces, by network.", "network")
	descLearned   = desc("learned_routes", "Learned routes that are planned, by network.", "network")
	descUsable    = desc("network_usable", "Whether the network's VRF and table are there.", "network")
	descSessionUp = desc("bgp_session_up", "Whether the BGP session is established.", "network", "peer")
	descReceived  = desc("bgp_received_prefixes", "Routes that the peer sends.", "network", "peer")
	descAccepted  = desc("bgp_accepted_prefixes", "Routes of the peer that pass the import rules.", "network", "peer")
	descTold      = desc("bgp_announced_prefixes", "Routes sent to the peer.", "network", "peer")
	descState     = desc("bgp_session_state",
		"State of the BGP session: 0 waiting, 1 idle, 2 connect, 3 active, 4 opensent, 5 openconfirm, 6 established.", "network", "peer")
	descSince        = desc("bgp_session_since_timestamp_seconds", "Since when the BGP session has been in its state.", "network", "peer")
	descBFD          = desc("bfd_session_up", "Whether the peer's BFD session is up, where BFD is configured.", "network", "peer")
	descStates       = desc("egressservices_by_state", "EgressServices by state: served, nohost, or problem if one is known.", "state")
	descHosted       = desc("egressservices_hosted", "EgressServices that this node is the host of.")
	descBacked       = desc("egressservices_standby", "EgressServices that this node is the standby of.")
	descEgressIPs    = desc("egressips", "Addresses of EgressIPs, by network.", "network")
	descEgressStates = desc("egressips_by_state", "Addresses of EgressIPs by state: served, nohost, or problem if one is known.", "state")
	descSeats        = desc("seats_hosted", "EgressServices, and addresses of EgressIPs, that this node is the host of.")
	descSeatsBacked  = desc("seats_standby", "EgressServices, and addresses of EgressIPs, that this node is the standby of.")
	descOnLink       = desc("onlink_addresses", "Addresses of EgressIPs for which this node answers ARP and NDP.")
	descQoSClasses   = desc("qos_classes", "Different sets of DSCP values that pods of this node have by EgressQoS.")
	descPolicies     = desc("firewall_policies", "Different sets of EgressFirewall rules that pods of this node have, by family.")
	descStretches    = desc("firewall_stretches", "The most lookups by destination that EgressFirewall takes for a connection.")
	descWatched      = desc("watched_nodes", "Nodes that this one watches by BFD.")
	descSilent       = desc("watched_nodes_silent", "Watched nodes that are silent.")
	descProblems     = desc("problems", "Problems of objects and of the configuration, by reason.", "reason")
	descReady        = desc("ready", "Whether the first pass is complete and the kernel as planned.")
	descStale        = desc("config_stale", "Whether the configuration file has errors and an earlier one is in force.")
	descDraining     = desc("draining", "Whether this node is asked to serve no EgressService.")
	descLastPass     = desc("last_pass_timestamp_seconds", "When the last pass of the loop ended.")
	descEntries      = desc("conntrack_entries", "Connections that the kernel of this node tracks.")
	descLimit        = desc("conntrack_entries_limit", "How many connections it may track; it drops new ones above that.")
	descBuild        = desc("build_info", "Always 1; the labels say what runs.", "version", "goversion")
	allDescs         = []*prometheus.Desc{
		descServices, descEndpoints, descAnnounced, descLearned, descUsable, descSessionUp, descReceived, descAccepted, descTold,
		descState, descSince, descBFD, descStates, descHosted, descBacked, descEgressIPs, descEgressStates, descSeats, descSeatsBacked,
		descOnLink, descQoSClasses, descPolicies, descStretches, descWatched, descSilent,
		descProblems, descReady, descStale, descDraining, descLastPass, descEntries, descLimit, descBuild,
	}
)

// Describe implements prometheus.Collector.
func (c reportCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range allDescs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c reportCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		for i := range labels {
			labels[i] = valid(labels[i])
		}
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	r := c.status.Report()
	gauge(descBuild, 1, c.status.version, runtime.Version())
	gauge(descReady, number(r.Ready))
	gauge(descStale, number(r.ConfigStale))
	gauge(descDraining, number(r.Draining))
	if !r.Applied.IsZero() {
		gauge(descLastPass, float64(r.Applied.UnixNano())/1e9)
	}
	if connections := c.status.connections.Load(); connections != nil {
		gauge(descEntries, float64(connections[0]))
		gauge(descLimit, float64(connections[1]))
	}
	for name, n := range r.byNetwork() {
		gauge(descServices, float64(n.services), name)
		gauge(descEndpoints, float64(n.endpoints), name)
		gauge(descAnnounced, float64(len(n.announced)), name)
		gauge(descEgressIPs, float64(n.egressIPs), name)
	}
	for _, n := range r.Networks {
		gauge(descLearned, float64(n.Learned), n.Name)
		if !n.Elsewhere {
			gauge(descUsable, number(n.Usable), n.Name)
		}
	}
	for _, s := range r.Sessions {
		gauge(descSessionUp, number(s.Up), s.Network, s.Peer)
		gauge(descReceived, float64(s.Received), s.Network, s.Peer)
		gauge(descAccepted, float64(s.Accepted), s.Network, s.Peer)
		gauge(descTold, float64(s.Announced), s.Network, s.Peer)
		gauge(descState, float64(slices.Index(sessionStates, s.State)), s.Network, s.Peer)
		if !s.Since.IsZero() {
			gauge(descSince, float64(s.Since.UnixNano())/1e9, s.Network, s.Peer)
		}
		if s.BFD != "" {
			gauge(descBFD, number(s.BFD == "up"), s.Network, s.Peer)
		}
	}
	silent := 0
	for _, w := range r.Watched {
		if !w.Alive {
			silent++
		}
	}
	gauge(descWatched, float64(len(r.Watched)))
	gauge(descSilent, float64(silent))
	hosted, backed, states := r.byState(r.Services)
	gauge(descHosted, float64(hosted))
	gauge(descBacked, float64(backed))
	for state, count := range states {
		gauge(descStates, float64(count), state)
	}
	hostedIPs, backedIPs, states := r.byState(r.EgressIPs)
	gauge(descSeats, float64(hosted+hostedIPs))
	gauge(descSeatsBacked, float64(backed+backedIPs))
	for state, count := range states {
		gauge(descEgressStates, float64(count), state)
	}
	gauge(descOnLink, float64(r.answeredOnLink()))
	gauge(descQoSClasses, float64(r.QoSClasses))
	gauge(descPolicies, float64(r.FirewallPolicies))
	gauge(descStretches, float64(r.FirewallStretches))
	for reason, count := range r.ProblemsByReason {
		gauge(descProblems, float64(count), string(reason))
	}
}

// sessionStates lists the states of a session by number, which is that of bgpPeerState in RFC 4273 except for the
// first.
var sessionStates = []string{"waiting", "idle", "connect", "active", "opensent", "openconfirm", "established"}

// answeredOnLink counts the addresses for which this node answers ARP and NDP.
func (r Report) answeredOnLink() (count int) {
	for i := range r.EgressIPs {
		if r.EgressIPs[i].OnLink != "" {
			count++
		}
	}
	return count
}

// byState counts the rows of a report with this node as host, those with it as standby, and all by state.
func (r Report) byState(rows []Service) (hosted, backed int, states map[string]int) {
	states = map[string]int{"served": 0, "nohost": 0, "problem": 0}
	fit := r.Fit()
	for i := range rows {
		s := &rows[i]
		switch s.role(r.Node) {
		case roleHost:
			hosted++
		case roleStandby:
			backed++
		}
		states[s.state(r.Node, fit)]++
	}
	return hosted, backed, states
}

// Fit returns the networks by which the node can serve.
func (r *Report) Fit() map[string]bool {
	fit := make(map[string]bool, len(r.Networks))
	for _, n := range r.Networks {
		fit[n.Name] = n.Usable && (n.Sessions == 0 || n.SessionsUp > 0)
	}
	return fit
}

// Fails returns why a node does not serve its part of a service, besides the service's problems; empty: it serves it, or has none. fit
// holds the networks by which the node can serve.
func (s *Service) Fails(node string, fit map[string]bool) string {
	switch serves := s.role(node) != "" || s.Host == cluster.AllHosts && s.Local > 0; {
	case s.Aside:
		return "node " + node + " is elected, but lacks network " + s.Network
	case serves && !fit[s.Network]:
		return "node " + node + " cannot serve it: network " + s.Network + " is not usable, or none of its sessions is up"
	}
	return ""
}

// state returns the name of a service's state on a node; fit holds the networks by which the node can serve.
func (s *Service) state(node string, fit map[string]bool) string {
	switch {
	case s.Host == "":
		return "nohost"
	case len(s.Problems) > 0, s.Fails(node, fit) != "":
		return "problem"
	default:
		return "served"
	}
}

// totals sums up the services of a network. Services may share an ingress IP.
type totals struct {
	services, egressIPs int
	endpoints           int
	announced           map[netip.Addr]bool
}

func (r Report) byNetwork() map[string]*totals {
	sums := map[string]*totals{}
	of := func(network string) *totals {
		if sums[network] == nil {
			sums[network] = &totals{announced: map[netip.Addr]bool{}}
		}
		return sums[network]
	}
	known := map[string]bool{}
	for _, n := range r.Networks {
		known[n.Name] = true
		of(n.Name) // also without services
	}
	for s := range r.Rows() {
		name := s.Network
		if !known[name] {
			name = ""
		}
		n := of(name)
		if s.Namespace == "" {
			n.egressIPs += len(s.IngressIPs)
		} else {
			n.services++
		}
		n.endpoints += s.Endpoints
		for _, a := range s.Announced {
			n.announced[a] = true
		}
	}
	return sums
}

// valid returns a label's value as inert text, whatever an object's name contains.
func valid(s string) string { return text.Line(s) }

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
