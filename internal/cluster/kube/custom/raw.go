// Package custom reads objects of custom kinds, and asks an API server about their CustomResourceDefinitions (CRDs).
package custom

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// Object is an object of any kind whose spec and status are still to be decoded. A CRD admits values that Go's types reject, such as
// times with a lower-case t; decoded at once, one such object would make the whole list fail.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   json.RawMessage `json:"spec"`
	Status json.RawMessage `json:"status"`
}

// List is a list of Objects.
type List struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Object `json:"items"`
}

// DeepCopyObject makes it a runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object {
	c := &Object{TypeMeta: o.TypeMeta, Spec: slices.Clone(o.Spec), Status: slices.Clone(o.Status)}
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return c
}

// DeepCopyObject makes it a runtime.Object.
func (l *List) DeepCopyObject() runtime.Object {
	c := &List{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*Object))
	}
	return c
}

// Scheme returns a scheme that decodes every kind of the API group as Object.
func Scheme() *runtime.Scheme {
	typed, s := runtime.NewScheme(), runtime.NewScheme()
	_ = egressv1.AddToScheme(typed) // fails for no type of ours
	for kind := range typed.KnownTypes(egressv1.GroupVersion) {
		if list := kind + "List"; typed.Recognizes(egressv1.GroupVersion.WithKind(list)) {
			s.AddKnownTypeWithName(egressv1.GroupVersion.WithKind(kind), &Object{})
			s.AddKnownTypeWithName(egressv1.GroupVersion.WithKind(list), &List{})
		}
	}
	metav1.AddToGroupVersion(s, egressv1.GroupVersion)
	return s
}

// Decode decodes a part of an Object. A part that is absent changes nothing.
func Decode(text json.RawMessage, into any) error {
	if len(text) == 0 {
		return nil
	}
	return plain(kjson.UnmarshalCaseSensitivePreserveInts(text, into))
}

// mismatch matches the error of a value of the wrong type: the value, perhaps its field, and the Go type.
var mismatch = regexp.MustCompile(`^json: cannot unmarshal (.+) into Go (?:value|struct field [^ ]*\.([^ .]+)) of type (.+)$`)

// plain returns an error about a value of the wrong type without the words of Go, which users of objects need not know.
func plain(err error) error {
	if err == nil {
		return nil
	}
	found := mismatch.FindStringSubmatch(err.Error())
	if found == nil {
		return err //nolint:wrapcheck // the caller names the part
	}
	value, field, of := found[1], found[2], found[3]
	right := "an object"
	switch {
	case strings.HasPrefix(of, "[]"):
		right = "a list"
	case strings.HasPrefix(of, "int"):
		right = "a whole number of " + cmp.Or(strings.TrimPrefix(of, "int"), "64") + " bits"
	case of == "string" || strings.HasSuffix(of, "Type") || strings.HasSuffix(of, "Operator"):
		right = "a string"
	}
	if field != "" {
		field = " at " + field
	}
	return fmt.Errorf("%s%s, where %s belongs", value, field, right)
}
