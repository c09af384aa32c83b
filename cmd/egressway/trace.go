package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/internal/text"
	"github.com/egressway/egressway/internal/trace"
)

func newTraceCommand() *cobra.Command {
	var o traceOptions
	c := &cobra.Command{
		Use:   "trace --from POD-IP --to IP [--proto tcp|udp|icmp] [--dport N] [--reply] [-o text|json|yaml]",
		Short: "Explain the way of a pod's packet, from the live kernel",
		Long: `Explain the way of a pod's packet: whether it is selected, the network by which it leaves or the host to which it goes, the
rule, table and route that it uses, its source, and whether the guard admits it. The last line is the verdict.

All of this comes from this node's kernel: trace follows the nftables table rule by rule, looks this pod up in its sets, and asks the
kernel for the route of such a packet. So it also works without a daemon, and shows damage by other programs. If the daemon answers,
trace names services, and differences from the daemon's plan. It sends and changes nothing. Needs root (CAP_NET_ADMIN).

It does not follow other tables, such as a CNI's masquerade or a Service's DNAT. The packet is the first of a new connection; existing
connections are listed below, with their fate.

For a client outside and an ingress IP, trace shows by which networks such a connection may come in, and how its replies leave. With
--reply it does so for the answers of a pod on this node.

Exit codes: 0 the packet leaves, is handed on, or is not subject to our rules; 1 an error; 2 the packet is dropped, or our state in the
kernel is damaged.`,
		Example: `  egressway trace --from 10.244.1.11 --to 198.51.100.10
  egressway trace --from 10.244.1.11 --to 198.51.100.10 --proto udp --dport 53
  egressway trace --from 198.51.100.10 --to 192.0.2.10 --dport 80     # a client of an ingress IP
  egressway trace --from 10.244.1.11 --to 198.51.100.10 --reply       # the pod's answer to a client
  egressway trace --from 10.244.1.11 --to 198.51.100.10 -o json | jq .verdict`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "source `address`: a pod's on this node, or a client's")
	f.StringVar(&o.to, "to", "", "destination `address`")
	f.StringVar(&o.proto, "proto", "tcp", "`protocol`: tcp, udp or icmp")
	f.StringVar(&o.port, "dport", "", "destination `port` (default: one that no rule names)")
	f.BoolVar(&o.reply, "reply", false, "the packet is a reply to a connection that came in from outside")
	outputFlag(c, &o.output, "text", "json", "yaml")
	socketFlag(c, &o.socket)
	for _, name := range []string{"from", "to"} {
		_ = c.MarkFlagRequired(name) // fails for an unknown flag only
	}
	complete(c, "proto", "tcp", "udp", "icmp")
	for _, name := range []string{"from", "to", "dport"} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return c
}

type traceOptions struct {
	from, to, proto, port, output, socket string
	reply                                 bool
}

// request parses the flags.
func (o *traceOptions) request() (r trace.Request, err error) {
	r.Proto, r.Reply = o.proto, o.reply
	if err := oneOf("-o", o.output, "text", "json", "yaml"); err != nil {
		return r, err
	}
	if err := oneOf("--proto", o.proto, "tcp", "udp", "icmp"); err != nil {
		return r, err
	}
	if r.From, err = endpoint("from", o.from); err != nil {
		return r, err
	}
	if r.To, err = endpoint("to", o.to); err != nil {
		return r, err
	}
	if r.From.Is4() != r.To.Is4() {
		return r, trace.BadInput{
			Flag: "to", Value: o.to, Right: fmt.Sprintf("an address of the same family as --from %s is needed", o.from),
		}
	}
	r.Port, err = o.destinationPort()
	return r, err
}

// endpoint parses the address of a pod or of a host outside.
func endpoint(flag, value string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(value))
	switch {
	case err != nil:
		return a, trace.BadInput{
			Flag: flag, Value: strconv.Quote(value), Right: "an IP address such as 10.244.1.11 or fd44:1::11 is needed",
		}
	case a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() && flag == "from" || a.IsLoopback():
		return a, trace.BadInput{
			Flag: flag, Value: value, Right: "a unicast address without a zone is needed, of a pod or of a host outside",
		}
	}
	return a.Unmap(), nil
}

// destinationPort parses --dport; 0: a port that no rule names.
func (o *traceOptions) destinationPort() (uint16, error) {
	if o.port == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(o.port, 10, 16)
	if err != nil || n == 0 {
		return 0, trace.BadInput{Flag: "dport", Value: strconv.Quote(o.port), Right: "a port from 1 to 65535 is needed"}
	}
	if o.proto == "icmp" {
		return 0, trace.BadInput{Flag: "dport", Value: o.port, Right: "ICMP has no ports: leave it out, or say --proto tcp or udp"}
	}
	return uint16(n), nil
}

func (o *traceOptions) run(ctx context.Context, out io.Writer) error {
	request, err := o.request()
	if err != nil {
		return err
	}
	in := trace.Input{Request: request}
	o.askDaemon(ctx, &in)
	in.Live, err = walk.ReadLive(ctx)
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w: run it as root, or in the daemon's container: "+
			"kubectl -n egressway-system exec POD -- egressway trace …", err)
	}
	if err != nil {
		return err
	}
	defer in.Live.Close()
	if err := in.Gather(ctx); err != nil {
		return err
	}
	result := trace.Explain(&in)
	if err := o.write(out, result); err != nil {
		return err
	}
	if !result.Fine() {
		return foundWrong{}
	}
	return nil
}

// askDaemon asks the daemon for names and for its plan. Without an answer, trace uses the kernel alone.
func (o *traceOptions) askDaemon(ctx context.Context, in *trace.Input) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	report, err := status.Read(ctx, o.socket)
	if err != nil {
		in.Silent = err.Error()
		return
	}
	in.Report = &report
	about := in.From
	if !in.Reply {
		if wanted, err := status.Ask(ctx, o.socket, in.To); err == nil && wanted.Ingress {
			in.IngressWanted = &wanted
		}
	}
	if wanted, err := status.AskAbout(ctx, o.socket, about, in.To, in.Destination()); err == nil { // an older daemon does not answer this
		in.Wanted = &wanted
	}
}

func (o *traceOptions) write(out io.Writer, r *trace.Result) error {
	if o.output != "text" {
		return encode(out, o.output, r)
	}
	return r.WriteText(out, text.ColoursOf(out))
}
