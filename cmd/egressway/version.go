package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set when a release is built.
var version = "devel"

func newVersionCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "version [-o text|json|yaml]",
		Short: "Print the version",
		Long: `Print the version of this program, of Go that built it, and its platform.

Exit codes: 0.`,
		Example: `  egressway version        # or: egressway --version
  egressway version -o json | jq -r .version`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("-o", format, "text", "json", "yaml"); err != nil {
				return err
			}
			v := thisVersion()
			if format != "text" {
				return encode(cmd.OutOrStdout(), format, v)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "egressway", v.line())
			return nil
		},
	}
	outputFlag(c, &format, "text", "json", "yaml")
	return c
}

// versionInfo is the output of version.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisVersion() versionInfo {
	return versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
}

func (v versionInfo) line() string { return v.Version + " " + v.Go + " " + v.Platform }
