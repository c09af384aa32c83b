package main

import (
	"errors"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/speaker"
)

// Values of flags.
var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"text", "json"}
)

func newSpeakerCommand() *cobra.Command {
	defaults := config.Defaults()
	path, log := config.Unconfigured().Speaker.Socket, defaults.Log
	c := &cobra.Command{
		Use:   "speaker [--socket PATH]",
		Short: "Run the process that speaks BGP and BFD for the daemon, and outlives it",
		Long: `Run the process that speaks BGP and BFD for the daemon ("egressway run") on this node until SIGTERM or SIGINT.

The daemon sends it the announcements over the socket. It continues unchanged when the daemon ends, is killed or upgraded, and the
next daemon adopts it: routers notice nothing. It needs no configuration of its own, but reads the files with peers' passwords.
The daemon starts one itself if none answers, unless its configuration has speaker.start: false.

When it ends, peers that negotiated graceful restart keep its routes for a while; "egressway cleanup" ends it and withdraws them.
Needs CAP_NET_RAW if a peer is unnumbered, and CAP_NET_BIND_SERVICE to listen on a port below 1024.

Exit codes: 0 a signal or request ended it; 1 it could not start, or continue.`,
		Example: "  egressway speaker --socket /run/egressway/speaker.sock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level, format := oneOf("--log-level", log.Level, logLevels...), oneOf("--log-format", log.Format, logFormats...)
			if err := errors.Join(level, format); err != nil {
				return err
			}
			// The process that started the speaker may have read its log, and be gone: the speaker must survive that.
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return speaker.Serve(ctx, speaker.Options{Log: newLogger(cmd.ErrOrStderr(), log), Socket: path, Version: version})
		},
	}
	c.Flags().StringVar(&path, "socket", path,
		"`path` of the socket to listen on, speaker.socket of the daemon (or EGRESSWAY_SPEAKER_SOCKET)")
	c.Flags().StringVar(&log.Level, "log-level", log.Level, "`level`: debug, info, warn or error")
	c.Flags().StringVar(&log.Format, "log-format", log.Format, "`format`: text or json")
	_ = c.MarkFlagFilename("socket", "sock") // fails for an unknown flag only
	complete(c, "log-level", logLevels...)
	complete(c, "log-format", logFormats...)
	return c
}
