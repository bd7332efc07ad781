package gpusim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

func smi(t *testing.T, node *gpusim.Node, args ...string) (string, int) {
	t.Helper()
	return outputOf(t, exec.CommandContext(t.Context(), node.SMI(), args...))
}

func TestSMIQueries(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "mixed", gpusim.WithFile(func(f *nodefile.File) {
		f.GPUs[3].Override = []byte(`{"unsupported": ["memory", "serial"]}`)
	}))
	uuids := node.UUIDs()
	tests := []struct {
		name, args, want string
		exit             int
	}{
		{"header and units", "--query-gpu=index,memory.total,power.limit --format=csv", "index, memory.total [MiB], power.limit [W]\n0, 81920 MiB, 300.00 W\n1, 81920 MiB, 300.00 W\n2, 95830 MiB, 400.00 W\n3, [N/A], 350.00 W\n4, 15360 MiB, 70.00 W\n", 0},
		{"without units", "-i 0 --query-gpu=memory.total,memory.free --format=csv,nounits", "memory.total, memory.free\n81920, 81291\n", 0},
		{"modes", "-i 0,3,4 --query-gpu=mig.mode.current,compute_mode,persistence_mode,compute_cap,fabric.state --format=csv,noheader", "Disabled, Default, Enabled, 8.0, [N/A]\n[N/A], Default, Enabled, 8.9, [N/A]\n[N/A], Default, Enabled, 7.5, [N/A]\n", 0},
		{"identity", "-i 4 --query-gpu=name,uuid,pci.bus_id,driver_version,serial --format=csv,noheader", "Tesla T4, " + uuids[4] + ", 00000000:CA:00.0, 580.105.08, " + node.Spec().GPUs[4].Serial + "\n", 0},
		{"by UUID", "-i " + uuids[2] + " --query-gpu=index --format=csv,noheader", "2\n", 0},
		{"by address", "-i 00000000:65:00.0 --query-gpu=index --format=csv,noheader", "1\n", 0},
		{"unknown field", "--query-gpu=index,color --format=csv", "Field \"color\" is not a valid field to query.\n", 2},
		{"no format", "--query-gpu=index", "\"--format=\" must be csv, csv,noheader or csv,noheader,nounits.\n", 2},
		{"unknown GPU", "-i 17 -L", "No devices were found\n", 6},
		{"unknown option", "--everything", "Invalid combination of input arguments: \"--everything\". Please run 'nvidia-smi -h' for help.\n", 2},
		{"wrong mode", "-c SOMETIMES", "Invalid compute mode \"SOMETIMES\": must be 0 or DEFAULT, 2 or PROHIBITED, 3 or EXCLUSIVE_PROCESS.\n", 2},
		{"persistence", "-i 0 -pm 0", "Set persistence mode to Disabled for GPU 00000000:17:00.0.\nAll done.\n", 0},
		{"compute mode", "-i 0 -c EXCLUSIVE_PROCESS", "Set compute mode to Exclusive_Process for GPU 00000000:17:00.0.\nAll done.\n", 0},
		{"mode is kept", "-i 0 --query-gpu=compute_mode,persistence_mode --format=csv,noheader", "Exclusive_Process, Disabled\n", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, exit := smi(t, node, strings.Fields(test.args)...)
			if diff := cmp.Diff(test.want, got); diff != "" || exit != test.exit {
				t.Errorf("exit %d, want %d (-want +got):\n%s", exit, test.exit, diff)
			}
		})
	}
}

func TestSMITopologyOfPresets(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"dgx1-v100":   "GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS",
		"dgx-a100-80": "GPU0\t X \tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12",
		"a100-pcie-8": "GPU0\t X \tNV12\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS",
		"l40s-8":      "GPU0\t X \tPHB\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS",
		"hgx-b200-8":  "GPU0\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18",
	}
	for preset, want := range tests {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			out, exit := smi(t, gpusim.New(t, preset), "topo", "-m")
			if exit != 0 || !strings.Contains(out, want) {
				t.Errorf("exit %d, no line %q in:\n%s", exit, want, out)
			}
		})
	}
}

func TestSMISummary(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	do(t, node.SetUsedMemory(2, 1<<30))
	out, exit := smi(t, node)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, line := range lines {
		if line != "" && len(line) != len(lines[0]) {
			t.Errorf("line %d has %d characters, the first %d:\n%s", i, len(line), len(lines[0]), out)
		}
	}
	if exit != 0 || !strings.Contains(out, "1024MiB / 81559MiB") || strings.Count(out, "NVIDIA H100 80GB HBM3") != 8 {
		t.Errorf("exit %d:\n%s", exit, out)
	}
}

func TestSMIOnASickNode(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, node.LoseGPU(1))
	out, exit := smi(t, node, "-L")
	if exit != 15 || strings.Count(out, "UUID") != 3 || !strings.Contains(out, "GPU1: GPU is lost") {
		t.Errorf("with a lost GPU: exit %d\n%s", exit, out)
	}
	out, _ = smi(t, node, "--query-gpu=index,name", "--format=csv,noheader")
	if !strings.Contains(out, "1, [GPU is lost]") {
		t.Errorf("query with a lost GPU:\n%s", out)
	}
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlInit", GPU: gpusim.AnyGPU, Code: 18}))
	out, exit = smi(t, node, "-L")
	if exit != 18 || !strings.Contains(out, "Failed to initialize NVML: Driver/library version mismatch") {
		t.Errorf("with a failing start: exit %d\n%s", exit, out)
	}
	do(t, os.Remove(filepath.Join(node.DevRoot(), "dev/nvidiactl")))
	if out, exit = smi(t, node, "-L"); exit != 9 || !strings.Contains(out, "couldn't communicate with the NVIDIA driver") {
		t.Errorf("without a driver: exit %d\n%s", exit, out)
	}
	do(t, os.Remove(node.Library()))
	if out, exit = smi(t, node, "-L"); exit != 12 || !strings.Contains(out, "couldn't find libnvidia-ml.so") {
		t.Errorf("without the library: exit %d\n%s", exit, out)
	}
}
