package mpssteps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

// FuzzParams: what a record says of a step names a device within the directory of devices, or is refused.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"pci":"0000:1b:00.0","gpuUUID":"GPU-1","device":"gpu-0000-1b-00-0","claim":{"namespace":"a","name":"b","uid":"c"},"setting":{}}`))
	f.Add([]byte(`{"device":"../../etc"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := decode(raw)
		if err != nil {
			return
		}
		if strings.ContainsAny(p.Device, "/\x00") || p.Device == "" || p.Device == ".." {
			t.Errorf("device %q", p.Device)
		}
		if p.daemon() == "" && len(p.Setting.Group) == 0 {
			t.Error("no daemon")
		}
	})
}

// FuzzEntry: whatever the file of a device holds, it is read as an entry that can be used and written again.
func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"device":{"device":"gpu-1"},"computeModeBefore":0,"users":{"c":{"namespace":"a","name":"b","uid":"c"}}}`))
	f.Add([]byte(`{"users":null}`))
	f.Add([]byte(`{"users":{"c":`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := ledger{layout: mps.Layout(t.TempDir())}
		if err := os.MkdirAll(filepath.Dir(l.file("gpu-1")), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(l.file("gpu-1"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		e, found, err := l.read("gpu-1")
		if err != nil || !found || e.Users == nil {
			t.Fatalf("entry %+v, found: %t, %v", e, found, err)
		}
		if err := l.write("gpu-1", e); err != nil {
			t.Fatal(err)
		}
		again, _, err := l.read("gpu-1")
		if diff := cmp.Diff(e, again, cmp.AllowUnexported(entry{}, params{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("written and read again: %v (-before +after):\n%s", err, diff)
		}
	})
}
