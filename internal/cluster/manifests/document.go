package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"

	"github.com/egressway/egressway/internal/cluster"
)

type rawJSON = json.RawMessage

// document is one object of a file.
type document struct {
	file   string
	before int // lines of the file before text
	text   []byte
	data   []byte // as JSON, by the rules of kubectl

	tree  *tree // of the text
	items []int // the way in it to this object: which item, of which item of it, ...

	kind, object string
}

// tree is a text with its lines. It takes as long as the rest of reading, so it is made once somebody asks for lines.
type tree struct {
	text []byte
	root *yaml.Node
}

// of finds an item of an item of ...; as far as there are any.
func (t *tree) of(items []int) *yaml.Node {
	if t.root == nil {
		var all yaml.Node
		if err := yaml.Unmarshal(t.text, &all); err != nil || len(all.Content) == 0 {
			return nil
		}
		t.root = all.Content[0]
	}
	n := t.root
	for _, i := range items {
		if list := child(n, "items"); list != nil && i < len(list.Content) {
			n = list.Content[i]
		}
	}
	return n
}

// documents splits a file at its document markers before anything is parsed, so that a broken one hides no other. It blanks the markers.
func documents(data []byte, isJSON bool) []*document {
	if isJSON {
		return []*document{{text: data}}
	}
	var docs []*document
	current := &document{}
	line, at, from := 0, 0, 0
	for text := range bytes.Lines(data) {
		line++
		if rest, marker := bytes.CutPrefix(text, []byte("---")); marker && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			copy(text, "   ")
			current.text = data[from:at]
			docs = append(docs, current)
			current, from = &document{before: line - 1}, at
		}
		at += len(text)
	}
	current.text = data[from:]
	return append(docs, current)
}

// fault is why a document, or a value in it, cannot be read.
type fault struct {
	field, message string
	value          string
	where          string
}

func (e *fault) problem(kind, object string) cluster.Problem {
	return cluster.Problem{
		Kind: kind, Object: object, Field: e.field, Value: e.value, Reason: cluster.ReasonInvalidManifest, Message: e.message, Where: e.where,
	}
}

// parse reads the text as YAML, which JSON is too.
func (d *document) parse() *fault {
	data, err := kyaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return d.syntax(err)
	}
	d.data, d.tree = data, &tree{text: d.text}
	return nil
}

var yamlMessage = regexp.MustCompile(`(?s)^(?:error converting YAML to JSON: )?(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?([^\n]*)`)

func (d *document) syntax(err error) *fault {
	m := yamlMessage.FindStringSubmatch(err.Error())
	line, convErr := strconv.Atoi(m[1])
	if convErr != nil {
		line = 1
	}
	return &fault{message: "not YAML: " + m[2], where: fmt.Sprintf("%s:%d", d.file, d.before+line)}
}

// item is entry i of a list.
func (d *document) item(i int, data []byte) *document {
	return &document{file: d.file, before: d.before, data: data, tree: d.tree, items: append(slices.Clip(d.items), i)}
}

// decode fills object, leaving out fields that it does not have.
func (d *document) decode(object any) *fault {
	err := kjson.UnmarshalCaseSensitivePreserveInts(d.data, object)
	if err == nil {
		return nil
	}
	var wrongType *json.UnmarshalTypeError
	if !errors.As(err, &wrongType) {
		return &fault{message: err.Error()}
	}
	e := &fault{field: wrongType.Field, message: fmt.Sprintf("%s, but %s is needed", found(wrongType.Value), wanted(wrongType.Type.Kind().String()))}
	if n := d.find(e.field); n != nil && n.Kind == yaml.ScalarNode {
		e.value = n.Value
	}
	return e
}

// found is the decoder's word for a value in ours.
func found(value string) string {
	switch word, _, _ := strings.Cut(value, " "); word { // "number 1.5"
	case "object":
		return "a mapping"
	case "array":
		return "a list"
	case "bool":
		return "true or false"
	default:
		return "a " + word
	}
}

func wanted(kind string) string {
	switch kind {
	case "struct", "map":
		return "a mapping"
	case "slice", "array":
		return "a list"
	case "string":
		return "a string"
	case "bool":
		return "true or false"
	}
	return "a number"
}

var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

// unknownFields lists the fields of d that object's type does not have. d was decoded into such an object before.
func (d *document) unknownFields(object any) []string {
	strict, err := kjson.UnmarshalStrict(d.data, object)
	if err != nil {
		return nil
	}
	var fields []string
	for _, e := range strict {
		if m := unknownField.FindStringSubmatch(e.Error()); m != nil {
			fields = append(fields, m[1])
		}
	}
	return fields
}

// line is that of the text which the object begins at.
func (d *document) line() int {
	if len(d.items) > 0 {
		if n := d.find(""); n != nil {
			return n.Line
		}
		return 1 // the parser that knows lines is another, and may take less
	}
	line := 0
	for text := range bytes.Lines(d.text) {
		line++
		if text = bytes.TrimSpace(text); len(text) > 0 && text[0] != '#' && text[0] != '%' && !bytes.HasPrefix(text, []byte("---")) {
			return line
		}
	}
	return 1
}

// where is file:line of the field, or of what is there of its path.
func (d *document) where(field string) string {
	line := 1
	if n := d.find(field); n != nil {
		line = n.Line
	}
	return fmt.Sprintf("%s:%d", d.file, d.before+line)
}

// find follows a path such as status.addresses[0].address as far as it goes. The steps of a list may be missing, as
// in the decoder's messages: the list is found then.
func (d *document) find(path string) *yaml.Node {
	if d.tree == nil {
		return nil // not YAML
	}
	n := d.tree.of(d.items)
	for step := range strings.SplitSeq(path, ".") {
		name, index, indexed := strings.Cut(strings.TrimSuffix(step, "]"), "[")
		next := child(n, name)
		if next == nil {
			break
		}
		n = next
		if i, err := strconv.Atoi(index); indexed && err == nil && n.Kind == yaml.SequenceNode && i >= 0 && i < len(n.Content) {
			n = n.Content[i]
		}
	}
	return n
}

// child is the value of a mapping's key; nil: it has none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
