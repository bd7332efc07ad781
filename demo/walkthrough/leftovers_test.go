package walkthrough

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPathsBelow(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"b/c", "a"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "b/c/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := pathsBelow(filepath.Join(dir, "b"), filepath.Join(dir, "absent"), filepath.Join(dir, "a"))
	want := []string{filepath.Join(dir, "b/c") + "/", filepath.Join(dir, "b/c/file")}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

func TestWhatMayNotStay(t *testing.T) {
	before := []string{"/data/nvlink.json", "/data/locks/publisher.lock"}
	now := []string{
		"/cdi/" + baseSpec, "/cdi/v-claim_u1.json", "/data/claims/u1", "/data/holders/0000-01-00-0/", "/data/holders/0000-01-00-0/gpu",
		"/data/locks/gpu_0000-01-00-0.lock", "/data/locks/claim_u2.lock", "/data/locks/publisher.lock", "/data/metadata/u1/", "/data/nvlink.json",
	}
	want := []string{"/cdi/v-claim_u1.json", "/data/claims/u1", "/data/holders/0000-01-00-0/gpu", "/data/locks/claim_u2.lock", "/data/metadata/u1/"}
	if diff := cmp.Diff(want, added(before, now, "u1", "u2")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := added(now, now, "u1"); len(got) != 0 {
		t.Errorf("nothing was added, but %q", got)
	}
}

func TestSockets(t *testing.T) {
	all := []string{"/a/dra.sock", "/a/file", "/b/x-reg.sock"}
	if diff := cmp.Diff([]string{"/a/dra.sock", "/b/x-reg.sock"}, sockets(all)); diff != "" || all[1] != "/a/file" {
		t.Errorf("%q (-want +got):\n%s", all, diff)
	}
}
