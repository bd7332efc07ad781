package takeover_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/takeover"
)

// The former driver's specs are ours to remove only when its claims were all taken over.
func TestSpecs(t *testing.T) {
	const one, two = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
	theirs := []string{"k8s.gpu.nvidia.com-claim_" + one + ".json", "k8s.gpu.nvidia.com-claim_" + two + ".yaml"}
	others := []string{
		"gpu.nvidia.com-claim_" + one + ".json", "k8s.compute-domain.nvidia.com-claim_" + one + ".json", "k8s.gpu.nvidia.com-claim_.json",
		"k8s.gpu.nvidia.com-claim_" + one + ".tmp", "nvidia.yaml",
	}
	for name, row := range map[string]struct {
		files []string
		ours  bool
	}{
		"never switched": {nil, false},
		"not yet":        {[]string{takeover.FileName}, false},
		"switched":       {[]string{takeover.TakenName}, true},
		"and back":       {[]string{takeover.TakenName, takeover.FileName}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeover.Specs{Data: t.TempDir(), CDI: t.TempDir()}
			for _, f := range row.files {
				write(t, filepath.Join(s.Data, f))
			}
			for _, f := range append(append([]string(nil), theirs...), others...) {
				write(t, filepath.Join(s.CDI, f))
			}
			things, err := s.Things(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, thing := range things {
				got = append(got, thing.ID)
				if thing.Claim != one && thing.Claim != two || s.Accounts(nil, thing) {
					t.Errorf("%+v", thing)
				}
				for range 2 {
					if err := s.Remove(t.Context(), thing); err != nil {
						t.Error(err)
					}
				}
			}
			var want []string
			left := len(theirs) + len(others)
			if row.ours {
				want, left = theirs, len(others)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("specs (-want +got):\n%s", diff)
			}
			if entries, err := os.ReadDir(s.CDI); err != nil || len(entries) != left {
				t.Errorf("%d files are left, want %d: %v", len(entries), left, err)
			}
		})
	}
}

func TestSpecsOfADirectoryThatIsMissing(t *testing.T) {
	s := takeover.Specs{Data: t.TempDir(), CDI: filepath.Join(t.TempDir(), "none")}
	write(t, filepath.Join(s.Data, takeover.TakenName))
	if things, err := s.Things(t.Context()); err == nil {
		t.Errorf("no error, and %v", things)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
}
