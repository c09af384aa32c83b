package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/agent"
	"github.com/egressway/egressway/internal/config"
)

func newRunCommand() *cobra.Command {
	var configFile string
	c := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run the daemon on this node",
		Long: `Run the daemon on this node until SIGTERM or SIGINT. It reads its configuration again when the file changes, and on SIGHUP.

When it stops, its objects in the kernel stay, and so do the BGP sessions, which a process of their own keeps: see "egressway speaker".
The next start adopts both. "egressway cleanup" removes them.
Needs CAP_NET_ADMIN, and CAP_NET_RAW if a peer is unnumbered.

Exit codes: 0 a signal ended it; 1 it could not start, or continue.`,
		Example: `  egressway run --config /etc/egressway/config.yaml
  EGRESSWAY_LOG_LEVEL=debug egressway run --config /etc/egressway/config.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			again := make(chan os.Signal, 1)
			signal.Notify(again, syscall.SIGHUP)
			defer signal.Stop(again)
			conf, err := loadConfig(cmd.ErrOrStderr(), configFile)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			log := newLogger(cmd.ErrOrStderr(), conf.Log)
			warnOfVariables(log)
			return agent.Run(ctx, log, configFile, conf, version, again)
		},
	}
	c.Flags().StringVar(&configFile, "config", "", "configuration `file`")
	_ = c.MarkFlagRequired("config") // fails for an unknown flag only
	_ = c.MarkFlagFilename("config", "yaml", "yml")
	return c
}

// warnOfVariables logs the variables of the environment that look like ours and have no effect.
func warnOfVariables(log *slog.Logger) {
	for _, w := range config.StrayVariables() {
		log.Warn("a variable of the environment has no effect", "warning", w)
	}
}

// loadConfig loads the configuration or prints every error in it.
func loadConfig(out io.Writer, file string) (*config.Config, error) {
	conf, err := config.Load(file)
	if all, ok := errors.AsType[config.Errors](err); ok {
		for _, e := range all {
			fmt.Fprintln(out, e)
		}
		return nil, invalidError{len(all)}
	}
	return conf, err
}

func newLogger(out io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked when the configuration was loaded
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(inert{out}, options))
	}
	return slog.New(slog.NewTextHandler(inert{out}, options))
}

// inert writes whole lines of a log, without characters that a terminal interprets: slog's text handler does not quote
// DEL, and its JSON handler no character beyond ASCII.
type inert struct{ io.Writer }

// Write implements io.Writer.
func (w inert) Write(line []byte) (int, error) {
	if _, err := w.Writer.Write(escaped(line, jsonEscape)); err != nil {
		return 0, err
	}
	return len(line), nil
}
