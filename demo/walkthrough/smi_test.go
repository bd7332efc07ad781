package walkthrough

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	uuidA = "GPU-93af02ac-db22-48e4-b681-cfe97bf73ff5"
	uuidB = "GPU-d2c89a74-b5fb-4421-8eb1-6abfcf563346"
)

func TestListedUUIDs(t *testing.T) {
	line := func(uuid string) string { return "GPU 0: NVIDIA A100-SXM4-80GB (UUID: " + uuid + ")\n" }
	got, err := uuids(line(uuidA) + line(uuidB))
	if diff := cmp.Diff([]string{uuidA, uuidB}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"No devices were found\n", line(uuidA) + "Unable to determine the device handle\n", "\n", line("MIG-1")} {
		if got, err := uuids(bad); err == nil {
			t.Errorf("%q gave %v and no error", bad, got)
		}
	}
	if got, err := uuids(""); len(got) != 0 || err != nil {
		t.Errorf("nothing gave %v, %v", got, err)
	}
}

func FuzzListedUUIDs(f *testing.F) {
	f.Add("GPU 0: NVIDIA A100 (UUID: " + uuidA + ")\n")
	f.Add("No devices were found\n")
	f.Fuzz(func(t *testing.T, output string) {
		got, err := uuids(output)
		if err == nil && len(got) != strings.Count(strings.TrimSuffix(output, "\n")+"\n", "\n") && output != "" {
			t.Errorf("%d GPUs of %q", len(got), output)
		}
	})
}

func TestSameGPUs(t *testing.T) {
	want := []gpu{{uuid: uuidB}, {uuid: uuidA}}
	for name, tc := range map[string]struct {
		seen []string
		ok   bool
	}{
		"the same":      {[]string{uuidB, uuidA}, true},
		"another order": {[]string{uuidA, uuidB}, true},
		"one less":      {[]string{uuidA}, false},
		"one more":      {[]string{uuidA, uuidB, "GPU-1"}, false},
		"another":       {[]string{uuidA, "GPU-1"}, false},
		"one twice":     {[]string{uuidA, uuidA}, false},
		"none":          {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := sameGPUs(want, tc.seen); (err == nil) != tc.ok {
				t.Errorf("%v", err)
			}
		})
	}
}

// topology is what nvidia-smi topo -m shows of two GPUs, with one cell to fill.
func topology(cell string) string {
	return "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n" +
		"GPU0\t X \t" + cell + "\t32-63\t1\t\tN/A\n" +
		"GPU1\tNV4\t X \t32-63\t1\t\tN/A\n" +
		"\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
}

func TestAllByNVLink(t *testing.T) {
	if err := allByNVLink(topology("NV4"), 2); err != nil {
		t.Error(err)
	}
	for name, tc := range map[string]struct {
		output string
		n      int
		want   string
	}{
		"across sockets": {topology("SYS"), 2, "GPU 0 and GPU 1 by SYS"},
		"self elsewhere": {topology("X"), 2, "by X"},
		"too few":        {topology("NV4"), 3, "GPU 0 and GPU 2"},
		"too many":       {topology("NV4"), 1, ""},
		"nothing":        {"", 2, "shows 0 GPUs"},
		"a message":      {"Failed to initialize NVML: Driver Not Loaded\n", 1, "shows 0 GPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := allByNVLink(tc.output, tc.n); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want an error with %q", err, tc.want)
			}
		})
	}
}

func FuzzAllByNVLink(f *testing.F) {
	f.Add(topology("NV4"), 2)
	f.Add(topology("SYS"), 3)
	f.Fuzz(func(t *testing.T, output string, n int) {
		n = max(1, min(n, 16))
		if err := allByNVLink(output, n); err == nil && strings.Count(output, "\n") < n-1 {
			t.Errorf("%d GPUs accepted in %q", n, output)
		}
	})
}

func TestMatrixIsWithoutLegend(t *testing.T) {
	if got := matrix(topology("NV4")); strings.Contains(got, "Legend") || strings.Count(got, "\n") != 2 {
		t.Errorf("%q", got)
	}
}
