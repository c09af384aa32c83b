package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/nodewise"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/text"
)

// invalidError is the error of a command that found errors in its input and has printed them: the exit code is 1, with
// no further message.
type invalidError struct{ count int }

func (e invalidError) Error() string {
	if e.count == 1 {
		return "1 error"
	}
	return fmt.Sprintf("%d errors", e.count)
}

func newCheckCommand() *cobra.Command {
	var configFile, folder, node, format string
	c := &cobra.Command{
		Use:   "check --config FILE [--manifests DIR [--node NAME]] [-o text|json|yaml]",
		Short: "Validate the configuration and, if given, a folder of manifests",
		Long: `Validate the configuration and, if given, a folder of manifests. With --node, show the configuration of one node: the values
that nodeSelectors give it by the labels of its Node object in the folder, each with its line and the selector that matches.

Prints every error on a line of its own, "file:line: object: field: value: what would be right". Changes nothing and needs no privilege.

Exit codes: 0 no error; 1 an error in the files, or in the flags.`,
		Example: `  egressway check --config /etc/egressway/config.yaml
  egressway check --config config/egressway.yaml --manifests config/samples
  kubectl get nodes -o yaml > nodes/nodes.yaml; egressway check --config config.yaml --manifests nodes --node worker-7
  egressway check --config config/egressway.yaml -o json | jq -r '.errors[].message'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("-o", format, "text", "json", "yaml"); err != nil {
				return err
			}
			found, of, summary := check(configFile, folder)
			shown, err := of.node(node, folder)
			if err != nil {
				return err
			}
			if err := writeChecked(cmd.OutOrStdout(), format, found, shown, summary); err != nil {
				return err
			}
			if len(found) > 0 {
				return invalidError{len(found)}
			}
			return nil
		},
	}
	c.Flags().StringVar(&configFile, "config", "", "configuration `file`")
	c.Flags().StringVar(&folder, "manifests", "", "`folder` of manifests to validate too")
	c.Flags().StringVar(&node, "node", "", "`name` of a node whose configuration to show")
	_ = c.MarkFlagRequired("config") // fails for an unknown flag only
	_ = c.MarkFlagFilename("config", "yaml", "yml")
	_ = c.MarkFlagDirname("manifests")
	_ = c.RegisterFlagCompletionFunc("node", completeNodes(&folder))
	outputFlag(c, &format, "text", "json", "yaml")
	return c
}

// checked is one error, for programs.
type checked struct {
	Where   string `json:"where,omitempty"` // file:line
	Object  string `json:"object,omitempty"`
	Field   string `json:"field,omitempty"`
	Value   string `json:"value,omitempty"`
	Message string `json:"message"`
}

// asChecked returns an error with the fields that it has.
func asChecked(err error) checked {
	if p, ok := errors.AsType[cluster.Problem](err); ok {
		return checked{p.Where, p.Kind + " " + p.Object, p.Field, p.Value, p.Message}
	}
	e, ok := errors.AsType[config.Error](err)
	if !ok {
		return checked{Message: err.Error()}
	}
	where := e.File
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	return checked{where, "", e.Field, e.Value, e.Message}
}

// writeChecked writes the errors, or the summary if there are none, and the configuration of a node; nil: of none.
func writeChecked(out io.Writer, format string, found []error, of *nodewise.View, summary string) error {
	if format != "text" {
		all := make([]checked, 0, len(found))
		for _, err := range found {
			all = append(all, asChecked(err))
		}
		return encode(out, format, struct {
			OK      bool           `json:"ok"`
			Summary string         `json:"summary,omitempty"`
			Errors  []checked      `json:"errors"`
			Node    *nodewise.View `json:"node,omitempty"`
		}{len(found) == 0, summary, all, of})
	}
	colours := text.ColoursOf(out)
	for _, err := range found {
		fmt.Fprintln(out, colours.Bad(text.Lines(err.Error())))
	}
	if len(found) == 0 {
		fmt.Fprintln(out, colours.Good(summary))
	}
	if of != nil {
		fmt.Fprintln(out)
		return of.Write(out)
	}
	return nil
}

// checkedFiles is what check has read.
type checkedFiles struct {
	conf  *config.Config // nil: it has errors
	nodes nodewise.Nodes
}

// node returns the configuration of a node; nil if no name is given, or the configuration has errors.
func (f checkedFiles) node(name, folder string) (*nodewise.View, error) {
	switch {
	case name == "" || f.conf == nil:
		return nil, nil
	case folder == "":
		return nil, errors.New("--node needs --manifests: a folder with the Node object, which has the labels")
	}
	return viewOf(f.conf, f.nodes, name, folder)
}

// viewOf returns the configuration of a node in a folder of manifests.
func viewOf(conf *config.Config, nodes nodewise.Nodes, name, folder string) (*nodewise.View, error) {
	if _, known := nodes.Get(name); !known {
		names := slices.Sorted(nodes.Keys())
		return nil, fmt.Errorf("--node %q: no such node in %s; there are: %s", name, folder, strings.Join(names, ", "))
	}
	return nodewise.ViewOf(conf, nodes, name), nil
}

// completeNodes completes names of nodes in a folder of manifests.
func completeNodes(folder *string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		objects, _ := manifests.Read(*folder)
		return slices.Sorted(objects.Nodes.Keys()), cobra.ShellCompDirectiveNoFileComp
	}
}

// check returns the errors in the configuration and in the manifests, and a summary of their content.
func check(configFile, folder string) (found []error, files checkedFiles, summary string) {
	conf, err := config.Load(configFile)
	var all config.Errors
	switch {
	case errors.As(err, &all):
		for _, e := range all {
			found = append(found, e)
		}
	case err != nil:
		found = append(found, err)
	default:
		summary = fmt.Sprintf("ok: %d networks", len(conf.Networks))
	}
	files.conf = conf
	if folder == "" {
		return found, files, summary
	}
	objects, problems := manifests.Read(folder)
	files.nodes = objects.Nodes
	if conf != nil {
		problems = append(problems, nodewise.Check(conf, objects.Nodes)...)
		problems = append(problems, planProblems(conf, objects)...)
		summary += fmt.Sprintf(", %d nodes, %d EgressServices", objects.Nodes.Len(), objects.EgressServices.Len())
	}
	for _, p := range cluster.SortProblems(problems) {
		found = append(found, p)
	}
	return found, files, summary
}

// planProblems returns the problems of plans for all nodes, assuming that their networks are up.
func planProblems(conf *config.Config, objects cluster.Objects) []cluster.Problem {
	var problems []cluster.Problem
	hosts := election.PolicyOf(conf).Elect(objects, nil)
	for _, node := range slices.Sorted(objects.Nodes.Keys()) {
		own := conf.For(objects.Nodes.At(node).Labels).Config
		_, found := plan.Build(plan.Snapshot{
			Node:    node,
			Config:  own,
			Objects: objects,
			Hosts:   hosts,
			Facts:   plan.Assume(own, objects, node),
		})
		problems = append(problems, found...)
	}
	return problems
}
