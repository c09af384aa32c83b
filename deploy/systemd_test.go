package deploy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
)

// TestBootUnit starts the program of egressway-boot with the URL of a drop-in, as docs/install.md has one: it deletes the table once
// that URL answers, also by TLS with any certificate.
func TestBootUnit(t *testing.T) {
	unit, err := os.ReadFile("systemd/egressway-boot.service")
	require.NoError(t, err)
	page, err := os.ReadFile("../docs/install.md")
	require.NoError(t, err)
	dropIn := regexp.MustCompile("(?s)```ini\n\\[Service\\]\n(.*?)\n```").FindSubmatch(page)
	require.NotNil(t, dropIn)
	variable := regexp.MustCompile(`^Environment=(\w+)=https://\S+/readyz$`).FindSubmatch(dropIn[1])
	require.NotNil(t, variable, "systemd refuses a second ExecStart: %s", dropIn[1])
	require.Contains(t, string(unit), "\nEnvironment="+string(variable[1])+"=http://127.0.0.1:9479/readyz\n")

	program := regexp.MustCompile(`(?m)^ExecStart=/bin/sh -c '([^']*)'$`).FindSubmatch(unit)
	require.NotNil(t, program)
	for name, serve := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			server := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) == 1 || r.URL.Path != "/readyz" {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			defer server.Close()
			folder := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(folder, "nft"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o700))
			ctx, cancel := context.WithTimeout(t.Context(), lab.Patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/bin/sh", "-c", strings.ReplaceAll(string(program[1]), "$$", "$"))
			cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "no_proxy=*", string(variable[1])+"="+server.URL+"/readyz")
			out, err := cmd.Output()
			require.NoError(t, err)
			require.Equal(t, "delete table inet egressway-boot\n", string(out))
			require.EqualValues(t, 2, asked.Load())
		})
	}
}
