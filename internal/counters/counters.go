// Package counters feeds the metrics: results of the kernel's appliers, counters of flow replication, and counters that
// the kernel keeps, which it reads only when the metrics are scraped.
package counters

import (
	"github.com/egressway/egressway/internal/flowlog"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/status"
)

// Appliers of a pass besides those of the kernel, as metrics name them.
const (
	ApplyBGP         = "bgp"
	ApplyConnections = "connections"
)

// Expect initialises the counters of possible failures to zero.
func Expect(s *status.Status) {
	var drifts []string
	for _, d := range kernel.Drifts() {
		drifts = append(drifts, string(d))
	}
	appliers := []string{ApplyBGP, ApplyConnections}
	for _, a := range kernel.Appliers() {
		appliers = append(appliers, string(a))
	}
	s.Expect(appliers, drifts)
}

// Applied adds the result of a kernel Apply to the metrics.
func Applied(s *status.Status, r kernel.Result) {
	for _, step := range r.Steps {
		s.Applied(string(step.Applier), step.Took, step.Err)
	}
	for kind, n := range r.Drift {
		s.Repaired(string(kind), n)
	}
}

// Flows adds the counters of flow replication to the metrics.
func Flows(s *status.Status, counters func() flows.Counters) {
	for _, c := range []struct {
		name, help string
		of         func(flows.Counters) uint64
	}{
		{"flows_sent", "Egress flows sent to the standby of their ingress IP.", func(c flows.Counters) uint64 { return c.Sent }},
		{"flows_sent_bytes", "Bytes sent for that, without headers of TCP and IP.", func(c flows.Counters) uint64 { return c.Bytes }},
		{"flows_received", "Egress flows received from other nodes.", func(c flows.Counters) uint64 { return c.Received }},
		{
			"flows_injected", "Of the received flows, those that got a new conntrack entry here.",
			func(c flows.Counters) uint64 { return c.Injected },
		},
		{
			"flows_refused", "Of the received flows, those that are not planned here, or that an entry here prevents.",
			func(c flows.Counters) uint64 { return c.Refused },
		},
		{
			"flows_dropped", "Flows that were not sent at first, because too many were waiting.",
			func(c flows.Counters) uint64 { return c.Dropped },
		},
		{
			"flows_events_lost",
			"Times that the kernel had more events of connections than could be read; all connections are then listed.",
			func(c flows.Counters) uint64 { return c.Lost },
		},
	} {
		s.Count(c.name, c.help, func() uint64 { return c.of(counters()) })
	}
}

// FlowLog adds the counters of the flow log to the metrics.
func FlowLog(s *status.Status, counters func() flowlog.Counters) {
	for _, c := range []struct {
		name, help string
		of         func(flowlog.Counters) uint64
	}{
		{"flow_log_lines", "Lines written to the flow log.", func(c flowlog.Counters) uint64 { return c.Lines }},
		{
			"flow_log_events_lost", "Ends of egress connections that the kernel did not report to the flow log for lack of room.",
			func(c flowlog.Counters) uint64 { return c.EventsLost },
		},
		{
			"flow_log_lines_lost", "Lines that the file of the flow log did not accept, or that had no room while it accepted nothing.",
			func(c flowlog.Counters) uint64 { return c.LinesLost },
		},
	} {
		s.Count(c.name, c.help, func() uint64 { return c.of(counters()) })
	}
}
