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
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"

	"github.com/egressway/egressway/internal/cluster"
)

type rawJSON = json.RawMessage

// document is one object of a file.
type document struct {
	file   string
	before int // lines of the file that precede text
	text   []byte
	data   []byte // text as JSON, converted by kubectl's rules

	tree  *tree // parsed text, for line numbers
	items []int // path to this object in nested Lists: the index at each level

	kind, object string
}

// tree finds lines of a text. Parsing takes as long as all other reading, so it waits until a line is needed.
type tree struct {
	text []byte
	root *yaml.Node
}

// of returns the node at a path of List indexes, as far as the path exists; nil: the text is not YAML.
func (t *tree) of(items []int) *yaml.Node {
	n := t.top()
	for _, i := range items {
		if list := child(n, "items"); list != nil && i < len(list.Content) {
			n = list.Content[i]
		}
	}
	return n
}

// top returns the text's outermost node, nil if the text is not YAML.
func (t *tree) top() *yaml.Node {
	if t.root == nil {
		var all yaml.Node
		if err := yaml.Unmarshal(t.text, &all); err != nil || len(all.Content) == 0 {
			return nil
		}
		t.root = all.Content[0]
	}
	return t.root
}

// documents splits a file at its document markers before anything is parsed, so that a broken document does not hide
// the others. It blanks the markers.
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

// fault describes why a document, or a value in it, cannot be read.
type fault struct {
	field, message string
	value          string
	where          string
}

func (e *fault) problem(kind, object string) cluster.Problem {
	return cluster.Problem{
		Kind: kind, Object: object, Field: e.field, Value: e.value, Reason: cluster.ReasonInvalidManifest,
		Message: e.message, Where: e.where,
	}
}

// parse reads the text as YAML, which includes JSON.
func (d *document) parse() *fault {
	d.tree = &tree{text: d.text}
	if d.data = asJSON(d.text); d.data != nil {
		return nil
	}
	data, err := kyaml.YAMLToJSONStrict(d.text)
	if err != nil {
		d.tree = nil
		return d.syntax(err)
	}
	d.data = data
	return nil
}

