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
		value, t := v.Field(i), field.Type
		_, scalar := scalars[t]
		if t.Kind() == reflect.Struct && !scalar {
			w.fields(value, path)
			continue
		}
		where := v.Type().Name() + "." + field.Name
		k := key{path: path, kind: w.kind(t), fallback: fallback(path, value)}
		k.means, k.fallback = split(w.comments[where], k.fallback)
		if k.means == "" {
			w.uncommented = append(w.uncommented, where)
		}
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Pointer && !strings.Contains(path, "[]") {
			k.env = "`EGRESSWAY_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_")) + "`" // as config.Load names them
		}
		w.keys = append(w.keys, k)
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && scalars[t.Elem()] == "" {
			w.fields(value.Index(0), path+"[]") // least has one of each
		}
	}
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
		if t.Elem().Kind() == reflect.Struct && scalars[t.Elem()] == "" {
			return "list"
		}
		return "list of " + plural(w.kind(t.Elem()))
	case reflect.Bool:
		return "true, false"
	case reflect.String:
		if choices := w.choices[t.Name()]; len(choices) > 0 {
			return "`" + strings.Join(choices, "`, `") + "`"
		}
		return "string"
	}
	return "number"
}

func plural(kind string) string {
	if strings.HasPrefix(kind, "`") {
		return kind
	}
	return strings.TrimSuffix(kind, "x") + map[bool]string{true: "xes", false: "s"}[strings.HasSuffix(kind, "x")]
}

// fallback returns the default of a key.
func fallback(path string, v reflect.Value) string {
	if given[path] {
		return ""
	}
	if v.Kind() == reflect.Slice {
		items := make([]string, v.Len())
		for i := range items {
			items[i] = fmt.Sprint(v.Index(i))
		}
		if len(items) == 0 {
			return "none"
		}
		return "`[" + strings.Join(items, ", ") + "]`"
	}
	switch value := v.Interface().(type) {
	case config.Duration:
		return "`" + short(time.Duration(value)) + "`"
	case uint32:
		if path == "marks.mask" {
			return fmt.Sprintf("`\"%#x\"`", value)
		}
	}
	switch v.Kind() {
	case reflect.String:
		if v.String() == "" {
			return ""
		}
		return "`" + v.String() + "`"
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprint(v)
	}
	return ""
}

// short formats a duration in seconds: 120s, not 2m0s.
func short(d time.Duration) string {
	if d%time.Second == 0 {
		return strconv.Itoa(int(d/time.Second)) + "s"
	}
	return d.String()
}
