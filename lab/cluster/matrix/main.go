// Matrix checks on a cluster of real nodes (make cluster) how Egressway behaves, judged by packets at the hosts outside. It writes the
// results to a file, and makes a table of several such files. With -chaos it breaks the cluster in random order instead:
//
//	matrix -cni static -proxy nftables -o static-nftables.json
//	matrix -chaos 30m -seed 7
//	matrix -figures 20
//	matrix -table static-nftables.json flannel-vxlan-iptables.json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := program(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

// column has the results of one cluster.
type column struct {
	CNI, Proxy string
	Results    []result
}

// merged returns the results of a file, some of them replaced. A file that is not there has none.
func merged(file string, results []result) []result {
	var former column
	if b, err := os.ReadFile(file); err == nil {
		_ = json.Unmarshal(b, &former) // a file of another kind has no results
	}
	kept := slices.DeleteFunc(former.Results, func(r result) bool {
		return slices.ContainsFunc(results, func(now result) bool { return now.Name == r.Name })
	})
	return append(kept, results...)
}

func program(ctx context.Context) error {
	state := flag.String("state", "/run/egressway-cluster", "`folder` of the cluster")
	source := flag.String("source", "lab/cluster", "`folder` of its manifests")
	out := flag.String("o", "", "`file` for the results")
	chaos := flag.Duration("chaos", 0, "instead of the table, faults in random order for so `long`")
	seed := flag.Uint64("seed", 1, "`number` from which the order of the faults follows")
	only := flag.String("only", "", "check only rows whose names match this regular `expression`; other results in the file stay")
	patient := flag.Bool("patient", false, "for a slow machine: lost packets fail no row, and questions without an answer are repeated")
	times := flag.Int("figures", 0, "instead of the table, durations: a `number` of new pods and changes, a quarter of it of dead hosts")
	table := flag.Bool("table", false, "print a table of the files of results")
	var c column
	flag.StringVar(&c.CNI, "cni", "static", "`name` of the cluster's CNI")
	flag.StringVar(&c.Proxy, "proxy", "nftables", "`mode` of its kube-proxy")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if *table {
		return printTable(flag.Args())
	}
	cluster, err := newCluster(*state, *source)
	if err != nil {
		return err
	}
	r := &run{cluster: cluster, ctx: ctx, cni: c.CNI, patient: *patient}
	say := func(format string, args ...any) { fmt.Printf("matrix: "+format+"\n", args...) }
	if *times > 0 {
		table, err := r.figures(*times, func(format string, args ...any) { fmt.Fprintf(os.Stderr, "matrix: "+format+"\n", args...) })
		fmt.Print(table)
		return err
	}
	say("%s, kube-proxy in mode %s: pods of every kind", c.CNI, c.Proxy)
	if err := r.start(); err != nil {
		return err
	}
	if *chaos > 0 {
		c.Results = r.chaos(*chaos, *seed, say)
		fmt.Print(summary(c.Results))
	} else {
		c.Results = r.rows(slices.DeleteFunc(slices.Clone(rows), func(row row) bool { return !wanted.MatchString(row.name) }), say)
	}
	failed := 0
	for _, result := range c.Results {
		if result.Failed {
			failed++
		}
	}
	if *out != "" {
		if *only != "" {
			c.Results = merged(*out, c.Results)
		}
		b, err := json.MarshalIndent(c, "", "\t")
		if err != nil {
			return err
		}
		if err := os.WriteFile(*out, append(b, '\n'), 0o600); err != nil {
			return err
		}
	}
	say("%s, kube-proxy in mode %s: %d passed, %d failed", c.CNI, c.Proxy, len(c.Results)-failed, failed)
	if failed > 0 {
		return errors.New("not as it should be")
	}
	return nil
}
