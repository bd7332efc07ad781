package bootfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-dra/driver/pkg/bootfile"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "notes.json")
	// A process was killed while it wrote, longer than what comes now.
	if err := os.WriteFile(filepath.Join(dir, ".notes.json.new"), []byte("half of something long"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"first", "second, longer", ""} {
		if err := bootfile.Replace(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%q, %v; want %q", got, err, content)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left beside it: %v, %v", left, err)
	}
	if err := bootfile.Replace(filepath.Join(dir, "none", "x"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}
