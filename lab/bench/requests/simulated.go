package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/apiserver"
	"github.com/egressway/egressway/lab/bench/internal/figures"
)

const (
	kubeletEvery   = 5 * time.Minute  // a kubelet writes the status of its Node, if nothing changes
	simulateWithin = 10 * time.Minute // many clients list all objects
	relabelled     = 10               // Nodes whose label changes
	flap           = unix.SIGUSR1     // makes the sessions of the clients' nodes go up and down, once a second each
)

// simulation holds the measurements with many daemons that have a real API client and nothing else: the package that
// each daemon has, in one process on one node.
type simulation struct {
	whole  *window // every daemon watches all Nodes
	roster *window // only the leader does
	change *window // the same, and Nodes' labels change
	flap   *window // the same as roster, and sessions of all nodes go up and down
	beats  [4]int  // statuses of Nodes written meanwhile
	taken  [2]time.Duration
}

// simulate runs the clients of n daemons: first under a Lease that a leader of an earlier version holds, which publishes no
// roster of Nodes, then under a leader among themselves.
func (o options) simulate(ctx context.Context, n int) (s *simulation, err error) {
	o.nodes, o.services, o.endpoints = n, min(o.services, 10), 1
	b, err := prepare(ctx, o, 1, nodeName(0))
	if err != nil {
		return nil, err
	}
	defer b.destroy()
	if err := b.credentials(0); err != nil {
		return nil, err
	}
	began := time.Now()
	clients, err := b.lab.Start(b.nodes[0], os.Args[0], "-as-daemons", fmt.Sprint(n), "-as-kubeconfig", b.path("kubeconfig-0"))
	if err != nil {
		return nil, err
	}
	b.daemons[0] = clients
	s = &simulation{}
	if err := states(ctx, clients, fmt.Sprintf("%d know all, 0 rely on the leader", n)); err != nil {
		return nil, err
	}
	s.taken[0] = time.Since(began)
	if err := sleep(ctx, settle); err != nil {
		return nil, err
	}
	rest := func(i int, change func(second int) error) (*window, error) {
		return b.during(ctx, func(*window) error {
			s.beats[i], err = b.beat(ctx, n, change)
			return err
		})
	}
	if s.whole, err = rest(0, nil); err != nil {
		return nil, err
	}
	began = time.Now()
	if _, err := b.api.Ask(ctx, apiserver.Delete(lease)); err != nil {
		return nil, err
	}
	if err := states(ctx, clients, fmt.Sprintf("%d know all, %d rely on the leader", n, n-1)); err != nil {
		return nil, err
	}
	s.taken[1] = time.Since(began)
	if err := sleep(ctx, settle); err != nil {
		return nil, err
	}
	if s.roster, err = rest(1, nil); err != nil {
		return nil, err
	}
	s.change, err = rest(2, func(second int) error {
		if second >= relabelled {
			return nil
		}
		_, err := b.api.Ask(ctx, apiserver.Merge("/api/v1/nodes/"+nodeName(second), []byte(`{"metadata": {"labels": {"bench": "new"}}}`)))
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(clients.Signal(flap), sleep(ctx, time.Duration(n)*20*time.Millisecond)); err != nil { // EgressNodes exist then
		return nil, err
	}
	if s.flap, err = rest(3, nil); err != nil {
		return nil, err
	}
	return s, b.countIn([]*window{s.whole, s.roster, s.change, s.flap})
}

const lease = "/apis/coordination.k8s.io/v1/namespaces/" + apiserver.Namespace + "/leases/egressway"

// states waits until the clients print a line last.
func states(ctx context.Context, clients *lab.Daemon, line string) error {
	err := lab.Wait(ctx, simulateWithin, func() error {
		lines := strings.Split(strings.TrimSpace(clients.Log()), "\n")
		if last := lines[len(lines)-1]; last != line && !clients.Ended() {
			return fmt.Errorf("the clients' last line is %q, want %q", last, line)
		}
		return nil
	})
	if err == nil && clients.Ended() {
		err = errors.Join(errors.New("the clients ended: "+apiserver.Tail(clients.Log())), clients.Err())
	}
	return err
}

// beat writes the Nodes' statuses for the time of rest, each as often as its kubelet does, and calls change every second.
func (b *bed) beat(ctx context.Context, nodes int, change func(second int) error) (beats int, err error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for second := range int(b.rest.Seconds()) {
		for due := int(float64(second+1) * float64(nodes) / kubeletEvery.Seconds()); beats < due; beats++ {
			if _, err := b.api.Ask(ctx, heartbeat(beats%nodes)); err != nil {
				return beats, err
			}
		}
		if change != nil {
			if err := change(second); err != nil {
				return beats, err
			}
		}
		select {
		case <-ctx.Done():
			return beats, ctx.Err()
		case <-tick.C:
		}
	}
	return beats, nil
}

// asDaemons is the process of the clients. It prints, each second, how many know all objects, and how many leave it to the
// leader to watch all Nodes.
func asDaemons(ctx context.Context, n int, kubeconfig string, out io.Writer) error {
	var (
		known, relying atomic.Int64
		g              sync.WaitGroup
	)
	g.Go(func() {
		for last := ""; sleep(ctx, time.Second) == nil; {
			if line := fmt.Sprintf("%d know all, %d rely on the leader", known.Load(), relying.Load()); line != last {
				fmt.Fprintln(out, line)
				last = line
			}
		}
	})
	flaps, flapping := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(flaps, flap)
	go func() {
		<-flaps
		close(flapping)
	}()
	starts := make(chan struct{}, startsAtOnce) // one that waits for its share of a busy server asks again, which makes it busier
	for i := range n {
		select {
		case starts <- struct{}{}:
		case <-ctx.Done():
		}
		g.Go(func() { asDaemon(ctx, i, kubeconfig, &known, &relying, flapping, func() { <-starts }) })
	}
	g.Wait()
	return nil
}

// asDaemon runs one client. It calls started once the client knows all objects, and reports another state of the node's sessions each
// second once flapping is closed.
func asDaemon(ctx context.Context, i int, kubeconfig string, known, relying *atomic.Int64, flapping <-chan struct{}, started func()) {
	woken := make(chan struct{}, 1)
	c := kube.New(slog.New(slog.DiscardHandler), kube.Options{
		Kubeconfig: kubeconfig, Namespace: apiserver.Namespace, Node: nodeName(i), Version: "bench",
	}, func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	report := cluster.Report{
		Networks: map[string]cluster.NetworkState{},
		Hosts:    map[string]bool{nodeName(i + 1): true, nodeName(i + 2): true},
	}
	for _, name := range []string{"red", "blue", "green"} {
		report.Networks[name] = cluster.NetworkState{Usable: true, IPv4: true, IPv6: true, Sessions: 2, Up: 2}
	}
	c.Report(report)
	c.Contend()
	var g sync.WaitGroup
	defer g.Wait()
	g.Go(func() { c.Run(ctx) })
	g.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-flapping:
		}
		for up := false; ; up = !up {
			c.ReportNode(nodeState(up))
			if sleep(ctx, time.Second) != nil {
				return
			}
		}
	})
	first := sync.OnceFunc(started)
	defer first()
	knows, relies := false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-woken:
		}
		o, _, _, ok := c.Objects()
		if ok {
			first()
		}
		known.Add(change(&knows, ok))
		relying.Add(change(&relies, ok && o.StaleNodes))
	}
}

