package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/egressway/egressway/internal/config"
)

const (
	schemaFile = "../../../config/egressway.schema.json"
	published  = "https://raw.githubusercontent.com/egressway/egressway/main/config/egressway.schema.json"
)

// TestSchemaIsUpToDate compares the schema's file with the types.
func TestSchemaIsUpToDate(t *testing.T) {
	text, err := schemaOf(folder)
	require.NoError(t, err)
	written, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(text), string(written), "run: make generate")
}

// compiled returns the schema, which the draft's own schema has accepted.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", parsed))
	s, err := c.Compile("schema.json")
	require.NoError(t, err)
	return s
}

// TestSchemaAcceptsConfigurations validates all configurations of the repository that the daemon accepts.
func TestSchemaAcceptsConfigurations(t *testing.T) {
	s := compiled(t)
	texts := map[string]string{"nothing": "", "null": "networks:\nbgp: null\n", "least": least, "zero without a unit": "moves: {keepFlows: 0}\n", "hexadecimal": "marks: {mask: 0x3f00}\n"}
	for _, pattern := range []string{
		"../testdata/*.yaml", "../../../config/*.yaml", "../../../containerlab/*/config.yaml", "../../../containerlab/frr-beside/*.yaml",
		"../../../deploy/kustomize/base/config.yaml",
	} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			texts[file] = string(text)
		}
	}
	for name, text := range texts {
		value, ok := parsed(text)
		require.True(t, ok, name)
		require.NoError(t, s.Validate(value), name)
	}
}

// TestExamplesNameTheSchema checks the first line of each configuration, by which editors find the schema.
func TestExamplesNameTheSchema(t *testing.T) {
	for _, pattern := range []string{
		"../../../config/*.yaml", "../../../containerlab/*/config.yaml", "../../../containerlab/frr-beside/*.yaml", "../../../deploy/kustomize/base/config.yaml",
	} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			first, _, _ := strings.Cut(string(text), "\n")
			schema, ok := strings.CutPrefix(first, "# yaml-language-server: $schema=")
			require.True(t, ok, "%s: %s", file, first)
			if schema != published { // in files to copy
				require.Equal(t, schemaFile, filepath.Join(filepath.Dir(file), schema), file)
			}
		}
	}
}

// aboutShape matches the errors about keys and types of values, which a schema can judge too.
var aboutShape = regexp.MustCompile(`^unknown key|is needed here, not a |^not (a string|true or false|a whole number|an IP address|a prefix such|a duration|a VLAN ID from)`)

// TestSchemaAgreesWithTheDaemon compares the errors of the schema with those of the daemon, by their keys: the schema refuses nothing
// that the daemon accepts, and finds all errors about keys and types.
func TestSchemaAgreesWithTheDaemon(t *testing.T) {
	s := compiled(t)
	files, err := filepath.Glob("../testdata/bad/*.yaml")
	require.NoError(t, err)
	judged := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		value, ok := parsed(string(text))
		if !ok {
			continue // not YAML for others either, or with aliases
		}
		if agree(t, s, file, text, value) {
			judged++
		}
	}
	require.Greater(t, judged, 20, "too few files of testdata/bad have errors that the schema finds")
}

// TestSchemaAgreesOnEveryKey misspells each key of a complete configuration, and gives each value another type, one at a time.
func TestSchemaAgreesOnEveryKey(t *testing.T) {
	s := compiled(t)
	full, err := os.ReadFile("../testdata/full.yaml")
	require.NoError(t, err)
	var tree yaml.Node
	require.NoError(t, yaml.Unmarshal(full, &tree))
	count := 0
	try := func() {
		text, err := yaml.Marshal(&tree)
		require.NoError(t, err)
		value, ok := parsed(string(text))
		require.True(t, ok)
		require.True(t, agree(t, s, "../testdata/full.yaml", text, value), "%s", text)
		count++
	}
	var damage func(n *yaml.Node)
	damage = func(n *yaml.Node) {
		whole := *n
		for _, wrong := range []yaml.Node{
			{Kind: yaml.SequenceNode, Content: []*yaml.Node{{Kind: yaml.SequenceNode}}},
			{Kind: yaml.ScalarNode, Tag: "!!float", Value: "1.5"},
		} {
			*n = wrong
			try()
			*n = whole
		}
		for i, inner := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 {
				key := inner.Value
				inner.Value = "x-" + key
				if !strings.Contains(key, "/") && key != "egress" { // not a label
					try()
				}
				inner.Value = key
				continue
			}
			damage(inner)
		}
	}
	damage(tree.Content[0])
	require.Greater(t, count, 200)
}

// agree compares the errors of the schema with those of the daemon about one configuration, and reports whether both have some.
func agree(t *testing.T, s *jsonschema.Schema, file string, text []byte, value any) bool {
	t.Helper()
	_, err := config.Parse(file, text)
	var errs config.Errors
	require.ErrorAs(t, err, &errs, file)
	refused := map[string]string{}
	for _, e := range errs {
		refused[e.Field] = e.Message
	}
	found := map[string]bool{}
	if err := s.Validate(value); err != nil {
		var invalid *jsonschema.ValidationError
		require.ErrorAs(t, err, &invalid)
		eachPlace(invalid, func(place []string) { found[shown(value, place)] = true })
	}
	for field := range found {
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(refused)), func(r string) bool { return strings.HasPrefix(field, r) }),
			"%s: the schema refuses %s, the daemon only %v\n%s", file, field, refused, text)
	}
	for field, message := range refused {
		if aboutShape.MatchString(message) {
			require.True(t, found[field], "%s: the daemon refuses %s: %s; the schema only %v\n%s", file, field, message, found, text)
		}
	}
	return len(found) > 0
}

// eachPlace calls f with the place of each error that has no further causes.
func eachPlace(e *jsonschema.ValidationError, f func(place []string)) {
	for _, cause := range e.Causes {
		eachPlace(cause, f)
	}
	if len(e.Causes) > 0 {
		return
	}
	var names []string
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		names = k.Properties
	case *kind.Required:
		names = k.Missing
	default:
		f(e.InstanceLocation)
	}
	for _, name := range names {
		f(append(slices.Clone(e.InstanceLocation), name))
	}
}

// shown returns a place as the daemon's messages name it: networks[red].peers[10.1.0.1].
func shown(value any, place []string) string {
	path := ""
	for _, step := range place {
		if list, ok := value.([]any); ok {
			i, _ := strconv.Atoi(step)
			value = list[i]
			path += "[" + entryName(value, step) + "]"
			continue
		}
		mapping, _ := value.(map[string]any)
		value = mapping[step]
		path = strings.TrimPrefix(path+"."+step, ".")
	}
	return path
}

func entryName(entry any, position string) string {
	mapping, _ := entry.(map[string]any)
	for _, key := range []string{"name", "address", "interface"} {
		switch v := mapping[key].(type) {
		case nil, map[string]any, []any:
		default:
			if text := fmt.Sprint(v); text != "" {
				return text
			}
		}
	}
	return position
}

// parsed returns the value of a YAML text as an editor has it, unless it has faults or aliases.
func parsed(text string) (any, bool) {
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil || strings.Contains(text, "<<:") {
		return nil, false
	}
	asJSON, err := json.Marshal(value)
	if err != nil {
		return nil, false
	}
	value, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	return value, err == nil
}
