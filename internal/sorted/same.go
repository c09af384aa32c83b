package sorted

import (
	"fmt"
	"reflect"
	"slices"
)

// OneSlice reports whether two immutable slices are one: of the same length, in the same array.
func OneSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// SameSlice reports whether two immutable slices have equal elements; it compares none if they are one.
func SameSlice[T comparable](a, b []T) bool { return OneSlice(a, b) || slices.Equal(a, b) }

// Same reports whether two values are equal in every part: fields of structs, elements of slices, arrays and maps, targets of
// pointers, and Lists. It does not look inside slices, Lists and targets that both values share. A nil slice equals an
// empty one; a nil map differs from an empty one. Same panics for functions, channels and interfaces.
func Same[T any](a, b *T) bool { return same(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()) }

// Share gives next each field of former that is equal, so that both share its memory, and reports whether all fields are
// equal. It goes through structs inside of next, but not through elements of slices: those may be shared already.
func Share[T any](former, next *T) (equal bool) {
	return share(reflect.ValueOf(former).Elem(), reflect.ValueOf(next).Elem())
}

func share(former, next reflect.Value) bool {
	if next.Kind() == reflect.Struct && next.NumField() > 0 && next.Field(0).CanSet() { // else its fields are not exported
		equal := true
		for i := range next.NumField() {
			equal = share(former.Field(i), next.Field(i)) && equal
		}
		return equal
	}
	if !same(former, next) {
		return false
	}
	next.Set(former)
	return true
}

// list is a List of any type.
type list interface{ sameAs(other any) bool }

func (l *List[T]) sameAs(other any) bool { return l.Same(*other.(*List[T])) }

var own = reflect.TypeFor[list]().PkgPath()

func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice:
		return sameSlices(a, b)
	case reflect.Array:
		return sameElements(a, b)
	case reflect.Map:
		return sameMaps(a, b)
	case reflect.Pointer:
		return a.UnsafePointer() == b.UnsafePointer() || !a.IsNil() && !b.IsNil() && same(a.Elem(), b.Elem())
	case reflect.Struct:
		return sameStructs(a, b)
	case reflect.Func, reflect.Chan, reflect.Interface, reflect.UnsafePointer:
		panic(fmt.Sprintf("sorted: a value of type %s cannot be compared", a.Type()))
	default:
		return a.Equal(b)
	}
}

// sameStructs compares the fields of two structs, or the elements of two Lists.
func sameStructs(a, b reflect.Value) bool {
	if a.Type().PkgPath() == own { // its chunks may differ where its elements do not
		return a.Addr().Interface().(list).sameAs(b.Addr().Interface())
	}
	for i := range a.NumField() {
		if !same(a.Field(i), b.Field(i)) {
			return false
		}
	}
	return true
}

func sameSlices(a, b reflect.Value) bool {
	return a.Len() == b.Len() && (a.Len() == 0 || a.UnsafePointer() == b.UnsafePointer() || sameElements(a, b))
}

func sameElements(a, b reflect.Value) bool {
	for i := range a.Len() {
		if !same(a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

func sameMaps(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	return a.UnsafePointer() == b.UnsafePointer() || sameEntries(a, b)
}

// sameEntries reports whether map b, which is as large as map a, has the entries of a.
func sameEntries(a, b reflect.Value) bool {
	for entry := a.MapRange(); entry.Next(); {
		other := b.MapIndex(entry.Key())
		if !other.IsValid() || !same(entry.Value(), other) {
			return false
		}
	}
	return true
}
