package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
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
	var configFile, folder, format string
	c := &cobra.Command{
		Use:   "check --config FILE [--manifests DIR] [-o text|json|yaml]",
		Short: "Validate the configuration and, if given, a folder of manifests",
		Long: `Validate the configuration and, if given, a folder of manifests.

Prints every error on a line of its own, "file:line: object: field: value: what would be right". Changes nothing and needs no privilege.

Exit codes: 0 no error; 1 an error in the files, or in the flags.`,
		Example: `  egressway check --config /etc/egressway/config.yaml
  egressway check --config config/egressway.yaml --manifests config/samples
  egressway check --config config/egressway.yaml -o json | jq -r '.errors[].message'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("-o", format, "text", "json", "yaml"); err != nil {
				return err
			}
			found, summary := check(configFile, folder)
			if err := writeChecked(cmd.OutOrStdout(), format, found, summary); err != nil {
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
	_ = c.MarkFlagRequired("config") // fails for an unknown flag only
	_ = c.MarkFlagFilename("config", "yaml", "yml")
	_ = c.MarkFlagDirname("manifests")
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

// writeChecked writes the errors, or the summary if there are none.
func writeChecked(out io.Writer, format string, found []error, summary string) error {
	if format != "text" {
		all := make([]checked, 0, len(found))
		for _, err := range found {
			all = append(all, asChecked(err))
		}
		return encode(out, format, struct {
			OK      bool      `json:"ok"`
			Summary string    `json:"summary,omitempty"`
			Errors  []checked `json:"errors"`
		}{len(found) == 0, summary, all})
	}
	colours := text.ColoursOf(out)
	for _, err := range found {
		fmt.Fprintln(out, colours.Bad(text.Lines(err.Error())))
	}
	if len(found) == 0 {
		fmt.Fprintln(out, colours.Good(summary))
	}
	return nil
}

// check returns the errors in the configuration and in the manifests, and a summary of their content.
func check(configFile, folder string) (found []error, summary string) {
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
	if folder == "" {
		return found, summary
	}
	objects, problems := manifests.Read(folder)
	if conf != nil {
		problems = append(problems, planProblems(conf, objects)...)
		summary += fmt.Sprintf(", %d nodes, %d EgressServices", objects.Nodes.Len(), objects.EgressServices.Len())
	}
	for _, p := range cluster.SortProblems(problems) {
		found = append(found, p)
	}
	return found, summary
}

// planProblems returns the problems of plans for all nodes, assuming that their networks are up.
func planProblems(conf *config.Config, objects cluster.Objects) []cluster.Problem {
	var problems []cluster.Problem
	hosts := election.Policy{Hosts: conf.Election.Hosts}.Elect(objects, nil)
	for _, node := range slices.Sorted(objects.Nodes.Keys()) {
		_, found := plan.Build(plan.Snapshot{
			Node:    node,
			Config:  conf,
			Objects: objects,
			Hosts:   hosts,
			Facts:   plan.Assume(conf, objects, node),
		})
		problems = append(problems, found...)
	}
	return problems
}
