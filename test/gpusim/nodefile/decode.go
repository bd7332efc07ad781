package nodefile

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed boards/*.yaml presets/*.yaml
var data embed.FS

// ErrUnknown says that a preset or a board of that name does not exist.
var ErrUnknown = errors.New("unknown name")

// maxFileSize bounds a node file; 64 GPUs need a tenth of it.
const maxFileSize = 1 << 20

// Decode reads and validates a node file. Unknown and doubled fields are errors.
func Decode(text []byte) (*Node, error) {
	file, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return Resolve(file)
}

// Parse reads a node file without validating what it says.
func Parse(text []byte) (*File, error) {
	if len(text) > maxFileSize {
		return nil, fmt.Errorf("node file of %d bytes is larger than %d", len(text), maxFileSize)
	}
	var file File
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("decode node file: %w", err)
	}
	return &file, nil
}

// Preset returns the built-in node of that name.
func Preset(name string) (*File, error) {
	text, err := lookup("presets", name)
	if err != nil {
		return nil, fmt.Errorf("preset %q: %w; known are %s", name, err, strings.Join(Presets(), ", "))
	}
	return Parse(text)
}

// Presets returns the names of the built-in nodes, sorted.
func Presets() []string { return names("presets") }

// BoardNames returns the names of the built-in boards, sorted.
func BoardNames() []string { return names("boards") }

func names(dir string) []string {
	entries, err := fs.ReadDir(data, dir)
	if err != nil {
		return nil // Embedded directories are always there.
	}
	out := make([]string, 0, len(entries))
	for _, entry := range entries {
		out = append(out, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	return out
}

func lookup(dir, name string) ([]byte, error) {
	if name == "" || strings.ContainsAny(name, "/\\") {
		return nil, ErrUnknown
	}
	text, err := data.ReadFile(path.Join(dir, name+".yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrUnknown
	}
	return text, err
}

// maxExtends bounds a chain of boards, so that a circle ends.
const maxExtends = 8

// board returns the named board with everything that it extends, own boards first.
func (f *File) board(name string, depth int) (*Board, error) {
	if depth > maxExtends {
		return nil, fmt.Errorf("board %q extends more than %d others: is it a circle?", name, maxExtends)
	}
	raw, own := f.Boards[name]
	if !own {
		text, err := lookup("boards", name)
		if err != nil {
			return nil, fmt.Errorf("board %q: %w; built in are %s", name, err, strings.Join(BoardNames(), ", "))
		}
		if raw, err = yaml.YAMLToJSONStrict(text); err != nil {
			return nil, fmt.Errorf("board %q: %w", name, err)
		}
	}
	var head struct {
		Extends string `json:"extends"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, fmt.Errorf("board %q: %w", name, err)
	}
	out := &Board{}
	if head.Extends != "" {
		base, err := f.board(head.Extends, depth+1)
		if err != nil {
			return nil, err
		}
		out = base
	}
	if err := overlay(out, raw); err != nil {
		return nil, fmt.Errorf("board %q: %w", name, err)
	}
	return out, nil
}

// overlay sets the fields that raw has and leaves the others.
func overlay(board *Board, raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	return decoder.Decode(board)
}
