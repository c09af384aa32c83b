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

// steeredAwayWithin is the time that other nodes get to steer their pods' packets elsewhere.
const steeredAwayWithin = time.Second

func newCleanupCommand() *cobra.Command {
	var configFile string
	c := &cobra.Command{
		Use:   "cleanup [--config FILE]",
		Short: "Remove everything that the daemon made on this node, and nothing else",
		Long: `Remove everything that the daemon made on this node, and nothing else: rules, routes, the tunnel, the VRF devices it
created, and last the nftables table, which stays if anything else could not be removed. Interfaces that it enslaved are released and keep
their addresses. Connections that it steered end. Before that, its speaker withdraws all announcements, makes other nodes stop steering to
this node, and ends.

Stop the daemon first. The configuration has marks.mask and the sockets; without it, the environment and the defaults apply.

Exit codes: 0 no object of ours is left; 1 an error: a daemon runs, or an object could not be removed.`,
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
				return fmt.Errorf("the daemon that answers at %s would create everything again: stop it first", conf.Status.Socket)
			}
			// First the speaker: peers must stop sending packets before the rules for them are gone.
			ending, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			if err := speaker.End(ending, conf.Speaker.Socket, version); err != nil {
				return err
			}
			// By BFD, other nodes have learned to stop steering to this node.
			pause.For(cmd.Context(), steeredAwayWithin)
			node, err := kernel.Open()
			if err != nil {
				return err
			}
			defer node.Close()
			node.OnLeftOut(func(route string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "left out %s: the main table has a default route, which the node keeps\n", route)
			})
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
