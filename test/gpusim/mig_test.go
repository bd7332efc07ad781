package gpusim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

const (
	noPermission = "code 4"
	notFound     = "code 6"
	inUse        = "code 19"
	noResources  = "code 23"
)

// migOn makes a node of one board with MIG on and a session on it.
func migOn(t *testing.T, board string) (*gpusim.Node, *session) {
	t.Helper()
	node := oneOf(t, board)
	do(t, node.SetMIGMode(0, true))
	return node, start(t, node, 1)
}

func TestModeChangeOnHopperIsImmediate(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	s := start(t, node, 3)
	s.want("maxmig 0", "0")
	s.want("gicreate 0 19", notSupported)
	s.want("remaining 0 19", notSupported)
	s.want("setmig 0 2", invalid)
	s.want("p2p 0 1", "0")
	s.want("setmig 0 1", "status 0")
	s.want("getmig 0", "1 1")
	s.want("maxmig 0", "7")
	s.want("getmig 1", "0 0")
	// In MIG mode there is no peer access; the others keep theirs.
	s.want("p2p 0 1", "5")
	s.want("p2p 2 0", "5")
	s.want("p2p 1 2", "0")
	s.want("gicreate 0 9", "gi 2 at 4")
	s.want("setmig 0 1", "status 0")
	s.want("setmig 0 0", inUse)
	s.want("getmig 0", "1 1")
	s.want("gidestroy 0 2", ok)
	s.want("setmig 0 0", "status 0")
	s.want("p2p 0 1", "0")
	s.want("gicreate 0 9", notSupported)
}

func TestModeChangeOfABusyGPUStaysPending(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	s := start(t, node, 1)
	do(t, node.SetClients(0, 2))
	s.want("setmig 0 1", "status 19")
	s.want("getmig 0", "0 1")
	s.want("gicreate 0 19", notSupported)
	if err := node.ResetGPU(0); err == nil || !strings.Contains(err.Error(), "In use") {
		t.Errorf("resetting a busy GPU: %v", err)
	}
	do(t, node.SetClients(0, 0))
	s.want("setmig 0 1", "status 0")
	s.want("getmig 0", "1 1")
}

func TestModeChangeOnAmpereNeedsAReset(t *testing.T) {
	t.Parallel()
	for _, board := range []string{"a30-24gb", "a100-sxm4-40gb"} {
		t.Run(board, func(t *testing.T) {
			t.Parallel()
			node := oneOf(t, board)
			s := start(t, node, 1)
			s.want("setmig 0 1", "status 16")
			s.want("getmig 0", "0 1")
			s.want("gicreate 0 14", notSupported)
			do(t, node.ResetGPU(0))
			s.want("getmig 0", "1 1")
			// The whole board has id 0 on both.
			s.want("gicreate 0 0", "gi 0 at 0")
			s.want("gidestroy 0 0", ok)
			s.want("setmig 0 0", "status 16")
			s.want("setmig 0 1", "status 0")
			s.want("getmig 0", "1 1")
			s.want("setmig 0 0", "status 16")
			do(t, node.Reboot(0))
			s = start(t, node, 1)
			s.want("getmig 0", "0 0")
		})
	}
}

func TestBoardsWithoutMIG(t *testing.T) {
	t.Parallel()
	s := start(t, oneOf(t, "l40s-48gb"), 1)
	for _, question := range []string{"getmig 0", "setmig 0 1", "gicreate 0 19", "gicreate 0 19 0 1", "remaining 0 19", "gidestroy 0 0"} {
		s.want(question, notSupported)
	}
	s.want("maxmig 0", "0")
	s.want("migs 0", "")
}

// The order in which the driver places instances, as published listings show it.
func TestPlacesThatTheDriverChooses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		board    string
		profiles []int
		want     []string
	}{
		{"h100-sxm5-80gb", []int{19, 19, 19, 19, 19, 19, 19, 19}, []string{"gi 13 at 6", "gi 11 at 4", "gi 12 at 5", "gi 7 at 0", "gi 8 at 1", "gi 9 at 2", "gi 10 at 3", noResources}},
		{"a100-sxm4-40gb", []int{9, 14, 19}, []string{"gi 2 at 4", "gi 3 at 0", "gi 9 at 2"}},
		{"h100-nvl-94gb", []int{9, 9, 19}, []string{"gi 2 at 4", "gi 1 at 0", noResources}},
		{"h200-sxm5-141gb", []int{0, 19}, []string{"gi 0 at 0", noResources}},
		{"rtx-pro-6000-96gb", []int{5, 14, 14, 14}, []string{"gi 1 at 0", "gi 5 at 6", "gi 6 at 9", noResources}},
		{"a30-24gb", []int{14, 5, 14, 14}, []string{"gi 3 at 0", "gi 2 at 2", "gi 4 at 1", noResources}},
	}
	for _, test := range tests {
		t.Run(test.board, func(t *testing.T) {
			t.Parallel()
			_, s := migOn(t, test.board)
			for i, id := range test.profiles {
				s.want(fmt.Sprintf("gicreate 0 %d", id), test.want[i])
			}
		})
	}
}

