package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Marks of the generated part of a README.
const (
	beginValues = "<!-- values: made from values.yaml by `make docs` -->"
	endValues   = "<!-- end of values -->"
)

// ValuesTable makes a Markdown table of a values.yaml: a row for each value whose comment
// begins with "# --", with its default. It fails where a leaf has no such comment.
func ValuesTable(valuesYAML []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(valuesYAML, &document); err != nil {
		return "", fmt.Errorf("values.yaml: %w", err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return "", fmt.Errorf("values.yaml: not one mapping")
	}
	var out strings.Builder
	out.WriteString("| Value | Default | Meaning |\n|---|---|---|\n")
	if err := writeRows(&out, "", document.Content[0]); err != nil {
		return "", err
	}
	return out.String(), nil
}

func writeRows(out *strings.Builder, prefix string, mapping *yaml.Node) error {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		meaning, ok := strings.CutPrefix(lastComment(key.HeadComment), "# -- ")
		if !ok {
			if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
				if err := writeRows(out, path+".", value); err != nil {
					return err
				}
				continue
			}
			return fmt.Errorf("values.yaml: %s (line %d) has no comment that begins with \"# -- \"", path, key.Line)
		}
		byDefault, err := compactJSON(value)
		if err != nil {
			return fmt.Errorf("values.yaml: %s: %w", path, err)
		}
		fmt.Fprintf(out, "| `%s` | `%s` | %s |\n", path, byDefault, strings.ReplaceAll(meaning, "|", `\|`))
	}
	return nil
}

// lastComment drops comments that are parted from the key by an empty line.
func lastComment(comment string) string {
	paragraphs := strings.Split(comment, "\n\n")
	return paragraphs[len(paragraphs)-1]
}

func compactJSON(value *yaml.Node) (string, error) {
	var decoded any
	if err := value.Decode(&decoded); err != nil {
		return "", err
	}
	text, err := json.Marshal(decoded)
	return string(text), err
}

// InsertValues puts a table between the marks of a README.
func InsertValues(readme []byte, table string) ([]byte, error) {
	before, rest, found := bytes.Cut(readme, []byte(beginValues))
	_, after, ended := bytes.Cut(rest, []byte(endValues))
	if !found || !ended {
		return nil, fmt.Errorf("the README lacks the lines %q and %q", beginValues, endValues)
	}
	return fmt.Appendf(nil, "%s%s\n%s%s%s", before, beginValues, table, endValues, after), nil
}
