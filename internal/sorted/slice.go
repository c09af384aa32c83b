package sorted

import "slices"

// OneSlice reports whether two slices, which nobody changes any more, are one: as long, and of the same array.
func OneSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// SameSlice reports whether two such slices hold the same, at once where they are one.
func SameSlice[T comparable](a, b []T) bool { return OneSlice(a, b) || slices.Equal(a, b) }
