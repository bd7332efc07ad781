package hook

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestInstall(t *testing.T) {
	program := bytes.Repeat([]byte("program "), 40_000) // several blocks
	tests := map[string][]byte{
		"nothing there":     nil,
		"the same":          program,
		"shorter":           program[:len(program)-1],
		"longer":            append(bytes.Clone(program), 'x'),
		"another first":     append([]byte("P"), program[1:]...),
		"another last byte": append(bytes.Clone(program[:len(program)-1]), 'x'),
		"empty":             {},
	}
	for name, old := range tests {
		t.Run(name, func(t *testing.T) {
			image, data := t.TempDir(), t.TempDir()
			source := filepath.Join(image, "nvidia-cdi-hook")
			write(t, source, program, 0o644)
			if old != nil {
				write(t, filepath.Join(data, "nvidia-cdi-hook"), old, 0o600)
			}
			target, err := Install(source, data)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(target)
			if err != nil || !bytes.Equal(got, program) {
				t.Errorf("%d bytes installed (%v), want the program's %d", len(got), err, len(program))
			}
			info, err := os.Stat(target)
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("mode %v (%v), want 0755: the runtime executes it", info.Mode(), err)
			}
			if left, _ := os.ReadDir(data); len(left) != 1 {
				t.Errorf("%d files in the directory, want the hook alone", len(left))
			}
		})
	}
}

// The same program is not written again: the runtime may be running it.
func TestInstallKeepsTheFile(t *testing.T) {
	image, data := t.TempDir(), t.TempDir()
	source := filepath.Join(image, "hook")
	write(t, source, []byte("program"), 0o755)
	first, err := Install(source, data)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(first)
	if _, err := Install(source, data); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(first); !os.SameFile(before, after) {
		t.Error("the file was replaced by an equal one")
	}
}

func TestInstallErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Install(filepath.Join(dir, "missing"), dir); err == nil {
		t.Error("a hook that is not in the image is installed")
	}
	source := filepath.Join(dir, "hook")
	write(t, source, []byte("program"), 0o755)
	if _, err := Install(source, filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a hook is installed into a directory that is not there")
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken", "hook"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(source, filepath.Join(dir, "taken")); err == nil {
		t.Error("a directory was replaced by the hook")
	}
}

func write(t *testing.T, path string, content []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, content, mode); err != nil {
		t.Fatal(err)
	}
}
