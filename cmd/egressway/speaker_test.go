package main

import (
	"bytes"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpeakerRefuses(t *testing.T) {
	taken := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", taken)
	require.NoError(t, err)
	defer l.Close()
	for want, args := range map[string][]string{
		`--log-level "loud": one of debug, info, warn, error`:           {"--log-level", "loud"},
		`--log-format "xml": one of text, json`:                         {"--log-format", "xml"},
		"speaker's socket: another daemon answers on " + taken:          {"--socket", taken},
		`unknown command "more" for "egressway speaker"`:                {"more"},
		"speaker's socket: create the socket's folder: mkdir /dev/null": {"--socket", "/dev/null/s.sock"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 1, execute(append([]string{"speaker"}, args...), &stdout, &stderr), "%q", args)
		require.Contains(t, stderr.String(), want)
	}
}
