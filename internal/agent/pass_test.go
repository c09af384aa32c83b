package agent

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/liveness"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/speaker"
)

// TestPassOrder: the kernel is ready before a peer sends packets, and a peer stops before the kernel is not.
func TestPassOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		require.NoError(t, s.passes(starting, "watch c", announceAll))
		require.NoError(t, s.passes(holding, "watch c"), "peers may have routes to send")
		s.later(announceWithin + time.Second)
		require.NoError(t, s.passes("kernel", "watch c"))

		former := s.source.objects.EgressServices.At(sampleWeb)
		s.source.objects.EgressServices = s.source.objects.EgressServices.Without(sampleWeb)
		s.source.changed.Add(cluster.KindEgressService.ID(sampleWeb))
		require.NoError(t, s.passes(withdrawWeb, "kernel", "watch"))
		s.change(sampleWeb, func(e *cluster.EgressService) { *e = former })
		s.kernel.result.OnLink = sorted.Of(plan.OnLink{Addr: netip.MustParseAddr("203.0.113.33"), Device: "eth0"})
		require.NoError(t, s.passes("kernel", "watch c", announceWeb, "answer for 203.0.113.33"), "routers do not wait for neighbours on a link")
	})
}

// TestPassWithoutObjects: a node that knows no objects yet changes nothing.
func TestPassWithoutObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.source.known = false
		require.NoError(t, s.passes())
		require.False(t, s.status.Report().Ready)
		require.True(t, s.status.Report().Unknowing)
		s.source.known = true
		require.NoError(t, s.passes(starting, "watch c", announceAll))
		require.True(t, s.status.Report().Ready)
		require.False(t, s.status.Report().Unknowing)
	})
}

// TestPassOfANodeThatCannotBeRead: all stays as it is, problems of objects too, and the pass fails.
func TestPassOfANodeThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settled(t)
		s.kernel.unreadable = errors.New("no buffer space")
		s.change(sampleWeb, func(e *cluster.EgressService) { e.Network = "blue" })
		require.ErrorContains(t, s.passes(), "no buffer space")
		s.kernel.unreadable = nil
		require.NoError(t, s.passes(withdrawWeb, "kernel", "watch c", announceWeb), "the change is not lost")

		s.change(sampleWeb, func(e *cluster.EgressService) { e.Network = "nowhere" })
		require.NoError(t, s.passes(withdrawWeb, "kernel", "watch"))
		require.Contains(t, s.reasons(), cluster.Reason("NetworkNotFound"))
		s.kernel.unreadable = errors.New("no buffer space")
		require.Error(t, s.passes())
		require.Contains(t, s.reasons(), cluster.Reason("NetworkNotFound"))
	})
}

// TestPassRestoresRoutes: routes that another program removed are put back before the pass plans, unless it removes them
// again and again, or they cannot be put back.
func TestPassRestoresRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settled(t)
		s.kernel.lost = 1
		require.NoError(t, s.passes("restore", "kernel", "watch c"))
		require.NoError(t, s.passes("kernel", "watch c"))
		s.kernel.lost = 100
		require.NoError(t, s.passes("restore", "restore", "restore", "kernel", "watch c"))
		s.kernel.err = errors.New("no such device")
		require.ErrorIs(t, s.passes("restore", "kernel", "watch c"), s.kernel.err, "Apply meets the error too")
	})
}

// TestPassRefusedByTheKernel: while the packet filter is not as planned, nothing more is announced, and no node is watched before it
// stands for the first time.
func TestPassRefusedByTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.kernel.result, s.kernel.err = kernel.Result{}, errors.New("operation not permitted")
		require.ErrorContains(t, s.passes(starting), "operation not permitted")
		require.False(t, s.status.Report().Ready)
		s.kernel.result, s.kernel.err = kernel.Result{InForce: true}, nil
		require.NoError(t, s.passes(starting, "watch c", announceAll))

		s.later(announceWithin + time.Second)
		s.kernel.result, s.kernel.err = kernel.Result{}, errors.New("operation not permitted")
		s.change(sampleWeb, func(e *cluster.EgressService) { e.Network = "blue" })
		require.Error(t, s.passes(withdrawWeb, "kernel", "watch c"), "what stands is answered by BFD still")
		require.Equal(t, 2, s.speakers.announced["blue"].Len(), "what was announced stays")
		require.False(t, s.status.Report().Ready)
		s.kernel.result, s.kernel.err = kernel.Result{InForce: true}, nil
		require.NoError(t, s.passes("whole kernel", "watch c", announceWeb))
		require.True(t, s.status.Report().Ready)
	})
}

