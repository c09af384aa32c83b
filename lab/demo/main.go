// Demo builds the topology vrf-egress on this machine, where the daemon serves the sample manifests on its three nodes,
// and tries the daemon's promises with real packets, IPv4 and IPv6. It ends with a table of the tries and their
// results, and with status 1 if anything was not as promised. It needs root and a kernel with VRF devices: labexec
// gives it both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

const picture = `
        ext-red            ext-blue          ext-default     each is 198.51.100.10 and 2001:db8:100::10,
        /     \            /      \               |          so who answers tells the way a packet went
     red1     red2     blue1     blue2            gw         FRR routers, BGP with the nodes
        \     /            \      /               |
    == red, a VRF ==   == blue, a VRF ==   == default: LAN ==
       |    |    |        |    |    |         |    |    |
       a    b    c        a    b    c         a    b    c    the same three nodes, Egressway runs on each;
                                                             pods: a-p1, a-p2 on a; b-p1, b-p2 on b; c-p1 on c
`

const served = `
  EgressService  network  source IP           ingress IPs                     pods
  web            red      the ingress IP      203.0.113.10, 2001:db8:203::10  a-p1, b-p1
  batch          blue     each node's uplink  203.0.113.20, 2001:db8:203::20  a-p2, b-p2
  plain          default  the ingress IP      203.0.113.30                    c-p1
`

// The nodes of the lab end in the same number in every network.
var (
	nodes   = []string{"a", "b", "c"}
	numbers = map[string]string{"a": "11", "b": "12", "c": "13"}
)

// The ingress IPs of the samples.
var (
	web   = []string{"203.0.113.10", "2001:db8:203::10"}
	batch = []string{"203.0.113.20", "2001:db8:203::20"}
	plain = []string{"203.0.113.30"}
)

// The bystander is a further address of a-p2 that no Service selects. As IPv6 source it is taken only when asked for.
var bystander = []string{"10.244.1.13", "fd44:1::13"}

func main() { os.Exit(run()) }

