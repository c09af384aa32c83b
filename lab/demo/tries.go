package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// outside is the address that everybody asks for, by family.
var outside = []netip.AddrPort{stage.Outside4, stage.Outside6}

// within gives questions more time than usual: one second on an idle machine may be more on a busy one.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 10*time.Second)
}

// tryEgress has pods ask the outside.
func (d *demo) tryEgress(ctx context.Context) {
	red := []string{"red1", "red2"}
	onHost, elsewhere := d.host+"-p1", d.guest+"-p1"
	if d.host == "c" { // which has no pod of web
		onHost = "b-p1"
	}
	d.try("web from its host, "+onHost+": TCP, UDP, ping", func() (string, error) {
		return d.leaves(ctx, onHost, "ext-red", web, red)
	})
	d.try("web from another node, "+elsewhere+": TCP, UDP, ping", func() (string, error) {
		return d.leaves(ctx, elsewhere, "ext-red", web, red)
	})
	d.try("web, both pods: 1 MB up and down, UDP with 4000 bytes", func() (string, error) {
		return d.muchLeaves(ctx, onHost, elsewhere)
	})
	blue := []string{"blue1", "blue2"}
	for _, node := range []string{"a", "b"} {
		d.try("batch from "+node+"-p2: its own node's address in blue", func() (string, error) {
			return d.leaves(ctx, node+"-p2", "ext-blue", []string{"10.2.0." + numbers[node], "fd02::" + numbers[node]}, blue)
		})
	}
	d.try("plain from c-p1: default network, ingress IP", func() (string, error) {
		return d.leaves(ctx, "c-p1", "ext-default", plain, []string{"gw"})
	})
	d.try("an address beside a-p2 that no Service selects", func() (string, error) {
		return d.leaves(ctx, "a-p2", "ext-default", []string{"10.0.0.11", "fd00::11"}, []string{"gw"}, bystander...)
	})
}

// leaves asks by every protocol, in as many families as there are sources. It is right when only name answers, sees the
// source, and only the routers given have seen packets. from are addresses to ask from, by family.
func (d *demo) leaves(ctx context.Context, pod, name string, sources, routers []string, from ...string) (string, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	for i, source := range sources {
		var options []lab.SocketOption
		if len(from) > 0 {
			options = append(options, lab.FromAddr(netip.MustParseAddr(from[i]), 0))
		}
		byTCP, err := d.Node(pod).AskTCP(ctx, outside[i], options...)
		if err != nil {
			return "", err
		}
		byUDP, err := d.Node(pod).AskUDP(ctx, outside[i], 100, options...)
		if err != nil {
			return "", err
		}
		if err := errors.Join(stage.Check(byTCP, name, source), stage.Check(byUDP, name, source),
			d.Node(pod).Ping(ctx, outside[i].Addr(), 56, options...)); err != nil {
			return "", err
		}
	}
	by, err := d.passed(sources, routers)
	return fmt.Sprintf("%s saw %s, by %s", name, strings.Join(sources, " and "), by), err
}

// muchLeaves moves much by single connections and in fragments.
func (d *demo) muchLeaves(ctx context.Context, pods ...string) (string, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	const size = 1 << 20
	for _, pod := range pods {
		for i, to := range outside {
			moved, err := d.Node(pod).Transfer(ctx, to, size, size)
			if err != nil {
				return "", err
			}
			fragments, err := d.Node(pod).AskUDP(ctx, to, 4000)
			if err != nil {
				return "", err
			}
			if err := errors.Join(stage.Check(moved, "ext-red", web[i]), stage.Check(fragments, "ext-red", web[i])); err != nil {
				return "", err
			}
		}
	}
	by, err := d.passed(web, []string{"red1", "red2"})
	return fmt.Sprintf("%d MB and all datagrams arrived whole, by %s", 2*len(pods)*len(outside), by), err
}

// passed names the routers that saw packets to the outside. It fails if one of them is not allowed, or if one saw a
// source that is not allowed.
func (d *demo) passed(sources, routers []string) (string, error) {
	allowed, by := map[string][]string{}, map[string]bool{}
	for place, network := range stage.Routers {
		router, _, _ := strings.Cut(place, ":")
		if slices.Contains(routers, router) {
			allowed[network] = sources
		}
	}
	for p := range d.Witness.Find(lab.Destinations(prefixes(outside[0].Addr(), outside[1].Addr())...)) {
		by[p.Node] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(by)), " and "), none(d.Wrong(allowed))
}

