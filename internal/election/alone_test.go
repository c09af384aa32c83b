package election

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// moves lists the seats that have another host or standby than before, of those that exist before and after.
func moves(before, after map[Seat]Choice) (seats []Seat) {
	for s, now := range after {
		if was, had := before[s]; had && (was.Host != now.Host || was.Standby != now.Standby) {
			seats = append(seats, s)
		}
	}
	return seats
}

// TestNoOtherMoves checks that a service that comes, goes or gets another address moves no other service where nothing records
// the choices, and that a node that goes moves only its own services unless the policy keeps to few nodes.
func TestNoOtherMoves(t *testing.T) {
	for _, policy := range []Policy{{Alone: true}, {Alone: true, Hosts: 12}} {
		o := objects(20, names(1000)...)
		before := policy.Elect(o, nil)
		for i := 0; i < 1000; i += 99 {
			without := o
			without.EgressServices = o.EgressServices.Without(key(names(1000)[i]))
			require.Empty(t, moves(before, policy.Elect(without, nil)), "EgressService %d is deleted", i)
		}
		more := objects(20, append(names(1000), "another")...)
		require.Empty(t, moves(before, policy.Elect(more, nil)), "an EgressService is created")
		readdressed := o
		change(&readdressed, "svc-7", func(_ *cluster.EgressService, s *cluster.Service) {
			s.Ingress = []cluster.Ingress{{IP: "198.51.100.1"}}
		})
		require.Empty(t, moves(before, policy.Elect(readdressed, nil)), "another ingress IP")

		if policy.Hosts > 0 {
			continue // the node that takes its place takes over services of all
		}
		gone := o
		gone.Nodes = o.Nodes.Without("n3")
		for _, s := range moves(before, policy.Elect(gone, nil)) {
			require.Contains(t, []string{before[s].Host, before[s].Standby}, "n3", "a service of another node moves")
		}
	}
}

// TestNoOtherAddressMoves has each host of an EgressIP's addresses go, where nothing records the choices: the standby, which takes over by
// itself, is elected, and no address of another host moves.
func TestNoOtherAddressMoves(t *testing.T) {
	policy := Policy{Alone: true}
	for nodes := 2; nodes <= 5; nodes++ {
		for i := range 50 {
			o := assignableNodes(nodes)
			o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: fmt.Sprint("e", i)}, egressIP("192.0.2.1", "192.0.2.2", "2001:db8::1"))
			before := policy.Elect(o, nil)
			for gone := range hosts(before) {
				less := o
				unready(&less, gone)
				for s, now := range policy.Elect(less, nil) {
					want := before[s].Host
					if want == gone {
						want = before[s].Standby
					}
					require.Equal(t, want, now.Host, "%s goes, %v was at %s", gone, s, before[s].Host)
				}
			}
		}
	}
}

// TestAloneSpreads checks that hashes alone spread hosts and standbys, over the nodes or over the few that the policy allows.
func TestAloneSpreads(t *testing.T) {
	for _, policy := range []Policy{{Alone: true}, {Alone: true, Hosts: 12}} {
		nodes := 20
		if policy.Hosts > 0 {
			nodes = policy.Hosts
		}
		choices, standbys := policy.Elect(objects(20, names(2000)...), nil), map[string]int{}
		for _, c := range choices {
			require.NotEqual(t, c.Host, c.Standby)
			standbys[c.Standby]++
		}
		for _, count := range []map[string]int{hosts(choices), standbys} {
			require.Len(t, count, nodes)
			for node, n := range count {
				require.InDelta(t, 2000/nodes, n, 50, "policy %+v, node %s", policy, node)
			}
		}
	}
}

// TestOneIsChosenAgain checks that the host of one seat is chosen without an election of all, and that seats that share an
// address get the same host all the same.
func TestOneIsChosenAgain(t *testing.T) {
	policy, o := Policy{Alone: true}, objects(5, names(50)...)
	elected := new(Elected)
	elected.Update(o, nil, cluster.Everything(), policy)
	apart := func(name string, edit func(*cluster.EgressService, *cluster.Service)) bool {
		change(&o, name, edit)
		before := reflect.ValueOf(elected.choices).Pointer()
		choices, _ := elected.Update(o, nil, changeOf(key(name)), policy)
		require.Equal(t, policy.Elect(o, nil), choices)
		return reflect.ValueOf(choices).Pointer() == before
	}
	ingress := func(ip string) func(*cluster.EgressService, *cluster.Service) {
		return func(_ *cluster.EgressService, s *cluster.Service) { s.Ingress = []cluster.Ingress{{IP: ip}} }
	}
	require.True(t, apart("svc-1", ingress("198.51.100.1")), "an address of its own")
	require.False(t, apart("svc-2", ingress("198.51.100.1")), "that of svc-1")
	require.Equal(t, elected.choices[seat("svc-1")].Host, elected.choices[seat("svc-2")].Host)
	require.False(t, apart("svc-1", ingress("198.51.100.2")), "svc-2 had the same")
	require.True(t, apart("svc-2", ingress("198.51.100.3")), "no other has it now")
	require.True(t, apart("svc-1", func(e *cluster.EgressService, _ *cluster.Service) { e.Network = "red" }), "a network of its own")
}

// TestOneAddressIsChosenAgain checks the same for the addresses of an EgressIP, of which a Service may have one.
func TestOneAddressIsChosenAgain(t *testing.T) {
	policy, o, k := Policy{Alone: true}, assignableNodes(5), cluster.Key{Name: "e"}
	with := objects(5, "web")
	o.EgressServices, o.Services, o.Endpoints = with.EgressServices, with.Services, with.Endpoints
	change(&o, "web", func(_ *cluster.EgressService, s *cluster.Service) { s.Ingress = []cluster.Ingress{{IP: "192.0.2.3"}} })
	elected := new(Elected)
	elected.Update(o, nil, cluster.Everything(), policy)
	apart := func(addresses ...string) bool {
		o.EgressIPs = o.EgressIPs.With(k, egressIP(addresses...))
		var changed cluster.Changed
		changed.Add(cluster.KindEgressIP.ID(k))
		before := reflect.ValueOf(elected.choices).Pointer()
		choices, _ := elected.Update(o, nil, changed, policy)
		require.Equal(t, policy.Elect(o, nil), choices)
		return reflect.ValueOf(choices).Pointer() == before
	}
	require.True(t, apart("192.0.2.1", "192.0.2.2"))
	require.True(t, apart("192.0.2.2", "192.0.2.4"))
	require.False(t, apart("192.0.2.2", "192.0.2.3"), "Service web has the latter")
	require.False(t, apart("192.0.2.2"), "it had it before")
	require.True(t, apart())
}

func BenchmarkElectedAlone(b *testing.B) {
	policy, o := Policy{Alone: true}, objects(20, names(10000)...)
	elected := new(Elected)
	elected.Update(o, nil, cluster.Everything(), policy)
	for i := 0; b.Loop(); i++ {
		change(&o, "svc-7", func(_ *cluster.EgressService, s *cluster.Service) {
			s.Ingress = []cluster.Ingress{{IP: fmt.Sprint("198.51.100.", i%256)}}
		})
		elected.Update(o, nil, changeOf(key("svc-7")), policy)
	}
}
