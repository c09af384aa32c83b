package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// probing are the ingress IPs of the pods that the figures are of, and probe is the name of all their objects.
var probing = [2]string{"203.0.113.50", "2001:db8:203::50"}

const probe = "probe"

// pulse is the time between two datagrams of a stream of the probe's: see figures.yaml.
const pulse = 10 * time.Millisecond

// clients are those of the API server, without the time that a start of kubectl needs.
type clients struct {
	*kubernetes.Clientset
	services dynamic.ResourceInterface // EgressServices of namespace shop
}

func (c *cluster) clients() (clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.state, "kubeconfig"))
	if err != nil {
		return clients{}, err
	}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, err
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return clients{}, err
	}
	kind := schema.GroupVersionResource{Group: "k8s.ovn.org", Version: "v1", Resource: "egressservices"}
	return clients{typed, untyped.Resource(kind).Namespace("shop")}, nil
}

// durations are those of one figure.
type durations []time.Duration

// line is that of a table: how many, the middle, and the longest ones.
func (d durations) line(name string) string {
	if len(d) == 0 {
		return fmt.Sprintf("| %s | 0 | | | |\n", name)
	}
	d = slices.Sorted(slices.Values(d))
	at := func(hundredths int) int64 { return d[(len(d)*hundredths+99)/100-1].Milliseconds() }
	return fmt.Sprintf("| %s | %d | %d ms | %d ms | %d ms |\n", name, len(d), at(50), at(90), at(100))
}

// figures measures a number of new pods, of changes and of dead hosts, and returns a table. It fails if a packet has a wrong source.
func (r *run) figures(times int, progress func(string, ...any)) (string, error) {
	c, err := r.clients()
	if err != nil {
		return "", err
	}
	if r.nodes, err = r.cluster.nodes(r.ctx); err != nil {
		return "", err
	}
	if err := r.do(r.ctx, "apply -f "+r.source+"/figures.yaml"); err != nil {
		return "", err
	}
	if err := r.probed(c); err != nil {
		return "", err
	}
	var table strings.Builder
	table.WriteString("| figure | measured | half of them | 9 of 10 | longest |\n|---|---|---|---|---|\n")
	for _, f := range []struct {
		name    string
		measure func(clients) (durations, error)
		times   int
	}{
		{"new pod: from the first packet that it sends to the first one outside, which has the ingress IP", r.newPod, times},
		{"new EgressService: from the request to its pods' first packet outside, on each node and by each family", r.changed, times},
		{"dead host: longest silence of a stream of the other nodes' pods", r.failover, (times + 3) / 4},
	} {
		var all durations
		for i := range f.times {
			d, err := f.measure(c)
			if err != nil {
				return "", fmt.Errorf("%s: %w", f.name, err)
			}
			all = append(all, d...)
			progress("%d of %d: %s: %s", i+1, f.times, f.name, d)
		}
		table.WriteString(all.line(f.name))
	}
	return table.String(), r.do(r.ctx, "delete -f "+r.source+"/figures.yaml")
}

// probed waits until packets of the probe's pods on each node arrive outside.
func (r *run) probed(c clients) error {
	if err := r.do(r.ctx, "-n shop rollout status daemonset/probe --timeout=180s",
		"-n shop wait --for=condition=Ready egressservice/probe --timeout=180s"); err != nil {
		return err
	}
	pods, err := c.probes(r.ctx)
	if err != nil {
		return err
	}
	_, err = r.firsts(pods...)
	return err
}

func (c clients) probes(ctx context.Context) ([]core.Pod, error) {
	list, err := c.CoreV1().Pods("shop").List(ctx, meta.ListOptions{LabelSelector: "app=" + probe})
	if err == nil && len(list.Items) == 0 {
		err = errors.New("no pod " + probe)
	}
	return list.Items, err
}

// firsts waits until each stream of some of the probe's pods has arrived outside, and returns the first datagram of each.
func (r *run) firsts(of ...core.Pod) (map[string]first, error) {
	w, all := wire{}, map[string]first{}
	err := await(r.ctx, "packets of "+probe, func() (bool, error) {
		if err := r.take(r.ctx, w); err != nil {
			return false, err
		}
		for _, p := range of {
			for _, name := range streamsOf(p.Name) {
				record := w["outside"][name]
				if record == nil || record.received() == 0 {
					return false, errors.New(name + " is silent")
				}
				for _, f := range record.First {
					all[name] = f
				}
			}
		}
		return true, nil
	})
	return all, errors.Join(err, w.leaked())
}

