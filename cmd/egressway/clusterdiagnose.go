package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/fleet"
)

const (
	// diagnosedAtOnce is how many nodes write an archive at a time.
	diagnosedAtOnce = 4
	// diagnosedWithin is how long a node's archive may take: diagnose has about ten steps.
	diagnosedWithin = 2 * time.Minute
)

func (o *overview) diagnoseCommand() *cobra.Command {
	var all bool
	var file string
	c := &cobra.Command{
		Use:   "diagnose NODE... | --all [-f FILE.tar]",
		Short: "Collect the data for a bug report from several nodes",
		Long: `Collect the archives of "egressway diagnose" of several nodes in one archive. Only its owner can read it. A node
that does not answer is named in errors.txt in it.

Exit codes: 0 the archive has those of all nodes; 1 it could not be written, or a node has not answered.`,
		Example: "  kubectl egressway diagnose --all\n  kubectl egressway diagnose worker-1 worker-2 -f report.tar",
		RunE: func(cmd *cobra.Command, nodes []string) error {
			if all == (len(nodes) > 0) {
				return errors.New("name the nodes, or all of them by --all")
			}
			if !cmd.Flags().Changed("timeout") {
				o.timeout = diagnosedWithin
			}
			return o.diagnose(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), nodes, file)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all nodes")
	c.Flags().StringVarP(&file, "file", "f", "",
		"archive `file` to write; - writes to standard output (default: egressway-cluster-TIME.tar here)")
	_ = c.MarkFlagFilename("file", "tar") // fails for an unknown flag only
	return c
}

// diagnose writes the archives of the nodes, or of all, into one.
func (o *overview) diagnose(ctx context.Context, stdout, stderr io.Writer, nodes []string, file string) error {
	f, err := fleet.Open(o.Options)
	if err != nil {
		return err
	}
	daemons, err := f.Daemons(ctx)
	if err != nil {
		return err
	}
	if len(nodes) > 0 {
		if daemons, err = among(daemons, nodes); err != nil {
			return err
		}
	}
	began := time.Now().UTC()
	dir := "egressway-cluster-" + began.Format("20060102T150405Z")
	file = cmp.Or(file, dir+".tar")
	silent := 0
	write := func(to io.Writer) error {
		a := &archive{to: tar.NewWriter(to), dir: dir, at: began}
		silent = o.collect(ctx, f, daemons, a)
		return a.close()
	}
	if err := writeArchive(file, stdout, write); err != nil {
		return err
	}
	if file == "-" {
		stdout = stderr
	}
	fmt.Fprintf(stdout, "wrote %s, of %d of %d nodes\n", file, len(daemons)-silent, len(daemons))
	return unanswered(silent, len(daemons))
}

// among returns the daemons of the named nodes.
func among(daemons []fleet.Daemon, nodes []string) (found []fleet.Daemon, err error) {
	by := map[string]fleet.Daemon{}
	for _, d := range daemons {
		by[d.Node] = d
	}
	for _, node := range nodes {
		d, there := by[node]
		if !there {
			return nil, fmt.Errorf("node %s has no pod of a daemon", node)
		}
		found = append(found, d)
	}
	return found, nil
}

// part is a node's archive, or why there is none.
type part struct {
	node string
	data []byte
	err  error
}

// collect adds each node's archive, in the order in which they come. It returns the number of nodes without one.
func (o *overview) collect(ctx context.Context, f *fleet.Fleet, daemons []fleet.Daemon, a *archive) (silent int) {
	parts := make(chan part)
	go func() {
		defer close(parts)
		fleet.Each(ctx, daemons, diagnosedAtOnce, o.timeout, func(ctx context.Context, i int) {
			data, err := diagnosisOf(ctx, f, daemons[i])
			parts <- part{daemons[i].Node, data, err}
		})
	}()
	for p := range parts {
		if p.err != nil {
			silent++
			fmt.Fprintf(&a.errs, "node %s: %s\n", p.node, p.err)
			continue
		}
		a.add(p.node+".tar.gz", p.data)
	}
	return silent
}

// diagnosisOf returns the archive of one node.
func diagnosisOf(ctx context.Context, f *fleet.Fleet, d fleet.Daemon) ([]byte, error) {
	var out, errs limited
	code, err := f.Run(ctx, d, &out, &errs, "diagnose", "-f", "-")
	if err == nil && code != exitOK {
		err = failure(code, errs.String())
	}
	return out.Bytes(), err
}

// archive is a tar file of the nodes' archives.
type archive struct {
	to   *tar.Writer
	dir  string
	at   time.Time
	errs bytes.Buffer // errors.txt
	err  error        // the first one of writing
}

func (a *archive) add(name string, data []byte) {
	err := a.to.WriteHeader(&tar.Header{Name: a.dir + "/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: a.at})
	if err == nil {
		_, err = a.to.Write(data)
	}
	a.err = cmp.Or(a.err, err)
}

func (a *archive) close() error {
	if a.errs.Len() > 0 {
		a.add("errors.txt", a.errs.Bytes())
	}
	return cmp.Or(a.err, a.to.Close())
}
