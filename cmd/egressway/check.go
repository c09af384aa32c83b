package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// invalidError says that a command found errors in its input and has printed them: the exit code is 1, there is nothing
// more to say.
type invalidError struct{ count int }

func (e invalidError) Error() string {
	if e.count == 1 {
		return "1 error"
	}
	return fmt.Sprintf("%d errors", e.count)
}

func newCheckCommand() *cobra.Command {
	var configFile, folder string
	c := &cobra.Command{
		Use:   "check --config FILE [--manifests DIR]",
		Short: "Validate the configuration and, if given, a folder of manifests",
		Long: `Validate the configuration and, if given, a folder of manifests.

Prints every error on a line of its own, "file:line: object: field: value: what would be right", and exits with 1 if there is any.`,
		Example:       "  egressway check --config config/egressway.yaml --manifests config/samples",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, summary := check(configFile, folder)
			for _, err := range found {
				fmt.Fprintln(cmd.OutOrStdout(), err)
			}
			if len(found) > 0 {
				return invalidError{len(found)}
			}
			fmt.Fprintln(cmd.OutOrStdout(), summary)
			return nil
		},
	}
	c.Flags().StringVar(&configFile, "config", "", "configuration `file`")
	c.Flags().StringVar(&folder, "manifests", "", "`folder` of manifests to validate too")
	_ = c.MarkFlagRequired("config") // fails for an unknown flag only
	_ = c.MarkFlagFilename("config", "yaml", "yml")
	_ = c.MarkFlagDirname("manifests")
	return c
}

// check lists what is wrong with the configuration and the manifests, and sums up what they hold.
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
		summary += fmt.Sprintf(", %d nodes, %d EgressServices", len(objects.Nodes), len(objects.EgressServices))
	}
	for _, p := range cluster.SortProblems(problems) {
		found = append(found, p)
	}
	return found, summary
}

// planProblems is what planning for each of the nodes says, assuming that their networks are up.
func planProblems(conf *config.Config, objects cluster.Objects) []cluster.Problem {
	var problems []cluster.Problem
	hosts := election.Elect(objects, nil)
	for _, node := range slices.Sorted(maps.Keys(objects.Nodes)) {
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
