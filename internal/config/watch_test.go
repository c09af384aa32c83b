package config

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestWatch(t *testing.T) {
	type result struct {
		level string
		err   error
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "egressway.yaml")
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write(file, "log: {level: warn}\n")
	results, done, again := make(chan result, 100), make(chan error), make(chan os.Signal)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- Watch(ctx, file, again, func(c *Config, err error) {
			r := result{err: err}
			if c != nil {
				r.level = c.Log.Level
			}
			results <- r
		})
	}()
	require.Equal(t, result{level: "warn"}, <-results, "once at the start")
	write(filepath.Join(dir, "other"), "x") // another file in the folder

	replace := func(text string) { // in the way of editors
		write(file+"~", text)
		require.NoError(t, os.Rename(file+"~", file))
	}
	replace("log: {level: debug}\n")
	require.Equal(t, result{level: "debug"}, <-results)
	replace("log: {level: loud}\n")
	bad := <-results
	require.ErrorContains(t, bad.err, `log.level: "loud"`)
	require.NoError(t, os.Remove(file))
	require.ErrorIs(t, (<-results).err, os.ErrNotExist)
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	require.ErrorContains(t, (<-results).err, "not a regular file")
	replace("log: {level: error}\n")
	require.Equal(t, result{level: "error"}, <-results)
	again <- unix.SIGHUP
	require.Equal(t, result{level: "error"}, <-results, "asked for, though nothing changed")
	cancel()
	require.NoError(t, <-done)
	require.Empty(t, results)
}
