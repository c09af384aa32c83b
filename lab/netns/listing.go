package netns

import (
	"slices"
	"strings"
)

// SortedListing returns the sets and chains of a listing, sorted: the kernel lists them in order of creation.
func SortedListing(text string) string {
	_, text, _ = strings.Cut(text, "\n")
	parts := strings.Split(strings.TrimSuffix(text, "}\n"), "\n\n")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n\n")
}
