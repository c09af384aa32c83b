package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// report prints the measurements, and calculates those of a thousand nodes.
func (o options) report(out io.Writer, all []*result) {
	fmt.Fprintf(out, "%s Services with an EgressService and %d endpoints each, as many Nodes as daemons.\n\n", figures.Count(o.services),
		o.endpoints)
	fmt.Fprintf(out, "### At rest\n\nRequests a second for %s.\n\n", o.rest)
	perRole(out, all, func(r *result) []*window { return []*window{r.rest} }, func(w *window, n float64) string {
		return fmt.Sprintf("%.3f", n/w.to.Sub(w.from).Seconds())
	})
	fmt.Fprintf(out, "### A restart of one daemon\n\nRequests for each, and what the API server sends. A start waits until all is in "+
		"force.\n\n")
	restarts(out, all)
	fmt.Fprintf(out, "### A change of one object\n\nAn endpoint is replaced in an EndpointSlice, as a rolling update of a workload does; "+
		"a kubelet writes the status of its Node; a label of a Node changes. "+
		"Events are the daemons', and the API server's own; requests are those of all daemons together.\n\n")
	changes(out, all)
	o.thousand(out, all[len(all)-1])
}

// requestKinds returns the kinds of requests in windows, sorted.
func requestKinds(all []*window) []string {
	kinds := map[string]bool{}
	for _, w := range all {
		for _, c := range w.requests {
			for kind := range c {
				kinds[kind] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}

// perRole prints how often the leader and each other daemon asked in some windows.
func perRole(out io.Writer, all []*result, windows func(*result) []*window, unit func(*window, float64) string) {
	head, every := []string{"request"}, []*window(nil)
	for _, r := range all {
		head = append(head, fmt.Sprintf("leader of %d", r.daemons), fmt.Sprintf("each other of %d", r.daemons))
		every = append(every, windows(r)...)
	}
	t := figures.NewTable(head...)
	for _, kind := range requestKinds(every) {
		row := []string{kind}
		for _, r := range all {
			for _, w := range windows(r) {
				leader, others := w.roles(kind)
				row = append(row, unit(w, leader), unit(w, others))
			}
		}
		t.Add(row...)
	}
	for _, direction := range []string{"bytes received", "bytes sent"} {
		row := []string{direction}
		for _, r := range all {
			for _, w := range windows(r) {
				c := w.received
				if direction == "bytes sent" {
					c = w.sent
				}
				leader, seconds := c[nodeName(w.leader)], w.to.Sub(w.from).Seconds()
				others := (sum(c) - leader) / float64(r.daemons-1)
				row = append(row, fmt.Sprintf("%.0f", leader/seconds), fmt.Sprintf("%.0f", others/seconds))
			}
		}
		t.Add(row...)
	}
	t.Print(out)
}

func sum(c counts) (n float64) {
	for _, x := range c {
		n += x
	}
	return n
}

// roles is how often the leader, and each other daemon on average, asked for something.
func (w *window) roles(kind string) (leader, others float64) {
	for i, c := range w.requests {
		if i == w.leader {
			leader = c[kind]
		} else {
			others += c[kind] / float64(len(w.requests)-1)
		}
	}
	return leader, others
}

// restarts prints the requests after restarts, on average.
func restarts(out io.Writer, all []*result) {
	head, every := []string{"request"}, []*window(nil)
	for _, r := range all {
		head = append(head, fmt.Sprintf("by the one that starts, of %d", r.daemons), fmt.Sprintf("by all others, of %d", r.daemons))
		every = append(every, r.restarts...)
	}
	t := figures.NewTable(head...)
	for _, kind := range requestKinds(every) {
		row := []string{kind}
		for _, r := range all {
			own, others := restartRequests(r.restarts, kind)
			row = append(row, fmt.Sprintf("%.1f", own), fmt.Sprintf("%.1f", others))
		}
		t.Add(row...)
	}
	bytes, ready := []string{"bytes received"}, []string{"time until it is ready, at most"}
	for _, r := range all {
		own, others, longest := restartBytes(r.restarts)
		bytes = append(bytes, kibi(own), kibi(others))
		ready = append(ready, figures.Duration(longest), "")
	}
	t.Add(bytes...)
	t.Add(ready...)
	t.Print(out)
}

// restartRequests returns how many requests of a kind a restarted daemon sends, and all others, on average.
func restartRequests(all []*window, kind string) (own, others float64) {
	for _, w := range all {
		for i, c := range w.requests {
			if i == w.node {
				own += c[kind]
			} else {
				others += c[kind]
			}
		}
	}
	n := float64(max(1, len(all)))
	return own / n, others / n
}

// restartBytes returns how much a restarted daemon receives, and all others, on average, and the longest time until one
// was ready.
func restartBytes(all []*window) (own, others float64, longest time.Duration) {
	for _, w := range all {
		node := w.received[nodeName(w.node)]
		own += node
		others += sum(w.received) - node
		longest = max(longest, w.ready)
	}
	n := float64(max(1, len(all)))
	return own / n, others / n, longest
}

// changes prints the requests after changes of objects, for each change.
func changes(out io.Writer, all []*result) {
	t := figures.NewTable("of", "daemons", "changes", "events for each", "bytes of one event", "requests for each")
	for _, r := range all {
		for _, x := range []struct {
			what, resource string
			window         *window
		}{{"endpointslices", "endpointslices", r.endpoints}, {"nodes, status", "nodes", r.nodes}, {"nodes, label", "nodes", r.labels}} {
			var asked float64
			for _, c := range x.window.requests {
				for kind, n := range c {
					if kind != renewal && kind != "update leases" { // which go on meanwhile
						asked += n
					}
				}
			}
			n := float64(x.window.changes)
			t.Add(x.what, fmt.Sprint(r.daemons), fmt.Sprint(x.window.changes), fmt.Sprintf("%.1f", x.window.events[x.resource]/n),
				fmt.Sprintf("%.0f", x.window.sizes[x.resource]/max(1, x.window.events[x.resource])), fmt.Sprintf("%.2f", asked/n))
		}
	}
	t.Print(out)
}

const renewal = "patch leases"

// thousand prints the requests of a thousand nodes, by the figures of one result.
func (o options) thousand(out io.Writer, r *result) {
	const (
		nodes    = 1_000
		services = 10_000
		watches  = 9           // of each daemon: seven kinds, the leader's Lease, and the roster of Nodes
		renewed  = 7.5 * 60    // seconds that client-go lets a watch last, on average
		kubelet  = 5 * 60      // seconds between two writes of a Node's status
		mega     = 1_000_000.0 // bytes
	)
	seconds := r.rest.to.Sub(r.rest.from).Seconds()
	var leader, others float64
	kinds := map[string]bool{}
	for _, c := range r.rest.requests {
		for kind := range c {
			kinds[kind] = true
		}
	}
	for kind := range kinds {
		if l, x := r.rest.roles(kind); kind != "watch" {
			leader, others = leader+l/seconds, others+x/seconds
		}
	}
	leaseBytes := r.rest.sizes["leases"] / max(1, r.rest.events["leases"])
	size := func(resource string) float64 { // of an event, as at a start
		var bytes, events float64
		for _, w := range r.restarts {
			bytes, events = bytes+w.sizes[resource], events+w.events[resource]
		}
		return bytes / max(1, events)
	}
	var starting float64
	for _, w := range r.restarts {
		starting += sum(w.requests[w.node]) / float64(len(r.restarts))
	}
	list := services*(size("services")+size("endpointslices")+size("egressservices")) + nodes*size("nodes")
	node := cmp.Or(r.nodes.sizes["nodes"]/max(1, r.nodes.events["nodes"]), size("nodes"))
	slice := r.endpoints.sizes["endpointslices"] / max(1, r.endpoints.events["endpointslices"])

	fmt.Fprintf(out, "### %s nodes\n\nCalculated from the figures with %d daemons. Assumed: %s Services of the same size; each daemon "+
		"asks as often and is sent as much as one of these, "+
		"the leader's Lease is one; client-go renews each of %d watches after 5 to 10 minutes; kubelets write the status of their Node "+
		"every 5 minutes, which is their default when nothing changes; "+
		"the DaemonSet's update replaces one daemon after the other.\n\n", figures.Count(nodes), r.daemons, figures.Count(services),
		watches)
	t := figures.NewTable("", "requests a second", "events a second", "MB a second", "grows with")
	rate := func(x float64) string { return fmt.Sprintf("%.1f", x) }
	t.Add("at rest: reports and what the leader asks", rate(others*(nodes-1)+leader), "", "", "nodes")
	t.Add("at rest: watches that client-go renews", rate(nodes*watches/renewed), "", "", "nodes")
	renewals, _ := r.rest.roles("update leases")
	t.Add("the leader's Lease, sent to all", "", rate(renewals/seconds*nodes), fmt.Sprintf("%.2f", renewals/seconds*nodes*leaseBytes/mega),
		"nodes")
	_, reports := r.rest.roles(renewal)
	t.Add("the nodes' Leases, sent to the leader", "", rate(reports/seconds*nodes),
		fmt.Sprintf("%.2f", reports/seconds*nodes*leaseBytes/mega), "nodes")
	watchers, grows := r.nodes.events["nodes"]/float64(max(1, r.nodes.changes))-1, "nodes" // the API server watches too
	if watchers > 3 {                                                                      // more than the leader and the node itself
		watchers, grows = watchers*nodes/float64(r.daemons), "nodes²"
	}
	t.Add("the status of all Nodes by kubelets", "", rate(watchers*nodes/kubelet), fmt.Sprintf("%.2f", watchers*nodes/kubelet*node/mega),
		grows)
	var asked float64
	for _, c := range r.labels.requests {
		asked += c["list nodes"] / float64(max(1, r.labels.changes)) * nodes / float64(r.daemons)
	}
	roster := r.labels.sizes["leases"] / max(1, r.labels.events["leases"])
	t.Add("each Node whose addresses, podCIDRs or labels change in a second", rate(asked), rate(nodes),
		fmt.Sprintf("%.1f", (asked*node+nodes*roster)/mega), "nodes × changes")
	t.Add("each endpoint that changes in a second, sent to all", "", rate(nodes), fmt.Sprintf("%.2f", nodes*slice/mega), "nodes × changes")
	t.Add("each daemon that starts in a second", rate(starting), rate(services*3+nodes),
		fmt.Sprintf("%.1f", list/mega), "starts × objects")
	t.Print(out)
}

func kibi(bytes float64) string { return fmt.Sprintf("%.0f KiB", bytes/1024) }
