package sysfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/pkg/pci"
)

// procTree writes files below a proc directory.
func procTree(t testing.TB, files map[string]string) *sysfs.Tree {
	t.Helper()
	proc := t.TempDir()
	for name, text := range files {
		path := filepath.Join(proc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return sysfs.New(t.TempDir(), proc)
}

func access(minor int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
}

const instance = "driver/nvidia/capabilities/gpu2/mig/gi7"

func TestGPUMinor(t *testing.T) {
	at := pci.Address{Bus: 0x1a}
	const file = "driver/nvidia/gpus/0000:1a:00.0/information"
	for text, want := range map[string]int{
		"Model: \t\t NVIDIA H100\nDevice Minor: \t 3\nGPU Excluded:\t No\n": 3,
		"Device Minor: 0": 0,
		"Device Minor: x": -1,
		"Minor: 3":        -1,
		"":                -1,
	} {
		got, err := procTree(t, map[string]string{file: text}).GPUMinor(t.Context(), at)
		if want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q gives %d, %v", text, got, err)
		}
	}
	if _, err := procTree(t, nil).GPUMinor(t.Context(), at); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "0000:1a:00.0") {
		t.Errorf("a GPU that is not there: %v", err)
	}
}

func TestInstanceCapabilities(t *testing.T) {
	// By the rule, GPU 2's instance 7 is 3 + 2*135 + 7*9 = 336, its compute instance 1 two more.
	const gi, ci = 336, 338
	files := func(gi, ci int, table string) map[string]string {
		out := map[string]string{instance + "/access": access(gi), instance + "/ci1/access": access(ci)}
		if table != "" {
			out["driver/nvidia-caps/mig-minors"] = table
		}
		return out
	}
	for name, c := range map[string]struct {
		files  map[string]string
		gi, ci int
		err    string
	}{
		"by the rule":                {files(gi, ci, ""), gi, ci, ""},
		"by the driver's own table":  {files(500, 501, "config 1\ngpu2/gi7/access 500\ngpu2/gi7/ci1/access 501\n"), 500, 501, ""},
		"against rule and table":     {files(500, ci, "gpu2/gi7/access 336\n"), 0, 0, "500 by its access file and 336 by mig-minors"},
		"against the rule, no table": {files(gi, 7, ""), 0, 0, "no table mig-minors"},
		"no compute instance":        {map[string]string{instance + "/access": access(gi)}, 0, 0, "no such file"},
		"no instance":                {nil, 0, 0, "no such file"},
		"an access file of nonsense": {map[string]string{instance + "/access": "DeviceFileMinor: -\n"}, 0, 0, "not a number"},
	} {
		t.Run(name, func(t *testing.T) {
			gi, ci, err := procTree(t, c.files).InstanceCapabilities(t.Context(), 2, 7, 1)
			switch {
			case c.err == "" && (err != nil || gi != c.gi || ci != c.ci):
				t.Errorf("%d and %d, %v", gi, ci, err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v, want one that says %q", err, c.err)
			}
		})
	}
	if _, _, err := procTree(t, nil).InstanceCapabilities(t.Context(), 0, 0, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
}

func FuzzParseField(f *testing.F) {
	f.Add([]byte("Device Minor: \t 3\n"))
	f.Add([]byte("Device Minor:99999999999"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, err := sysfs.ParseField(data, "Device Minor"); err == nil && n < 0 {
			t.Errorf("%q gives %d", data, n)
		}
	})
}

func FuzzParseMIGMinors(f *testing.F) {
	f.Add([]byte("config 1\ngpu0/gi0/access 3\ngpu0/gi0/access 4\nx\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, n := range sysfs.ParseMIGMinors(data) {
			if n < 0 || strings.ContainsAny(name, " \n") {
				t.Errorf("%q gives %q = %d", data, name, n)
			}
		}
	})
}
