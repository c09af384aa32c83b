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
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/nodewise"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/source"
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
	var files filesFlag
	c := &cobra.Command{
		Use:   "check {--config FILE | -} [--manifests DIR [--node NAME]] [--no-files] [-o text|json|yaml]",
		Short: "Validate the configuration and, if given, a folder of manifests",
		Long: `Validate the configuration and, if given, a folder of manifests. With --node, show the configuration of one node: the values
that nodeSelectors give it by the labels of its Node object in the folder, each with its line and the selector that matches.

Prints every error on a line of its own, "file:line: object: field: value: what would be right". Changes nothing and needs no privilege.
A variable EGRESSWAY_... of the environment that names no key gets a warning.

With - it reads the configuration from standard input; relative paths in it are then relative to the working directory. With
--no-files it does not read the files of passwords and certificates, which may be on the nodes alone.

Exit codes: 0 no error; 1 an error in the files, or in the flags.`,
		Example: `  egressway check --config /etc/egressway/config.yaml
  egressway check --config config/egressway.yaml --manifests config/samples
  kubectl get nodes -o yaml > nodes/nodes.yaml; egressway check --config config.yaml --manifests nodes --node worker-7
  egressway check --config config/egressway.yaml -o json | jq -r '.errors[].message'
  kubectl -n egressway-system get configmap egressway-config -o jsonpath='{.data.config\.yaml}' | egressway check - --no-files`,
		Args:          cobra.MaximumNArgs(1),
		ValidArgs:     []cobra.Completion{"-"},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneOf("-o", format, "text", "json", "yaml"); err != nil {
				return err
			}
			file, err := configArgument(configFile, args)
			if err != nil {
				return err
			}
			c := check(folder, func() (*config.Config, error) { return loadFrom(file, cmd.InOrStdin(), files.options()...) })
			of, err := c.node(node, folder)
			if err != nil {
				return err
			}
			if err := c.write(cmd.OutOrStdout(), format, of); err != nil {
				return err
			}
			if len(c.errs) > 0 {
				return invalidError{len(c.errs)}
			}
			return nil
		},
	}
	c.Flags().StringVar(&configFile, "config", "", "configuration `file`; - for standard input")
	c.Flags().StringVar(&folder, "manifests", "", "`folder` of manifests to validate too")
	c.Flags().StringVar(&node, "node", "", "`name` of a node whose configuration to show")
	_ = c.MarkFlagFilename("config", "yaml", "yml") // fails for an unknown flag only
	_ = c.MarkFlagDirname("manifests")
	_ = c.RegisterFlagCompletionFunc("node", completeNodes(&folder))
	files.add(c)
	outputFlag(c, &format, "text", "json", "yaml")
	return c
}

// filesFlag is the flag --no-files.
type filesFlag bool

func (f *filesFlag) add(c *cobra.Command) {
	c.Flags().BoolVar((*bool)(f), "no-files", false, "do not read the files of passwords and certificates that the configuration names")
}

func (f filesFlag) options() []config.Option {
	if f {
		return []config.Option{config.WithoutFiles}
	}
	return nil
}

// stdin names standard input as the file of a configuration.
const stdin = "-"

// configArgument returns the file of the configuration, which the flag or the argument names.
func configArgument(flag string, args []string) (string, error) {
	switch {
	case len(args) == 0 && flag == "":
		return "", errors.New("no configuration: --config FILE is needed, or - to read it from standard input")
	case len(args) == 0:
		return flag, nil
	case args[0] != stdin:
		return "", fmt.Errorf("%q: a file is named by --config; the only argument is -, for standard input", args[0])
	case flag != "" && flag != stdin:
		return "", fmt.Errorf("--config %q and -: one of both is needed", flag)
	}
	return stdin, nil
}

// loadFrom loads a configuration from a file or, if that is stdin, from in.
func loadFrom(file string, in io.Reader, options ...config.Option) (*config.Config, error) {
	if file == stdin {
		return config.LoadFrom("standard input", in, options...)
	}
	return config.Load(file, options...)
}

// checked is one error or warning, for programs.
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

// checks is the outcome of check.
type checks struct {
	errs     []error
	warnings []error
	summary  string // of files without errors

	conf  *config.Config // nil: it has errors
	nodes nodewise.Nodes
}

