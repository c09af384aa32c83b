// Command gendoc writes the tables of docs/configuration.md from the types of package config: keys from their yaml
// tags, descriptions from the comments beside the fields, and defaults from the Config that config.Parse returns for a
// minimal file.
//
// In the file, a table stands between two comments; the text around them is written by hand:
//
//	<!-- keys of bgp -->
//	<!-- end of keys -->
//
// "keys of bgp" holds bgp and all keys below it, except those of other tables; "keys of networks[]" holds the keys of
// the list's entries. The first table, "keys of the file", holds the top level. Every key must have a table.
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
	text, err := rewrite(folder, string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if text == string(old) {
		return nil
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
