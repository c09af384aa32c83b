package main

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// encode writes a value as json or yaml.
func encode(out io.Writer, format string, v any) error {
	if format == "yaml" {
		b, err := yaml.Marshal(v)
		if err == nil {
			_, err = out.Write(b)
		}
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// outputFlag adds -o with the formats that there are, the first of which is the usual one.
func outputFlag(c *cobra.Command, format *string, formats ...string) {
	last := len(formats) - 1
	names := strings.Join(formats[:last], ", ") + " or " + formats[last]
	c.Flags().StringVarP(format, "output", "o", formats[0], "`format`: "+names)
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // fails for an unknown flag only
}
