package status

import (
	"net/netip"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressway/egressway/internal/cluster"
)

// reportCollector reads the metrics out of the current report, so that they never contradict it. Labels are bounded:
// networks of the configuration, peers and reasons; a service whose network is none of them counts under an empty one.
type reportCollector struct{ status *Status }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("egressway_"+name, help, labels, nil)
}

var (
	descServices  = desc("egressservices", "EgressServices, by network.", "network")
	descEndpoints = desc("endpoints", "Selected pod addresses in the cluster, by network.", "network")
	descAnnounced = desc("announced_prefixes", "Ingress IPs that this node announces, by network.", "network")
	descLearned   = desc("learned_routes", "Routes that peers tell and that are installed, by network.", "network")
	descUsable    = desc("network_usable", "Whether the network's VRF and table are there.", "network")
	descSessionUp = desc("bgp_session_up", "Whether the BGP session is established.", "network", "peer")
	descReceived  = desc("bgp_received_prefixes", "Routes that the peer sends.", "network", "peer")
	descAccepted  = desc("bgp_accepted_prefixes", "Routes of the peer that pass the import rules.", "network", "peer")
	descSent      = desc("bgp_announced_prefixes", "Routes sent to the peer.", "network", "peer")
	descProblems  = desc("problems", "Problems of objects and of the configuration, by reason.", "reason")
	descReady     = desc("ready", "Whether the first pass is complete and the kernel as planned.")
	descStale     = desc("config_stale", "Whether the configuration file has errors and an earlier one is in force.")
	descDraining  = desc("draining", "Whether this node is asked to serve no EgressService.")
	descLastPass  = desc("last_pass_timestamp_seconds", "When the last pass of the loop ended.")
	descEntries   = desc("conntrack_entries", "Connections that the kernel of this node tracks.")
	descLimit     = desc("conntrack_entries_limit", "How many connections it may track; what begins beyond is dropped.")
	descBuild     = desc("build_info", "Always 1; the labels say what runs.", "version", "goversion")
	allDescs      = []*prometheus.Desc{
		descServices, descEndpoints, descAnnounced, descLearned, descUsable, descSessionUp, descReceived, descAccepted, descSent,
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
			labels[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
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
	}
	for _, n := range r.Networks {
		gauge(descLearned, float64(n.Learned), n.Name)
		gauge(descUsable, number(n.Usable), n.Name)
	}
	for _, s := range r.Sessions {
		gauge(descSessionUp, number(s.Up), s.Network, s.Peer)
		gauge(descReceived, float64(s.Received), s.Network, s.Peer)
		gauge(descAccepted, float64(s.Accepted), s.Network, s.Peer)
		gauge(descSent, float64(s.Announced), s.Network, s.Peer)
	}
	reasons := map[cluster.Reason]int{}
	for _, p := range r.Problems {
		reasons[p.Reason]++
	}
	for reason, count := range reasons {
		gauge(descProblems, float64(count), string(reason))
	}
}

// totals sums up the services of a network. Services may share an ingress IP.
type totals struct {
	services, endpoints int
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
	for _, s := range r.Services {
		name := s.Network
		if !known[name] {
			name = ""
		}
		n := of(name)
		n.services++
		n.endpoints += s.Endpoints
		for _, a := range s.Announced {
			n.announced[a] = true
		}
	}
	return sums
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
