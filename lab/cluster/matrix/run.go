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

// ingress are the ingress IPs that MetalLB gives to the Services: their annotations ask for them.
var ingress = map[string][2]string{
	"web":    {"203.0.113.10", "2001:db8:203::10"},
	"red":    {"203.0.113.20", "2001:db8:203::20"},
	"single": {"203.0.113.30", "2001:db8:203::30"},
	"own":    {"203.0.113.40", "2001:db8:203::40"},
}

// client is the address of the hosts outside.
var client = [2]string{"198.51.100.7", "2001:db8:51::7"}

// network is the host outside that belongs to an EgressService.
func network(service string) string {
	if service == "red" || service == "own" {
		return "outside-red"
	}
	return "outside"
}

// run is one on a cluster. Between rows all EgressServices are served, and all pods send.
type run struct {
	*cluster
	ctx context.Context
	cni string
	// patient is set where lost packets fail no row: on a machine that may be too slow. Questions without an answer are repeated there.
	patient  bool
	repeated int
	nodes    map[string]node
	turn     int // of the node whose pod is replaced next
	// former are the sources of apps before a change, which are right while it lasts.
	former map[string][2]string
	// given are the sources that an EgressIP gives to apps.
	given map[string][2]string
}

// way returns where the packets of a pod have to arrive, and with which sources.
func (r *run) way(p pod) way {
	if sources, ok := r.given[p.app]; ok {
		return way{host: "outside", sources: sources}
	}
	n := r.nodes[p.node]
	switch p.app {
	case "own":
		return way{host: "outside-red", sources: n.red}
	case "plain", "twin", "hostnet":
		return way{host: "outside", sources: n.own}
	}
	return way{network(p.app), ingress[p.app], r.former[p.app]}
}

// measured counts the packets that arrived outside during an act, and for a second and a half after it.
type measured struct {
	record
	pods int
}

func (m measured) String() string {
	text := fmt.Sprintf("%d packets of %d pods, %d lost", m.received(), m.pods, m.Lost+m.Missing)
	if m.Lost+m.Missing > 0 {
		text += fmt.Sprintf(" (%d of them answers), silent for up to %d ms: %s", m.Missing, m.SilentMS, strings.Join(m.losing, ", "))
	}
	return text
}

// settled is how many datagrams of each stream a measurement waits for, after the act: more than a second's.
const settled = 15

// measure watches all streams during an act. No packet may arrive with another source than its pod's, nor at another network's host,
// and every stream has to arrive at the end. The result is that of some pods, which have to be there before and after.
func (r *run) measure(act func() error, counted func(pod) bool) (measured, error) {
	w := wire{}
	if err := r.take(r.ctx, wire{}); err != nil { // from before
		return measured{}, err
	}
	before, err := r.pods(r.ctx)
	if err != nil {
		return measured{}, err
	}
	if act != nil {
		if err := act(); err != nil {
			return measured{}, err
		}
	}
	after, err := r.flowing(w)
	if err != nil {
		return measured{}, err
	}
	all := maps.Clone(before)
	maps.Copy(all, after)
	ways := map[string]way{}
	for name, p := range all {
		ways[name] = r.way(p)
	}
	if found := w.wrong(ways); len(found) > 0 {
		return measured{}, errors.New("LEAK: " + strings.Join(found, "; "))
	}
	var judged []string
	for name, p := range after {
		if _, there := before[name]; there && counted(p) {
			judged = append(judged, name)
		}
	}
	if len(judged) == 0 {
		return measured{}, errors.New("no pod to measure")
	}
	total, _ := w.sum(ways, judged)
	return measured{total, len(judged)}, nil
}

