package memlimit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/pci"
)

// FuzzNotes: whatever lies in the directory of a GPU, a note counts only for that GPU and this boot, and
// under its own name.
func FuzzNotes(f *testing.F) {
	at, err := pci.Parse("0000:1b:00.0")
	if err != nil {
		f.Fatal(err)
	}
	f.Add("claim_share", []byte(`{"pci":"0000:1b:00.0","gpuUUID":"GPU-1","uid":"claim","share":"share","boot":"now","cgroup":"/a","inode":7}`))
	f.Add("claim_share", []byte(`{"boot":"before"}`))
	f.Add("x", []byte("null"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if name == "" || strings.ContainsRune(name, '/') || name == "." || name == ".." {
			return
		}
		n := Notes{Dir: t.TempDir(), Boot: "now"}
		path := n.path(at.Label(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return // Too long, or with a zero.
		}
		found, err := n.of(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range found {
			if entry.Boot != "now" || entry.PCI != at || n.path(at.Label(), entry.file()) != path {
				t.Errorf("%+v of %s", entry, path)
			}
		}
	})
}

// FuzzParams: what a record says of a step is understood or refused.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"pci":"0000:1b:00.0","gpuUUID":"GPU-1","uid":"claim","share":"share","bytes":5}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if p, err := decode(raw); (p == nil) == (err == nil) {
			t.Errorf("%+v, %v", p, err)
		}
	})
}
