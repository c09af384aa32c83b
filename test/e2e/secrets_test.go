package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// TestSecrets looks for a peer's password in all that daemon and speaker say at the level debug: while the session comes up, with a wrong
// password, with files that are none, and in every answer of the command line.
func TestSecrets(t *testing.T) {
	s := play(t, stage.Options{})
	ctx := t.Context()
	binary, err := lab.Binary()
	require.NoError(t, err)
	secrets := []string{"lab-secret", "canary-wrong", "canary-long", "canary-lines"}
	var said strings.Builder                    // by processes that have ended
	const file = "/run/egressway/peer.password" // of each node
	inAll := func(f func() error) {
		t.Helper()
		for node := range s.Daemons {
			require.NoError(t, s.Node(node).Do(f))
		}
	}
	write := func(content string) {
		t.Helper()
		inAll(func() error { return os.WriteFile(file, []byte(content), 0o600) })
	}
	write("lab-secret\n")
	require.NoError(t, s.EditConfig(func(c string) string {
		return strings.ReplaceAll(c, "/etc/egressway/red2.password", file) + "\nlog: {level: debug}\n"
	}))
	require.NoError(t, s.Daemons["a"].Stop(ctx))
	require.NoError(t, s.Speakers["a"].Stop(ctx))
	s.Speakers["a"], err = s.Start(s.Node("a"), "setpriv", "--bounding-set", "-all,+net_raw", "--no-new-privs", binary, "speaker", "--socket", stage.SpeakerSocket, "--log-level", "debug")
	require.NoError(t, err)
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		return s.Node("a").Do(func() error {
			conn, err := net.Dial("unix", stage.SpeakerSocket)
			if err == nil {
				conn.Close()
			}
			return err
		})
	}))
	require.NoError(t, s.StartDaemon("a"))
	up := func(want bool) {
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			_, is, err := established(s, "red2", "10.1.0.11")
			if err == nil && is != want {
				err = fmt.Errorf("the session is up: %t", is)
			}
			return err
		}))
	}
	look := func() {
		t.Helper()
		for _, args := range [][]string{
			{"status", "-o", "json"},
			{"status", "-o", "wide"},
			{"status", "-o", "yaml"},
			{"check", "--config", "/etc/egressway/config.yaml"},
			{"plan", "--config", "/etc/egressway/config.yaml", "--manifests", "/etc/egressway/manifests", "--node", "a", "-o", "json"},
		} {
			out, err := s.Egressway(ctx, "a", args...)
			fmt.Fprintln(&said, strings.Join(args, " "), out, err)
		}
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			return s.Node("a").Do(func() error {
				conn, err := net.Dial("tcp", "127.0.0.1:9479") // in this thread, which is in the node
				if err != nil {
					return err
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n"); err != nil {
					return err
				}
				_, err = io.Copy(&said, conn)
				return err
			})
		}))
		for _, d := range []*lab.Daemon{s.Daemons["a"], s.Speakers["a"]} {
			for _, of := range []string{"cmdline", "environ"} {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", d.PID(), of))
				require.NoError(t, err)
				said.Write(b)
			}
		}
	}
	up(true)
	look()
	for _, wrong := range []string{"canary-wrong\n", strings.Repeat("canary-long", 8) + "\n", "", "canary-lines\ncanary-lines\n", "lab-secret\n"} {
		write(wrong)
		touched := time.Now().Format(time.RFC3339Nano)
		require.NoError(t, s.EditConfig(func(c string) string { return c + "# " + touched + "\n" })) // and the daemon reads it anew
		switch wrong {
		case "canary-wrong\n":
			up(false)
		case "lab-secret\n":
			up(true)
		}
		look()
	}
	inAll(func() error { return os.Remove(file) })
	look()
	require.NoError(t, s.Daemons["a"].Stop(ctx))
	require.NoError(t, s.Speakers["a"].Stop(ctx))
	all := said.String() + s.Daemons["a"].Log() + s.Speakers["a"].Log()
	require.Contains(t, all, "level=DEBUG")
	require.Contains(t, all, file, "the file has a name")
	for _, secret := range secrets {
		if i := strings.Index(all, secret); i >= 0 {
			require.Fail(t, "a password is told", "%s", all[max(0, i-300):min(len(all), i+100)])
		}
	}
}
