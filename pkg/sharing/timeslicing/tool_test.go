package timeslicing

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	configapi "github.com/gpu-dra/driver/api/resource/v1beta1"
)

// fakeSMI puts a tool that runs a shell script into a driver root. NVML is an empty library there.
func fakeSMI(t *testing.T, dir, script string) Tool {
	t.Helper()
	root := t.TempDir()
	ok(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	ok(t, os.MkdirAll(filepath.Join(root, "usr/lib64"), 0o755))
	ok(t, os.WriteFile(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), nil, 0o600))
	ok(t, os.WriteFile(filepath.Join(root, dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755))
	return Tool{Root: root}
}

func TestToolIsCalledAsDocumented(t *testing.T) {
	for interval, n := range map[configapi.TimeSlice]int{"Default": 0, "Short": 1, "Medium": 2, "Long": 3} {
		for _, dir := range []string{"usr/bin", "opt/nvidia/bin"} {
			record := filepath.Join(t.TempDir(), "args")
			tool := fakeSMI(t, dir, "echo \"$@\" > "+record)
			ok(t, tool.SetTimeSlice(t.Context(), "GPU-1", interval))
			args, err := os.ReadFile(record)
			ok(t, err)
			if want := fmt.Sprintf("compute-policy -i GPU-1 --set-timeslice=%d\n", n); string(args) != want {
				t.Errorf("%s: called with %q, want %q", interval, args, want)
			}
		}
	}
}

func TestToolErrors(t *testing.T) {
	for script, want := range map[string]error{
		"echo 'Failed to set timeslice : Not Supported'; exit 3": ErrNotSupported, "exit 15": ErrGone, "exit 12": ErrNoTool,
	} {
		if err := fakeSMI(t, "usr/bin", script).SetTimeSlice(t.Context(), "GPU-1", "Long"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", script, err, want)
		}
	}
	if err := fakeSMI(t, "usr/bin", "exit 0").SetTimeSlice(t.Context(), "GPU-1", "Forever"); err == nil || !strings.Contains(err.Error(), `"Forever"`) {
		t.Errorf("%v", err)
	}
}
