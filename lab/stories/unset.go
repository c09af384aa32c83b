package stories

import (
	"maps"
	"reflect"
	"slices"
)

// Unset lists the exported fields with JSON that are zero in all values, by their paths from a value on. Values are of one type; of slices
// and sorted lists it looks into each element, and passes over the elements' fields where no value has an element.
func Unset(values ...any) []string {
	set := map[string]bool{}
	for _, v := range values {
		note(set, "", reflect.ValueOf(v))
	}
	maps.DeleteFunc(set, func(_ string, is bool) bool { return is })
	return slices.Sorted(maps.Keys(set))
}

// note records under path whether v is set, and its fields under theirs.
func note(set map[string]bool, path string, v reflect.Value) {
	set[path] = set[path] || !v.IsZero()
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			note(set, path, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			note(set, path, v.Index(i))
		}
	case reflect.Struct:
		if list := v.MethodByName("Slice"); list.IsValid() {
			note(set, path, list.Call(nil)[0])
			return
		}
		noteFields(set, path, v)
	}
}

// noteFields records the exported fields of a struct that JSON has.
func noteFields(set map[string]bool, path string, v reflect.Value) {
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() && field.Tag.Get("json") != "-" {
			note(set, path+"."+field.Name, v.Field(i))
		}
	}
}
