package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// aLong is how long a cut lasts: sometimes for less than a BGP session lasts in silence, sometimes for more.
var aLong = [2]time.Duration{3 * time.Second, 15 * time.Second}

// networkFaults are those of nodes, cables and routers.
var networkFaults = merged(splits(), map[string]fault{
	"node frozen": {inject: freeze, heal: thaw, hold: aLong, dead: podsOf},
	"uplink cut": {
		inject: onSwitch("ip link set to-%s down"), heal: onSwitch("ip link set to-%s up"), hold: aLong,
	},
	"session reset": {inject: resetSession},
	"bgpd killed":   {inject: killBGP, heal: startBGP, hold: aWhile},
	"router silent": {
		inject: func(ctx context.Context, r *run, s *step) error {
			return errors.Join(r.fabric(ctx, s), r.Unplug(router(s)+":eth1"))
		},
		heal: func(ctx context.Context, r *run, s *step) error {
			return errors.Join(r.Plug(router(s)+":eth1"), r.routerBack(ctx, s))
		},
		hold: aLong,
	},
})

// onSwitch is a line of a shell on the switch of red, for the node.
func onSwitch(line string) func(context.Context, *run, *step) error {
	return func(ctx context.Context, r *run, s *step) error {
		return r.shell(ctx, "red-sw", fmt.Sprintf(line, s.node))
	}
}

// freeze makes a node silent. No other node gets a sign, but the cluster sees its pods gone.
func freeze(ctx context.Context, r *run, s *step) error {
	return errors.Join(r.Freeze(s.node), r.signalSpeaker(s.node, syscall.SIGSTOP), r.backends(ctx, s.node, false))
}

func thaw(ctx context.Context, r *run, s *step) error {
	return errors.Join(r.signalSpeaker(s.node, syscall.SIGCONT), r.Thaw(s.node), r.backends(ctx, s.node, true))
}

// backends makes the service proxies of all other nodes use the pods of a node, or not, as if the cluster had published
// that its node is there or is not.
func (r *run) backends(ctx context.Context, node string, used bool) error {
	o := r.Objects()
	others := slices.DeleteFunc(slices.Clone(stage.Nodes), func(n string) bool { return n == node })
	if !used {
		for key, all := range o.Endpoints.All() {
			o.Endpoints = o.Endpoints.With(key, slices.DeleteFunc(slices.Clone(all),
				func(e cluster.Endpoint) bool { return e.Node == node }))
		}
	}
	return r.ProxyServices(ctx, &o, others...)
}

// The switches that a node is plugged into, and whom else it finds there: the routers.
var switches = map[string][]string{"lan": {"to-gw"}, "red-sw": {"to-red1", "to-red2"}, "blue-sw": {"to-blue1", "to-blue2"}}

// splits are the seven ways to part a node from the API server, from the routers and from the other nodes.
func splits() map[string]fault {
	all := map[string]fault{}
	for bits := 1; bits < 8; bits++ {
		d := division{api: bits&1 > 0, routers: bits&2 > 0, nodes: bits&4 > 0}
		all[d.String()] = fault{
			hold: aLong, inject: d.inject, heal: d.heal,
			dead: func(r *run, s *step) func(lab.Question) bool {
				return func(q lab.Question) bool { return r.parted(s.node, q, d.routers, d.nodes) }
			},
		}
	}
	return all
}

// division selects the neighbours from which a node is parted.
type division struct{ api, routers, nodes bool }

func (d division) String() string {
	var from []string
	for _, neighbour := range []struct {
		name string
		cut  bool
	}{{"API", d.api}, {"routers", d.routers}, {"nodes", d.nodes}} {
		if neighbour.cut {
			from = append(from, neighbour.name)
		}
	}
	return "split from " + strings.Join(from, " and ")
}

func (d division) inject(ctx context.Context, r *run, s *step) error {
	if d.nodes {
		if err := r.backends(ctx, s.node, false); err != nil {
			return err
		}
	}
	if d.api {
		if err := r.Unplug(s.node + ":eth0"); err != nil {
			return err
		}
	}
	return r.part(ctx, s.node, d.routers, d.nodes)
}

