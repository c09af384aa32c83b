// Names measures DNS names of an EgressFirewall: how much later an answer comes that waits for its address, and whether a pod that
// connects at the answer gets through. A pod under the rules and one without ask in turn for names that none has asked for. It prints
// Markdown. It runs in the lab's kernel, from the root of the repository:
//
//	make build bin/labexec && go build -o bin/bench-names ./lab/bench/names && LAB_BIN=$PWD/bin/egressway bin/labexec $PWD/bin/bench-names
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/figures"
	"github.com/egressway/egressway/lab/stage"
)

const containerlab = "containerlab"

// manifests has pod a-p1 under rules, a-p2 without, and a resolver in b-p2.
const manifests = `apiVersion: k8s.ovn.org/v1
kind: EgressFirewall
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {type: Allow, to: {dnsName: "*.shop.example"}}
  - {type: Deny, to: {cidrSelector: 0.0.0.0/0}}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: a-p1}
spec: {nodeName: a}
status: {phase: Running, podIPs: [{ip: 10.244.1.11}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: open, name: a-p2}
spec: {nodeName: a}
status: {phase: Running, podIPs: [{ip: 10.244.1.12}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: open, name: b-p2}
spec: {nodeName: b}
status: {phase: Running, podIPs: [{ip: 10.244.2.12}]}
`

var resolver = netip.MustParseAddrPort("10.244.2.12:53")

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "names:", err)
		os.Exit(1)
	}
}

func run() error {
	count := flag.Int("names", 10_000, "fresh names of each measurement, at most 10,000: a node keeps no more")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	for _, measure := range []measurement{inTurn, atOnce} {
		if err := onStage(ctx, measure, *count); err != nil {
			return err
		}
	}
	return nil
}

// measurement has pods ask for so many names, and prints a table.
type measurement func(ctx context.Context, s *stage.Stage, count int, out io.Writer) error

// onStage measures on a stage of its own.
func onStage(ctx context.Context, measure measurement, count int) (err error) {
	nodes, err := os.ReadFile(filepath.Join(containerlab, "vrf-egress", "manifests", "cluster.yaml"))
	if err != nil {
		return err
	}
	s, err := stage.New(ctx, containerlab, stage.Options{
		Config: func(c string) string {
			return c + "firewall: {resolvers: {addresses: [" + resolver.Addr().String() + "]}}\n"
		},
		Exec: map[string][]string{
			"gw": {"ip route add 198.18.0.0/15 via 172.31.30.2"}, "ext-default": {"ip route add local 198.18.0.0/15 dev lo"},
		},
		Manifests: map[string]string{"cluster.yaml": string(nodes), "pods.yaml": manifests},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.Lab.Resolve(s.Node("b-p2"), zone); err != nil {
		return err
	}
	err = lab.Wait(ctx, lab.Patience, func() error {
		if connect(ctx, s.Node("a-p1"), addressOf(0)) == nil {
			return errors.New("the rules are not in force")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return measure(ctx, s, count, os.Stdout)
}

// addressOf returns the address of name n<number>.shop.example.
func addressOf(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 + byte(number>>16), byte(number >> 8), byte(number)})
}

func zone(name string, typ dnsmessage.Type) ([]lab.Record, bool) {
	number := 0
	if _, err := fmt.Sscanf(name, "n%d.shop.example", &number); err != nil || typ != dnsmessage.TypeA {
		return nil, err == nil
	}
	return []lab.Record{{Name: name, TTL: 300, Addr: addressOf(number)}}, true
}

func connect(ctx context.Context, pod *lab.Node, to netip.Addr) error {
	_, err := pod.AskTCP(ctx, netip.AddrPortFrom(to, lab.ResponderPort))
	return err
}

// look asks for a name, and returns how long the answer took. An answer that is lost is asked for again, and counted.
func look(ctx context.Context, pod *lab.Node, number int, lost *atomic.Int64) (time.Duration, error) {
	began := time.Now()
	_, err := pod.Lookup(ctx, resolver, fmt.Sprintf("n%d.shop.example", number), dnsmessage.TypeA, false)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		lost.Add(1)
		return look(ctx, pod, number, lost)
	}
	return time.Since(began), err
}

// inTurn has both pods ask in turn.
func inTurn(ctx context.Context, s *stage.Stage, count int, out io.Writer) error {
	pods := []*lab.Node{s.Node("a-p1"), s.Node("a-p2")}
	took := make([][]time.Duration, 2)
	lost := make([]atomic.Int64, 2)
	refused := make([]int, 2)
	for i := range count {
		for which, pod := range pods {
			number := 1 + 2*i + which
			d, err := look(ctx, pod, number, &lost[which])
			if err != nil {
				return err
			}
			took[which] = append(took[which], d)
			if connect(ctx, pod, addressOf(number)) != nil {
				refused[which]++
			}
		}
	}
	fmt.Fprintf(out, "%s fresh names of each pod, in turn:\n\n", figures.Count(count))
	t := figures.NewTable("pod", "answers, median", "99 of 100 within", "slowest", "lost", "first packets lost")
	for which, name := range []string{"with names in its rules", "without rules"} {
		d := slices.Sorted(slices.Values(took[which]))
		t.Add(name, micros(d[len(d)/2]), micros(d[len(d)*99/100]), micros(d[len(d)-1]),
			fmt.Sprint(lost[which].Load()), fmt.Sprint(refused[which]))
	}
	t.Print(out)
	return nil
}

func micros(d time.Duration) string { return fmt.Sprintf("%d µs", d.Microseconds()) }

// atOnce has both pods ask for names, 64 at once.
func atOnce(ctx context.Context, s *stage.Stage, count int, out io.Writer) error {
	fmt.Fprintf(out, "\n%s fresh names, 64 at once:\n\n", figures.Count(count))
	t := figures.NewTable("pod", "names a second", "answers, median", "99 of 100 within", "lost", "first packets lost")
	for which, pod := range []string{"a-p1", "a-p2"} {
		var g errgroup.Group
		g.SetLimit(64)
		var mu sync.Mutex
		var took []time.Duration
		var lost, refused atomic.Int64
		began := time.Now()
		for i := range count {
			g.Go(func() error {
				number := 1 + which*count + i
				d, err := look(ctx, s.Node(pod), number, &lost)
				if err == nil && connect(ctx, s.Node(pod), addressOf(number)) != nil {
					refused.Add(1)
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, d)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		slices.Sort(took)
		t.Add([]string{"with names in its rules", "without rules"}[which],
			fmt.Sprintf("%.0f", float64(count)/time.Since(began).Seconds()), micros(took[len(took)/2]), micros(took[len(took)*99/100]),
			fmt.Sprint(lost.Load()), fmt.Sprint(refused.Load()))
	}
	t.Print(out)
	return nil
}