// TestPassWithoutItsNode: no BGP session is reset while the Node is missing for the moment, since the router ID stays.
func TestPassWithoutItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settled(t)
		is := func(want netip.Addr) {
			t.Helper()
			s.source.changed.Join(cluster.Everything())
			require.NoError(t, s.pass(t.Context()))
			require.NotEmpty(t, s.last.plan.Speakers)
			for _, speaker := range s.last.plan.Speakers {
				require.Equal(t, want, speaker.RouterID)
			}
		}
		nodes := s.source.objects.Nodes
		own := nodes.At("a")
		four := own.Internal[0]
		is(four)
		s.source.objects.Nodes = nodes.Without("a")
		is(four)
		s.source.objects.Nodes = nodes
		is(four)
		own.Internal = own.Internal[1:]
		s.source.objects.Nodes = nodes.With("a", own)
		is(config.RouterIDOf("a"))
	})
}

// TestPassWithoutANode: a node whose Node is removed and comes back is handed no packets before it is heard again. While this node's own
// Node is missing, which ends all sessions, the others go on.
func TestPassWithoutANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		all := s.source.objects.Nodes
		answers := func(nodes cluster.Map[string, cluster.Node], sessions ...bfd.Session) bool {
			t.Helper()
			s.source.objects.Nodes, s.speakers.nodes = nodes, sessions
			s.source.changed.Join(cluster.Everything())
			require.NoError(t, s.pass(t.Context()))
			require.Equal(t, s.last.others.nodes.Heard["c"], s.answering(s.last.config)["c"])
			return s.last.others.nodes.Heard["c"]
		}
		up := bfd.Session{Node: "c", Active: true, State: bfd.Up, Heard: true, Since: time.Now()}
		down := bfd.Session{Node: "c", Active: true, State: bfd.Down, Since: time.Now()}
		require.True(t, answers(all, up))
		require.True(t, answers(all.Without("a")))
		require.True(t, answers(all.Without("a").Without("c")), "these may not be the objects of the cluster")
		require.True(t, answers(all, down))
		answers(all.Without("c"), up) // the session ends after this pass
		require.False(t, answers(all.Without("c")))
		require.False(t, answers(all, down))
		require.True(t, answers(all, up))
	})
}

// TestPassWithoutAVRF: a VRF that the kernel cannot make concerns its network alone. Its standby is the host.
func TestPassWithoutAVRF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.kernel.facts.Links = slices.DeleteFunc(s.kernel.facts.Links, func(l plan.Link) bool { return l.Name == "vrf-red" })
		s.speakers.nodes = []bfd.Session{{Node: "c", Active: true, State: bfd.Up, Heard: true, Since: time.Now()}}
		s.kernel.result.Unmade = map[string]error{"vrf-red": errors.New("operation not supported")}
		require.NoError(t, s.pass(t.Context()))
		require.Len(t, s.awake, 1, "the next plan knows it")
		require.Contains(t, s.reasons(), reasonVRFNotMade)
		require.NoError(t, s.pass(t.Context()))
		require.False(t, s.status.Report().Ready)
		require.Zero(t, s.speakers.announced["red"].Len())
		require.Equal(t, 2, s.speakers.announced["blue"].Len())
	})
}

// TestPassWithoutASpeaker: the kernel follows the plan also where nothing can be announced.
func TestPassWithoutASpeaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.speakers.problem = speaker.ErrAbsent
		require.ErrorIs(t, s.passes(starting), speaker.ErrAbsent)
		require.Contains(t, s.reasons(), reasonNoSpeaker)
		require.NotContains(t, s.reasons(), reasonNotWatched, "one problem is enough")
		s.speakers.problem = nil
		require.NoError(t, s.passes(holding, "watch c", announceAll))
		require.NotContains(t, s.reasons(), reasonNoSpeaker)

		s.later(announceWithin + time.Second)
		require.NoError(t, s.passes("kernel", "watch c"))
		s.speakers.started = time.Now()
		require.NoError(t, s.passes("whole kernel", "watch c"), "a route that another speaker learned is an earlier run's")
	})
}

