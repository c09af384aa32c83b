package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/config"
)

// key is one key of the configuration.
type key struct {
	path     string // networks[].peers[].holdTime
	kind     string // type of its values
	fallback string // default, as Markdown; empty: none
	means    string
	env      string // environment variable that sets it; empty: none
}

// least has one entry of each list, with only the required keys, so that all other values are defaults.
const least = `
bgp: {asn: 64512, bfdProfiles: [{name: least}], overrides: [{nodeSelectors: [{}], asn: 64514}]}
networks:
- name: least
  table: 1
  interfaces: [{name: least}]
  peers: [{address: 192.0.2.1, asn: 64513, receive: [{prefix: 0.0.0.0/0}], overrides: [{nodeSelectors: [{}], myASN: 64514}]}]
  overrides: [{nodeSelectors: [{}], table: 2}]
hold: [{pods: {}}]
`

// given holds the keys that least sets: their defaults cannot be read from it.
var given = map[string]bool{
	"bgp.asn": true, "bgp.bfdProfiles[].name": true, "networks[].name": true, "networks[].table": true, "networks[].peers[].address": true,
	"networks[].peers[].asn": true, "networks[].peers[].receive[].prefix": true, "bgp.bfdProfiles": true, "networks": true,
	"networks[].peers": true, "networks[].peers[].receive": true, "hold": true, "hold[].pods": true,
	"bgp.overrides": true, "bgp.overrides[].nodeSelectors": true, "bgp.overrides[].asn": true,
	"networks[].interfaces": true, "networks[].interfaces[].name": true, "networks[].overrides": true,
	"networks[].overrides[].nodeSelectors": true, "networks[].overrides[].table": true, "networks[].peers[].overrides": true,
	"networks[].peers[].overrides[].nodeSelectors": true, "networks[].peers[].overrides[].myASN": true,
}

// keys returns every key, in the order of the types' fields.
func keys(s source) ([]key, error) {
	c, err := config.Parse("least.yaml", []byte(least))
	if err != nil {
		return nil, err
	}
	w := walk{source: s}
	w.fields(reflect.ValueOf(c).Elem(), "")
	if len(w.uncommented) > 0 {
		return nil, fmt.Errorf("these fields of package config have no comment: %s", strings.Join(w.uncommented, ", "))
	}
	return w.keys, nil
}

type walk struct {
	source
	keys        []key
	uncommented []string
}

var scalars = map[reflect.Type]string{
	reflect.TypeFor[netip.Addr]():            "IP address",
	reflect.TypeFor[netip.Prefix]():          "prefix",
	reflect.TypeFor[config.Duration]():       "duration",
	reflect.TypeFor[*metav1.LabelSelector](): "label selector",
	reflect.TypeFor[metav1.LabelSelector]():  "label selector",
}

// nested reports whether values of type t have keys of their own.
func nested(t reflect.Type) bool { return t.Kind() == reflect.Struct && scalars[t] == "" }

// fields adds the keys of struct v, whose own path is above.
func (w *walk) fields(v reflect.Value, above string) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if name == "" || name == "-" {
			continue // no key
		}
		path := name
		if above != "" {
			path = above + "." + name
		}
		w.field(v.Field(i), path, v.Type().Name()+"."+field.Name)
	}
}

// field adds the key at path, and those below it. where is the field's name in source.comments.
func (w *walk) field(v reflect.Value, path, where string) {
	t := v.Type()
	if nested(t) {
		w.fields(v, path)
		return
	}
	k := key{path: path, kind: w.kind(t), fallback: fallback(path, v), env: variable(path, t)}
	k.means, k.fallback = split(w.comments[where], k.fallback)
	if k.means == "" {
		w.uncommented = append(w.uncommented, where)
	}
	w.keys = append(w.keys, k)
	if t.Kind() == reflect.Slice && nested(t.Elem()) {
		w.fields(v.Index(0), path+"[]") // least has one of each
	}
}

// variable returns the environment variable that sets a key, as config.Load names it.
func variable(path string, t reflect.Type) string {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer || strings.Contains(path, "[]") {
		return ""
	}
	return "`EGRESSWAY_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_")) + "`"
}

// split separates the last sentence "Default: …." from a comment.
func split(comment, fallback string) (means, said string) {
	const word = "Default: "
	means, said, found := strings.Cut(comment, word)
	if !found {
		said = fallback
	}
	return strings.TrimSuffix(strings.TrimSpace(means), "."), strings.TrimSuffix(said, ".")
}

func (w *walk) kind(t reflect.Type) string {
	if name, ok := scalars[t]; ok {
		return name
	}
	switch t.Kind() {
	case reflect.Slice:
		return w.listKind(t.Elem())
	case reflect.Bool:
		return "true, false"
	case reflect.String:
		return w.wordKind(t.Name())
	}
	return "number"
}

func (w *walk) listKind(entry reflect.Type) string {
	if nested(entry) {
		return "list"
	}
	return "list of " + plural(w.kind(entry))
}

// wordKind describes the values of a string type.
func (w *walk) wordKind(typeName string) string {
	if choices := w.choices[typeName]; len(choices) > 0 {
		return "`" + strings.Join(choices, "`, `") + "`"
	}
	return "string"
}

func plural(kind string) string {
	switch {
	case strings.HasPrefix(kind, "`"):
		return kind
	case strings.HasSuffix(kind, "x"), strings.HasSuffix(kind, "s"):
		return kind + "es"
	}
	return kind + "s"
}

// fallback returns the default of a key.
func fallback(path string, v reflect.Value) string {
	if given[path] {
		return ""
	}
	if path == "marks.mask" {
		return fmt.Sprintf("`\"%#x\"`", v.Uint())
	}
	if d, ok := reflect.TypeAssert[config.Duration](v); ok {
		return "`" + short(time.Duration(d)) + "`"
	}
	switch v.Kind() {
	case reflect.Slice:
		return listFallback(v)
	case reflect.String:
		return wordFallback(v.String())
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprint(v)
	}
	return ""
}

func wordFallback(word string) string {
	if word == "" {
		return ""
	}
	return "`" + word + "`"
}

func listFallback(v reflect.Value) string {
	if v.Len() == 0 {
		return "none"
	}
	items := make([]string, v.Len())
	for i := range items {
		items[i] = fmt.Sprint(v.Index(i))
	}
	return "`[" + strings.Join(items, ", ") + "]`"
}

// short formats a duration in seconds: 120s, not 2m0s.
func short(d time.Duration) string {
	if d%time.Second == 0 {
		return strconv.Itoa(int(d/time.Second)) + "s"
	}
	return d.String()
}
