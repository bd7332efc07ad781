package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// FuzzEntry: whatever a daemon's directory holds, only a spec that can be run counts, and it stays what it is
// when it is written again.
func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"boot":"now","spec":{"devices":[{"uuid":"GPU-1","pinnedMemoryMiB":5}],"activeThreadPercentage":20},"restarts":2}`))
	f.Add([]byte(`{"spec":{"devices":[{"uuid":"GPU-1\nquit"}]}}`))
	f.Add([]byte(`{"boot":"now"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := store{layout: mps.Layout(t.TempDir())}
		file := s.layout.Daemon("gpu-1").Spec()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		e, found := s.read("gpu-1")
		if !found {
			if diff := cmp.Diff(entry{}, e); diff != "" {
				t.Errorf("not found, but:\n%s", diff)
			}
			return
		}
		if err := e.Spec.Validate(); err != nil {
			t.Fatalf("a daemon is wanted that cannot be run: %v", err)
		}
		if err := s.write("gpu-1", e); err != nil {
			t.Fatal(err)
		}
		again, found := s.read("gpu-1")
		if diff := cmp.Diff(e, again, cmpopts.EquateEmpty()); !found || diff != "" {
			t.Errorf("written and read again (-before +after):\n%s", diff)
		}
	})
}
