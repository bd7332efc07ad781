package gpusim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
)

const (
	giTable = "+---------------------------------------------------------+\n" +
		"| GPU instances:                                          |\n" +
		"| GPU   Name               Profile  Instance   Placement  |\n" +
		"|                            ID       ID       Start:Size |\n" +
		"|=========================================================|\n"
	ciTable = "+--------------------------------------------------------------------+\n" +
		"| Compute instances:                                                 |\n" +
		"| GPU     GPU       Name             Profile   Instance   Placement  |\n" +
		"|       Instance                       ID        ID       Start:Size |\n" +
		"|         ID                                                         |\n" +
		"|====================================================================|\n"
)

// The whole life of instances as an administrator types it.
func TestSMIPartitionsAGPU(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "rtx-pro-6000-8")
	pci := strings.ToUpper("0000" + node.Spec().GPUs[3].PCI.String())
	uuid := node.UUIDs()[3]
	list := "GPU 3: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: " + uuid + ")\n"
	steps := []struct {
		args, want string
		exit       int
	}{
		{"mig -lgip", "No MIG-enabled devices found.\n", 6},
		{"mig -cgi 14 -i 3", "No MIG-enabled devices found.\n", 6},
		{"-mig 1 -i 3", "Enabled MIG Mode for GPU " + pci + "\nAll done.\n", 0},
		{"--query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader -i 2,3", "Disabled, Disabled\nEnabled, Enabled\n", 0},
		{"mig -lgi", "No GPU instances found: Not Found\n", 6},
		{"mig -lci", "No compute instances found: Not Found\n", 6},
		{"mig -cgi 2g.48gb:6 -C", "Successfully created GPU instance ID  2 on GPU  3 using profile MIG 2g.48gb (ID  5)\n" +
			"Successfully created compute instance ID  0 on GPU  3 GPU instance ID  2 using profile MIG 2g.48gb (ID  1)\n", 0},
		{"mig -cgi 47,1g.24gb-me -i 3", "Successfully created GPU instance ID  3 on GPU  3 using profile MIG 1g.24gb+gfx (ID 47)\n" +
			"Successfully created GPU instance ID  4 on GPU  3 using profile MIG 1g.24gb-me (ID 67)\n", 0},
		{"mig -cgi 0", "Unable to create a GPU instance on GPU  3 using profile 0: Insufficient Resources\nFailed to create GPU instances: Insufficient Resources\n", 23},
		{"mig -cgi 3g.72gb", "Unable to create a GPU instance on GPU  3 using profile 3g.72gb: Invalid Argument\nFailed to create GPU instances: Invalid Argument\n", 2},
		{"mig -cgi 14:1", "Unable to create a GPU instance on GPU  3 using profile 14: Invalid Argument\nFailed to create GPU instances: Invalid Argument\n", 2},
		{"mig -lgi", giTable + "|   3  MIG 1g.24gb+gfx       47        3          0:3     |\n+---------------------------------------------------------+\n" +
			"|   3  MIG 1g.24gb-me        67        4          3:3     |\n+---------------------------------------------------------+\n" +
			"|   3  MIG 2g.48gb            5        2          6:6     |\n+---------------------------------------------------------+\n", 0},
		{"mig -cci -gi 3,4", "Successfully created compute instance ID  0 on GPU  3 GPU instance ID  3 using profile MIG 1g.24gb+gfx (ID  0)\n" +
			"Successfully created compute instance ID  0 on GPU  3 GPU instance ID  4 using profile MIG 1g.24gb-me (ID  0)\n", 0},
		{"-L -i 3", list + "  MIG 2g.48gb     Device  0: (UUID: " + gpusim.MIGUUID(uuid, 2, 0) + ")\n" +
			"  MIG 1g.24gb+gfx Device  1: (UUID: " + gpusim.MIGUUID(uuid, 3, 0) + ")\n" +
			"  MIG 1g.24gb-me  Device  2: (UUID: " + gpusim.MIGUUID(uuid, 4, 0) + ")\n", 0},
		{"mig -dci -gi 2 -ci 0", "Successfully destroyed compute instance ID  0 from GPU  3 GPU instance ID  2\n", 0},
		{"mig -cci 0,1c.2g.48gb -gi 2", "Successfully created compute instance ID  0 on GPU  3 GPU instance ID  2 using profile MIG 1c.2g.48gb (ID  0)\n" +
			"Successfully created compute instance ID  1 on GPU  3 GPU instance ID  2 using profile MIG 1c.2g.48gb (ID  0)\n", 0},
		{"mig -lci -gi 2", ciTable + "|   3      2       MIG 1c.2g.48gb       0         0          0:1     |\n+--------------------------------------------------------------------+\n" +
			"|   3      2       MIG 1c.2g.48gb       0         1          1:1     |\n+--------------------------------------------------------------------+\n", 0},
		{"mig -cci 0 -gi 2", "Unable to create a compute instance on GPU  3 GPU instance ID  2 using profile 0: Insufficient Resources\n" +
			"Failed to create compute instances: Insufficient Resources\n", 23},
		{"mig -dgi -gi 2", "Unable to destroy GPU instance ID  2 from GPU  3: In use by another client\nFailed to destroy GPU instances: In use by another client\n", 19},
		{"-mig 0 -i 3", "Unable to disable MIG Mode for GPU " + pci + ": In use by another client\n", 19},
		{"mig -dci -gi 2", "Successfully destroyed compute instance ID  0 from GPU  3 GPU instance ID  2\nSuccessfully destroyed compute instance ID  1 from GPU  3 GPU instance ID  2\n", 0},
		{"mig -dgi -gi 2", "Successfully destroyed GPU instance ID  2 from GPU  3\n", 0},
		{"mig -dgi -gi 2", "No GPU instances found: Not Found\n", 6},
		{"--gpu-reset -i 3", "GPU " + pci + " was successfully reset.\nAll done.\n", 0},
		{"mig -lgi", "No GPU instances found: Not Found\n", 6},
		{"-mig 0 -i 3", "Disabled MIG Mode for GPU " + pci + "\nAll done.\n", 0},
		{"-mig 2", "Invalid MIG mode \"2\": must be 0 or 1.\n", 2},
		{"mig", "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2},
		{"mig -lgi -lci", "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2},
		{"mig -cgi", "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2},
		{"mig -lgi --color", "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2},
	}
	for _, step := range steps {
		got, exit := smi(t, node, strings.Fields(step.args)...)
		if diff := cmp.Diff(step.want, got); diff != "" || exit != step.exit {
			t.Errorf("nvidia-smi %s: exit %d, want %d (-want +got):\n%s", step.args, exit, step.exit, diff)
		}
	}
}

func TestSMIModeThatNeedsAReset(t *testing.T) {
	t.Parallel()
	node := oneOf(t, "a30-24gb", "t4-16gb")
	out, exit := smi(t, node, "-mig", "1")
	if exit != 0 || !strings.Contains(out, "Warning: MIG mode is in pending enable state for GPU 00000000:10:00.0:GPU requires reset\n") {
		t.Errorf("exit %d: %q", exit, out)
	}
	out, exit = smi(t, node, "--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader")
	if want := "Disabled, Enabled\n[N/A], [N/A]\n"; out != want || exit != 0 {
		t.Errorf("exit %d: %q, want %q", exit, out, want)
	}
	if out, exit = smi(t, node, "-mig", "1", "-i", "1"); exit != 3 || !strings.Contains(out, "Not Supported") {
		t.Errorf("on a board without MIG: exit %d, %q", exit, out)
	}
	do(t, node.SetClients(0, 1))
	if out, exit = smi(t, node, "--gpu-reset", "-i", "0"); exit != 19 || !strings.Contains(out, "In use") {
		t.Errorf("reset of a busy GPU: exit %d, %q", exit, out)
	}
	do(t, node.LoseGPU(0))
	for _, args := range []string{"--gpu-reset -i 0", "-mig 0 -i 0", "mig -lgip -i 0"} {
		if out, exit = smi(t, node, strings.Fields(args)...); exit != 15 || !strings.Contains(out, "GPU is lost") {
			t.Errorf("%s of a lost GPU: exit %d, %q", args, exit, out)
		}
	}
}

// A plugin reads the driver through a mount it cannot write; a second, writable way to the
// same directory is enough to partition.
func TestSecondWayToTheDriverRoot(t *testing.T) {
	t.Parallel()
	node, _ := migOn(t, "h100-sxm5-80gb")
	mounts := t.TempDir()
	for _, name := range []string{"ro", "rw", "proc"} {
		do(t, os.Mkdir(filepath.Join(mounts, name), 0o755))
	}
	run := func(command string) (string, int) {
		script := `cd "$1" && mount --bind "$2" ro && mount -o remount,bind,ro ro && mount --bind "$2" rw && mount --bind "$3" proc && mount -o remount,bind,ro proc && ` + command
		return outputOf(t, exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", mounts, node.DriverRoot(), node.ProcRoot()))
	}
	if out, exit := run("ro/usr/bin/nvidia-smi mig -cgi 19 -C"); exit != 4 {
		t.Errorf("through the read-only way: exit %d, %q", exit, out)
	}
	out, exit := run(`GPUSIM_ROOT=$PWD/rw ro/usr/bin/nvidia-smi mig -cgi 19 -C && cat proc/driver/nvidia/capabilities/gpu0/mig/gi13/access && ls rw/dev/nvidia-caps`)
	if exit != 0 || !strings.Contains(out, "DeviceFileMinor: 120\n") || !strings.Contains(out, "nvidia-cap120\nnvidia-cap121\n") {
		t.Errorf("through both: exit %d, %q", exit, out)
	}
	consistent(t, node)
	if _, err := node.CreateMIG(7, "1g.10gb", gpusim.AnyStart); err == nil {
		t.Error("GPU 7 of one was partitioned")
	}
}

// A board that another process has open is not reset: a program on it, or no more than a session. A session that is
// begun twice is over when it is ended twice, and one that does not see a board is not in its way.
func TestResetBesideASession(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	hidden := filepath.Join(node.DevRoot(), "dev/nvidia3")
	do(t, os.Rename(hidden, hidden+".away"))
	s := start(t, node, 1)
	do(t, os.Rename(hidden+".away", hidden))
	reset := func(gpu string) (string, int) { return smi(t, node, "--gpu-reset", "-i", gpu) }
	s.want("init", "code 0")
	s.want("shutdown", "code 0")
	for range 2 {
		if out, exit := reset("1"); exit != 19 || !strings.Contains(out, "In use") {
			t.Errorf("beside a session: exit %d, %q", exit, out)
		}
	}
	if out, exit := reset("3"); exit != 0 {
		t.Errorf("a board that the session does not see: exit %d, %q", exit, out)
	}
	do(t, node.ResetGPU(1))
	s.want("shutdown", "code 0")
	if out, exit := reset("1"); exit != 0 {
		t.Errorf("after the session: exit %d, %q", exit, out)
	}
	s.want("init", "code 0")
	if out, exit := reset("1"); exit != 19 {
		t.Errorf("beside a new session: exit %d, %q", exit, out)
	}
	do(t, s.in.Close())
	_ = s.cmd.Wait() // nobody reads its last words
	if out, exit := reset("1"); exit != 0 {
		t.Errorf("after the process: exit %d, %q", exit, out)
	}
}