// nodeState returns the state of a node with three networks and two sessions each, one of which may be down.
func nodeState(up bool) v1alpha1.EgressNodeStatus {
	s := v1alpha1.EgressNodeStatus{Version: "bench", NetworksUsable: "3/3", SessionsUp: "6/6"}
	for _, network := range []string{"red", "blue", "green"} {
		s.Networks = append(s.Networks, v1alpha1.EgressNodeNetwork{Name: network, Usable: true})
		for _, peer := range []string{"10.1.0.1", "10.1.0.2"} {
			s.Sessions = append(s.Sessions, v1alpha1.EgressNodeSession{Network: network, Peer: peer, ASN: 65001, Up: true})
		}
	}
	if !up {
		last := &s.Sessions[len(s.Sessions)-1]
		last.Up, last.LastError = false, "BFD is down"
		s.SessionsUp, s.Down = "5/6", []string{last.Network + "/" + last.Peer}
	}
	return s
}

// change sets a flag, and returns by how much that changes the number of those that are set.
func change(flag *bool, to bool) int64 {
	if *flag == to {
		return 0
	}
	if *flag = to; to {
		return 1
	}
	return -1
}

// print prints the measurements.
func (s *simulation) print(out io.Writer, n int) {
	fmt.Fprintf(out, "### %s simulated daemons\n\nThe API clients of %[1]s daemons in one process, without services; %[2]d Nodes of the "+
		"same size, whose statuses are written once in %[3]s each. "+
		"First they obey a leader of an earlier version, which publishes no roster of the Nodes: each watches all. All knew everything "+
		"after %[4]s. Then one of them leads, and the others watch their own Node since %[5]s after the former leader's end. "+
		"Then a label of %[6]d Nodes changes, one a second. At last, a session of each node goes down or up every second, "+
		"which its EgressNode shows.\n\n",
		figures.Count(n), n, kubeletEvery, figures.Duration(s.taken[0]), figures.Duration(s.taken[1]), relabelled)
	t := figures.NewTable("", "statuses of Nodes", "requests a second", "events of Nodes a second", "MB of them",
		"events of Leases a second", "MB of them", "MB received")
	for i, row := range []struct {
		name   string
		window *window
	}{
		{"each watches all Nodes", s.whole},
		{"only the leader does", s.roster},
		{"the same, and labels change", s.change},
		{"the same, and sessions flap", s.flap},
	} {
		w := row.window
		seconds := w.to.Sub(w.from).Seconds()
		per := func(x float64) string { return fmt.Sprintf("%.1f", x/seconds) }
		mega := func(x float64) string { return fmt.Sprintf("%.2f", x/seconds/1e6) }
		var asked float64
		for _, c := range w.requests {
			asked += sum(c)
		}
		t.Add(row.name, fmt.Sprint(s.beats[i]), per(asked), per(w.events["nodes"]), mega(w.sizes["nodes"]), per(w.events["leases"]),
			mega(w.sizes["leases"]), mega(sum(w.received)))
	}
	t.Print(out)
}

func heartbeat(node int) apiserver.Request {
	now, _ := json.Marshal(time.Now().UTC().Format(time.RFC3339))
	return apiserver.Patch("/api/v1/nodes/"+nodeName(node)+"/status", fmt.Appendf(nil,
		`[{"op": "replace", "path": "/status/conditions/0/lastHeartbeatTime", "value": %s}]`, now))
}
