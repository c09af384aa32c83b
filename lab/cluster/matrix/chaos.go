package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// faults are the kinds that chaos chooses from: changes that lose nothing, and deaths that may.
var faults = []row{
	{"EgressIP: its pods leave with it; planned move of an address", egressIP(announced)},
	{"EgressIP in the nodes' subnet, by ARP and NDP; planned move of an address", egressIP(onLink)},
	{"EgressFirewall: denied packets stay inside", firewall},
	{"MetalLB gives a Service other addresses", readdressed},
	{"`network: \"100\"`, with a blackhole", unlisted},
	{"`kubectl cordon` of the host", cordoned},
	{"`nodeSelector` and labels of nodes", selected},
	{"daemon's pod deleted, on the host", deleted("egressway")},
	{"speaker's pod deleted, on the host", deleted("egressway-speaker")},
	{"daemon's process killed, on the host", crashed("egressway", "run")},
	{"speaker's process killed, on the host", crashed("egressway-speaker", "speaker")},
	{"rolling update of the DaemonSet", rolled},
	{"host killed, and started again", killed},
	{"host drained, rebooted, and back", rebooted},
}

// crashed kills a process of Egressway on a host, as the kernel does when memory is short. kubelet restarts its container.
func crashed(daemonSet, command string) func(*run) (string, error) {
	return func(r *run) (string, error) {
		m, err := r.measure(func() error {
			host, err := r.host(r.ctx, "web")
			if err != nil {
				return err
			}
			pod, err := r.daemonPod(r.ctx, daemonSet, host)
			if err != nil {
				return err
			}
			// After a reboot of the node, kubelet may report a number of restarts again that it has already reported.
			started := func() (string, error) {
				const startedAt = "jsonpath={.status.containerStatuses[0].state.running.startedAt}"
				return r.kubectl(r.ctx, "-n", "egressway-system", "get", pod, "-o", startedAt)
			}
			before, err := started()
			if err != nil {
				return err
			}
			if _, err := r.in(r.ctx, host, "pkill", "-KILL", "-f", "egressway "+command+" "); err != nil {
				return err
			}
			if err := await(r.ctx, "a restart of "+pod, func() (bool, error) {
				now, err := started()
				return now != "" && now != before, err
			}); err != nil {
				return err
			}
			return errors.Join(r.do(r.ctx, "-n egressway-system wait --for=condition=Ready --timeout=360s "+pod), r.ready())
		}, everyPod)
		if err == nil && command == "run" && m.Lost+m.Missing > 0 {
			err = fmt.Errorf("not without loss: %s", m)
		}
		return m.String(), err
	}
}

// evidence writes the logs of Egressway since a time, events, EgressServices and Leases to a folder beside the cluster's logs.
func (r *run) evidence(name, seen string, since time.Time) string {
	folder := filepath.Join(r.state, "log", name)
	keep := func(file string, args ...string) {
		out, err := r.kubectl(r.ctx, args...)
		if err != nil {
			out += "\n" + err.Error()
		}
		_ = os.WriteFile(filepath.Join(folder, file), []byte(out), 0o600) // the fault is already reported
	}
	_ = os.MkdirAll(folder, 0o700)
	_ = os.WriteFile(filepath.Join(folder, "fault"), []byte(seen+"\n"), 0o600)
	keep("events", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", "-o", "wide")
	keep("objects.yaml", "get", "egressservices,egressips,leases,pods", "--all-namespaces", "-o", "yaml")
	pods, _ := r.kubectl(r.ctx, "-n", "egressway-system", "get", "pods", "-o", "name")
	for pod := range strings.FieldsSeq(pods) {
		logs := []string{"-n", "egressway-system", "logs", pod, "--timestamps", "--since-time=" + since.UTC().Format(time.RFC3339)}
		keep(filepath.Base(pod)+".log", logs...)
		keep(filepath.Base(pod)+".previous.log", append(logs, "--previous")...)
	}
	return folder
}

// chaos checks faults in random order for a while, each kind before any comes again.
func (r *run) chaos(length time.Duration, seed uint64, progress func(string, ...any)) (results []result) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // an order that can be repeated
	for end := time.Now().Add(length); time.Now().Before(end) && r.ctx.Err() == nil; {
		for _, i := range random.Perm(len(faults)) {
			began := time.Now()
			if !began.Before(end) {
				break
			}
			results = append(results, r.rows(faults[i:i+1], progress)...)
			if last := results[len(results)-1]; last.Failed {
				progress("logs and events: %s", r.evidence(fmt.Sprintf("chaos-%d", len(results)), last.Seen, began))
			}
		}
	}
	return results
}

// summary has a line for each kind of fault that came.
func summary(results []result) string {
	var b strings.Builder
	b.WriteString("| fault | times | without a fault of ours | most lost at once |\n|---|---|---|---|\n")
	for _, f := range faults {
		times, right, most, worst := 0, 0, -1, ""
		for _, r := range results {
			if r.Name != f.name {
				continue
			}
			times++
			if !r.Failed {
				right++
			}
			if lost, seen := lossOf(r.Seen); lost > most {
				most, worst = lost, seen
			}
		}
		if times > 0 {
			fmt.Fprintf(&b, "| %s | %d | %d | %s |\n", f.name, times, right, worst)
		}
	}
	return b.String()
}
