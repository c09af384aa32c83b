package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// valid judges topology files by the JSON schema that containerlab publishes (schemas/clab.schema.json in its repository). It returns
// what the first file that breaks the schema has wrong.
func valid(schema string, files []string) error {
	s, err := jsonschema.NewCompiler().Compile(schema)
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	for _, file := range files {
		value, err := asJSON(file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := s.Validate(value); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// asJSON returns the value of a YAML file with the types that a JSON schema knows.
func asJSON(file string) (value any, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &value); err != nil {
		return nil, err
	}
	if text, err = json.Marshal(value); err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(text))
}
