package sorted

import "slices"

// OneSlice reports whether two immutable slices are one: of the same length, in the same array.
func OneSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// SameSlice reports whether two immutable slices have equal elements; it compares none if they are one.
func SameSlice[T comparable](a, b []T) bool { return OneSlice(a, b) || slices.Equal(a, b) }
