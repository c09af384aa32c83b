package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/fleet"
	"github.com/egressway/egressway/internal/status"
)

const (
	// pluginName is the name under which kubectl starts this program for "kubectl egressway".
	pluginName = "kubectl-egressway"
	// askedAtOnce is how many nodes are asked at a time.
	askedAtOnce = 16
	// answerWithin is how long a node may take to answer, by default.
	answerWithin = 15 * time.Second
	// answerSize limits a node's answer.
	answerSize = 64 << 20
)

// An address of each family that no host has (RFC 5737, RFC 3849): packets to it leave by the default route.
var (
	anywhere4 = netip.MustParseAddr("198.51.100.1")
	anywhere6 = netip.MustParseAddr("2001:db8::1")
)

// isPlugin reports whether kubectl started this program.
func isPlugin(program string) bool {
	return strings.TrimSuffix(filepath.Base(program), filepath.Ext(program)) == pluginName
}

// newPluginCommand returns the commands of "egressway cluster" as those of "kubectl egressway".
func newPluginCommand() *cobra.Command {
	c := newClusterCommand()
	c.Use, c.Version = pluginName, thisVersion().line()
	c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl egressway"}
	c.SilenceUsage, c.SilenceErrors = true, true
	return c
}

// overview has the flags of all commands for a cluster.
type overview struct {
	fleet.Options
	timeout time.Duration
}

func newClusterCommand() *cobra.Command {
	o := &overview{}
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Ask the daemons of all nodes, from anywhere (kubectl egressway)",
		Long: `Ask the daemons of all nodes of a cluster, from anywhere: by the kubeconfig, as kubectl. The same commands are those of
"kubectl egressway" if this program, or a link to it, is in the PATH under the name kubectl-egressway.

The commands run egressway in the daemons' pods, by exec through the API server. That needs the right to list pods in the daemons'
namespace and to create pods/exec there; trace also needs the right to get the pod.

Exit codes: 0 every node has answered; 1 an error, or a node has not answered, which the output says; 2 trace: packets are dropped.`,
		Example: `  egressway cluster status
  kubectl egressway status
  kubectl egressway sessions -o wide
  kubectl egressway trace --from shop/web-7d9c --to 198.51.100.10
  kubectl egressway drain worker-3
  kubectl egressway diagnose --all`,
		// Without a function cobra would show the help for any argument, and end with 0.
		Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	f := c.PersistentFlags()
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "`path` of the kubeconfig (default: KUBECONFIG, or ~/.kube/config)")
	f.StringVar(&o.Context, "context", "", "`name` of a context of the kubeconfig")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "`namespace` of a pod that is named without one (default: the context's)")
	f.StringVar(&o.Daemons, "daemons", "egressway-system", "`namespace` of the daemons")
	f.DurationVar(&o.timeout, "timeout", answerWithin, "how long a node may take to answer; of drain, how long to wait")
	c.AddCommand(
		o.tableCommand("status", "Show the state of each node", `Show each node's state: whether it is ready,
how many of its networks are usable and of its BGP sessions up, of how many EgressServices it is the host and the standby, and the
number of its problems.`, status.WriteNodes),
		o.tableCommand("sessions", "Show the BGP sessions of all nodes", `Show the BGP sessions of all nodes.`, status.WriteSessions),
		o.traceCommand(), o.drainCommand(false), o.drainCommand(true), o.diagnoseCommand(),
	)
	return c
}

// unanswered is the error of a command that some nodes did not answer.
func unanswered(silent, all int) error {
	if silent == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d nodes did not answer", silent, all)
}

// tableCommand returns a command that shows the nodes' summaries.
func (o *overview) tableCommand(
	name, short, long string, write func(io.Writer, []status.Answer, bool, time.Time) error,
) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use: name + " [-o table|wide|json|yaml]", Short: short, Args: cobra.NoArgs,
		Long:    long + "\n\nExit codes: 0 every node has answered; 1 an error, or a node has not answered: its row says so.",
		Example: "  kubectl egressway " + name + "\n  kubectl egressway " + name + " -o json | jq '.[] | select(.error)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("-o", format, "table", "wide", "json", "yaml"); err != nil {
				return err
			}
			answers, err := o.ask(cmd.Context())
			if err != nil {
				return err
			}
			if format == "json" || format == "yaml" {
				err = encode(cmd.OutOrStdout(), format, answers)
			} else {
				err = write(cmd.OutOrStdout(), answers, format == "wide", time.Now())
			}
			silent := 0
			for _, a := range answers {
				if a.Summary == nil {
					silent++
				}
			}
			return errors.Join(err, unanswered(silent, len(answers)))
		},
	}
	outputFlag(c, &format, "table", "wide", "json", "yaml")
	return c
}

// ask asks every daemon for its summary.
func (o *overview) ask(ctx context.Context) ([]status.Answer, error) {
	f, err := fleet.Open(o.Options)
	if err != nil {
		return nil, err
	}
	daemons, err := f.Daemons(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([]status.Answer, len(daemons))
	fleet.Each(ctx, daemons, askedAtOnce, o.timeout, func(ctx context.Context, i int) {
		d := daemons[i]
		answers[i] = status.Answer{Node: d.Node, Pod: d.Pod}
		var s status.Summary
		if err := summary(ctx, f, d, &s); err != nil {
			answers[i].Error = err.Error()
			return
		}
		answers[i].Summary = &s
	})
	return answers, nil
}

// summary asks one daemon for its summary.
func summary(ctx context.Context, f *fleet.Fleet, d fleet.Daemon, s *status.Summary) error {
	var out, errs limited
	code, err := f.Run(ctx, d, &out, &errs, "status", "--summary", "-o", "json")
	switch {
	case err != nil:
		return err
	case code != exitOK:
		return failure(code, errs.String())
	}
	if err := json.Unmarshal(out.Bytes(), s); err != nil {
		return fmt.Errorf("read its status: %w", err)
	}
	return nil
}

// limited is a buffer that refuses more than answerSize bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > answerSize {
		return 0, fmt.Errorf("an answer of more than %d MiB", answerSize>>20)
	}
	return l.Buffer.Write(b)
}

