package monitor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzStore: whatever the file holds is what was known of the GPUs, or an error. It is of this boot or
// Rebooted, then without the GPUs, and written again it stays what it is.
func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"bootID":"now","known":[{"pci":"0000:1b:00.0","uuid":"GPU-1"}],"records":[{"pci":"0000:1b:00.0"}]}`))
	f.Add([]byte(`{"bootID":"before","known":[{}]}`))
	f.Add([]byte(`{"bootID":`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Store{Path: filepath.Join(t.TempDir(), "health.json"), BootID: "now"}
		if err := os.WriteFile(s.Path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		state, err := s.Load()
		if err != nil {
			return
		}
		if state.Rebooted && len(state.Known) > 0 {
			t.Errorf("of an earlier boot, %d GPUs are known", len(state.Known))
		}
		state.Rebooted = false
		encoded, err := s.encode(state)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.write(encoded); err != nil {
			t.Fatal(err)
		}
		again, err := s.Load()
		if diff := cmp.Diff(state, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("written and read again: %v (-before +after):\n%s", err, diff)
		}
	})
}
