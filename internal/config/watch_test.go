package config

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
)

// TestWatchFilesThatArrive checks that a configuration that was refused for files that it names is in force once they are there, in its
// own folder and in another one, and that the same error is reported once.
func TestWatchFilesThatArrive(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	file, far := filepath.Join(dir, "egressway.yaml"), filepath.Join(elsewhere, "far")
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	text := "bgp: {asn: 64512}\nstatus: {metricsTLS: {certFile: tls.crt, keyFile: tls.key}}\n" +
		"networks: [{name: default, peers: [{address: 10.1.0.1, asn: 64601, passwordFile: near}, {address: 10.1.0.2, asn: 64601, passwordFile: " + far + "}]}]\n"
	write(file, text)
	results, done := make(chan error, 100), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- watchFile(ctx, file, nil, 10*time.Millisecond, func(_ *Config, err error) { results <- err })
	}()
	next := func() error {
		select {
		case err := <-results:
			return err
		case <-time.After(lab.Patience):
			require.FailNow(t, "the configuration is not loaded again")
		}
		return nil
	}
	first := next()
	require.ErrorContains(t, first, "certFile")
	require.ErrorContains(t, first, "near")
	require.ErrorContains(t, first, "far")
	certificate(t, dir)
	write(filepath.Join(dir, "near.new"), "secret")
	require.NoError(t, os.Rename(filepath.Join(dir, "near.new"), filepath.Join(dir, "near")))
	for { // tls.crt, tls.key and near may arrive between reads
		err := next()
		require.ErrorContains(t, err, "far")
		if !strings.Contains(err.Error(), "near") && !strings.Contains(err.Error(), "certFile") && !strings.Contains(err.Error(), "keyFile") {
			break
		}
	}
	write(filepath.Join(elsewhere, "far.new"), "secret")
	require.NoError(t, os.Rename(filepath.Join(elsewhere, "far.new"), far))
	require.NoError(t, next())
	cancel()
	require.NoError(t, <-done)
	require.Empty(t, results)
}

// TestWatchReportsNews checks which loads of a refused configuration are reported.
func TestWatchReportsNews(t *testing.T) {
	dir := t.TempDir()
	file, password := filepath.Join(dir, "egressway.yaml"), filepath.Join(dir, "red")
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	var reported []string
	r := reader{path: file, loaded: func(_ *Config, err error) {
		said := "good"
		if err != nil {
			said = regexp.MustCompile(`no such file|is empty|$`).FindString(err.Error())
		}
		reported = append(reported, said)
	}}
	expect := func(why cause, want ...string) {
		t.Helper()
		reported = nil
		r.read(why)
		require.Equal(t, want, reported)
	}
	expect(byRetry)
	expect(byChange, "no such file")
	expect(byChange)
	expect(byRetry)
	expect(bySignal, "no such file")
	text := "bgp: {asn: 64512}\nnetworks: [{name: default, peers: [{address: 10.1.0.1, asn: 64601, passwordFile: red}]}]\n"
	write(file, text)
	expect(byRetry) // a file that is being written is for the watch, which waits for its end
	expect(byChange, "no such file")
	expect(byChange)
	expect(byRetry)
	write(password, "")
	expect(byRetry, "is empty")
	expect(byRetry)
	write(file, "")
	expect(byRetry)
	write(file, text+"# another comment\n")
	expect(byChange, "is empty")
	write(password, "secret")
	expect(byRetry, "good")
	expect(byRetry)
	expect(byChange)
	require.NoError(t, os.Remove(password))
	expect(byRetry)
	expect(byChange)
	expect(bySignal, "no such file")
	write(password, "secret")
	expect(byChange, "good")

	// Of several faults of a selector, each load names the same one.
	write(file, "networks: [{name: default, namespaces: {matchLabels: {a: -, b: -, c: -, d: -, e: -, f: -}}}]\n")
	r.read(byChange)
	for range 20 {
		expect(byRetry)
	}
}

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
