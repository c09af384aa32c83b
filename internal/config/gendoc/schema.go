package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/config"
)

// schema is the part of JSON Schema, draft 7, that describes the configuration. A keyword about one type of values does not
// concern values of other types.
type schema struct {
	Version     string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Types       []string           `json:"type"`
	Enum        []any              `json:"enum,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	Minimum     *int64             `json:"minimum,omitempty"`
	Maximum     *int64             `json:"maximum,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Others      any                `json:"additionalProperties,omitempty"` // of an object: false, or the schema of all its values
}

// null is the type of the value that leaves the default: every key accepts it.
const null = "null"

func ofTypes(types ...string) *schema { return &schema{Types: append(types, null)} }

func (s *schema) matching(pattern string) *schema {
	s.Pattern = pattern
	return s
}

func (s *schema) between(least, most int64) *schema {
	s.Minimum, s.Maximum = &least, &most
	return s
}

// Patterns of addresses check IPv4 completely and IPv6 by its characters, so that they refuse no address that netip accepts.
const (
	octet     = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipv4      = octet + `(\.` + octet + `){3}`
	ipv6      = `[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*`
	anAddress = `^(` + ipv4 + `|` + ipv6 + `(%.+)?)?$`
	aPrefix   = `^(` + ipv4 + `/(3[0-2]|[12]?[0-9])|` + ipv6 + `/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$`
	aDuration = `^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
)

// natural returns the schema of a number, which may be a text in hexadecimal.
func natural(least, most int64) *schema {
	digits := len(fmt.Sprintf("%x", most))
	return ofTypes("integer", "string").matching(fmt.Sprintf("^0x0*[0-9A-Fa-f]{1,%d}$", digits)).between(least, most)
}

// schemaOf returns the JSON Schema of the configuration as its file has it.
func schemaOf(folder string) ([]byte, error) {
	s, err := read(folder)
	if err != nil {
		return nil, err
	}
	all, err := keys(s)
	if err != nil {
		return nil, err
	}
	b := builder{source: s, keys: map[string]key{}}
	for _, k := range all {
		b.keys[k.path] = k
	}
	root := b.object(reflect.TypeFor[config.Config](), "")
	root.Version = "http://json-schema.org/draft-07/schema#"
	root.Title = "Configuration of Egressway"
	root.Description = `"make generate" writes this file from the types of internal/config. "egressway check" finds more errors.`
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(root); err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return out.Bytes(), nil
}

// builder makes schemas of types.
type builder struct {
	source
	keys map[string]key // by path
}

// value returns the schema of values of type t. path is that of their key, with "[]" for an entry of a list.
func (b builder) value(t reflect.Type, path string) *schema {
	switch t {
	case reflect.TypeFor[netip.Addr]():
		return ofTypes("string").matching(anAddress)
	case reflect.TypeFor[netip.Prefix]():
		return ofTypes("string").matching(aPrefix)
	case reflect.TypeFor[config.Duration]():
		return ofTypes("string", "integer").matching(aDuration).between(0, 0) // 0 needs no unit
	case reflect.TypeFor[config.VLANID]():
		return natural(1, 4094)
	case reflect.TypeFor[metav1.LabelSelectorOperator]():
		return words("In", "NotIn", "Exists", "DoesNotExist")
	}
	switch t.Kind() {
	case reflect.Pointer:
		return b.value(t.Elem(), path)
	case reflect.Struct:
		return b.object(t, path)
	case reflect.Map:
		s := ofTypes("object")
		s.Others = b.value(t.Elem(), path)
		return s
	case reflect.Slice:
		s := ofTypes("array")
		s.Items = b.value(t.Elem(), path+"[]")
		return s
	}
	return b.scalar(t, path)
}

func (b builder) scalar(t reflect.Type, path string) *schema {
	switch t.Kind() {
	case reflect.Bool:
		return ofTypes("boolean")
	case reflect.String:
		return b.text(t, path)
	case reflect.Int:
		return ofTypes("integer").between(math.MinInt64, math.MaxInt64)
	}
	return natural(0, 1<<t.Bits()-1)
}

// choice matches a description that lists all values of a string.
var choice = regexp.MustCompile("^`[^`]+`(, `[^`]+`)* or `[^`]+`$")

func (b builder) text(t reflect.Type, path string) *schema {
	values := b.choices[t.Name()]
	if means := b.keys[path].means; choice.MatchString(means) {
		values = regexp.MustCompile("[^`, ]{2,}").FindAllString(strings.ReplaceAll(means, " or ", " "), -1)
	}
	if len(values) == 0 {
		return ofTypes("string")
	}
	return words(append(slices.Clone(values), b.empty[t.Name()]...)...)
}

func words(values ...string) *schema {
	s := ofTypes("string")
	for _, v := range values {
		s.Enum = append(s.Enum, v)
	}
	s.Enum = append(s.Enum, nil)
	return s
}

// object returns the schema of the mapping that a struct is in the file.
func (b builder) object(t reflect.Type, path string) *schema {
	s := ofTypes("object")
	if t == reflect.TypeFor[config.Interface]() {
		s = ofTypes("object", "string") // its name alone
	}
	s.Others, s.Properties = false, map[string]*schema{}
	for field := range t.Fields() {
		name := keyOf(field)
		if name == "" {
			continue
		}
		below := strings.TrimPrefix(path+"."+name, ".")
		property := b.value(field.Type, below)
		property.Description = b.describe(t.Name()+"."+field.Name, below)
		s.Properties[name] = property
		if strings.HasSuffix(b.keys[below].means, required) {
			s.Required = append(s.Required, name)
		}
	}
	return s
}

// required ends the comment of a key that an entry must have.
const required = "; required"

// keyOf returns the key of a field; empty: it has none. Types of the API have JSON tags only.
func keyOf(field reflect.StructField) string {
	tag := field.Tag.Get("yaml")
	if tag == "" {
		tag = field.Tag.Get("json")
	}
	name, _, _ := strings.Cut(tag, ",")
	return strings.TrimPrefix(name, "-")
}

// describe returns the description of the key at path, with its default. where is the field's name in source.comments, which keys with
// further keys below them have alone.
func (b builder) describe(where, path string) string {
	k, ok := b.keys[path]
	if !ok {
		means, _ := split(b.comments[where], "")
		return means
	}
	if k.fallback == "" {
		return k.means
	}
	return k.means + ". Default: " + k.fallback
}