func (d division) heal(ctx context.Context, r *run, s *step) error {
	var errs []error
	if d.routers || d.nodes {
		for sw := range switches {
			errs = append(errs, r.shell(ctx, sw, "nft delete table bridge chaos"))
		}
	}
	if d.api {
		errs = append(errs, r.Plug(s.node+":eth0"))
	}
	return errors.Join(append(errs, r.backends(ctx, s.node, true))...)
}

// part makes all switches drop packets between a node and the routers, or the other nodes, or both.
func (r *run) part(ctx context.Context, node string, routers, nodes bool) error {
	if !routers && !nodes {
		return nil
	}
	for sw, ports := range switches {
		var others []string
		if routers {
			others = append(others, ports...)
		}
		if nodes {
			for _, n := range stage.Nodes {
				if n != node {
					others = append(others, "to-"+n)
				}
			}
		}
		script := fmt.Sprintf(`table bridge chaos {
	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname "to-%[1]s" oifname { %[2]s } drop
		oifname "to-%[1]s" iifname { %[2]s } drop
	}
}
`, node, strings.Join(others, ", "))
		if _, err := r.Node(sw).Input(ctx, script, "nft", "-f", "-"); err != nil {
			return err
		}
	}
	return nil
}

// parted reports whether a question cannot be answered while a node is parted from routers, or from the other nodes.
func (r *run) parted(node string, q lab.Question, routers, nodes bool) bool {
	own := nodeOf(q.Node) == node
	steered := r.now[q.Node].host == "ext-red"
	switch {
	case routers && own && !steered: // it has no other way than by its own node
		return true
	case nodes && own && steered: // it is to leave by a host, which is another node or should be
		return true
	case nodes && nodeOf(q.Node) == "" && q.Node != control: // the node is still asked for pods of others
		return true
	}
	return false
}

// router is the one of red that a step is about.
func router(s *step) string { return [...]string{"red1", "red2"}[s.dice%2] }

// resetSession has a router end its session with the node, as its operator would.
func resetSession(_ context.Context, r *run, s *step) error {
	_, err := r.Node(router(s)).VTY("bgpd", "clear bgp ipv4 unicast 10.1.0."+number[s.node])
	return err
}

// fabric has the world outside use the other router of red only, as its own routing would.
func (r *run) fabric(ctx context.Context, s *step) error {
	left := map[string]string{"red1": "12", "red2": "11"}[router(s)]
	return r.shell(ctx, "ext-red",
		"ip route replace default src 203.0.113.1 via 172.31."+left+".1",
		"ip -6 route replace default src 2001:db8:113::1 via fd31:"+left+"::1")
}

// routerBack waits until the router has its routes again, and has the world outside use both.
func (r *run) routerBack(ctx context.Context, s *step) error {
	if err := lab.Wait(ctx, settleLimit, func() error {
		return errors.Join(r.sessions(router(s)), r.known(router(s)))
	}); err != nil {
		return err
	}
	return r.shell(ctx, "ext-red",
		"ip route replace default src 203.0.113.1 nexthop via 172.31.11.1 nexthop via 172.31.12.1",
		"ip -6 route replace default src 2001:db8:113::1 nexthop via fd31:11::1 nexthop via fd31:12::1")
}

// known is an error unless a router knows a way to all ingress IPs of web.
func (r *run) known(router string) error {
	for _, prefix := range webIPs {
		hops, err := r.NextHops(router, prefix)
		if err != nil {
			return err
		}
		if len(hops) == 0 {
			return fmt.Errorf("%s has no way to %s", router, prefix)
		}
	}
	return nil
}

// killBGP ends a router's BGP as a crash would. Its kernel keeps forwarding.
func killBGP(ctx context.Context, r *run, s *step) error {
	return errors.Join(r.fabric(ctx, s), r.shell(ctx, router(s), "kill -9 $(cat /run/frr/bgpd.pid)"))
}

func startBGP(ctx context.Context, r *run, s *step) error {
	return errors.Join(
		r.shell(ctx, router(s), ". /etc/frr/daemons", "rm -f /run/frr/bgpd.pid /run/frr/bgpd.vty",
			"/usr/lib/frr/bgpd -d -F traditional $bgpd_options"),
		r.routerBack(ctx, s))
}
