package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/speaker"
)

// TestVersionsFall: after etcd was restored from a backup, this node reports no version that the API server has yet to give to an object.
// Otherwise later changes would count as in force before they are.
func TestVersionsFall(t *testing.T) {
	web, batch := cluster.Key{Namespace: "shop", Name: "web"}, cluster.Key{Namespace: "shop", Name: "batch"}
	objects := func(web, batch uint64, host string) cluster.Objects {
		all := map[cluster.Key]cluster.EgressService{}
		ips := map[cluster.Key]cluster.EgressIP{}
		for name, version := range map[string]uint64{"web": web, "batch": batch} {
			if version > 0 {
				all[cluster.Key{Namespace: "shop", Name: name}] = cluster.EgressService{Version: version, Status: cluster.Status{Host: host}}
				ips[cluster.Key{Name: name}] = cluster.EgressIP{Version: version, Holders: []cluster.Holder{{Host: host}}}
			}
		}
		return cluster.Objects{EgressServices: cluster.MapOf(all), EgressIPs: cluster.MapOf(ips), PodsKnown: true}
	}
	f := inForce{pending: cluster.Everything()}
	for _, step := range []struct {
		text       string
		web, batch uint64
		host       string
		changed    []cluster.Key
		want       uint64
	}{
		{"all are read", 5000, 4000, "a", nil, 5000},
		{"web is as it was in the backup", 1000, 4000, "a", []cluster.Key{web}, 4000},
		{"batch as well", 1000, 900, "a", []cluster.Key{batch}, 1000},
		{"of another host", 1001, 900, "b", []cluster.Key{web}, 1000},
		{"a change of the restored server", 1001, 1002, "a", []cluster.Key{batch}, 1002},
		{"the newest is deleted", 1001, 0, "a", []cluster.Key{batch}, 1001},
		{"a change of the other", 1003, 0, "a", []cluster.Key{web}, 1003},
	} {
		o := objects(step.web, step.batch, step.host)
		for _, key := range step.changed {
			f.pending.Add(cluster.KindEgressService.ID(key))
		}
		require.Equal(t, step.want, f.advance(o, "a"), step.text)
		f.advanceIPs(o, "a")
		require.Equal(t, step.want, f.ipVersion, "%s, of EgressIPs", step.text)
	}
}

// TestVersionsWaitForServices: an object whose Service has other ingress IPs here than the leader saw is not reported as in force.
func TestVersionsWaitForServices(t *testing.T) {
	web, other := cluster.Key{Namespace: "shop", Name: "web"}, cluster.Key{Namespace: "shop", Name: "other"}
	f := inForce{pending: cluster.Everything()}
	for _, step := range []struct {
		text       string
		version    uint64
		ip, seenIP string // in the Service here, and in the status by the leader
		host       string
		want       uint64
	}{
		{"both are old", 5, "192.0.2.10", "192.0.2.10", "a", 5},
		{"the Service is late here", 7, "192.0.2.10", "192.0.2.99", "a", 5},
		{"both are new", 7, "192.0.2.99", "192.0.2.99", "a", 7},
		{"a leader that writes no ingress IPs", 8, "192.0.2.11", "", "a", 8},
		{"another node is the host", 9, "192.0.2.11", "192.0.2.99", "b", 8},
		{"the Service is late, and versions fell", 2, "192.0.2.10", "192.0.2.99", "a", 3},
	} {
		status := cluster.Status{Host: step.host}
		if step.seenIP != "" {
			status.IngressIPs = []string{step.seenIP}
		}
		o := cluster.Objects{
			EgressServices: cluster.MapOf(map[cluster.Key]cluster.EgressService{web: {Version: step.version, Status: status}, other: {Version: 3}}),
			Services:       cluster.MapOf(map[cluster.Key]cluster.Service{web: {Ingress: []cluster.Ingress{{IP: step.ip}}}}),
		}
		f.pending.Add(cluster.KindEgressService.ID(web))
		require.Equal(t, step.want, f.advance(o, "a"), step.text)
	}
}

// TestNewestVersion compares the newest version by changes with that of all objects, also when versions fall and objects go.
func TestNewestVersion(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		f := inForce{pending: cluster.Everything()}
		var all cluster.Map[cluster.Key, cluster.EgressService]
		for step := range 200 {
			for range rng.IntN(3) {
				key := cluster.Key{Namespace: "shop", Name: fmt.Sprint(rng.IntN(6))}
				f.pending.Add(cluster.KindEgressService.ID(key))
				if all = all.Without(key); rng.IntN(3) > 0 {
					host := []string{"a", "b"}[rng.IntN(2)]
					all = all.With(key, cluster.EgressService{Version: 1 + rng.Uint64N(1000), Status: cluster.Status{Host: host}})
				}
			}
			reported := f.advance(cluster.Objects{EgressServices: all}, "a")
			newest := uint64(0)
			for _, e := range all.All() {
				newest = max(newest, e.Version)
				require.True(t, e.Status.Host != "a" || e.Version <= reported, "seed %d, step %d: %d is in force", seed, step, e.Version)
			}
			require.Equal(t, newest, f.newest, "seed %d, step %d", seed, step)
			require.LessOrEqual(t, reported, newest, "seed %d, step %d", seed, step)
		}
	}
}