// TestPassMeetsAnotherSpeaker: a speaker that begins to answer in the middle of a pass has learned nothing yet, so routes stay.
func TestPassMeetsAnotherSpeaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settled(t)
		s.speakers.meanwhile = func() { s.speakers.started = time.Now() }
		require.NoError(t, s.passes("whole kernel", "watch c"))
	})
}

// TestPassRefusedByTheSpeaker: what the speaker refused is asked for again.
func TestPassRefusedByTheSpeaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.speakers.refuses = errors.New("bind: address already in use")
		require.ErrorContains(t, s.passes(starting, "watch c"), "address already in use")
		s.speakers.refuses = nil
		require.NoError(t, s.passes(holding, "watch c", announceAll))
	})
}

// TestPassEndsConnections: connections end after announcements, and a pass does not look for them again before some rest.
func TestPassEndsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settled(t)
		s.kernel.result.Contradicted, s.kernel.takes = true, sweepMost/sweepShare
		for range 1 + sweepBurst/sweepMost {
			require.NoError(t, s.passes("kernel", "watch c", "end connections"))
		}
		require.NoError(t, s.passes("kernel", "watch c"))
		require.NoError(t, s.passes("kernel", "watch c"))
		require.Empty(t, s.awake)
		s.later(sweepMost)
		require.Len(t, s.awake, 1, "one pass is due")
		require.NoError(t, s.passes("kernel", "watch c", "end connections"))
	})
}

// TestPassFollowsADeadHost: the standby of a host that goes silent announces in its place by itself.
func TestPassFollowsADeadHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStageOf(t, "c") // standby of shop/plain, whose host is b, and of shop/web
		up := func(node string) bfd.Session {
			return bfd.Session{Node: node, Active: true, State: bfd.Up, Heard: true, Since: time.Now()}
		}
		s.speakers.nodes = []bfd.Session{up("a"), up("b")}
		require.NoError(t, s.pass(t.Context()))
		s.later(announceWithin + time.Second)
		require.NoError(t, s.pass(t.Context()))
		plain, ok := s.speakers.announced["default"].Get(plan.Announcement{Prefix: netip.MustParsePrefix("203.0.113.30/32")})
		require.True(t, ok)
		require.True(t, plain.Standby)

		s.speakers.nodes[1].State, s.speakers.nodes[1].Failed, s.speakers.nodes[1].Since = bfd.Down, true, time.Now()
		require.NoError(t, s.passes("kernel", "watch a b", "announce 203.0.113.30/32"))
		require.Equal(t, map[string]bool{"b": true}, s.last.others.nodes.Dead)

		s.later(time.Minute)
		s.speakers.nodes, s.speakers.started = nil, time.Now() // another speaker: it watches no node yet
		require.NoError(t, s.passes("whole kernel", "watch a b"))
		s.speakers.nodes = []bfd.Session{up("a"), {Node: "b", Active: true, State: bfd.Down, Since: time.Now()}}
		require.NoError(t, s.passes("kernel", "watch a b"))
		require.Equal(t, map[string]bool{"b": true}, s.last.others.nodes.Dead, "that speaker never heard it")

		s.speakers.nodes[1] = up("b")
		require.NoError(t, s.passes("kernel", "watch a b"), "it is not trusted at once")
		s.later(liveness.TrustAfter)
		require.Len(t, s.awake, 1)
		require.NoError(t, s.passes("kernel", "watch a b", "announce 203.0.113.30/32 as standby"))
	})
}