func run() int {
	topology := flag.String("containerlab", "containerlab", "`folder` of the topologies")
	samples := flag.String("samples", "config/samples", "`folder` of the manifests that are served")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	d := &demo{began: time.Now()}
	err := d.play(ctx, *topology, *samples)
	if d.Stage != nil {
		if err != nil || d.failed() > 0 {
			d.logs()
		}
		err = errors.Join(err, d.Close())
	}
	if err == nil {
		err = d.table()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	return 0
}

// demo holds the stage and the results of the tries.
type demo struct {
	*stage.Stage
	began time.Time
	rows  []row

	host  string // that web leaves by
	guest string // the other one of a and b
}

// row is one line of the final table.
type row struct {
	tried, seen string
	err         error
}

func (d *demo) play(ctx context.Context, topology, samples string) error {
	fmt.Print(picture, served, "\n")
	if err := d.build(ctx, topology, samples); err != nil {
		return err
	}
	before, err := d.state(ctx)
	if err != nil {
		return err
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	d.show(ctx)
	d.tryEgress(ctx)
	d.tryIngress(ctx)
	d.tryCluster(ctx)
	d.tryDSCP(ctx)
	d.tryNames(ctx)
	d.tryCable(ctx)
	d.tryMove(ctx)
	d.tryRestart(ctx)
	d.tryCleanup(ctx, before)
	return nil
}

// build makes everything but the daemons.
func (d *demo) build(ctx context.Context, topology, samples string) (err error) {
	binary := os.Getenv(lab.BinaryEnv)
	if binary == "" {
		binary = filepath.Join("bin", "egressway")
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	if err := os.Setenv(lab.BinaryEnv, binary); err != nil {
		return err
	}
	manifests := map[string]string{}
	for _, name := range []string{"cluster.yaml", "web.yaml", "batch.yaml", "plain.yaml"} {
		b, err := os.ReadFile(filepath.Join(samples, name))
		if err != nil {
			return err
		}
		manifests[name] = string(b)
	}
	d.say("building it from network namespaces, with the manifests of %s", samples)
	d.Stage, err = stage.New(ctx, topology, stage.Options{
		Nodes:     []string{}, // started later
		Manifests: manifests,
		Exec: map[string][]string{"a-p2": {
			"ip addr add " + bystander[0] + "/24 dev eth0",
			"ip addr add " + bystander[1] + "/64 dev eth0 nodad preferred_lft 0",
		}},
	})
	return err
}

// start starts the daemons and waits until the routers have the ingress IPs and the pods have their way out.
func (d *demo) start(ctx context.Context) error {
	d.say("starting the daemon on a, b and c; waiting for BGP")
	for _, node := range nodes {
		if err := d.StartDaemon(node); err != nil {
			return err
		}
	}
	if err := errors.Join(d.awaitSessions(ctx), d.findHost(ctx)); err != nil {
		return err
	}
	everyBlue, everyBlue6 := []string{"10.2.0.11", "10.2.0.12", "10.2.0.13"}, []string{"fd02::11", "fd02::12", "fd02::13"}
	for _, err := range []error{
		d.AwaitRoute(ctx, "red2", web[0]+"/32", "10.1.0."+numbers[d.host]),
		d.AwaitRoute(ctx, "red2", web[1]+"/128", "fd01::"+numbers[d.host]),
		d.AwaitRoute(ctx, "blue1", batch[0]+"/32", everyBlue...),
		d.AwaitRoute(ctx, "blue2", batch[0]+"/32", everyBlue...),
		d.AwaitRoute(ctx, "blue1", batch[1]+"/128", everyBlue6...), // a path that comes later would lead a connection to another node
		d.AwaitRoute(ctx, "blue2", batch[1]+"/128", everyBlue6...),
		lab.Wait(ctx, lab.Patience, func() error {
			hops, err := d.NextHops("gw", netip.MustParsePrefix(plain[0]+"/32"))
			if err == nil && len(hops) != 1 {
				err = fmt.Errorf("gw has %s by %v, want one node", plain[0], hops)
			}
			return err
		}),
		d.Await(ctx, "a-p1", stage.Outside6, "ext-red", web[1]),
		d.Await(ctx, "b-p1", stage.Outside6, "ext-red", web[1]),
		d.Await(ctx, "a-p2", stage.Outside6, "ext-blue", "fd02::11"),
		d.Await(ctx, "b-p2", stage.Outside6, "ext-blue", "fd02::12"),
		d.Await(ctx, "c-p1", stage.Outside4, "ext-default", plain[0]),
	} {
		if err != nil {
			return err
		}
	}
	d.say("everything is announced and served; the host of web is %s", d.host)
	return nil
}

// awaitSessions waits until every router has its session with every node.
func (d *demo) awaitSessions(ctx context.Context) error {
	return lab.Wait(ctx, lab.Patience, func() error {
		for _, router := range []string{"red1", "red2", "blue1", "blue2", "gw"} {
			var summary struct {
				Peers map[string]struct{ State string }
			}
			if err := d.Node(router).VTYJSON(&summary, "bgpd", "show bgp ipv4 unicast summary json"); err != nil {
				return err
			}
			up := 0
			for _, p := range summary.Peers {
				if p.State == "Established" {
					up++
				}
			}
			if up < len(nodes) {
				return fmt.Errorf("%s has %d sessions with nodes", router, up)
			}
		}
		return nil
	})
}

// findHost asks red1, which alone knows the node that announces web, for its host.
func (d *demo) findHost(ctx context.Context) error {
	return lab.Wait(ctx, lab.Patience, func() error {
		for i, bits := range []int{32, 128} {
			hops, err := d.NextHops("red1", netip.PrefixFrom(netip.MustParseAddr(web[i]), bits))
			if err != nil {
				return err
			}
			if len(hops) != 1 {
				return fmt.Errorf("red1 has %s by %v, want one node", web[i], hops)
			}
			for node, number := range numbers {
				if strings.HasSuffix(hops[0], number) {
					d.host = node
				}
			}
		}
		d.guest = "a"
		if d.host == "a" {
			d.guest = "b"
		}
		return nil
	})
}

// show prints the views that an operator looks at.
func (d *demo) show(ctx context.Context) {
	d.try("what the operator asks: egressway status, FRR's table", func() (string, error) {
		status, err := d.Egressway(ctx, d.host, "status")
		fmt.Printf("\n%s# egressway status\n%s", d.host, status)
		if err != nil {
			return "", err
		}
		table, err := d.Node("red1").VTY("bgpd", "show bgp ipv4 unicast")
		fmt.Printf("\nred1# show bgp ipv4 unicast\n%s\n", table)
		if err != nil {
			return "", err
		}
		for _, name := range []string{"web", "batch", "plain"} {
			if !strings.Contains(status, name) {
				return "", fmt.Errorf("status does not tell of %s", name)
			}
		}
		seen := []string{}
		for _, family := range []string{"ipv4", "ipv6"} {
			routes, err := d.Prefixes("red1", family)
			if err != nil {
				return "", err
			}
			seen = append(seen, routes...)
		}
		want := []string{web[0] + "/32", web[1] + "/128"}
		if !slices.Equal(seen, want) {
			return "", fmt.Errorf("red1 has %v, want %v", seen, want)
		}
		return "all three served; red1 has " + strings.Join(seen, " and ") + ", nothing else", nil
	})
}

// say prints a line with the time since the start.
func (d *demo) say(format string, args ...any) {
	fmt.Printf("%5.1f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// try does one thing, which becomes a row of the table.
func (d *demo) try(what string, f func() (seen string, err error)) {
	d.say("%s", what)
	d.Witness.Reset()
	seen, err := f()
	d.rows = append(d.rows, row{what, seen, err})
	if err != nil {
		d.say("✘ %s", err)
	}
}

// failed is the number of things that were not as promised.
func (d *demo) failed() (n int) {
	for _, r := range d.rows {
		if r.err != nil {
			n++
		}
	}
	return n
}

// logs prints the daemons' logs.
func (d *demo) logs() {
	for _, node := range slices.Sorted(maps.Keys(d.Daemons)) {
		fmt.Printf("\nlog of the daemon on %s:\n%s", node, d.Daemons[node].Log())
	}
}

// table prints the tries and their results; the error counts those that were wrong.
func (d *demo) table() error {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  tried\tseen")
	for _, r := range d.rows {
		verdict, seen := "✔", r.seen
		if r.err != nil {
			verdict, seen = "✘", strings.ReplaceAll(r.err.Error(), "\n", "; ")
		}
		fmt.Fprintf(w, "%s %s\t%s\n", verdict, r.tried, seen)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\n%d tried, %d failed, in %.0f seconds\n", len(d.rows), d.failed(), time.Since(d.began).Seconds())
	if d.failed() > 0 {
		return fmt.Errorf("%d of %d failed", d.failed(), len(d.rows))
	}
	return nil
}