// leaked is an error if a packet of the probe's pods had another source, or arrived elsewhere.
func (w wire) leaked() error {
	for host, streams := range w {
		for name, record := range streams {
			for source := range record.Sources {
				if strings.HasPrefix(name, probe+"-") && (host != "outside" || !slices.Contains(probing[:], source)) {
					return fmt.Errorf("LEAK: %s arrived at %s from %s", name, host, source)
				}
			}
		}
	}
	return nil
}

// newPod replaces a pod of the probe, of each node in turn, and measures from the first datagram that its successor sends to the first one
// that arrives, of each stream.
func (r *run) newPod(c clients) (all durations, err error) {
	former, err := c.probes(r.ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(former, func(a, b core.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	r.turn++
	if err := c.CoreV1().Pods("shop").Delete(r.ctx, former[r.turn%len(former)].Name, meta.DeleteOptions{}); err != nil {
		return nil, err
	}
	var next core.Pod
	if err := await(r.ctx, "another pod "+probe, func() (bool, error) {
		pods, err := c.probes(r.ctx)
		i := slices.IndexFunc(pods, func(p core.Pod) bool {
			return !slices.ContainsFunc(former, func(f core.Pod) bool { return f.Name == p.Name })
		})
		if i >= 0 {
			next = pods[i]
		}
		return i >= 0, err
	}); err != nil {
		return nil, err
	}
	arrived, err := r.firsts(next)
	for _, f := range arrived {
		all = append(all, time.Duration(f.Seq-1)*pulse)
	}
	return all, err
}

// changed deletes the probe's EgressService, whose pods are held then, and measures from the request that creates it again.
func (r *run) changed(c clients) (all durations, err error) {
	pods, err := c.probes(r.ctx)
	if err != nil {
		return nil, err
	}
	service, err := c.services.Get(r.ctx, probe, meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	if err := c.services.Delete(r.ctx, probe, meta.DeleteOptions{}); err != nil {
		return nil, err
	}
	if _, err := r.silent(probe); err != nil {
		return nil, err
	}
	again := &unstructured.Unstructured{Object: map[string]any{"spec": service.Object["spec"]}}
	again.SetGroupVersionKind(service.GroupVersionKind())
	again.SetName(probe)
	since := time.Now()
	if _, err := c.services.Create(r.ctx, again, meta.CreateOptions{}); err != nil {
		return nil, err
	}
	arrived, err := r.firsts(pods...)
	for _, f := range arrived {
		all = append(all, f.At.Sub(since))
	}
	return all, err
}

// failover kills the probe's host, and measures the silence of the others' pods. It starts the host again.
func (r *run) failover(c clients) (silences durations, err error) {
	host, err := r.host(r.ctx, probe)
	if err != nil {
		return nil, err
	}
	pods, err := c.probes(r.ctx)
	if err != nil {
		return nil, err
	}
	var survivors []string
	for _, p := range pods {
		if p.Spec.NodeName != host {
			survivors = append(survivors, streamsOf(p.Name)...)
		}
	}
	if err := r.take(r.ctx, wire{}); err != nil {
		return nil, err
	}
	if err := r.holdAtBoot(); err != nil {
		return nil, err
	}
	if _, err := r.docker("kill", host); err != nil {
		return nil, err
	}
	w, err := r.resumed(host, survivors)
	for _, name := range survivors {
		if record := w["outside"][name]; record != nil {
			silences = append(silences, time.Duration(record.SilentMS)*time.Millisecond)
		}
	}
	return silences, errors.Join(err, w.leaked(), r.boot(host), r.probed(c))
}

// resumed waits until another node is the probe's host, and each of some streams arrives without loss. It returns all records until then.
func (r *run) resumed(former string, streams []string) (wire, error) {
	w := wire{}
	return w, await(r.ctx, "packets of the other nodes' pods", func() (bool, error) {
		recent := wire{}
		if err := r.take(r.ctx, recent); err != nil {
			return false, err
		}
		going := 0
		for at, all := range recent {
			for name, s := range all {
				w.add(at, []record{*s})
				if slices.Contains(streams, name) && s.received() > 0 && s.Lost == 0 {
					going++
				}
			}
		}
		now, err := r.host(r.ctx, probe)
		return going == len(streams) && now != former, err
	})
}
