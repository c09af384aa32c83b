package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// place is the position of a value in its file, and its name in messages.
type place struct {
	file  string
	line  int
	shown string // path with names of list entries
	text  string // a scalar as written
}

// decoder fills a Config from YAML. It is stricter than the library: unknown keys, duplicate keys and values of another
// type are errors. One pass finds them all, each with its line.
type decoder struct {
	file   string
	places map[string]place // by path with positions of list entries, networks[0].peers[1].holdTime
	failed map[string]bool  // paths whose values could not be decoded: they get no further errors
	errs   Errors
}

func newDecoder(file string) *decoder {
	return &decoder{file: file, places: map[string]place{}, failed: map[string]bool{}}
}

func (d *decoder) errorf(n *yaml.Node, shown, value, format string, args ...any) {
	d.errs = append(d.errs, Error{File: d.file, Line: n.Line, Field: shown, Value: value, Message: fmt.Sprintf(format, args...)})
}

// decode decodes data, which must hold one document, into c.
func (d *decoder) decode(data []byte, c *Config) {
	docs := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	if err := docs.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			d.syntax(err)
		}
		return
	}
	switch err := docs.Decode(&next); {
	case err == nil:
		d.errorf(&next, "", "", "a second document begins here: one is allowed")
	case !errors.Is(err, io.EOF):
		d.syntax(err)
	}
	if root := doc.Content[0]; !null(root) {
		d.value(root, reflect.ValueOf(c).Elem(), "", "")
	}
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// syntax reports a syntax error, with the line from the library's message.
func (d *decoder) syntax(err error) {
	text := err.Error()
	m := yamlLine.FindStringSubmatch(text)
	line, _ := strconv.Atoi(m[1]) // none: 0, the whole file
	d.errs = append(d.errs, Error{File: d.file, Line: line, Message: "not YAML: " + text[len(m[0]):]})
}

func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// value decodes n into v. A null leaves the default.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path, shown string) {
	if null(n) {
		return
	}
	text := ""
	if n.Kind == yaml.ScalarNode {
		text = n.Value
	}
	d.places[path] = place{d.file, n.Line, shown, text}
	fail := func(format string, args ...any) {
		d.errorf(n, shown, text, format, args...)
		d.failed[path] = true
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		fail("anchors and aliases are not supported: write the value out")
		return
	}
	v = target(n, v)
	t := v.Type()
	switch want := nodeKind(t); {
	case n.Kind != want:
		fail("%s is needed here, not a %s", wanted(t), kindName[n.Kind])
	case want == yaml.ScalarNode:
		if err := setScalar(v, n.Value, n.Tag); err != nil {
			fail("%s", err)
		}
	case want == yaml.SequenceNode:
		d.list(n, v, path, shown)
	case t.Kind() == reflect.Map:
		d.words(n, v, path, shown)
	default:
		d.mapping(n, v, path, shown)
	}
}

// target returns the value that n is decoded into: a new one for a pointer, and for a scalar the field that a struct's short
// form sets.
func target(n *yaml.Node, v reflect.Value) reflect.Value {
	if s, ok := reflect.TypeAssert[interface{ short() any }](v.Addr()); ok && n.Kind == yaml.ScalarNode {
		return reflect.ValueOf(s.short()).Elem()
	}
	if t := v.Type(); t.Kind() == reflect.Pointer {
		v.Set(reflect.New(t.Elem()))
		return v.Elem()
	}
	return v
}

// list decodes the entries of n into slice v.
func (d *decoder) list(n *yaml.Node, v reflect.Value, path, shown string) {
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		if s, ok := reflect.TypeAssert[interface{ setDefaults() }](v.Index(i).Addr()); ok {
			s.setDefaults()
		}
		d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%s[%s]", shown, entryName(item, i)))
	}
}

// words decodes the keys of n into map v, whose keys are free words: the labels of a selector.
func (d *decoder) words(n *yaml.Node, v reflect.Value, path, shown string) {
	v.Set(reflect.MakeMap(v.Type()))
	d.keys(n, shown, func(key, val *yaml.Node) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(val, item, join(path, key.Value), join(shown, key.Value))
		v.SetMapIndex(reflect.ValueOf(key.Value), item)
	})
}

// mapping decodes the keys of n into the fields of struct v.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path, shown string) {
	fields := fieldsOf(v.Type())
	d.keys(n, shown, func(key, val *yaml.Node) {
		i := slices.Index(fields, key.Value)
		if i < 0 || key.Value == "" {
			known := slices.DeleteFunc(slices.Clone(fields), func(name string) bool { return name == "" })
			d.errorf(key, join(shown, key.Value), "", "%s", unknownKey(key.Value, known))
			return
		}
		d.value(val, v.Field(i), join(path, key.Value), join(shown, key.Value))
	})
}

// keys calls f with each key of mapping n once.
func (d *decoder) keys(n *yaml.Node, shown string, f func(key, val *yaml.Node)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.errorf(key, shown, "", "a key must be a plain word, not a %s", kindName[key.Kind])
			continue
		}
		if line, twice := first[key.Value]; twice {
			d.errorf(key, join(shown, key.Value), "", "given twice; first on line %d", line)
			continue
		}
		first[key.Value] = key.Line
		f(key, val)
	}
}

func join(path, key string) string {
	if path == "" || key == "" || strings.HasPrefix(key, "[") {
		return path + key
	}
	return path + "." + key
}

// entryName returns the name of a list entry in messages: its name or address, else its position.
func entryName(n *yaml.Node, i int) string {
	if n.Kind != yaml.MappingNode {
		return strconv.Itoa(i)
	}
	return cmp.Or(scalarAt(n, "name"), scalarAt(n, "address"), scalarAt(n, "interface"), strconv.Itoa(i))
}

