package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressway/egressway/internal/bgp"
)

// measures are the metrics that the loop updates when something happens: no report contains past events.
type measures struct {
	applied   *prometheus.HistogramVec
	failed    *prometheus.CounterVec
	repaired  *prometheus.CounterVec
	failovers prometheus.Counter
	failover  *prometheus.HistogramVec
	reloads   *prometheus.CounterVec
	reloaded  prometheus.Gauge
	flaps     *prometheus.CounterVec

	sessions map[peerKey]*sessionSeen // used by TakeSessions only
}

// peerKey identifies a peer of a network.
type peerKey struct{ network, peer string }

// sessionSeen is the last known state of a session.
type sessionSeen struct {
	up    bool
	since time.Time // when it last came up
	here  bool
}

// lost reports whether the session has been down since it was last seen up.
func (s *sessionSeen) lost(now bgp.Session) bool {
	return s.up && (!now.Up || !now.Since.Equal(s.since))
}

// Stage is a part of a failover, as one node goes through it.
type Stage string

// The stages. Each begins where the previous one ends.
const (
	StageDetect   Stage = "detect"   // from the last sign of life that could have come until the node counts as dead
	StageSteer    Stage = "steer"    // until the kernel sends packets by the standby
	StageAnnounce Stage = "announce" // until the speaker has the changed announcements; only on nodes that then announce something else
)

func newMeasures(r prometheus.Registerer) *measures {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "egressway_" + name, Help: help}, labels)
	}
	m := &measures{
		applied: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "egressway_apply_duration_seconds", Help: "How long each applier took in a pass of the loop.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"applier"}),
		failed: counters("apply_errors_total", "Passes of the loop in which an applier failed.", "applier"),
		repaired: counters("drift_repaired_total",
			"Objects of this daemon in the kernel that another program removed, and that were restored.", "kind"),
		failovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "egressway_failovers_total", Help: "Times that this node saw another one as dead, and its standbys as the hosts.",
		}),
		failover: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "egressway_failover_duration_seconds", Help: "How long the stages of a failover took on this node.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		}, []string{"stage"}),
		reloads: counters("config_reloads_total", "Times that the configuration file was read again, by result.", "result"),
		reloaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "egressway_config_last_reload_success_timestamp_seconds", Help: "When the configuration that is in force was read.",
		}),
		flaps:    counters("bgp_session_flaps_total", "Times that an established BGP session was lost.", "network", "peer"),
		sessions: map[peerKey]*sessionSeen{},
	}
	for _, stage := range []Stage{StageDetect, StageSteer, StageAnnounce} {
		m.failover.WithLabelValues(string(stage)) // so that the first one shows as an increase
	}
	for _, result := range []string{resultOK, resultError} {
		m.reloads.WithLabelValues(result)
	}
	m.reloaded.SetToCurrentTime()
	r.MustRegister(m.applied, m.failed, m.repaired, m.failovers, m.failover, m.reloads, m.reloaded, m.flaps)
	return m
}

// Expect names the existing appliers and kinds of drift, so that their counters start at zero.
func (s *Status) Expect(appliers, drifts []string) {
	for _, a := range appliers {
		s.measures.applied.WithLabelValues(a)
		s.measures.failed.WithLabelValues(a)
	}
	for _, d := range drifts {
		s.measures.repaired.WithLabelValues(d)
	}
}

// Applied records the work of an applier in a pass.
func (s *Status) Applied(applier string, took time.Duration, err error) {
	s.measures.applied.WithLabelValues(applier).Observe(took.Seconds())
	if err != nil {
		s.measures.failed.WithLabelValues(applier).Inc()
	}
}

// Repaired records that n objects of a kind were restored.
func (s *Status) Repaired(kind string, n int) {
	s.measures.repaired.WithLabelValues(kind).Add(float64(n))
}

// NodeLost records that this node sees another one as dead.
func (s *Status) NodeLost() { s.measures.failovers.Inc() }

// Stage records how long a stage of a failover took.
func (s *Status) Stage(stage Stage, took time.Duration) {
	s.measures.failover.WithLabelValues(string(stage)).Observe(max(0, took).Seconds())
}

// Reloaded records that the configuration file was read again; with an error the previous configuration stays in force.
func (s *Status) Reloaded(err error) {
	if err != nil {
		s.measures.reloads.WithLabelValues(resultError).Inc()
		return
	}
	s.measures.reloads.WithLabelValues(resultOK).Inc()
	s.measures.reloaded.SetToCurrentTime()
}

// session returns the last known state of a peer's session; a new peer begins with no flaps.
func (m *measures) session(key peerKey) *sessionSeen {
	seen := m.sessions[key]
	if seen == nil {
		seen = &sessionSeen{}
		m.sessions[key] = seen
		m.flaps.WithLabelValues(valid(key.network), valid(key.peer))
	}
	return seen
}

// TakeSessions counts sessions that were lost since the last call. It must not be called concurrently, nor while the
// state of the sessions is unknown.
func (s *Status) TakeSessions(sessions []bgp.Session) {
	m := s.measures
	for _, seen := range m.sessions {
		seen.here = false
	}
	for _, now := range sessions {
		key := peerKey{now.Network, now.Peer}
		seen := m.session(key)
		if seen.lost(now) {
			m.flaps.WithLabelValues(valid(key.network), valid(key.peer)).Inc()
		}
		if seen.up = now.Up; now.Up {
			seen.since = now.Since
		}
		seen.here = true
	}
	for key, seen := range m.sessions {
		if !seen.here {
			delete(m.sessions, key)
			m.flaps.DeleteLabelValues(valid(key.network), valid(key.peer))
		}
	}
}
