package leftover_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/reconcile"
	"github.com/gpu-dra/driver/pkg/reconcile/leftover"
)

const known, gone = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// clear removes what names no known claim.
func clear(t *testing.T, o reconcile.Owner, records ...*journal.Record) {
	t.Helper()
	things, err := o.Things(context.Background())
	if err != nil || o.Kind() == "" {
		t.Fatal(o.Kind(), err)
	}
	for _, thing := range things {
		owned := thing.Claim == known
		for _, r := range records {
			owned = owned || o.Accounts(r, thing)
		}
		if owned {
			continue
		}
		for range 2 { // the second finds nothing to do
			if err := o.Remove(context.Background(), thing); err != nil {
				t.Errorf("%s: %v", thing.ID, err)
			}
		}
	}
}

// Specs of claims without a record go; what is not ours stays.
func TestSpecs(t *testing.T) {
	dir := t.TempDir()
	specs, err := cdi.Open(dir, "gpu.nvidia.com", &cdi.Host{})
	if err != nil {
		t.Fatal(err)
	}
	stays := []string{
		"gpu.nvidia.com-claim_" + known + ".json",
		"gpu.nvidia.com-claim_a.b.json", // no claim's UID has a dot
		"gpu.nvidia.com-driver.json",
		"gpu.nvidia.com_metadata_" + known + "_gpus.json",
		"gpu.nvidia.com_metadata_" + gone + "_x.yaml",
		"other.example.com-claim_" + gone + ".json",
		"other.example.com_metadata_" + gone + "_gpus.json",
	}
	goes := []string{
		"gpu.nvidia.com-claim_" + gone + ".json",
		"gpu.nvidia.com_metadata_" + gone + "_gpus.json",
		"gpu.nvidia.com_metadata_" + gone + "_with_bar.json",
	}
	for _, name := range append(slices.Clone(stays), goes...) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clear(t, leftover.Specs{Dir: specs})
	clear(t, leftover.MetadataSpecs{Dir: dir, Driver: "gpu.nvidia.com"})
	slices.Sort(stays)
	if diff := cmp.Diff(stays, names(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMetadata(t *testing.T) {
	dir := t.TempDir()
	o := leftover.Metadata{Dir: filepath.Join(dir, "metadata")}
	clear(t, o) // a directory that is not there yet
	for _, name := range []string{"ns_here/gpus", "ns_gone/gpus", "other"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// A record that does not know its name may be any's.
	clear(t, o, &journal.Record{UID: gone})
	if got := names(t, o.Dir); len(got) != 3 {
		t.Errorf("left %v", got)
	}
	clear(t, o, &journal.Record{UID: gone, Namespace: "ns", Name: "here"})
	if diff := cmp.Diff([]string{"ns_here", "other"}, names(t, o.Dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDirectoriesThatCannotBeRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []reconcile.Owner{leftover.MetadataSpecs{Dir: file}, leftover.Metadata{Dir: file}} {
		if _, err := o.Things(t.Context()); err == nil {
			t.Errorf("%s: no error", o.Kind())
		}
	}
}

func TestUnless(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "default_claim"), 0o755); err != nil {
		t.Fatal(err)
	}
	others := true
	o := leftover.Unless{Owner: leftover.Metadata{Dir: dir}, Others: func() bool { return others }}
	clear(t, o)
	if diff := cmp.Diff([]string{"default_claim"}, names(t, dir)); diff != "" {
		t.Errorf("beside another driver (-want +got):\n%s", diff)
	}
	others = false
	clear(t, o)
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
