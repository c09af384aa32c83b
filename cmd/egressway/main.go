// Egressway lets pods leave a bare-metal Kubernetes cluster by a given network, with their Service's address as source.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func main() {
	if isPlugin(os.Args[0]) {
		os.Exit(executeAs(newPluginCommand(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	return executeAs(newRootCommand(), args, stdout, stderr)
}

func executeAs(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return exitCode(root.ExecuteContext(context.Background()), stderr)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "egressway",
		Short: "Egress for pods by a given network, with their Service's address as source",
		Long: `Egressway is a node daemon for bare-metal Kubernetes. Pods behind an EgressService leave by the network (VRF) that it names,
with their Service's LoadBalancer ingress IP as source, which the host node announces by BGP; replies come back the same way.

Exit codes: 0 success; 1 an error; 2, only of trace: packets are dropped, or our state in the kernel is damaged.`,
		Example: `  egressway check --config config.yaml                              # is it right?
  egressway status                                                  # what is in force on this node?
  egressway trace --from 10.244.1.11 --to 198.51.100.10             # why does this packet go there?
  egressway completion bash > /etc/bash_completion.d/egressway      # completion of commands, flags and values`,
		Version:       thisVersion().line(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf(`%w: see "%s --help"`, err, c.CommandPath())
	})
	root.AddCommand(
		newRunCommand(), newSpeakerCommand(), newCheckCommand(), newPlanCommand(), newStatusCommand(), newTraceCommand(),
		newDiagnoseCommand(), newDrainCommand(), newClusterCommand(), newCleanupCommand(), newVersionCommand(), newManCommand(),
	)
	return root
}

// newManCommand returns the command that packages use to make the manual pages. Help does not list it.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages of all commands into a folder",
		Long: `Write the manual pages of all commands, of section 8, into a folder, as packages contain them.

Exit codes: 0 they are written; 1 an error.`,
		Example: `  egressway man /usr/local/share/man/man8`,
		Args:    cobra.ExactArgs(1),
		Hidden:  true,
		RunE:    func(c *cobra.Command, args []string) error { return writeManual(c.Root(), args[0]) },
	}
}

// writeManual writes a page of section 8 for each command. Pages have the date of SOURCE_DATE_EPOCH, if that is set, so that two
// builds of a release are the same.
func writeManual(root *cobra.Command, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder of the manual: %w", err)
	}
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "8", Source: "Egressway " + version, Manual: "Egressway"}
	if err := doc.GenManTree(root, header, folder); err != nil {
		return fmt.Errorf("write the manual: %w", err)
	}
	return nil
}
