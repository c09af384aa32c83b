package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// inARow is how many questions of each kind have to be answered for the lab to be whole.
const inARow = 5

// settle waits until the lab is whole: all questions are answered, as they should be by now, the API server says who is host
// and standby and that all is in force, every router has its sessions and its paths, and pods reach fresh names.
func (r *run) settle(ctx context.Context, since time.Time) error {
	r.probe.Expect(wanted(r.now))
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	const every = 100 * time.Millisecond // a router takes some milliseconds to answer
	tick := time.NewTicker(every)
	defer tick.Stop()
	var why error
	for {
		err := r.whole(ctx, since)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			why = err
		} else { // the time was over while an answer was awaited
			why = errors.Join(why, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not whole after %s: %w", settleLimit, errors.Join(why, ctx.Err()))
		case <-tick.C:
		}
	}
}

// whole is cheapest first.
func (r *run) whole(ctx context.Context, since time.Time) error {
	if err := r.probe.Steady(since, inARow, func(q lab.Question) bool { return !isDenied(q) }); err != nil {
		return err
	}
	var err error
	if r.host, r.standby, err = r.elected(ctx); err != nil {
		return err
	}
	if err := errors.Join(r.rulesInForce(ctx), r.egressIPInForce(ctx)); err != nil {
		return err
	}
	for _, router := range routers {
		if err := r.sessions(router); err != nil {
			return err
		}
		if err := r.paths(router); err != nil {
			return err
		}
	}
	return r.names.known(ctx)
}

// elected asks the API server who is host and who is standby of web, once everything is in force.
func (r *run) elected(ctx context.Context) (host, standby string, err error) {
	for _, name := range []string{"web", "batch"} {
		e, err := r.EgressService(ctx, "shop", name)
		if err != nil {
			return "", "", err
		}
		c := meta.FindStatusCondition(e.Status.Conditions, "Programmed")
		switch {
		case e.Status.Host == "" || name == "web" && e.Status.Standby == "":
			return "", "", fmt.Errorf("EgressService %s: host %q, standby %q: want both", name, e.Status.Host, e.Status.Standby)
		case c == nil || c.Status != "True" || c.ObservedGeneration != e.Generation:
			return "", "", fmt.Errorf("EgressService %s is not in force: %+v", name, e.Status)
		case name == "web":
			host, standby = e.Status.Host, e.Status.Standby
		case e.Status.Host != everyNode:
			return "", "", fmt.Errorf("EgressService %s: host %q: want %q", name, e.Status.Host, everyNode)
		}
	}
	return host, standby, nil
}

// routers are those of both networks and of the default one.
var routers = []string{"red1", "red2", "blue1", "blue2", "gw"}

// sessions is an error unless a router has one with each node.
func (r *run) sessions(router string) error {
	var summary struct {
		Peers map[string]struct{ State string }
	}
	if err := r.Node(router).VTYJSON(&summary, "bgpd", "show bgp ipv4 unicast summary json"); err != nil {
		return err
	}
	up := 0
	for _, p := range summary.Peers {
		if p.State == "Established" {
			up++
		}
	}
	if up != len(stage.Nodes) {
		return fmt.Errorf("%s has %d sessions, want %d", router, up, len(stage.Nodes))
	}
	return nil
}

// paths is an error unless a router has the ways that it should have.
func (r *run) paths(router string) error {
	switch router {
	case "red1", "red2":
		return r.pathsToWeb(router)
	case "blue1", "blue2":
		return r.pathsToBatch(router)
	}
	return nil
}

// pathsToWeb is an error unless a router uses the host, and has the standby in reserve.
func (r *run) pathsToWeb(router string) error {
	for i, prefix := range webIPs {
		used, others, err := r.Paths(router, prefix)
		if err != nil {
			return err
		}
		if want := []string{inRed(r.host)[i]}; !slices.Equal(used, want) {
			return fmt.Errorf("%s has %s by %v, want %v", router, prefix, used, want)
		}
		if want := inRed(r.standby)[i]; !slices.Contains(others, want) {
			return fmt.Errorf("%s has %s by %v in reserve, want %v", router, prefix, others, want)
		}
	}
	return nil
}

// pathsToBatch is an error unless a router uses all nodes.
func (r *run) pathsToBatch(router string) error {
	for _, prefix := range batchIPs {
		used, err := r.NextHops(router, prefix)
		if err != nil {
			return err
		}
		if len(used) != len(stage.Nodes) {
			return fmt.Errorf("%s has %s by %v, want every node", router, prefix, used)
		}
	}
	return nil
}

var batchIPs = []netip.Prefix{netip.MustParsePrefix("192.0.2.20/32"), netip.MustParsePrefix("2001:db8:2::20/128")}

// webIPs are the ingress IPs of web: the source of its pods' packets.
var webIPs = []netip.Prefix{netip.MustParsePrefix(web.source4 + "/32"), netip.MustParsePrefix(web.source6 + "/128")}

// inRed are the addresses of a node in red.
func inRed(node string) [2]string {
	return [2]string{"10.1.0." + number[node], "fd01::" + number[node]}
}

// everyNode is the host of an EgressService whose nodes all send their own pods' traffic.
const everyNode = "ALL"