// result returns the error of a command whose output the user has seen.
func result(code int, err error) error {
	switch {
	case err != nil:
		return err
	case code == exitOK:
		return nil
	case code == exitWrong:
		return foundWrong{}
	case code > exitWrong:
		return killedError(code)
	}
	return invalidError{} // the daemon's pod has printed it
}

// failure returns the error of a command in a daemon's pod, by its exit code and what it said.
func failure(code int, said string) error {
	if text := strings.TrimPrefix(strings.TrimSpace(said), "egressway: "); text != "" {
		return errors.New(text)
	}
	return killedError(code)
}

// killedError is the exit code of a command that ended without a word, as when its container was stopped.
type killedError int

func (e killedError) Error() string {
	return fmt.Sprintf("the command in the daemon's pod ended with code %d, perhaps with its container: try again", int(e))
}

func (o *overview) traceCommand() *cobra.Command {
	var t traceOptions
	c := &cobra.Command{
		Use:   "trace --from [NAMESPACE/]POD [--to IP] [--proto tcp|udp|icmp] [--dport N] [--reply] [-o text|json|yaml]",
		Short: "Explain the way of a pod's packet, on the pod's node",
		Long: `Explain the way of a pod's packet: "egressway trace" on the pod's node, with the pod's address of the family of
--to. Without --to, the packet goes to an address of no host, and so by the default route.

Exit codes: those of egressway trace.`,
		Example: `  kubectl egressway trace --from shop/web-7d9c --to 198.51.100.10
  kubectl egressway trace -n shop --from web-7d9c --proto udp --dport 53`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.trace(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), t)
		},
	}
	f := c.Flags()
	f.StringVar(&t.from, "from", "", "the `pod`: NAMESPACE/POD, POD, or an address")
	f.StringVar(&t.to, "to", "", "destination `address` (default: one that no host has)")
	f.StringVar(&t.proto, "proto", "tcp", "`protocol`: tcp, udp or icmp")
	f.StringVar(&t.port, "dport", "", "destination `port` (default: one that no rule names)")
	f.BoolVar(&t.reply, "reply", false, "the packet is a reply to a connection that came in from outside")
	outputFlag(c, &t.output, "text", "json", "yaml")
	_ = c.MarkFlagRequired("from") // fails for an unknown flag only
	complete(c, "proto", "tcp", "udp", "icmp")
	return c
}

func (o *overview) trace(ctx context.Context, out, errs io.Writer, t traceOptions) error {
	if t.to != "" {
		if _, err := endpoint("to", t.to); err != nil {
			return err
		}
	}
	f, err := fleet.Open(o.Options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	pod, err := f.Find(ctx, t.from)
	if err != nil {
		return err
	}
	from, to, err := ends(pod, t.to)
	if err != nil {
		return err
	}
	d, err := f.On(ctx, pod.Node)
	if err != nil {
		return err
	}
	args := []string{
		"trace", "--from", from.String(), "--to", to.String(), "--proto", t.proto, "-o", t.output, "--reply=" + strconv.FormatBool(t.reply),
	}
	if t.port != "" {
		args = append(args, "--dport", t.port)
	}
	return result(f.Run(ctx, d, out, errs, args...))
}

// ends returns the pod's address, and the destination of the same family.
func ends(pod fleet.Pod, destination string) (from, to netip.Addr, err error) {
	if destination == "" {
		if from = pod.Addresses[0]; from.Is4() {
			return from, anywhere4, nil
		}
		return from, anywhere6, nil
	}
	to = netip.MustParseAddr(strings.TrimSpace(destination)).Unmap()
	i := slices.IndexFunc(pod.Addresses, func(a netip.Addr) bool { return a.Is4() == to.Is4() })
	if i < 0 {
		return from, to, fmt.Errorf("--to %s: pod %s has no address of that family", to, pod.Name)
	}
	return pod.Addresses[i], to, nil
}

func (o *overview) drainCommand(undo bool) *cobra.Command {
	c := &cobra.Command{
		Use: "drain NODE", Short: "Move a node's services to other nodes, before maintenance",
		Long: `Move a node's services to other nodes, and wait until they have moved: "egressway drain" on that node. --timeout is how
long to wait, two minutes by default.

Exit codes: 0 the node is drained; 1 an error, or the timeout came first: the node continues to drain.`,
		Example: "  kubectl egressway drain worker-3",
		Args:    cobra.ExactArgs(1),
	}
	if undo {
		c.Use, c.Short, c.Example = "undrain NODE", "Let a node serve EgressServices again", "  kubectl egressway undrain worker-3"
		c.Long = "Let a node that drains serve EgressServices again.\n\nExit codes: 0 it may serve them again; 1 an error."
	}
	c.RunE = func(cmd *cobra.Command, nodes []string) error {
		args, within := []string{"drain", "--undo"}, o.timeout
		if !undo {
			if !cmd.Flags().Changed("timeout") {
				within = drainedWithin
			}
			args = []string{"drain", "--timeout", within.String()}
			within += answerWithin // the node itself says what it waited for
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), within)
		defer cancel()
		f, err := fleet.Open(o.Options)
		if err != nil {
			return err
		}
		d, err := f.On(ctx, nodes[0])
		if err != nil {
			return err
		}
		return result(f.Run(ctx, d, cmd.OutOrStdout(), cmd.ErrOrStderr(), args...))
	}
	return c
}
