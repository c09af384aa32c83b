// Egressway lets pods leave a bare-metal Kubernetes cluster by the network and with the source address that their Service
// stands for.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs one command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	var invalid invalidError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &invalid):
		fmt.Fprintln(stderr, "egressway:", err)
	}
	return 1
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "egressway",
		Short: "Egress for pods by a given network, with their Service's address as source",
		Long: `Egressway is a node daemon for bare-metal Kubernetes. Pods behind an EgressService leave by the network (VRF) that it names,
with their Service's LoadBalancer ingress IP as source, which the host node announces by BGP; replies come back the same way.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRunCommand(), newSpeakerCommand(), newCheckCommand(), newPlanCommand(), newStatusCommand(), newDrainCommand(), newCleanupCommand(), newVersionCommand())
	return root
}
