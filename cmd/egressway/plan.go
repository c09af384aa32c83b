package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/nodewise"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/plan/show"
	"github.com/egressway/egressway/internal/source"
)

func newPlanCommand() *cobra.Command {
	var o planOptions
	c := &cobra.Command{
		Use:   "plan --config FILE --manifests DIR --node NAME [--facts FILE] [--no-files] [-o text|json|yaml]",
		Short: "Print the plan that the daemon would have for a node",
		Long: `Print the plan that the daemon would have for a node, from a configuration and a folder of manifests. Changes nothing and
needs no privilege. With nodeSelectors in the configuration, it first shows what they give the node, by which line and selector.

Without --facts, it assumes that the VRF devices exist as configured, with a route in each, and that all nodes are on one LAN. A file
with facts about the node's kernel has
  links: [{name: eth2, master: vrf-red, addrs: [10.1.0.11/24]}, {name: vrf-red, vrfTable: 1001}]   # also up, mtu
  routed: [{table: 1001, ipv4: true, ipv6: true}]   # tables with a usable route
  paths: [{kind: network, name: red, id: 2}]        # path ids in force

Exit codes: 0 the plan is printed, with its problems; 1 an error in the configuration or the flags.`,
		Example: `  egressway plan --config config/egressway.yaml --manifests config/samples --node a
  egressway plan --config config/egressway.yaml --manifests config/samples --node a -o json | jq .plan.rules`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.OutOrStdout()) },
	}
	c.Flags().StringVar(&o.config, "config", "", "configuration `file`")
	c.Flags().StringVar(&o.manifests, "manifests", "", "`folder` of manifests")
	c.Flags().StringVar(&o.node, "node", "", "`name` of the node")
	c.Flags().StringVar(&o.facts, "facts", "", "`file` with facts about the node's kernel")
	o.files.add(c)
	outputFlag(c, &o.output, "text", "json", "yaml")
	for _, name := range []string{"config", "manifests", "node"} {
		_ = c.MarkFlagRequired(name) // fails for an unknown flag only
	}
	_ = c.MarkFlagFilename("config", "yaml", "yml")
	_ = c.MarkFlagFilename("facts", "yaml", "yml")
	_ = c.MarkFlagDirname("manifests")
	_ = c.RegisterFlagCompletionFunc("node", completeNodes(&o.manifests))
	return c
}

type planOptions struct {
	config, manifests, node, facts, output string
	files                                  filesFlag
}

func (o planOptions) run(out io.Writer) error {
	if err := oneOf("-o", o.output, "text", "json", "yaml"); err != nil {
		return err
	}
	conf, err := config.Load(o.config, o.files.options()...)
	if all, ok := errors.AsType[config.Errors](err); ok {
		for _, e := range all {
			fmt.Fprintln(out, e)
		}
		return invalidError{len(all)}
	}
	if err != nil {
		return err
	}
	objects, problems := source.Read(o.manifests, conf)
	if i := slices.IndexFunc(problems, func(p cluster.Problem) bool { return p.Kind == "Manifests" }); i >= 0 {
		return problems[i]
	}
	view, err := viewOf(conf, objects.Nodes, o.node, o.manifests)
	if err != nil {
		return err
	}
	problems = append(problems, nodewise.Check(conf, objects.Nodes)...)
	base := conf
	conf = view.Config()
	facts := plan.Assume(conf, objects, o.node)
	if o.facts != "" {
		data, err := os.ReadFile(o.facts)
		if err != nil {
			return fmt.Errorf("read facts: %w", err)
		}
		if facts, err = plan.ReadFacts(data); err != nil {
			return fmt.Errorf("%s: %w", o.facts, err)
		}
	}
	desired, found := plan.Build(plan.Snapshot{
		Node: o.node, Config: conf, Objects: objects, Facts: facts,
		Hosts: election.PolicyOf(conf).Elect(objects, nil),
	})
	problems = cluster.SortProblems(append(append([]cluster.Problem{}, problems...), found...))
	if o.output != "text" {
		return encode(out, o.output, struct {
			Plan     *plan.NodePlan    `json:"plan"`
			Problems []cluster.Problem `json:"problems"`
			Node     *nodewise.View    `json:"node,omitempty"`
		}{desired, problems, view})
	}
	if base.Nodewise() {
		if err := view.Write(out); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	return show.Plan(out, desired, problems)
}
