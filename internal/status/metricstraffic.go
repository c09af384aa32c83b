package status

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressway/egressway/internal/cluster"
)

// Traffic holds the kernel's counters, as read for a scrape of the metrics.
type Traffic struct {
	Dropped    map[string]uint64    // packets, by reason
	Sent       map[netip.Addr]Sent  // by ingress IP; nil: not counted
	Ports      map[netip.Addr]InUse // by source address
	PortsKnown bool                 // Ports have been counted
	PortsLimit int                  // of connections with one port of one remote address
	Err        error                // why something is missing
}

// Sent counts the packets that left with an ingress IP as source.
type Sent struct{ Packets, Bytes uint64 }

// InUse counts the connections that have an address as source.
type InUse struct {
	Connections int
	Ports       int // the most with one port of one remote address
}

// OnScrape makes f provide the traffic for scrapes of the metrics. f may be called concurrently, and should not read
// the kernel again at once: one scrape may call it twice. perService adds metrics of each EgressService of which this
// node is host or standby. Call OnScrape before Serve.
func (s *Status) OnScrape(perService bool, f func() Traffic) {
	s.traffic, s.perService = f, perService
	s.registry.MustRegister(trafficCollector{f})
}

// OnLead makes f report whether this daemon leads. Call it before Serve.
func (s *Status) OnLead(f func() bool) {
	s.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "egressway_leader", Help: "Whether this daemon elects hosts for all nodes.",
	}, func() float64 { return number(f()) }))
}

var (
	descDropped   = desc("dropped_packets_total", "Packets that the rules of this node have dropped, by reason.", "reason")
	descCounted   = desc("kernel_counters_ok", "Whether the kernel's counters could be read.")
	descSNATFlows = desc("snat_connections", "Connections that leave by this node with another source address.")
	descSNATPorts = desc("snat_ports_used", "Source ports of one address in use with one port of one remote address, at most.")
	descSNATLimit = desc("snat_ports_limit", "Source ports that an address has for one port of one remote address, of one protocol.")
)

// trafficCollector collects the kernel's counters.
type trafficCollector struct{ read func() Traffic }

// Describe implements prometheus.Collector.
func (c trafficCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDropped, descCounted, descSNATFlows, descSNATPorts, descSNATLimit} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c trafficCollector) Collect(out chan<- prometheus.Metric) {
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	t := c.read()
	emit(descCounted, prometheus.GaugeValue, number(t.Err == nil))
	for why, packets := range t.Dropped {
		emit(descDropped, prometheus.CounterValue, float64(packets), why)
	}
	if !t.PortsKnown {
		return
	}
	connections, most := 0, 0
	for _, u := range t.Ports {
		connections += u.Connections
		most = max(most, u.Ports)
	}
	emit(descSNATFlows, prometheus.GaugeValue, float64(connections))
	emit(descSNATPorts, prometheus.GaugeValue, float64(most))
	emit(descSNATLimit, prometheus.GaugeValue, float64(t.PortsLimit))
}

const (
	roleHost    = "host"
	roleStandby = "standby"
)

// role returns a node's role for a service with one host; empty: none.
func (s *Service) role(node string) string {
	switch {
	case s.Host == node && s.SourceIPBy != cluster.SourceIPByNetwork:
		return roleHost
	case s.Standby == node && s.Host != node && s.Host != "":
		return roleStandby
	}
	return ""
}