// scalarAt returns the text of the first scalar that mapping n has at key, or nothing.
func scalarAt(n *yaml.Node, key string) string {
	for k := 0; k+1 < len(n.Content); k += 2 {
		if v := n.Content[k+1]; n.Content[k].Value == key && v.Kind == yaml.ScalarNode && !null(v) && v.Value != "" {
			return v.Value
		}
	}
	return ""
}

// fieldsOf returns the keys of a struct in the order of its fields. The name of a field that is no key is empty.
func fieldsOf(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		tag := t.Field(i).Tag.Get("yaml")
		if tag == "" {
			tag = t.Field(i).Tag.Get("json") // API types
		}
		if names[i], _, _ = strings.Cut(tag, ","); names[i] == "-" {
			names[i] = ""
		}
	}
	return names
}

var kindName = map[yaml.Kind]string{
	yaml.MappingNode:  "mapping",
	yaml.SequenceNode: "list",
	yaml.ScalarNode:   "single value",
	yaml.AliasNode:    "alias",
}

var (
	addrType      = reflect.TypeFor[netip.Addr]()
	prefixType    = reflect.TypeFor[netip.Prefix]()
	durationType  = reflect.TypeFor[Duration]()
	interfaceType = reflect.TypeFor[Interface]()
	vlanType      = reflect.TypeFor[VLANID]()
)

// nodeKind returns the kind of YAML node that represents a value of type t.
func nodeKind(t reflect.Type) yaml.Kind {
	switch {
	case t == addrType, t == prefixType:
		return yaml.ScalarNode
	case t.Kind() == reflect.Slice:
		return yaml.SequenceNode
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map, t.Kind() == reflect.Pointer:
		return yaml.MappingNode
	}
	return yaml.ScalarNode
}

// validOfType and validOfKind describe the valid values of types, except other unsigned numbers.
var (
	validOfType = map[reflect.Type]string{
		addrType:      "an IP address",
		prefixType:    "a prefix such as 10.0.0.0/8",
		durationType:  "a duration with its unit, such as 9s",
		interfaceType: "an interface's name or a mapping of keys to values",
		vlanType:      fmt.Sprintf("a VLAN ID from %d to %d", minVLAN, maxVLAN),
	}
	validOfKind = map[reflect.Kind]string{
		reflect.Struct: "a mapping of keys to values",
		reflect.Map:    "a mapping of keys to values",
		reflect.Slice:  "a list",
		reflect.Bool:   "true or false",
		reflect.String: "a string",
	}
)

// wanted describes the valid values of type t.
func wanted(t reflect.Type) string {
	if text, ok := validOfType[t]; ok {
		return text
	}
	switch t.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(1)<<t.Bits()-1)
	}
	return cmp.Or(validOfKind[t.Kind()], "a whole number")
}

// setScalar parses text into v. tag is the type that YAML infers from the text; it is empty, and not checked, for
// values from the environment.
func setScalar(v reflect.Value, text, tag string) error {
	switch v.Type() {
	case addrType:
		return setParsed(v, text, parseAddr)
	case prefixType:
		return setParsed(v, text, netip.ParsePrefix)
	case durationType:
		return setParsed(v, text, time.ParseDuration)
	}
	if v.Kind() == reflect.String {
		return setString(v, text, tag)
	}
	return setBasic(v, text, tag)
}

// setParsed stores the result of parse, which has the type of v or one that v's is made from.
func setParsed[T any](v reflect.Value, text string, parse func(string) (T, error)) error {
	parsed, err := parse(text)
	if err != nil {
		return unlike(v)
	}
	v.Set(reflect.ValueOf(parsed).Convert(v.Type()))
	return nil
}

// unlike returns the error for a text that is no value of v's type.
func unlike(v reflect.Value) error { return errors.New("not " + wanted(v.Type())) }

func setString(v reflect.Value, text, tag string) error {
	if tag == "!!bool" && text == "false" && (v.Type() == reflect.TypeFor[KindMode]() || v.Type() == reflect.TypeFor[OnLink]()) {
		text, tag = "off", "" // off is false in YAML 1.1, by which Helm writes it
	}
	if tag != "" && tag != "!!str" {
		return errors.New("not a string: put it in quotes")
	}
	v.SetString(text)
	return nil
}

// setBasic parses text into a bool or number. Masks are in hexadecimal, often in quotes, so that no tool turns them into
// decimals; nothing else is in quotes.
func setBasic(v reflect.Value, text, tag string) error {
	if tag == "!!str" && !strings.HasPrefix(text, "0x") {
		return unlike(v)
	}
	switch v.Kind() {
	case reflect.Bool:
		return setParsed(v, text, parseBool)
	case reflect.Int:
		return setParsed(v, text, strconv.Atoi)
	default:
		return setParsed(v, text, func(text string) (uint64, error) { return parseUint(text, v.Type().Bits()) })
	}
}

// parseAddr also accepts an empty text, for no address.
func parseAddr(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	return netip.ParseAddr(text)
}

// parseBool accepts fewer words than strconv.ParseBool.
func parseBool(text string) (bool, error) {
	if text != "true" && text != "false" {
		return false, strconv.ErrSyntax
	}
	return text == "true", nil
}

func parseUint(text string, size int) (uint64, error) {
	if digits, hex := strings.CutPrefix(text, "0x"); hex {
		return strconv.ParseUint(digits, 16, size)
	}
	return strconv.ParseUint(text, 10, size)
}
