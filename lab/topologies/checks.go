package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// question goes from a pod to a host beyond the routers, which answers with its name and the source that it saw.
type question struct {
	pod  string
	want [2]string // source and name, by IPv4 and by IPv6
}

// promise lists the things that hold once a topology is deployed.
type promise struct {
	daemons   []string            // nodes with Egressway
	hosts     []string            // beyond the routers, all with the addresses of outside
	announced map[string][]string // prefixes that a router has a route to
	questions []question
	// Exec lines that may fail, with their nodes: containerlab runs them after the daemon's start, which made these VRFs.
	inVain []string
}

var outside = [2]string{"198.51.100.10", "[2001:db8:100::10]"}

// web are the ingress IPs of the Service web.
var web = []string{"192.0.2.10/32", "2001:db8:2::10/128"}

var promises = map[string]promise{
	"vrf-egress": {
		daemons:   []string{"a", "b", "c"},
		hosts:     []string{"ext-red", "ext-blue", "ext-default"},
		announced: map[string][]string{"red1": web, "red2": web},
		questions: []question{
			{"a-p1", [2]string{"192.0.2.10 ext-red", "2001:db8:2::10 ext-red"}},
			{"b-p1", [2]string{"192.0.2.10 ext-red", "2001:db8:2::10 ext-red"}},
			{"a-p2", [2]string{"10.2.0.11 ext-blue", "fd02::11 ext-blue"}},
			{"b-p2", [2]string{"10.2.0.12 ext-blue", "fd02::12 ext-blue"}},
			{"c-p1", [2]string{"10.0.0.13 ext-default", "fd00::13 ext-default"}},
		},
		inVain: []string{"b: ip link add vrf-red type vrf table 1001", "b: ip link add vrf-blue type vrf table 1002"},
	},
	"racks": {
		daemons:   []string{"a", "b"},
		hosts:     []string{"ext"},
		announced: map[string][]string{"leaf11": web, "leaf12": web},
		questions: []question{
			{"a-p1", [2]string{"192.0.2.10 ext", "2001:db8:2::10 ext"}},
			{"b-p1", [2]string{"192.0.2.10 ext", "2001:db8:2::10 ext"}},
		},
	},
	"twin":           {},
	"egressway-kind": {hosts: []string{"ext-red", "ext-blue"}}, // its daemons come later, see lab/cluster/kind.sh
}

// judge prints a line for each thing that a topology promises, and returns an error for each that is not so.
func judge(ctx context.Context, d deployment, failures []string) error {
	p, ok := promises[d.Name]
	if !ok {
		return fmt.Errorf("nothing is known of topology %q: promises in checks.go must have it", d.Name)
	}
	r := report{topology: d.Name}
	r.row(d.deployed(len(failures)), unexpected(p, failures))
	for _, node := range d.nodes() {
		if strings.HasPrefix(d.Graph.Nodes[node].Image, "quay.io/frrouting/frr") {
			r.row("FRR answers on "+node, d.eventually(ctx, node, "vtysh", "-c", "show bgp summary"))
		}
	}
	for _, node := range p.daemons {
		r.row("egressway status succeeds on "+node, d.eventually(ctx, node, "egressway", "status"))
	}
	for _, router := range slices.Sorted(maps.Keys(p.announced)) {
		for _, prefix := range p.announced[router] {
			r.row(router+" has "+prefix, eventually(func() error { return d.known(ctx, router, prefix) }))
		}
	}
	for _, node := range p.hosts {
		if err := d.answer(ctx, node); err != nil {
			return err
		}
	}
	for _, q := range p.questions {
		if err := d.box(ctx, q.pod); err != nil {
			return err
		}
		for i, want := range q.want {
			r.row(q.pod+" is seen as "+want, eventually(func() error { return d.ask(ctx, q.pod, outside[i], want) }))
		}
	}
	return errors.Join(r.errs...)
}

// report prints rows, and keeps the errors of those that failed.
type report struct {
	topology string
	errs     []error
}

func (r *report) row(text string, err error) {
	result := "ok"
	if err != nil {
		result = "FAILED"
		r.errs = append(r.errs, fmt.Errorf("%s: %w", text, err))
	}
	fmt.Printf("topologies: %s: %-6s %s\n", r.topology, result, text)
}

// deployed counts the parts of a topology.
func (d deployment) deployed(failures int) string {
	lines := 0
	for _, n := range d.Graph.Nodes {
		lines += len(n.Exec)
	}
	return fmt.Sprintf("%d containers, %d links, %d exec lines, %d of them in vain",
		len(d.Graph.Nodes), len(d.Graph.Links), lines, failures)
}

// unexpected returns an error for each line that failed and may not.
func unexpected(p promise, failures []string) (err error) {
	for _, f := range failures {
		if !slices.Contains(p.inVain, f) {
			err = errors.Join(err, errors.New(f))
		}
	}
	return err
}

// answer starts a server in a container that answers with its client's address.
func (d deployment) answer(ctx context.Context, node string) error {
	if err := d.box(ctx, node); err != nil {
		return err
	}
	_, err := docker(ctx, "exec", "--detach", d.container(node), "box", "answer", ":8080")
	return err
}

// box copies the program of that name into a container.
func (d deployment) box(ctx context.Context, node string) error {
	_, err := docker(ctx, "cp", "/lab/bin/box", d.container(node)+":/usr/local/bin/box")
	return err
}

func (d deployment) ask(ctx context.Context, pod, address, want string) error {
	got, err := docker(ctx, "exec", d.container(pod), "box", "ask", "http://"+address+":8080")
	if got = strings.TrimSpace(got); err == nil && got != want {
		return fmt.Errorf("the answer is %q, not %q", got, want)
	}
	return err
}

// known returns an error unless a router has a route to a prefix.
func (d deployment) known(ctx context.Context, router, prefix string) error {
	family := "ipv4"
	if strings.Contains(prefix, ":") {
		family = "ipv6"
	}
	text, err := docker(ctx, "exec", d.container(router), "vtysh", "-c", fmt.Sprintf("show bgp %s unicast %s", family, prefix))
	if err == nil && !strings.Contains(text, "best") {
		return fmt.Errorf("no path to %s: %s", prefix, text)
	}
	return err
}

// eventually repeats a command in a container until it succeeds.
func (d deployment) eventually(ctx context.Context, node string, command ...string) error {
	return eventually(func() error {
		_, err := docker(ctx, append([]string{"exec", d.container(node)}, command...)...)
		return err
	})
}

// eventually repeats a check until it succeeds, for a minute, which only a machine that hangs needs.
func eventually(check func() error) error {
	again, limit := time.Tick(200*time.Millisecond), time.After(time.Minute)
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-again:
		case <-limit:
			return err
		}
	}
}
