package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/text"
)

// Error is one fault of a configuration.
type Error struct {
	File    string // or "$EGRESSWAY_…" for a value from the environment
	Line    int    // 0: the whole file
	Field   string // path of the key, with names of list entries: networks[red].peers[10.1.0.1].holdTime
	Value   string // the present value; empty: it is missing
	Message string // what would be right
}

// Error returns the fault on one line: file:line: field: value: message.
func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Field != "" {
		b.WriteString(": " + e.Field)
	}
	if e.Value != "" {
		b.WriteString(": " + text.Quote(e.Value))
	}
	b.WriteString(": " + e.Message)
	return text.Line(b.String())
}

// Errors holds all faults of a configuration, by line. Load returns them if it could read the file.
type Errors []Error

// Error returns one error per line.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap makes each error visible to errors.As.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

func (es Errors) sort() {
	slices.SortStableFunc(es, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.File, b.File), cmp.Compare(a.Field, b.Field))
	})
}

// unknownKey returns the message about a key that is not known.
func unknownKey(key string, known []string) string {
	list := "nown here: " + strings.Join(known, ", ")
	if meant := text.Nearest(key, known); meant != "" {
		return "unknown key: is " + meant + " meant? K" + list
	}
	return "unknown key; k" + list
}

// remedy returns the advice about a variable that names no key. known are the names without our prefix.
func remedy(name string, known []string) string {
	if meant := text.Nearest(strings.TrimPrefix(name, envPrefix), known); meant != "" {
		return "is " + envPrefix + meant + " meant?"
	}
	return "unset it; docs/configuration.md lists the variables"
}