// TestReportOfAKernelThatRefuses: the leader learns that this node follows no change, once it has been so for a while.
func TestReportOfAKernelThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, server := served(t)
		refusing := func() bool {
			require.NoError(t, s.pass(t.Context()))
			return server.report.Refusing
		}
		require.False(t, refusing())
		s.kernel.result.InForce = false
		require.False(t, refusing())
		s.later(refusedFor - time.Second)
		require.False(t, refusing(), "it may be an interruption")
		s.later(time.Second)
		require.True(t, refusing())
		s.kernel.result.InForce = true
		require.False(t, refusing())
		s.later(2 * askWithin) // no question is left open
	})
}

// TestReportOfANodeThatCannotBeRead: such a node follows no change either. Its services still move away when it drains.
func TestReportOfANodeThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, server := served(t)
		s.kernel.unreadable = errors.New("no buffer space")
		require.Error(t, s.pass(t.Context()))
		require.Zero(t, server.report, "the report of the daemon's former run holds")
		s.kernel.unreadable = nil
		require.NoError(t, s.pass(t.Context()))
		former := server.report
		require.False(t, former.Refusing)
		require.NotEmpty(t, former.Networks)

		s.kernel.unreadable = errors.New("no buffer space")
		require.Error(t, s.pass(t.Context()))
		s.later(refusedFor - time.Second)
		require.Error(t, s.pass(t.Context()))
		require.Equal(t, former, server.report, "it may be an interruption")
		s.later(time.Second)
		s.draining.set(func(d *draining) { d.asked = true })
		require.Error(t, s.pass(t.Context()))
		former.Refusing, former.Draining = true, true
		require.Equal(t, former, server.report)
		s.kernel.unreadable = nil
		require.NoError(t, s.pass(t.Context()))
		require.False(t, server.report.Refusing)
		require.True(t, server.report.Draining)
		s.later(2 * askWithin) // no question is left open
	})
}

// TestReportWithoutASpeaker: no change is reported as in force while the speaker is being replaced, since no router knows of it. The leader
// would end a move by such a report.
func TestReportWithoutASpeaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, server := served(t)
		version := func(v uint64) cluster.Report {
			s.change(sampleWeb, func(e *cluster.EgressService) { e.Version, e.Status.Host = v, s.config.Node })
			team := cluster.EgressIP{Version: v, Holders: []cluster.Holder{{Addr: netip.MustParseAddr("203.0.114.1"), Host: s.config.Node}}}
			s.source.objects.EgressIPs = cluster.MapOf(map[cluster.Key]cluster.EgressIP{{Name: "team"}: team})
			s.source.objects.PodsKnown = true
			_ = s.pass(t.Context())
			return server.report
		}
		report := version(1)
		require.Equal(t, []uint64{1, 1}, []uint64{report.Applied, report.AppliedIPs})

		s.speakers.problem = speaker.ErrAbsent
		report = version(2)
		require.True(t, report.Networks["red"].Restarting)
		require.Equal(t, []uint64{1, 1}, []uint64{report.Applied, report.AppliedIPs}, "there is none")
		sessions := s.speakers.sessions
		s.speakers.problem, s.speakers.started, s.speakers.sessions = nil, time.Now(), nil
		for _, session := range sessions {
			session.Up = false
			s.speakers.sessions = append(s.speakers.sessions, session)
		}
		report = version(3)
		require.Equal(t, []uint64{1, 1}, []uint64{report.Applied, report.AppliedIPs}, "its sessions are not up yet")
		s.speakers.sessions = sessions
		require.NoError(t, s.pass(t.Context()))
		require.Equal(t, []uint64{3, 3}, []uint64{server.report.Applied, server.report.AppliedIPs})
		s.later(2 * askWithin) // no question is left open
	})
}

// TestReportOfEgressIPs: EgressIPs are reported as in force once the node answers for all their addresses on its links.
func TestReportOfEgressIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, server := served(t)
		address := netip.MustParseAddr("10.0.0.100")
		s.source.objects.PodsKnown = true
		s.source.objects.EgressIPs = cluster.MapOf(map[cluster.Key]cluster.EgressIP{
			{Name: "team"}: {Version: 5, Holders: []cluster.Holder{{Addr: address, Host: s.config.Node}}},
		})
		answers := sorted.Of(plan.OnLink{Addr: address, Device: "eth0"})
		s.last.plan = new(*s.last.plan)
		s.last.plan.DataPlane.OnLink = answers
		s.report(s.config, s.source.objects, nil, &kernel.Result{InForce: true})
		require.Zero(t, server.report.AppliedIPs)
		s.report(s.config, s.source.objects, nil, &kernel.Result{InForce: true, OnLink: answers})
		require.EqualValues(t, 5, server.report.AppliedIPs)
	})
}
