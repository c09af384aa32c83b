// Command gendoc writes the tables of docs/configuration.md anew from the types of package config: keys by their yaml tags, what
// they mean by the comments beside the fields, defaults by what config.Parse makes of a file that says nothing of them.
//
// In the file a table stands between two comments, and what is around them is written by hand:
//
//	<!-- keys of bgp -->
//	<!-- end of keys -->
//
// "keys of bgp" are bgp and all below it, less what another table has; "keys of networks[]" are those of the list's entries. The
// first table, "keys of the file", has those at the top. Every key must find its table.
//
//	gendoc FOLDER-OF-PACKAGE-CONFIG FILE
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gendoc FOLDER-OF-PACKAGE-CONFIG FILE")
		os.Exit(1)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}

func run(folder, file string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	anew, err := rewrite(folder, string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if anew == string(old) {
		return nil
	}
	return os.WriteFile(file, []byte(anew), 0o644)
}
