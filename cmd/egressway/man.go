package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the command that packages use to make the manual pages. Help does not list it.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages of all commands into a folder",
		Long: `Write the manual pages of all commands, of section 8, into a folder, as packages contain them.

Exit codes: 0 they are written; 1 an error.`,
		Example: `  egressway man /usr/local/share/man/man8`,
		Args:    cobra.ExactArgs(1),
		Hidden:  true,
		RunE:    func(c *cobra.Command, args []string) error { return writeManual(c.Root(), args[0]) },
	}
}

// writeManual writes a page of section 8 for each command. Pages have the date of SOURCE_DATE_EPOCH, if that is set, so that two
// builds of a release are the same.
func writeManual(root *cobra.Command, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder of the manual: %w", err)
	}
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "8", Source: "Egressway " + version, Manual: "Egressway"}
	if err := doc.GenManTree(root, header, folder); err != nil {
		return fmt.Errorf("write the manual: %w", err)
	}
	return nil
}
