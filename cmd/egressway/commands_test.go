package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/egressway/egressway/internal/trace"
)

// TestCommandsAreExplained checks every command's help, and that docs/commands.md has all commands and flags.
func TestCommandsAreExplained(t *testing.T) {
	docs, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	for _, c := range newRootCommand().Commands() {
		t.Run(c.Name(), func(t *testing.T) {
			require.NotEmpty(t, c.Short)
			require.Regexp(t, `(?m)^  egressway `+c.Name(), "  "+strings.TrimSpace(c.Example))
			require.Regexp(t, `Exit codes: 0`, c.Long)
			require.Contains(t, string(docs), "\n## egressway "+c.Name()+"\n")
			require.Contains(t, string(docs), "| `"+c.Name()+"` |", "the table of exit codes")
			for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(c.LocalFlags().FlagUsages(), -1) {
				require.Contains(t, string(docs), flag, "flag of %s", c.Name())
			}
			if f := c.Flags().Lookup("output"); f != nil {
				complete, ok := c.GetFlagCompletionFunc("output")
				require.True(t, ok)
				values, _ := complete(c, nil, "")
				require.NotEmpty(t, values)
				for _, v := range values {
					require.Contains(t, f.Usage, v)
					require.Contains(t, c.Use, v)
				}
			}
		})
	}
}

// TestJSONFieldsAreDocumented compares the fields of trace's output with those in docs/commands.md.
func TestJSONFieldsAreDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	a := netip.MustParseAddr("10.0.0.1")
	b, err := json.Marshal(trace.Result{
		Request: trace.Request{From: a, To: a, Port: 1, Reply: true}, Node: "a", Steps: []trace.Step{{Asked: "x"}}, Flows: []trace.Flow{{}},
		Verdict: trace.Verdict{Network: "x", VRF: "x", Table: 1, Device: "x", NextHop: a, Source: a, Host: "x"},
	})
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(string(b), -1) {
		require.Contains(t, string(docs), "`"+name[1]+"`")
	}
}

func TestTraceRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--from x --to 198.51.100.10":                            `--from "x": an IP address such as 10.244.1.11 or fd44:1::11 is needed`,
		"--from 10.244.1.11/32 --to 198.51.100.10":               `--from "10.244.1.11/32": an IP address such as 10.244.1.11 or fd44:1::11 is needed`,
		"--from 10.244.1.11 --to y":                              `--to "y": an IP address such as 10.244.1.11 or fd44:1::11 is needed`,
		"--from 10.244.1.11 --to 2001:db8::1":                    `--to 2001:db8::1: an address of the same family as --from 10.244.1.11 is needed`,
		"--from fe80::1%eth0 --to 2001:db8::1":                   `--from fe80::1%eth0: a unicast address without a zone is needed, of a pod or of a host outside`,
		"--from 0.0.0.0 --to 198.51.100.10":                      `--from 0.0.0.0: a unicast address without a zone is needed, of a pod or of a host outside`,
		"--from 10.244.1.11 --to 198.51.100.10 --proto sctp":     `--proto "sctp": one of tcp, udp, icmp`,
		"--from 10.244.1.11 --to 198.51.100.10 --dport 70000":    `--dport "70000": a port from 1 to 65535 is needed`,
		"--from 10.244.1.11 --to 1.2.3.4 --proto icmp --dport 8": `--dport 8: ICMP has no ports: leave it out, or say --proto tcp or udp`,
		"--from 10.244.1.11 --to 198.51.100.10 -o table":         `-o "table": one of text, json, yaml`,
		"--from 10.244.1.11":                                     `required flag(s) "to" not set`,
		"--from 10.244.1.11 --to 198.51.100.10 --fast":           `unknown flag: --fast: see "egressway trace --help"`,
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitError, execute(append([]string{"trace"}, strings.Fields(args)...), &out, &errs), args)
		require.Equal(t, "egressway: "+want+"\n", errs.String(), args)
		require.Empty(t, out.String())
	}
}

func TestCheckForPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("log: {level: loud}\n"), 0o600))
	type answer struct {
		OK      bool
		Summary string
		Errors  []checked
	}
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal, "yaml": func(b []byte, v any) error { return yaml.Unmarshal(b, v) },
	} {
		out, err := runCheck(t, "--config", file, "-o", format)
		require.EqualError(t, err, "1 error")
		var got answer
		require.NoError(t, decode([]byte(out), &got), out)
		require.Equal(t, answer{Errors: []checked{{Where: file + ":1", Field: "log.level", Value: "loud", Message: "one of debug, info, warn, error"}}}, got)

		out, err = runCheck(t, "--config", "../../config/egressway.yaml", "-o", format)
		require.NoError(t, err)
		got = answer{}
		require.NoError(t, decode([]byte(out), &got), out)
		require.True(t, got.OK)
		require.Equal(t, []checked{}, got.Errors)
	}
}

func TestVersionForPrograms(t *testing.T) {
	out, err := runCommand(t, newVersionCommand(), "-o", "json")
	require.NoError(t, err)
	var v versionInfo
	require.NoError(t, json.Unmarshal([]byte(out), &v))
	require.Equal(t, version, v.Version)
	require.Regexp(t, `^go1\.`, v.Go)
}

// TestVersionFlag checks that --version prints the line of the command version.
func TestVersionFlag(t *testing.T) {
	var flag, command, errs bytes.Buffer
	require.Zero(t, execute([]string{"--version"}, &flag, &errs))
	require.Zero(t, execute([]string{"version"}, &command, &errs))
	require.Equal(t, strings.Replace(command.String(), "egressway ", "egressway version ", 1), flag.String())
	require.Empty(t, errs.String())
	require.Equal(t, exitError, execute([]string{"status", "--version"}, &flag, &errs))
	require.Equal(t, "egressway: unknown flag: --version: see \"egressway status --help\"\n", errs.String())
}

// TestCompletion asks for completions as a shell does.
func TestCompletion(t *testing.T) {
	complete := func(args ...string) string {
		var out, errs bytes.Buffer
		require.Zero(t, execute(append([]string{cobra.ShellCompRequestCmd}, args...), &out, &errs))
		return out.String()
	}
	require.Equal(t, "table\nwide\njson\nyaml\ndot\nsvg\n:4\n", complete("status", "-o", ""))
	require.Equal(t, "tcp\nudp\nicmp\n:4\n", complete("trace", "--proto", ""))
	require.Equal(t, "a\nb\nc\n:4\n", complete("plan", "--manifests", "../../config/samples", "--node", ""))
	require.Equal(t, "yaml\nyml\n:8\n", complete("check", "--config", ""))
}

func TestExitCodes(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitOK, execute([]string{"cluster"}, &out, &errs))
	require.Equal(t, exitError, execute([]string{"cluster", "drian", "worker-3"}, &out, &errs), "a command that is misspelt did nothing")
	require.Contains(t, errs.String(), `unknown command "drian" for "egressway cluster"`)
	errs.Reset()
	require.NoError(t, result(exitOK, nil))
	require.Equal(t, exitError, exitCode(result(137, nil), &errs))
	require.Contains(t, errs.String(), "137", "nothing else has printed it")
	errs.Reset()
	require.Equal(t, exitOK, exitCode(nil, &errs))
	require.Equal(t, exitError, exitCode(invalidError{2}, &errs))
	require.Equal(t, exitWrong, exitCode(foundWrong{}, &errs))
	require.Empty(t, errs.String(), "it has been printed")
	require.Equal(t, exitError, exitCode(os.ErrNotExist, &errs))
	require.Equal(t, "egressway: file does not exist\n", errs.String())
}