func TestErrorsOfGPUInstances(t *testing.T) {
	t.Parallel()
	node, s := migOn(t, "h100-sxm5-80gb")
	s.want("gicreate 0 77", invalid)
	s.want("gicreate 0 9 2 4", invalid)
	s.want("gicreate 0 9 4 2", invalid)
	s.want("gicreate 0 5 0 4", "gi 1 at 0")
	s.want("gicreate 0 19 3 1", noResources)
	s.want("gicreate 0 9 0 4", noResources)
	s.want("gicreate 0 5", noResources)
	s.want("remaining 0 5", "0")
	s.want("remaining 0 9", "1")
	s.want("remaining 0 19", "3")
	s.want("remaining 0 20", "1")
	s.want("remaining 0 77", notSupported)
	s.want("gidestroy 0 2", notFound)
	s.want("gidestroy 0 15", notFound)
	s.want("gidestroy 0 16", notFound)
	s.want("cicreate 0 1 3", "ci 0 at 0")
	s.want("gidestroy 0 1", inUse)
	do(t, node.SetMIGClients(0, 1, 0, 1))
	s.want("cidestroy 0 1 0", inUse)
	do(t, node.SetMIGClients(0, 1, 0, 0))
	s.want("cidestroy 0 1 0", ok)
	s.want("cidestroy 0 1 0", notFound)
	s.want("gidestroy 0 1", ok)
	do(t, node.LoseGPU(0))
	s.want("gicreate 0 19", lost)
	s.want("maxmig 0", lost)
}

func TestComputeInstances(t *testing.T) {
	t.Parallel()
	_, s := migOn(t, "a100-sxm4-40gb")
	s.want("gicreate 0 0", "gi 0 at 0")
	// Whole seven slices: 1c 7, 2c 3, 3c 2, 4c 1, 7c 1; the header's other profiles are not there.
	for profile, want := range []string{"7", "3", "2", "1", "1", notSupported, notSupported, notSupported, notSupported} {
		s.want(fmt.Sprintf("ciremaining 0 0 %d", profile), want)
	}
	s.want("cicreate 0 0 3", "ci 0 at 0")
	s.want("cicreate 0 0 2 0 3", noResources)
	s.want("cicreate 0 0 2 3 3", invalid)
	s.want("cicreate 0 0 2", "ci 1 at 4")
	s.want("ciremaining 0 0 0", "0")
	s.want("cicreate 0 0 0", noResources)
	s.want("gis 0", "0:0:0:8/0:3:0:4/1:2:4:3")
	s.want("migs 0", "0=0/0 1=0/1")
	s.want("cidestroy 0 0 0", ok)
	s.want("migs 0", "0=0/1")
	s.want("cicreate 0 0 1", "ci 0 at 0")
	s.want("cicreate 0 0 4", noResources)
	s.want("cicreate 0 0 9", notSupported)
	s.want("gicreate 0 19", noResources)
}

func TestMIGFunctionsMeetInjectedFaults(t *testing.T) {
	t.Parallel()
	node, s := migOn(t, "h100-sxm5-80gb")
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceCreateGpuInstance", GPU: 0, Code: 23}))
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlGpuInstanceDestroy", GPU: 0, Code: 19, Count: 2}))
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlComputeInstanceDestroy", GPU: 0, Code: 999}))
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlGpuInstanceCreateComputeInstance", GPU: 0, Code: 999}))
	// What another tool does is not what is under test.
	instance, err := node.CreateMIG(0, "1g.10gb", 3)
	do(t, err)
	do(t, node.DestroyMIG(0, instance.ID))
	s.want("gicreate 0 19", noResources)
	s.want("gicreate 0 19", "gi 13 at 6")
	s.want("cicreate 0 13 0", unknown)
	s.want("cicreate 0 13 0", "ci 0 at 0")
	s.want("cidestroy 0 13 0", unknown)
	s.want("cidestroy 0 13 0", ok)
	s.want("gidestroy 0 13", inUse)
	s.want("gidestroy 0 13", inUse)
	s.want("gidestroy 0 13", ok)
	const delay = 60 * time.Millisecond
	do(t, node.FailCall(gpusim.CallFault{Function: "nvmlDeviceCreateGpuInstanceWithPlacement", GPU: 0, Delay: delay}))
	begin := time.Now()
	s.want("gicreate 0 19 0 1", "gi 7 at 0")
	if took := time.Since(begin); took < delay {
		t.Errorf("the slow create took %s, want at least %s", took, delay)
	}
}

