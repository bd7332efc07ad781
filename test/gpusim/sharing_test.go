package gpusim_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// wantSharing compares how a GPU is shared.
func wantSharing(t *testing.T, node *gpusim.Node, number int, want gpusim.Sharing) {
	t.Helper()
	got, err := node.Sharing(number)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("sharing of GPU %d, %v (-want +got):\n%s", number, err, diff)
	}
}

func TestComputePolicy(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) {
		f.GPUs[3].Override = []byte(`{"unsupported": ["timeSlice"]}`)
	}))
	uuids := node.UUIDs()
	table := func(rows string) string {
		return "+-------------------------------------+\n| GPU compute policies:               |\n| GPU     Name              Value     |\n" +
			"|=====================================|\n" + rows + "+-------------------------------------+\n"
	}
	const usage = "Usage: nvidia-smi compute-policy [-i ID,...] -l | --set-timeslice=N\nN is 0=DEFAULT, 1=SHORT, 2=MEDIUM or 3=LONG.\n"
	tests := []struct {
		name, args, want string
		exit             int
	}{
		{"as booted", "-l -i 0,3", table("|   0     Timeslice         Default   |\n|   3     Timeslice         [N/A]     |\n"), 0},
		{"set by UUID", "-i " + uuids[1] + " --set-timeslice=1", "Successfully set timeslice to Short for GPU 00000000:41:00.0\n", 0},
		{"set by address", "--set-timeslice 3 --id 00000000:61:00.0", "Successfully set timeslice to Long for GPU 00000000:61:00.0\n", 0},
		{"is kept", "--list -i 1,2", table("|   1     Timeslice         Short     |\n|   2     Timeslice         Long      |\n"), 0},
		{"not on this board", "-i 3 --set-timeslice=0", "Failed to set timeslice for requested devices : Not Supported\n", 3},
		{"no such slice", "--set-timeslice=4", "Invalid timeslice \"4\": must be 0=DEFAULT, 1=SHORT, 2=MEDIUM or 3=LONG.\n", 2},
		{"no such GPU", "-l -i 9", "No devices were found\n", 6},
		{"nothing asked", "", usage, 2},
		{"two things asked", "-l --set-timeslice=1", usage, 2},
		{"unknown option", "-l -x", usage, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, exit := smi(t, node, append([]string{"compute-policy"}, strings.Fields(test.args)...)...)
			if diff := cmp.Diff(test.want, got); diff != "" || exit != test.exit {
				t.Errorf("exit %d, want %d (-want +got):\n%s", exit, test.exit, diff)
			}
		})
	}
	wantSharing(t, node, 2, gpusim.Sharing{TimeSlice: gpusim.TimeSliceLong})
}

func TestComputePolicyFails(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-smi:compute-policy", GPU: 1, Code: 999}))
	if out, exit := smi(t, node, "compute-policy", "--set-timeslice=2"); exit != 255 || !strings.HasSuffix(out, "Failed to set timeslice for requested devices : Unknown Error\n") {
		t.Errorf("exit %d, %q", exit, out)
	}
	wantSharing(t, node, 0, gpusim.Sharing{TimeSlice: gpusim.TimeSliceMedium})
	wantSharing(t, node, 1, gpusim.Sharing{})
	if out, exit := smi(t, node, "compute-policy", "--set-timeslice=2", "-i", "1"); exit != 0 {
		t.Errorf("after one failure: exit %d, %q", exit, out)
	}
	do(t, node.LoseGPU(2))
	if out, exit := smi(t, node, "compute-policy", "--set-timeslice=2", "-i", "2"); exit != 15 {
		t.Errorf("lost GPU: exit %d, %q", exit, out)
	}
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-smi", GPU: gpusim.AnyGPU, Code: 9}))
	if out, exit := smi(t, node, "-L"); exit != 9 {
		t.Errorf("tool that fails as a whole: exit %d, %q", exit, out)
	}
	if out, exit := newContainer(t, node, 0).smi("compute-policy", "--set-timeslice=1"); exit != 4 || !strings.Contains(out, "Insufficient Permissions") {
		t.Errorf("in a container: exit %d, %q", exit, out)
	}
}

func TestSharingIsForgotten(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	set := gpusim.Sharing{ComputeMode: gpusim.ComputeExclusiveProcess, TimeSlice: gpusim.TimeSliceShort}
	for number := range 2 {
		do(t, node.SetComputeMode(number, set.ComputeMode))
		do(t, node.SetTimeSlice(number, set.TimeSlice))
	}
	do(t, node.ResetGPU(0))
	wantSharing(t, node, 0, gpusim.Sharing{})
	wantSharing(t, node, 1, set)
	do(t, node.Reboot(0))
	wantSharing(t, node, 1, gpusim.Sharing{})
}

func TestComputeModeOfMIG(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8", gpusim.WithFile(func(f *nodefile.File) {
		f.MIG = &nodefile.MIG{Enabled: true, Instances: []nodefile.MIGInstance{{Profile: "3g.40gb"}, {Profile: "1g.10gb"}}}
		f.GPUs[1].Override = []byte(`{"unsupported": ["migComputeMode"]}`)
	}))
	instances, err := node.MIGInstances(0)
	do(t, err)
	uuid := instances[0].Compute[0].UUID
	if out, exit := smi(t, node, "-i", uuid, "-c", "EXCLUSIVE_PROCESS"); exit != 0 || out != "Set compute mode to Exclusive_Process for GPU "+uuid+".\nAll done.\n" {
		t.Errorf("MIG device: exit %d, %q", exit, out)
	}
	for i, want := range []int{gpusim.ComputeExclusiveProcess, gpusim.ComputeDefault} {
		if mode, err := node.MIGComputeMode(0, instances[i].ID, 0); mode != want || err != nil {
			t.Errorf("instance %d has mode %d (%v), want %d", i, mode, err, want)
		}
	}
	if _, err := node.MIGComputeMode(0, 99, 0); err == nil {
		t.Error("an instance that cannot exist has a mode")
	}
	if out, exit := smi(t, node, "-i", "0", "-c", "3"); exit != 3 {
		t.Errorf("board in MIG mode: exit %d, %q", exit, out)
	}
	refused, err := node.MIGInstances(1)
	do(t, err)
	if out, exit := smi(t, node, "-i", refused[0].Compute[0].UUID, "-c", "3"); exit != 3 || !strings.Contains(out, "Not Supported") {
		t.Errorf("driver that refuses it: exit %d, %q", exit, out)
	}
}
