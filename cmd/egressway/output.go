package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/text"
)

// encode writes a value as json or yaml. It escapes characters that a terminal would interpret, in the format's own
// way, so that programs read the same value.
func encode(out io.Writer, format string, v any) error {
	write := writeJSON
	if format == "yaml" {
		write = writeYAML
	}
	return write(out, v, "  ")
}

func writeJSON(out io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(escaped(b.Bytes(), jsonEscape))
	return err
}

// writeYAML writes a value with its names in JSON.
func writeYAML(out io.Writer, v any, _ string) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var plain any
	if err := yaml.Unmarshal(escaped(b, yamlEscape), &plain); err != nil { // JSON is YAML, except for some characters
		return fmt.Errorf("write YAML: %w", err)
	}
	var tree yaml.Node
	if err := tree.Encode(plain); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	quoteUnsafe(&tree)
	var written bytes.Buffer
	e := yaml.NewEncoder(&written)
	e.SetIndent(2)
	e.CompactSeqIndent()
	if err := e.Encode(&tree); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = out.Write(escaped(written.Bytes(), yamlEscape))
	return err
}

// quoteUnsafe puts texts with unsafe characters in double quotes, the only kind in which YAML has escapes.
func quoteUnsafe(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && strings.ContainsFunc(n.Value, func(r rune) bool { return !text.Safe(r) && r != '\n' }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, inner := range n.Content {
		quoteUnsafe(inner)
	}
}

// escaped replaces unsafe characters, which occur only in quoted texts. Encoders escape ASCII's control characters
// themselves.
func escaped(b []byte, escape func(rune) string) []byte {
	unsafe := func(r rune) bool { return r >= 0x7f && !text.Safe(r) }
	if !bytes.ContainsFunc(b, unsafe) {
		return b
	}
	safe := make([]byte, 0, len(b)+64)
	for _, r := range string(b) {
		if unsafe(r) {
			safe = append(safe, escape(r)...)
		} else {
			safe = utf8.AppendRune(safe, r)
		}
	}
	return safe
}

func jsonEscape(r rune) string {
	if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

func yamlEscape(r rune) string { return fmt.Sprintf(`\U%08x`, r) }

// outputFlag adds -o with its formats; the first is the default.
func outputFlag(c *cobra.Command, format *string, formats ...string) {
	last := len(formats) - 1
	names := strings.Join(formats[:last], ", ") + " or " + formats[last]
	c.Flags().StringVarP(format, "output", "o", formats[0], "`format`: "+names)
	complete(c, "output", formats...)
}

// complete makes the shell complete a flag with values.
func complete(c *cobra.Command, flag string, values ...string) {
	// It fails for an unknown flag only.
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// socketFlag adds --socket, the path of the daemon's socket.
func socketFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "socket", config.Unconfigured().Status.Socket,
		"`path` of the daemon's socket (or EGRESSWAY_STATUS_SOCKET)")
	_ = c.MarkFlagFilename("socket", "sock") // fails for an unknown flag only
}