// write writes the errors and warnings, the summary if there are no errors, and the configuration of a node; nil: of none.
func (c checks) write(out io.Writer, format string, of *nodewise.View) error {
	if format != "text" {
		return encode(out, format, struct {
			OK       bool           `json:"ok"`
			Summary  string         `json:"summary,omitempty"`
			Errors   []checked      `json:"errors"`
			Warnings []checked      `json:"warnings,omitempty"`
			Node     *nodewise.View `json:"node,omitempty"`
		}{len(c.errs) == 0, c.summary, allChecked(c.errs), allChecked(c.warnings), of})
	}
	colours := text.ColoursOf(out)
	for _, err := range c.errs {
		fmt.Fprintln(out, colours.Bad(text.Lines(err.Error())))
	}
	for _, w := range c.warnings {
		fmt.Fprintln(out, "warning: "+text.Lines(w.Error()))
	}
	if len(c.errs) == 0 {
		fmt.Fprintln(out, colours.Good(c.summary))
	}
	if of != nil {
		fmt.Fprintln(out)
		return of.Write(out)
	}
	return nil
}

func allChecked(errs []error) []checked {
	all := make([]checked, 0, len(errs))
	for _, err := range errs {
		all = append(all, asChecked(err))
	}
	return all
}

// node returns the configuration of a node; nil if no name is given, or the configuration has errors.
func (c checks) node(name, folder string) (*nodewise.View, error) {
	switch {
	case name == "" || c.conf == nil:
		return nil, nil
	case folder == "":
		return nil, errors.New("--node needs --manifests: a folder with the Node object, which has the labels")
	}
	return viewOf(c.conf, c.nodes, name, folder)
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

// check checks the configuration that load reads, the environment, and the manifests.
func check(folder string, load func() (*config.Config, error)) (c checks) {
	for _, w := range config.StrayVariables() {
		c.warnings = append(c.warnings, w)
	}
	c.addConfig(load())
	if folder == "" {
		return c
	}
	objects, problems := source.Read(folder, c.conf)
	c.nodes = objects.Nodes
	if c.conf != nil {
		problems = append(problems, nodewise.Check(c.conf, objects.Nodes)...)
		problems = append(problems, planProblems(c.conf, objects)...)
		c.summary += fmt.Sprintf(", %d nodes, %d EgressServices", objects.Nodes.Len(), objects.EgressServices.Len())
		if n := objects.EgressIPs.Len(); n > 0 {
			c.summary += fmt.Sprintf(", %d EgressIPs", n)
		}
		if n := objects.EgressQoSes.Len(); n > 0 {
			c.summary += fmt.Sprintf(", %d EgressQoSes", n)
		}
		if n := objects.EgressFirewalls.Len(); n > 0 {
			c.summary += fmt.Sprintf(", %d EgressFirewalls", n)
		}
	}
	for _, p := range cluster.SortProblems(problems) {
		c.errs = append(c.errs, p)
	}
	c.warnOfAPIServer(&objects)
	return c
}

// warnOfAPIServer adds a warning for each EgressFirewall that denies the API server, if the folder has its Service.
func (c *checks) warnOfAPIServer(objects *cluster.Objects) {
	if c.conf == nil {
		return
	}
	servers := firewall.APIServers(objects, c.conf.PodCIDRs, c.conf.ClusterCIDRs)
	for key, e := range objects.EgressFirewalls.All() {
		if why := firewall.DeniesAPIServer(&e, servers, objects.Nodes); why != "" {
			c.warnings = append(c.warnings, cluster.Problem{Kind: cluster.KindEgressFirewall.String(), Object: key.String(), Message: why})
		}
	}
}

// addConfig adds a configuration with its summary, or its errors.
func (c *checks) addConfig(conf *config.Config, err error) {
	var all config.Errors
	switch {
	case errors.As(err, &all):
		for _, e := range all {
			c.errs = append(c.errs, e)
		}
	case err != nil:
		c.errs = append(c.errs, err)
	default:
		c.conf, c.summary = conf, fmt.Sprintf("ok: %d networks", len(conf.Networks))
	}
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
