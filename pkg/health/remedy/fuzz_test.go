package remedy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/pci"
)

// FuzzNotes: whatever the file of a GPU holds, it is a note of this boot and board, none, or an error; and
// what is understood stays what it is.
func FuzzNotes(f *testing.F) {
	at, err := pci.Parse("0000:1b:00.0")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"bootID":"now","uuid":"GPU-1"}`))
	f.Add([]byte(`{"bootID":"before","uuid":"GPU-1"}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := Notes{Dir: t.TempDir(), BootID: "now"}
		if err := os.WriteFile(n.path(at), data, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := n.load(at, "GPU-1")
		if err != nil {
			return
		}
		if found.UUID != "" && found.UUID != "GPU-1" {
			t.Errorf("the note of board %q in %s", found.UUID, filepath.Base(n.path(at)))
		}
		if found.UUID == "" {
			return
		}
		if err := n.save(at, found); err != nil {
			t.Fatal(err)
		}
		again, err := n.load(at, "GPU-1")
		if diff := cmp.Diff(found, again); err != nil || diff != "" {
			t.Errorf("written and read again: %v (-before +after):\n%s", err, diff)
		}
	})
}