// flowing adds records to a wire until each stream of each pod has arrived for a while where it should.
func (r *run) flowing(w wire) (pods map[string]pod, err error) {
	if err := r.take(r.ctx, w); err != nil {
		return nil, err
	}
	since := wire{}
	err = await(r.ctx, "packets of every pod outside", func() (bool, error) {
		recent := wire{}
		if err := r.take(r.ctx, recent); err != nil {
			return false, err
		}
		for host, streams := range recent {
			for _, s := range streams {
				w.add(host, []record{*s})
				since.add(host, []record{*s})
			}
		}
		if pods, err = r.pods(r.ctx); err != nil {
			return false, err
		}
		ways := map[string]way{}
		for name, p := range pods {
			ways[name] = r.way(p)
		}
		if least := since.least(ways, sorted(pods)); least < settled {
			_, silent := since.sum(ways, sorted(pods))
			return false, fmt.Errorf("silent: %s", strings.Join(silent, " "))
		}
		return true, nil
	})
	return pods, err
}

func everyPod(pod) bool { return true }

// lossless is a measurement of the pods of some apps, by default of all, that fails if a packet was lost, in either direction, unless
// the run is patient.
func (r *run) lossless(act func() error, apps ...string) (string, error) {
	counted := everyPod
	if len(apps) > 0 {
		counted = func(p pod) bool { return slices.Contains(apps, p.app) }
	}
	m, err := r.measure(act, counted)
	if err == nil && m.Lost+m.Missing > 0 && !r.patient {
		err = fmt.Errorf("not without loss: %s", m)
	}
	return m.String(), err
}

// asks is reaches, repeated until each question has its answer if the run is patient.
func (r *run) asks(asked []string, by ...string) (answers []answer, err error) {
	if !r.patient {
		return r.reaches(r.ctx, asked, by...)
	}
	err = await(r.ctx, "an answer to each question", func() (bool, error) {
		if answers, err = r.reaches(r.ctx, asked, by...); err != nil {
			r.repeated++
		}
		return err == nil, err
	})
	return answers, err
}

// moved waits until an EgressService has another host than before.
func (r *run) moved(service, before string) error {
	return await(r.ctx, "another host of "+service+" than "+before, func() (bool, error) {
		host, err := r.host(r.ctx, service)
		return host != "" && host != before, err
	})
}

// ready waits until all EgressServices are served.
func (r *run) ready() error {
	return r.do(r.ctx, "-n shop wait --for=condition=Ready egressservice --all --timeout=180s")
}

// start deploys the pods of the run beside those of "make cluster".
func (r *run) start() error {
	if err := r.do(r.ctx, "apply -f "+r.source+"/web.yaml", "apply -f "+r.source+"/matrix.yaml"); err != nil {
		return err
	}
	if err := r.do(r.ctx,
		"-n shop rollout status daemonset/web --timeout=180s", "-n shop rollout status daemonset/red --timeout=180s",
		"-n shop rollout status daemonset/own --timeout=180s", "-n shop rollout status deployment/single --timeout=180s",
		"-n plain rollout status deployment/plain --timeout=180s", "-n plain rollout status deployment/twin --timeout=180s",
		"-n shop rollout status deployment/hostnet --timeout=180s",
	); err != nil {
		return err
	}
	if err := r.ready(); err != nil {
		return err
	}
	var err error
	if r.nodes, err = r.cluster.nodes(r.ctx); err != nil {
		return err
	}
	_, err = r.flowing(wire{})
	return err
}

// row is a behaviour of the table. Its check returns a few words about the packets.
type row struct {
	name  string
	check func(*run) (string, error)
}

// result is that of a row, as it is written to a file.
type result struct {
	Name, Seen string
	Failed     bool
	Seconds    float64
}

func (r *run) rows(rows []row, progress func(string, ...any)) (results []result) {
	for i, row := range rows {
		if r.ctx.Err() != nil {
			break
		}
		began := time.Now()
		r.repeated = 0
		seen, err := row.check(r)
		if r.repeated > 0 {
			seen += fmt.Sprintf("; %d commands repeated, since a question had no answer", r.repeated)
		}
		one := result{row.name, seen, err != nil, time.Since(began).Seconds()}
		word := "ok"
		if err != nil {
			word, one.Seen = "FAILED", err.Error()
		}
		results = append(results, one)
		progress("%d of %d: %-6s %s: %s (%.0f s)", i+1, len(rows), word, row.name, one.Seen, one.Seconds)
	}
	return results
}
