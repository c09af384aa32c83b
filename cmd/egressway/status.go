package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/picture"
	"github.com/egressway/egressway/internal/status"
)

func newStatusCommand() *cobra.Command {
	var socket, format string
	var watch, brief bool
	c := &cobra.Command{
		Use:   "status [-o table|wide|json|yaml|dot|svg] [--watch] [--summary] [--socket PATH]",
		Short: "Show the state of each EgressService on this node",
		Long: `Show the state of each EgressService on this node: its network, host and standby, its ingress IPs, the number of its
endpoints and of its network's BGP sessions that are up, whether this node announces it, and its problem.

Problems of other objects are listed below. The wide output adds networks, sessions and every problem in full.

Two formats are pictures: of nodes, networks with the EgressServices that leave by them, and routers, with broken parts in red. svg is
for a browser or a document, dot is for Graphviz. Of many services they draw the broken ones first, and count the rest. The daemon
serves the same picture as a page that updates itself, at /picture of its socket.

Exit codes: 0 the status is shown, healthy or not; 1 an error: no daemon answers, a wrong flag.`,
		Example: `  egressway status
  egressway status -o wide --watch
  egressway status -o json | jq '.egressServices[] | select(.host == "")'
  egressway status -o svg > paths.svg
  egressway status -o dot | dot -Tpdf > paths.pdf`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write, err := statusWriter(format, watch)
			if brief {
				write, err = summaryWriter(format, watch)
			}
			if err != nil {
				return err
			}
			err = showStatus(cmd.Context(), socket, watch, func(r status.Report) error { return write(cmd.OutOrStdout(), r) })
			if errors.Is(err, status.ErrNoDaemon) {
				return noDaemon(err)
			}
			return err
		},
	}
	outputFlag(c, &format, statusFormats...)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "continue, and show every change, as JSON one report a line; not with svg")
	c.Flags().BoolVar(&brief, "summary", false, "the number of EgressServices instead of each; with -o json or yaml")
	socketFlag(c, &socket)
	return c
}

// summaryWriter returns a function that writes the summary of a report.
func summaryWriter(format string, watch bool) (func(io.Writer, status.Report) error, error) {
	if err := oneOf("--summary with -o", format, "json", "yaml"); err != nil {
		return nil, err
	}
	if watch {
		return nil, errors.New("--summary: leave --watch out")
	}
	return func(w io.Writer, r status.Report) error { return encode(w, format, r.Summary()) }, nil
}

var statusFormats = []string{"table", "wide", "json", "yaml", "dot", "svg"}

func showStatus(ctx context.Context, socket string, watch bool, show func(status.Report) error) error {
	if watch {
		return status.Follow(ctx, socket, show)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := status.Read(ctx, socket)
	if err != nil {
		return err
	}
	return show(r)
}

// running reports whether a daemon listens on the socket, even if it is too busy to answer.
func running(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// statusWriter returns a function that writes a report in the format, and separates it from the last one if several
// follow.
func statusWriter(format string, several bool) (func(io.Writer, status.Report) error, error) {
	switch format {
	case "table", "wide":
		begun := false
		return func(w io.Writer, r status.Report) error {
			if begun {
				fmt.Fprintln(w)
			}
			begun = true
			return status.WriteText(w, r, format == "wide", time.Now())
		}, nil
	case "json":
		return func(w io.Writer, r status.Report) error {
			if several {
				return writeJSON(w, r, "")
			}
			return writeJSON(w, r, "  ")
		}, nil
	case "yaml":
		return func(w io.Writer, r status.Report) error {
			if several {
				fmt.Fprintln(w, "---")
			}
			return writeYAML(w, r, "")
		}, nil
	case "dot":
		return func(w io.Writer, r status.Report) error {
			g := picture.Of(r)
			return g.WriteDOT(w)
		}, nil
	case "svg":
		if several {
			return nil, errors.New("-o svg: a file has one picture: " +
				"leave --watch out, or open /picture of the daemon's socket in a browser")
		}
		return func(w io.Writer, r status.Report) error {
			g := picture.Of(r)
			return g.WriteSVG(w)
		}, nil
	}
	return nil, oneOf("-o", format, statusFormats...)
}