// none is an error that names packets which should not be.
func none(wrong lab.Packets) error {
	if len(wrong) == 0 {
		return nil
	}
	var seen []string
	for p, n := range wrong {
		seen = append(seen, fmt.Sprintf("%d × %s", n, p))
	}
	slices.Sort(seen)
	return fmt.Errorf("%d packets that should not be: %s", wrong.Total(), strings.Join(seen[:min(5, len(seen))], ", "))
}

func prefixes(addrs ...netip.Addr) (all []netip.Prefix) {
	for _, a := range addrs {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// addrs parses addresses of the samples.
func addrs(of ...string) (all []netip.Addr) {
	for _, a := range of {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// tryIngress has outside hosts ask the ingress IPs.
func (d *demo) tryIngress(ctx context.Context) {
	d.try("ext-red asks web's ingress IP", func() (string, error) {
		return d.arrives(ctx, "ext-red", web, []string{"red1", "red2"}, "a-p1", "b-p1")
	})
	d.try("ext-blue asks batch's ingress IP", func() (string, error) {
		return d.arrives(ctx, "ext-blue", batch, []string{"blue1", "blue2"}, "a-p2", "b-p2")
	})
	d.try("ext-default asks plain's ingress IP", func() (string, error) {
		return d.arrives(ctx, "ext-default", plain, []string{"gw"}, "c-p1")
	})
	d.try("ext-default asks web's, led to the host by a static route", func() (string, error) {
		for i, via := range []string{"10.0.0.", "fd00::"} {
			if _, err := d.Node("gw").Run(ctx, "ip", "route", "add", web[i], "via", via+numbers[d.host]); err != nil {
				return "", err
			}
		}
		seen, err := d.arrives(ctx, "ext-default", web, []string{"gw"}, "a-p1", "b-p1")
		for i, via := range []string{"10.0.0.", "fd00::"} {
			_, e := d.Node("gw").Run(ctx, "ip", "route", "del", web[i], "via", via+numbers[d.host])
			err = errors.Join(err, e)
		}
		return seen, err
	})
	d.try("ext-red asks web's ingress IP where nobody listens", func() (string, error) { return d.noLoop(ctx) })
}

// arrives asks ingress IPs until every one of the pods has answered. The answers must pass the routers given only.
func (d *demo) arrives(ctx context.Context, from string, ingress, routers []string, pods ...string) (string, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	for _, to := range addrs(ingress...) {
		for answered := map[string]bool{}; len(answered) < len(pods); {
			a, err := d.Node(from).AskTCP(ctx, netip.AddrPortFrom(to, 80))
			if err != nil {
				return "", err
			}
			if !slices.Contains(pods, a.Name) {
				return "", fmt.Errorf("%s answered for %s", a.Name, to)
			}
			answered[a.Name] = true
		}
	}
	answers := d.Witness.Find(lab.Sources(prefixes(addrs(ingress...)...)...))
	by := map[string]bool{}
	for p := range answers {
		by[p.Node] = true
	}
	maps.DeleteFunc(answers, func(p lab.Packet, _ int) bool { return slices.Contains(routers, p.Node) })
	return fmt.Sprintf("%s answered, by %s", strings.Join(pods, " and "), strings.Join(slices.Sorted(maps.Keys(by)), " and ")),
		errors.Join(none(answers), none(d.Wrong(nil)))
}

// noLoop sends packets to a port that no Service has.
func (d *demo) noLoop(ctx context.Context) (string, error) {
	for _, to := range addrs(web...) {
		if a, err := d.Node("ext-red").AskUDP(ctx, netip.AddrPortFrom(to, 81), 100); err == nil {
			return "", fmt.Errorf("%s answered", a.Name)
		}
	}
	var came, back int
	for p, n := range d.Witness.Find(lab.Destinations(prefixes(addrs(web...)...)...)) {
		if p.Out {
			came += n
		} else {
			back += n
		}
	}
	seen := fmt.Sprintf("%d packets sent to the host, %d came back to the routers", came, back)
	if came == 0 || back > 0 {
		return "", errors.New(seen)
	}
	return seen, nil
}

// tryCluster has pods that leave by red ask others in the cluster.
func (d *demo) tryCluster(ctx context.Context) {
	ask := func(to []netip.AddrPort, names []string) (string, error) {
		ctx, cancel := within(ctx)
		defer cancel()
		for i, self := range addrs("10.244.1.11", "fd44:1::11") {
			a, err := d.Node("a-p1").AskTCP(ctx, to[i])
			if err != nil {
				return "", err
			}
			if !slices.Contains(names, a.Name) || a.Peer.Addr() != self {
				return "", fmt.Errorf("%s answered %s", a.Name, a.Peer.Addr())
			}
		}
		return strings.Join(names, " or ") + " saw the pod's own address; the routers saw nothing", none(d.Wrong(nil))
	}
	d.try("pod to pod: a-p1 asks b-p1", func() (string, error) {
		return ask([]netip.AddrPort{netip.MustParseAddrPort("10.244.2.11:8080"), netip.MustParseAddrPort("[fd44:2::11]:8080")},
			[]string{"b-p1"})
	})
	d.try("pod to ClusterIP: a-p1 asks batch", func() (string, error) {
		return ask([]netip.AddrPort{netip.MustParseAddrPort("10.96.0.20:80"), netip.MustParseAddrPort("[fd96::20]:80")},
			[]string{"a-p2", "b-p2"})
	})
}

// streams asks the outside again and again, from both pods of web in both families.
func (d *demo) streams(ctx context.Context) (stop func() lab.Tally) {
	var all []*lab.Stream
	for _, pod := range []string{"a-p1", "b-p1"} {
		for _, to := range outside {
			all = append(all, d.Stream(ctx, d.Node(pod), to, 20*time.Millisecond))
		}
	}
	return func() lab.Tally {
		sum := lab.Tally{Seen: map[lab.Seen]int{}, Errors: map[string]int{}}
		for _, s := range all {
			t := s.Stop()
			sum.OK += t.OK
			sum.Failed += t.Failed
			for k, n := range t.Seen {
				sum.Seen[k] += n
			}
			for k, n := range t.Errors {
				sum.Errors[k] += n
			}
		}
		return sum
	}
}

// onlyRed is an error if anybody but ext-red answered, if it saw another source than web's, or if a router did.
func (d *demo) onlyRed(t lab.Tally) error {
	for s, n := range t.Seen {
		if s.Name != "ext-red" || !slices.Contains(web, s.Source.String()) {
			return fmt.Errorf("%d times %s answered and saw %s", n, s.Name, s.Source)
		}
	}
	return none(d.Wrong(map[string][]string{"red": web}))
}

// tryCable pulls the cable of the host's uplink into red, and plugs it in again.
func (d *demo) tryCable(ctx context.Context) {
	cable := func(state string) error {
		_, err := d.Node("red-sw").Run(ctx, "ip", "link", "set", "to-"+d.host, state)
		return err
	}
	d.try("the cable of "+d.host+" into red is pulled", func() (string, error) {
		if err := cable("down"); err != nil {
			return "", err
		}
		stop := d.streams(ctx)
		pause(ctx, 2*time.Second)
		t := stop()
		if t.OK > 0 {
			return "", fmt.Errorf("%d questions were answered", t.OK)
		}
		if t.Failed == 0 {
			return "", errors.New("nothing was asked")
		}
		return fmt.Sprintf("%d questions dropped, none at another router", t.Failed), d.onlyRed(t)
	})
	d.try("the cable is plugged in again", func() (string, error) {
		if err := cable("up"); err != nil {
			return "", err
		}
		began := time.Now()
		for _, pod := range []string{"a-p1", "b-p1"} {
			for i, to := range outside {
				if err := d.Await(ctx, pod, to, "ext-red", web[i]); err != nil {
					return "", err
				}
			}
		}
		return fmt.Sprintf("all pods reach ext-red again after %.1f s", time.Since(began).Seconds()), d.onlyRed(lab.Tally{})
	})
}

// tryMove names another host in the status of web, as an operator or an election would.
func (d *demo) tryMove(ctx context.Context) {
	from, to := d.host, d.guest
	d.try("web moves from "+from+" to "+to+" under a stream of new connections", func() (string, error) {
		stop := d.streams(ctx)
		pause(ctx, time.Second)
		err := d.Edit(ctx, "web.yaml", "  network: red\n", "  network: red\nstatus:\n  host: "+to+"\n")
		for _, router := range []string{"red1", "red2"} {
			err = errors.Join(err, d.AwaitRoute(ctx, router, web[0]+"/32", "10.1.0."+numbers[to]),
				d.AwaitRoute(ctx, router, web[1]+"/128", "fd01::"+numbers[to]))
		}
		pause(ctx, time.Second)
		t := stop()
		d.host, d.guest = to, from
		if err == nil {
			err = allAnswered(t)
		}
		return fmt.Sprintf("%d answered, 0 not, 0 wrong", t.OK), errors.Join(err, d.onlyRed(t))
	})
}

func allAnswered(t lab.Tally) error {
	if t.Failed > 0 {
		return fmt.Errorf("%d of %d questions unanswered: %v", t.Failed, t.Failed+t.OK, t.Errors)
	}
	return nil
}

// tryRestart stops the daemon of the host and starts it again.
func (d *demo) tryRestart(ctx context.Context) {
	during := func(change func() error, further time.Duration) (string, error) {
		stop := d.streams(ctx)
		pause(ctx, 500*time.Millisecond)
		err := change()
		pause(ctx, further)
		t := stop()
		if err == nil {
			err = allAnswered(t)
		}
		return fmt.Sprintf("%d answered, 0 not, 0 wrong", t.OK), errors.Join(err, d.onlyRed(t))
	}
	d.try("the daemon on "+d.host+" stops under such a stream", func() (string, error) {
		return during(func() error { return d.Daemons[d.host].Stop(ctx) }, 1500*time.Millisecond)
	})
	d.try("it starts again", func() (string, error) {
		return during(func() error { return d.StartDaemon(d.host) }, 3500*time.Millisecond)
	})
}

// tryCleanup ends all daemons and removes everything that they made.
func (d *demo) tryCleanup(ctx context.Context, before string) {
	d.try("all daemons stop, egressway cleanup on each node", func() (string, error) {
		for _, node := range nodes {
			if err := d.Daemons[node].Stop(ctx); err != nil {
				return "", err
			}
			if _, err := d.Egressway(ctx, node, "cleanup", "--config", "/etc/egressway/config.yaml"); err != nil {
				return "", err
			}
		}
		var after string
		err := lab.Wait(ctx, 5*time.Second, func() (err error) { // removed addresses and routes go in the background
			after, err = d.state(ctx)
			if err == nil && after != before {
				err = fmt.Errorf("not as before: %s", difference(before, after))
			}
			return err
		})
		return "links, addresses, rules, routes and nft tables as before the start", err
	})
}

// state returns the state of the nodes' kernels that the daemon could have changed. The kernel makes the rule for VRFs
// with the first VRF and never removes it.
func (d *demo) state(ctx context.Context) (string, error) {
	const script = `
ip -o link | sed 's/^[0-9]*: //; s/ state [A-Z]*//'
ip -o addr | sed 's/^[0-9]*: //'
ip rule; ip -6 rule
ip route show table all; ip -6 route show table all
nft list tables`
	var all []string
	for _, node := range nodes {
		out, err := d.Node(node).Run(ctx, "sh", "-ec", script)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(out) {
			if !strings.Contains(line, "lookup [l3mdev-table]") {
				all = append(all, node+": "+strings.Join(strings.Fields(line), " "))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n"), nil
}

// difference lists the lines that only one of the two has.
func difference(before, after string) string {
	var lines []string
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, l := range old {
		if !slices.Contains(now, l) {
			lines = append(lines, "- "+l)
		}
	}
	for _, l := range now {
		if !slices.Contains(old, l) {
			lines = append(lines, "+ "+l)
		}
	}
	const enough = 6
	if more := len(lines) - enough; more > 0 {
		lines = append(lines[:enough], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "; ")
}

// pause lets streams run.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
