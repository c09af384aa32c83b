package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/speaker"
)

// steeredAwayWithin is how long other nodes may take to steer their pods' packets elsewhere.
const steeredAwayWithin = time.Second

func newCleanupCommand() *cobra.Command {
	var configFile string
	c := &cobra.Command{
		Use:   "cleanup [--config FILE]",
		Short: "Remove everything that the daemon made on this node, and nothing else",
		Long: `Remove everything that the daemon made on this node, and nothing else: rules, routes, the tunnel, the VRF devices it created, and
last the nftables table, which stays if something else could not be removed. Interfaces that it enslaved are freed with their addresses.
Connections that it steered end. Before that, its speaker takes back what it announces, has other nodes steer nothing here any more, and ends.

Stop the daemon first. The configuration is read for marks.mask and the sockets; without it the environment and the defaults count.

Exit codes: 0 nothing of ours is left; 1 an error, such as a daemon that runs, or not everything could be removed.`,
		Example: `  systemctl stop egressway && egressway cleanup
  egressway cleanup --config /etc/egressway/config.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf := config.Unconfigured()
			if configFile != "" {
				var err error
				if conf, err = loadConfig(cmd.ErrOrStderr(), configFile); err != nil {
					return err
				}
			}
			if running(conf.Status.Socket) {
				return fmt.Errorf("the daemon that answers at %s would make everything anew: stop it first", conf.Status.Socket)
			}
			// First: no peer may send packets that nothing is there for any more.
			ending, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			if err := speaker.End(ending, conf.Speaker.Socket, version); err != nil {
				return err
			}
			// Other nodes have learned by BFD that they may steer nothing here.
			pause.For(cmd.Context(), steeredAwayWithin)
			node, err := kernel.Open()
			if err != nil {
				return err
			}
			defer node.Close()
			if err := node.Cleanup(cmd.Context(), plan.Marks{Mask: conf.Marks.Mask}); err != nil {
				return errors.Join(errors.New("not everything could be removed"), err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&configFile, "config", "", "configuration `file` of the daemon")
	_ = c.MarkFlagFilename("config", "yaml", "yml")
	return c
}