// TestPassWatchesADeadNode: a dead node stays watched when no object names it any more, so that the leader has a witness of its death.
func TestPassWatchesADeadNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStageOf(t, "c")
		watches := func(call string) {
			t.Helper()
			s.calls = nil
			require.NoError(t, s.pass(t.Context()))
			require.Contains(t, s.calls, call)
		}
		up := func(node string) bfd.Session {
			return bfd.Session{Node: node, Active: true, State: bfd.Up, Heard: true, Since: time.Now()}
		}
		s.speakers.nodes = []bfd.Session{up("a"), up("b")}
		watches("watch a b")
		s.speakers.nodes[1].State, s.speakers.nodes[1].Failed, s.speakers.nodes[1].Since = bfd.Down, true, time.Now()
		watches("watch a b")
		plain := cluster.Key{Namespace: "shop", Name: "plain"}
		s.source.objects.EgressServices = s.source.objects.EgressServices.Without(plain)
		s.source.changed.Add(cluster.KindEgressService.ID(plain))
		watches("watch a b")
		s.speakers.nodes[1] = up("b")
		watches("watch a b")
		s.later(liveness.TrustAfter)
		watches("watch a")
	})
}

// TestPassEnablesBFD: when the configuration begins to have nodes watch each other, packets are still steered to a host that does not
// answer yet, until it was heard and lost, or has had time for it.
func TestPassEnablesBFD(t *testing.T) {
	for name, heard := range map[string]bool{"heard and lost": true, "never heard": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStageOf(t, "b") // has pods of shop/web, whose host is a
				steers := func() bool {
					t.Helper()
					require.NoError(t, s.pass(t.Context()))
					way := map[plan.PathID]plan.PathKey{}
					for _, p := range s.last.plan.DataPlane.Paths {
						way[p.ID] = p.Key
					}
					for e := range s.last.plan.DataPlane.Endpoints.All() {
						if way[e.Path] == (plan.PathKey{Kind: plan.PathSteer, Name: "a"}) {
							return true
						}
					}
					return false
				}
				on, off := s.config, *s.config
				off.Failover.BFD.Enabled = false
				s.config = &off
				require.True(t, steers())
				s.later(time.Hour)
				require.True(t, steers())

				s.config = on
				require.True(t, steers())
				s.speakers.nodes = []bfd.Session{{Node: "a", Active: true, State: bfd.Down}, {Node: "c", Active: true, State: bfd.Up}}
				s.later(time.Minute)
				require.True(t, steers(), "it may not have the configuration yet")
				if heard {
					s.speakers.nodes[0].State = bfd.Up
					require.True(t, steers())
					s.later(time.Minute)
					s.speakers.nodes[0].State, s.speakers.nodes[0].Failed, s.speakers.nodes[0].Since = bfd.Down, true, time.Now()
				} else {
					s.later(time.Minute)
					require.Len(t, s.awake, 1)
				}
				require.False(t, steers())
			})
		})
	}
}

// TestPassHoldsAnnouncementsDown: a host that lost all sessions of a network, and so may have been replaced, announces nothing in it
// until the API server has confirmed its role, or for some time does not answer.
func TestPassHoldsAnnouncementsDown(t *testing.T) {
	for name, answers := range map[string]bool{"confirmed": true, "no answer": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := settled(t)
				server := &scriptedServer{scriptedSource: s.source}
				server.cutOff.Store(!answers)
				s.setSource(server)
				require.NoError(t, s.passes("kernel", "watch c"))
				require.Contains(t, server.report.Networks, "red")

				red := func(up bool) {
					s.speakers.sessions = slices.Clone(s.speakers.sessions)
					for i := range s.speakers.sessions {
						if n := &s.speakers.sessions[i]; n.Network == "red" {
							n.Up, n.Since = up, time.Now()
						}
					}
				}
				red(false)
				s.later(time.Second)
				server.cutOff.Store(true)
				require.NoError(t, s.passes(withdrawWeb, "kernel", "watch c"))
				require.Equal(t, []string{"red"}, s.last.plan.HeldDown, "the plan shows why")
				s.later(time.Second)
				red(true)
				back := time.Now()
				server.cutOff.Store(!answers)
				require.NoError(t, s.passes("kernel", "watch c"))
				if !answers {
					s.later(liveness.HoldDownFor - time.Second)
					require.NoError(t, s.passes("kernel", "watch c"))
					for time.Since(back) < liveness.HoldDownFor {
						require.Equal(t, []string{"red"}, s.last.plan.HeldDown)
						<-s.awake
						s.calls = nil
						require.NoError(t, s.pass(t.Context()))
					}
					require.Equal(t, liveness.HoldDownFor, time.Since(back), "its end asks for a pass")
					require.Equal(t, []string{"kernel", "watch c", announceWeb}, s.calls)
				} else {
					s.later(askAgain)
					require.NotEmpty(t, s.awake, "the answer asks for a pass")
					require.NoError(t, s.passes("kernel", "watch c", announceWeb))
				}
				require.Empty(t, s.last.plan.HeldDown)
				s.later(2 * askWithin) // no question is left open
			})
		})
	}
}

