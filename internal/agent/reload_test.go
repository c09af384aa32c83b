package agent

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/status"
)

// TestReload checks which changes of the configuration need a restart, and which are in force at once.
func TestReload(t *testing.T) {
	refused := errors.New("unknown key")
	for name, test := range map[string]struct {
		edit  func(*config.Config)
		err   error
		wrong string // empty: it comes into force
	}{
		"nothing":     {edit: func(*config.Config) {}},
		"networks":    {edit: func(c *config.Config) { c.Networks = []config.Network{{Name: "red"}} }},
		"failover":    {edit: func(c *config.Config) { c.Failover.BFD.Enabled = false }},
		"errors":      {edit: func(*config.Config) {}, err: refused, wrong: "unknown key"},
		"node":        {edit: func(c *config.Config) { c.Node = "b" }, wrong: "with a restart only"},
		"source":      {edit: func(c *config.Config) { c.Source.Manifests = "/etc" }, wrong: "with a restart only"},
		"speaker":     {edit: func(c *config.Config) { c.Speaker.Start = false }, wrong: "with a restart only"},
		"status":      {edit: func(c *config.Config) { c.Status.MetricsAddress = "" }, wrong: "with a restart only"},
		"marks":       {edit: func(c *config.Config) { c.Marks.RulePriority = 600 }, wrong: "with a restart only"},
		"log, level":  {edit: func(c *config.Config) { c.Log.Level = "debug" }, wrong: "with a restart only"},
		"log, format": {edit: func(c *config.Config) { c.Log.Format = "json" }, wrong: "with a restart only"},
	} {
		t.Run(name, func(t *testing.T) {
			first, next := config.Defaults(), config.Defaults()
			test.edit(next)
			a := &Agent{log: slog.New(slog.DiscardHandler), config: first, status: status.New("v", "a"), awake: make(chan struct{}, 1)}
			if test.err != nil {
				next = nil
			}
			a.reload(next, test.err)
			require.Len(t, a.awake, 1, "a pass reports it")
			if test.wrong == "" {
				require.NoError(t, a.stale)
				require.Same(t, next, a.config)
				return
			}
			require.ErrorContains(t, a.stale, test.wrong)
			require.Same(t, first, a.config)
			a.reload(config.Defaults(), nil)
			require.NoError(t, a.stale, "as it was: nothing is refused any more")
		})
	}
}