// capabilities lists the files and nodes of instances, as gi/access=minor and nvidia-capN.
func capabilities(t *testing.T, node *gpusim.Node, number int) (files map[string]string, nodes []string) {
	t.Helper()
	minor := node.Spec().GPUs[number].Minor
	dir := filepath.Join(node.ProcRoot(), fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig", minor))
	files = map[string]string{}
	for _, pattern := range []string{"gi*/access", "gi*/ci*/access"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		do(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			do(t, err)
			files[strings.TrimPrefix(path, dir+"/")] = string(text)
		}
	}
	entries, err := os.ReadDir(filepath.Join(node.DevRoot(), "dev/nvidia-caps"))
	do(t, err)
	for _, entry := range entries {
		var cap uint32
		if _, err := fmt.Sscanf(entry.Name(), "nvidia-cap%d", &cap); err != nil {
			t.Errorf("%s in nvidia-caps", entry.Name())
		}
		if first := 3 + 135*minor; cap >= first && cap < first+135 {
			nodes = append(nodes, entry.Name())
		}
	}
	return files, nodes
}

func TestCapabilitiesComeAndGo(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8", gpusim.WithFile(func(f *nodefile.File) {
		seven, two := uint32(7), uint32(2)
		f.GPUs[2].Minor, f.GPUs[7].Minor = &seven, &two
	}))
	do(t, node.SetMIGMode(2, true))
	do(t, node.SetMIGMode(3, true))
	if _, err := node.CreateMIG(2, "1g.10gb", 6); err != nil {
		t.Fatal(err)
	}
	_, err := node.CreateMIG(3, "7g.80gb", gpusim.AnyStart)
	do(t, err)
	files, nodes := capabilities(t, node, 2)
	// Minor 7, GPU instance 13: 3 + 135*7 + 9*13 = 1065.
	access := func(minor int) string {
		return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
	}
	if diff := cmp.Diff(map[string]string{"gi13/access": access(1065), "gi13/ci0/access": access(1066)}, files); diff != "" {
		t.Errorf("capability files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"nvidia-cap1065", "nvidia-cap1066"}, nodes); diff != "" {
		t.Errorf("capability nodes (-want +got):\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(node.DevRoot(), "dev/nvidia-caps/nvidia-cap1066"))
	do(t, err)
	if info.Mode()&os.ModeCharDevice == 0 || info.Mode().Perm() != 0o444 {
		t.Errorf("the node has mode %s, want a character device that all may read", info.Mode())
	}
	do(t, node.DestroyMIG(2, 13))
	if files, nodes := capabilities(t, node, 2); len(files) != 0 || len(nodes) != 0 {
		t.Errorf("after the end: files %v, nodes %v", files, nodes)
	}
	if _, nodes := capabilities(t, node, 3); len(nodes) != 2 {
		t.Errorf("the other GPU has nodes %v, want two", nodes)
	}
	do(t, node.RemoveGPU(3))
	if files, nodes := capabilities(t, node, 3); len(files) != 0 || len(nodes) != 0 {
		t.Errorf("of a GPU that left: files %v, nodes %v", files, nodes)
	}
	do(t, node.AddGPU(3))
	if got, err := node.MIGInstances(3); err != nil || len(got) != 0 {
		t.Errorf("a GPU that returned has instances %v, %v", got, err)
	}
}

func TestInstancesOfTheNodeFile(t *testing.T) {
	t.Parallel()
	four := uint32(4)
	node := gpusim.New(t, "hgx-h100-8", gpusim.WithFile(func(f *nodefile.File) {
		f.MIG = &nodefile.MIG{Enabled: true}
		f.GPUs[1].MIG = &nodefile.MIG{Enabled: true, Instances: []nodefile.MIGInstance{{Profile: "3g.40gb", Start: &four}, {Profile: "1g.10gb+me"}}}
		f.GPUs[2].MIG = &nodefile.MIG{}
	}))
	check := func() {
		t.Helper()
		s := start(t, node, 8)
		s.want("getmig 0", "1 1")
		s.want("gis 0", "")
		s.want("gis 1", "2:9:4:4/0:2:0:3 7:20:0:1/0:0:0:1")
		s.want("getmig 2", "0 0")
		s.want("getmig 7", "1 1")
	}
	check()
	do(t, node.DestroyMIG(1, 2))
	_, err := node.CreateMIG(7, "4g.40gb", 0)
	do(t, err)
	do(t, node.Reboot(5))
	// What the file does not say is forgotten.
	check()
	if files, nodes := capabilities(t, node, 7); len(files) != 0 || len(nodes) != 0 {
		t.Errorf("after the reboot: files %v, nodes %v", files, nodes)
	}
	if _, nodes := capabilities(t, node, 1); len(nodes) != 4 {
		t.Errorf("after the reboot: nodes %v, want four", nodes)
	}
}

func TestComputeModeInMIGMode(t *testing.T) {
	t.Parallel()
	node, s := migOn(t, "h100-sxm5-80gb")
	s.want("setcompute 0 3", notSupported)
	s.want("compute 0", "0")
	if err := node.SetMIGClients(0, 0, 0, 33); err == nil {
		t.Error("33 clients were accepted")
	}
}

func TestReadOnlyStateRefusesMIG(t *testing.T) {
	t.Parallel()
	node, _ := migOn(t, "h100-sxm5-80gb")
	c := newContainer(t, node, 0)
	for _, args := range [][]string{{"mig", "-cgi", "19"}, {"-mig", "0"}, {"--gpu-reset"}} {
		out, exit := c.smi(args...)
		if exit != 4 || !strings.Contains(out, "Insufficient Permissions") {
			t.Errorf("%v: exit %d, %q; want %s", args, exit, out, noPermission)
		}
	}
}