// TestPassOfANodeWhoseSpeakerIsReplaced: the next speaker announces at once, also while the API server is away. Otherwise its End-of-RIB
// would make routers drop the routes that they kept for it. A network that does not come back is held down, and one whose routes no
// router keeps.
func TestPassOfANodeWhoseSpeakerIsReplaced(t *testing.T) {
	for name, keep := range map[string]bool{"graceful restart": true, "no graceful restart": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, server := served(t)
				server.cutOff.Store(true)
				s.config.BGP.GracefulRestart.Enabled = keep
				require.NoError(t, s.passes("kernel", "watch c"))
				up, down := slices.Clone(s.speakers.sessions), slices.Clone(s.speakers.sessions)
				for i := range down {
					down[i].Up, down[i].Since = false, time.Now()
				}
				s.speakers.sessions, s.speakers.problem = down, speaker.ErrAbsent
				if !keep {
					_ = s.pass(t.Context())
					require.Equal(t, []string{"blue", "default", "red"}, s.last.plan.HeldDown)
					s.later(2 * askWithin)
					return
				}
				require.ErrorIs(t, s.passes("kernel"), speaker.ErrAbsent)
				require.Empty(t, s.last.plan.HeldDown)
				s.later(3 * time.Second)
				s.speakers.problem, s.speakers.started = nil, time.Now()
				clear(s.speakers.announced)
				require.NoError(t, s.passes(starting, "watch c", announceAll))
				s.later(time.Second)
				require.NoError(t, s.passes(holding, "watch c"), "its sessions come up one after another")

				for i := range up {
					up[i].Up, up[i].Since = up[i].Network != "red", time.Now()
				}
				s.speakers.sessions = up
				s.later(reportWithin - 5*time.Second)
				require.NoError(t, s.passes("kernel, holding [1001]", "watch c"), "red may come back yet")
				s.later(time.Second)
				require.Len(t, s.awake, 1, "its time is over")
				require.NoError(t, s.passes(withdrawWeb, "kernel, holding [1001]", "watch c"))
				require.Equal(t, []string{"red"}, s.last.plan.HeldDown)
				s.later(2 * askWithin)
			})
		})
	}
}

// TestPassBelievesALaterConfirmationLater: what the API server confirms after a pass has read the objects may not be about these.
func TestPassBelievesALaterConfirmationLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, server := served(t)
		server.cutOff.Store(true)
		require.NoError(t, s.passes("kernel", "watch c"))
		again := slices.Clone(s.speakers.sessions)
		s.speakers.sessions = nil
		require.NoError(t, s.passes("withdraw 2001:db8:203::10/128 2001:db8:203::20/128 203.0.113.10/32 203.0.113.20/32", "kernel", "watch c"))
		for i := range again {
			again[i].Since = time.Now()
		}
		s.speakers.sessions = again
		s.source.read = func() {
			now := time.Now()
			s.confirmed.Store(&now)
		}
		require.NoError(t, s.passes("kernel", "watch c"))
		require.NoError(t, s.passes("kernel", "watch c", announceAll))
		s.later(2 * askWithin)
	})
}

// TestPassOfANodeThatLeaves: a daemon that leaves after a drain withdraws every announcement, which the plan shows.
func TestPassOfANodeThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settled(t)
		s.draining.set(func(d *draining) { d.asked, d.leaving = true, true })
		require.NoError(t, s.passes("withdraw 2001:db8:203::10/128 2001:db8:203::20/128 203.0.113.10/32 203.0.113.20/32", "kernel", "watch c"))
		require.True(t, s.last.plan.Leaving)
		for _, of := range s.status.Report().Services {
			require.Empty(t, of.Announced, of.Name)
		}
	})
}
