package cluster

import (
	"cmp"
	"slices"
	"strings"
)

// longestValue bounds the value that a Problem quotes, in bytes.
const longestValue = 128

// Clip shortens a field's value to the length that a Problem may quote.
func Clip(value string) string {
	if len(value) <= longestValue {
		return value
	}
	return strings.ToValidUTF8(value[:longestValue], "") + "…"
}

// SortProblems sorts problems by object and field, and drops duplicates. A problem without file and line is a duplicate
// of the same one with them.
func SortProblems(problems []Problem) []Problem {
	same := func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Object, b.Object),
			cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Value, b.Value),
			cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Message, b.Message),
			cmp.Compare(a.More, b.More),
			cmp.Compare(a.Node, b.Node),
		)
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(same(a, b), -cmp.Compare(a.Where, b.Where)) // a place before none
	})
	kept := problems[:0]
	for _, p := range problems {
		if n := len(kept); n > 0 && same(kept[n-1], p) == 0 && (p.Where == "" || p.Where == kept[n-1].Where) {
			continue
		}
		kept = append(kept, p)
	}
	return kept
}
