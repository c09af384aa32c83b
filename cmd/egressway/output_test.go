package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/internal/text"
)

// hostile is text that a terminal would interpret: ESC and C1 sequences, a changed direction of writing, DEL, ends of lines and columns.
const hostile = "red\x1b[2J\u009b31m\u202e\u2066\u200f\x7f\U000e0001\r\n\tfake"

// requireInert fails if a terminal would do anything with the output except show its lines.
func requireInert(t *testing.T, out string) {
	t.Helper()
	i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !text.Safe(r) })
	require.Negative(t, i, "unsafe character in %q", out)
	require.NotContains(t, out, "\nfake")
	require.NotContains(t, out, "\n\tfake")
}

// TestCommandsEscapeObjects runs each command that reads objects with hostile ones, in every format.
func TestCommandsEscapeObjects(t *testing.T) {
	dir := t.TempDir()
	quoted, err := json.Marshal(hostile)
	require.NoError(t, err)
	unprintable := strings.NewReplacer("\u007f", `\u007f`, "\u009b", `\u009b`).Replace(string(quoted)) // for YAML
	bad := func(old string) string {
		manifest := object("bad", "{network: red}", "{ip: 203.0.113.66}", "10.244.1.66")
		require.Contains(t, manifest, old)
		return strings.ReplaceAll(manifest, old, strings.ReplaceAll(old, "red", unprintable))
	}
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	conf := write("c.yaml", inputConfig)
	write("m/cluster.yaml", inputCluster)
	write("m/bad.yaml", bad("network: red"))
	write("m/named.yaml", strings.ReplaceAll(object("red", "{}", "{ip: 203.0.113.67}", "10.244.1.67"), "name: red", "name: "+unprintable))
	write("m/node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: "+unprintable+"}\nstatus: {conditions: [{type: Ready, status: \"True\"}], addresses: [{type: InternalIP, address: "+unprintable+"}]}\n")
	for _, format := range []string{"text", "json", "yaml"} {
		for _, command := range []string{"plan", "check"} {
			t.Run(command+" "+format, func(t *testing.T) {
				args := []string{command, "--config", conf, "--manifests", filepath.Join(dir, "m"), "-o", format}
				if command == "plan" {
					args = append(args, "--node", "a")
				}
				var out, errs bytes.Buffer
				execute(args, &out, &errs)
				requireInert(t, out.String())
				requireInert(t, errs.String())
				require.Contains(t, out.String(), "fake")
			})
		}
	}
	t.Run("error", func(t *testing.T) {
		for _, args := range [][]string{{"plan", "--config", conf + hostile, "--manifests", dir, "--node", "a"}, {"check", "--config", conf + hostile}, {hostile}} {
			var out, errs bytes.Buffer
			require.Equal(t, exitError, execute(args, &out, &errs))
			requireInert(t, out.String()+strings.ReplaceAll(errs.String(), "\n\tfake", " fake")) // an error may have several lines
			require.Contains(t, out.String()+errs.String(), "fake")
		}
	})
}

// TestStatusEscapes writes a report full of hostile text in every format; programs read the same values back from JSON and YAML.
func TestStatusEscapes(t *testing.T) {
	report := status.Report{
		Node: hostile, Version: hostile, Errors: []string{hostile},
		Services: []status.Service{{
			Namespace: hostile, Name: hostile, Network: hostile, Host: hostile,
			Problems: []status.Problem{{Kind: "EgressService", Object: hostile, Value: hostile, Reason: cluster.Reason(hostile), Message: hostile}},
		}},
		Networks: []status.Network{{Name: hostile, VRF: hostile}},
		Problems: []status.Problem{{Kind: "Service", Object: hostile, Value: hostile, Reason: cluster.Reason(hostile), Message: hostile}},
	}
	for _, format := range statusFormats {
		t.Run(format, func(t *testing.T) {
			write, err := statusWriter(format, false)
			require.NoError(t, err)
			var out bytes.Buffer
			require.NoError(t, write(&out, report))
			if format != "svg" && format != "dot" {
				requireInert(t, out.String())
			}
			require.False(t, strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && r != '\t' && !text.Safe(r) }), "%q", out.String())
			var back status.Report
			switch format {
			case "json":
				require.NoError(t, json.Unmarshal(out.Bytes(), &back))
				require.Equal(t, report.Services[0].Network, back.Services[0].Network)
			case "yaml":
				require.NoError(t, yaml.Unmarshal(out.Bytes(), &back))
				require.Equal(t, report.Services[0].Network, back.Services[0].Network)
			}
		})
	}
}

// TestYAML compares the output of writeYAML with the one of another library.
func TestYAML(t *testing.T) {
	value := map[string]any{
		"yes": "no", "number": "0777", "multi": "a\nb\n", "list": []any{"on", map[string]any{"a": float64(1), hostile: "~"}}, "mark": float64(1 << 40),
		"empty": "", "dash": "- a", "colon": "a: b", "next": "a\u0085b\u2028c", "tabs": "a\tb", "long": strings.Repeat("word ", 60) + "\u202e",
	}
	var out bytes.Buffer
	require.NoError(t, encode(&out, "yaml", value))
	var back map[string]any
	require.NoError(t, yaml.Unmarshal(out.Bytes(), &back), out.String())
	require.Equal(t, value, back, out.String())
}

// TestLogEscapes logs hostile text in both formats, also one character at a time: slog quotes a text because of some characters only.
func TestLogEscapes(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := newLogger(&out, config.Log{Level: "info", Format: format})
		log.Info(hostile, "object", hostile, "name", status.Problem{Message: hostile})
		for _, r := range hostile {
			log.Info("one", "object", "a"+string(r)+"b")
		}
		requireInert(t, out.String())
		require.Equal(t, 1+len([]rune(hostile)), strings.Count(out.String(), "\n"))
	}
}

// TestSocketOfTheEnvironment checks that commands use the socket on which the daemon would listen in the same environment.
func TestSocketOfTheEnvironment(t *testing.T) {
	socket, speaker := filepath.Join(t.TempDir(), "other.sock"), filepath.Join(t.TempDir(), "speaker.sock")
	t.Setenv("EGRESSWAY_STATUS_SOCKET", socket)
	t.Setenv("EGRESSWAY_SPEAKER_SOCKET", speaker)
	for _, args := range [][]string{{"status"}, {"status", "--watch"}, {"drain"}, {"drain", "--undo"}} {
		var out, errs bytes.Buffer
		require.Equal(t, exitError, execute(args, &out, &errs), args)
		require.Contains(t, errs.String(), "no daemon answers on socket "+socket, args)
	}
	require.Equal(t, socket, newTraceCommand().Flag("socket").DefValue)
	require.Equal(t, speaker, newSpeakerCommand().Flag("socket").DefValue)

	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	var out, errs bytes.Buffer
	require.Equal(t, exitError, execute([]string{"cleanup"}, &out, &errs))
	require.Contains(t, errs.String(), "the daemon that answers at "+socket)

	t.Setenv("EGRESSWAY_MARKS_MASK", "much")
	require.Equal(t, config.Defaults().Marks, config.Unconfigured().Marks)
}
