// Command gendoc writes the tables of docs/configuration.md and the JSON Schema of the configuration from the types of package
// config: keys from their yaml tags, descriptions from the comments beside the fields, and defaults from the Config that
// config.Parse returns for a minimal file.
//
// In the page, a table stands between two comments; the text around them is written by hand:
//
//	<!-- keys of bgp -->
//	<!-- end of keys -->
//
// "keys of bgp" holds bgp and all keys below it, except those of other tables; "keys of networks[]" holds the keys of
// the list's entries. The first table, "keys of the file", holds the top level. Every key must have a table.
//
// In the schema, a key is required if its comment ends with "; required", and has a fixed set of values if its type has constants or its
// comment is a list of values, "`text` or `json`".
//
//	gendoc FOLDER-OF-PACKAGE-CONFIG PAGE SCHEMA
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: gendoc FOLDER-OF-PACKAGE-CONFIG PAGE SCHEMA")
		os.Exit(1)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}

func run(folder, page, schema string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	tables, err := rewrite(folder, string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	if tables != string(old) {
		if err := os.WriteFile(page, []byte(tables), 0o644); err != nil {
			return err
		}
	}
	text, err := schemaOf(folder)
	if err != nil {
		return err
	}
	return os.WriteFile(schema, text, 0o644)
}