// asJSON returns a text that is a mapping in JSON without repeated keys, else nil. To read it as YAML would give the same and take
// several times as long. Numbers are written as YAML's are: 80 for 8e1.
func asJSON(text []byte) []byte {
	text = bytes.TrimSpace(text)
	if !bytes.HasPrefix(text, []byte("{")) || !utf8.Valid(text) {
		return nil
	}
	if json.Valid(text) && plain(text) {
		return text
	}
	var value any
	if repeated, err := kjson.UnmarshalStrict(text, &value, kjson.DisallowDuplicateFields); err != nil || len(repeated) > 0 {
		return nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	return data
}

const (
	keysMost   = 64 // of a mapping that plain reads
	digitsMost = 18 // of a number that plain reads: any such number fits into 64 bits
)

// plain reports whether a valid JSON text surely has no repeated keys and only numbers that are written as YAML's are. It takes a
// fraction of the time of decoding. It does not decide about keys with escapes and about large mappings.
func plain(text []byte) bool {
	var (
		keys [][]byte // of the open mappings, the innermost ones last
		from []int    // index of the first key of each open mapping or list
	)
	for len(text) > 0 {
		length := 1
		switch text[0] {
		case '{', '[':
			from = append(from, len(keys))
		case '}', ']':
			keys, from = keys[:from[len(from)-1]], from[:len(from)-1]
		case '"':
			length = stringLength(text)
			if !bytes.HasPrefix(bytes.TrimLeft(text[length:], " \t\r\n"), []byte(":")) {
				break
			}
			if !plainKey(text[:length], keys[from[len(from)-1]:]) {
				return false
			}
			keys = append(keys, text[:length])
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			if length = numberLength(text); !plainNumber(text[:length]) {
				return false
			}
		}
		text = text[length:]
	}
	return true
}

// plainKey reports whether a key surely differs from the other keys of its mapping.
func plainKey(key []byte, others [][]byte) bool {
	return bytes.IndexByte(key, '\\') < 0 && len(others) < keysMost &&
		!slices.ContainsFunc(others, func(k []byte) bool { return bytes.Equal(k, key) })
}

// plainNumber reports whether a number is surely written as YAML's are.
func plainNumber(n []byte) bool {
	return len(n) <= digitsMost && !bytes.ContainsAny(n, ".eE") && !bytes.Equal(n, []byte("-0"))
}

// numberLength returns the length of the number at the beginning of a valid JSON text.
func numberLength(text []byte) int { return len(text) - len(bytes.TrimLeft(text, "+-.0123456789eE")) }

// stringLength returns the length of the string, with its quotes, at the beginning of a valid JSON text.
func stringLength(text []byte) int {
	for i := 1; ; i++ {
		switch text[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
}

var yamlMessage = regexp.MustCompile(
	`(?s)^(?:error converting YAML to JSON: )?(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?([^\n]*)`)

func (d *document) syntax(err error) *fault {
	m := yamlMessage.FindStringSubmatch(err.Error())
	line, convErr := strconv.Atoi(m[1])
	if convErr != nil {
		line = 1
	}
	return &fault{message: "not YAML: " + m[2], where: fmt.Sprintf("%s:%d", d.file, d.before+line)}
}

// item returns entry i of a List.
func (d *document) item(i int, data []byte) *document {
	return &document{file: d.file, before: d.before, data: data, tree: d.tree, items: append(slices.Clip(d.items), i)}
}

// decode fills object, ignoring fields that its type does not have.
func (d *document) decode(object any) *fault {
	return d.decodePart("", d.data, object)
}

// decodePart fills object with the part of the document at a field, whose data is given.
func (d *document) decodePart(field string, data []byte, object any) *fault {
	return d.misfit(field, kjson.UnmarshalCaseSensitivePreserveInts(data, object))
}

// decodeStrictly fills object, and lists the fields that its type does not have.
func (d *document) decodeStrictly(object any) (unknown []string, misfit *fault) {
	strict, err := kjson.UnmarshalStrict(d.data, object)
	for _, e := range strict {
		if m := unknownField.FindStringSubmatch(e.Error()); m != nil {
			unknown = append(unknown, m[1])
		}
	}
	return unknown, d.misfit("", err)
}

var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

// misfit describes an error of decoding the part at a field; nil: there is none.
func (d *document) misfit(field string, err error) *fault {
	if err == nil {
		return nil
	}
	var wrongType *json.UnmarshalTypeError
	if !errors.As(err, &wrongType) {
		return &fault{field: field, message: err.Error()}
	}
	is, needed := found(wrongType.Value), wanted(wrongType.Type.Kind().String())
	e := &fault{field: strings.Trim(field+"."+wrongType.Field, "."), message: fmt.Sprintf("%s, but %s is needed", is, needed)}
	if n := d.find(e.field); n != nil && n.Kind == yaml.ScalarNode {
		e.value = n.Value
	}
	return e
}

// found translates the JSON decoder's name of a value's type into the words of our messages.
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

// line returns the line of the text at which the object begins.
func (d *document) line() int {
	if len(d.items) > 0 {
		if n := d.find(""); n != nil {
			return n.Line
		}
		return 1 // lines come from a second parser, which may reject this text
	}
	line := 0
	for text := range bytes.Lines(d.text) {
		line++
		if hasContent(text) {
			return line
		}
	}
	return 1
}

// hasContent reports whether a line is neither blank nor a comment, a directive or a document marker.
func hasContent(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && !bytes.ContainsAny(line[:1], "#%") && !bytes.HasPrefix(line, []byte("---"))
}

// where returns file:line of the field, or of the longest part of its path that exists.
func (d *document) where(field string) string {
	line := 1
	if n := d.find(field); n != nil {
		line = n.Line
	}
	return fmt.Sprintf("%s:%d", d.file, d.before+line)
}

// find follows a path such as status.addresses[0].address as far as it exists. Paths in the decoder's messages lack
// list indexes; they lead to the list.
func (d *document) find(path string) *yaml.Node {
	if d.tree == nil {
		return nil // not YAML
	}
	n := d.tree.of(d.items)
	for step := range strings.SplitSeq(path, ".") {
		name, index, _ := strings.Cut(strings.TrimSuffix(step, "]"), "[")
		next := child(n, name)
		if next == nil {
			break
		}
		n = element(next, index)
	}
	return n
}

// element returns a list's element at index, or the node itself if it has no such element.
func element(n *yaml.Node, index string) *yaml.Node {
	i, err := strconv.Atoi(index)
	if err != nil || n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content) {
		return n
	}
	return n.Content[i]
}

// child returns the value of a mapping's key, or nil.
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
