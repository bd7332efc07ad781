package gpusim_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/rootfs"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// churnChild makes and ends instances of random profiles as fast as it can, for as many
// rounds as its argument says, and says "started" before the first.
func churnChild(lib nvml.Interface, args []string) (any, error) {
	rounds, err := strconv.Atoi(args[0])
	if err != nil {
		return nil, err
	}
	return initialised(lib, func() (int, error) {
		d := must(lib.DeviceGetHandleByIndex(0))
		profiles := []uint32{19, 14, 9, 5}
		made := 0
		fmt.Println("started")
		for range rounds {
			profile := nvml.GpuInstanceProfileInfo{Id: profiles[rand.IntN(len(profiles))]}
			gi, ret := d.CreateGpuInstance(&profile)
			if ret == nvml.ERROR_INSUFFICIENT_RESOURCES {
				continue
			}
			if ret != nvml.SUCCESS {
				return made, fmt.Errorf("create: %w", ret)
			}
			made++
			if err := fillAndEmpty(gi); err != nil {
				return made, err
			}
		}
		return made, nil
	})
}

func fillAndEmpty(gi nvml.GpuInstance) error {
	for number := range 5 {
		info, ret := gi.GetComputeInstanceProfileInfo(number, 0)
		if ret != nvml.SUCCESS {
			continue
		}
		ci, ret := gi.CreateComputeInstance(&info)
		if ret != nvml.SUCCESS {
			return fmt.Errorf("create compute instance %d: %w", number, ret)
		}
		if ret := gi.Destroy(); ret != nvml.ERROR_IN_USE {
			return fmt.Errorf("destroy with a compute instance: %w", ret)
		}
		if ret := ci.Destroy(); ret != nvml.SUCCESS {
			return fmt.Errorf("destroy compute instance: %w", ret)
		}
	}
	if ret := gi.Destroy(); ret != nvml.SUCCESS {
		return fmt.Errorf("destroy: %w", ret)
	}
	return nil
}

// consistent checks that live instances do not overlap and that files and nodes are theirs.
func consistent(t *testing.T, node *gpusim.Node) {
	t.Helper()
	instances, err := node.MIGInstances(0)
	do(t, err)
	wantFiles, wantNodes := []string{}, []string{}
	units := map[int]int{}
	for _, instance := range instances {
		for unit := instance.Start; unit < instance.Start+instance.Size; unit++ {
			if other, taken := units[unit]; taken {
				t.Errorf("unit %d is taken by instances %d and %d", unit, other, instance.ID)
			}
			units[unit] = instance.ID
		}
		wantFiles = append(wantFiles, fmt.Sprintf("gi%d/access", instance.ID))
		wantNodes = append(wantNodes, fmt.Sprintf("nvidia-cap%d", rootfs.CapMinor(0, instance.ID, -1)))
		for _, ci := range instance.Compute {
			wantFiles = append(wantFiles, fmt.Sprintf("gi%d/ci%d/access", instance.ID, ci.ID))
			wantNodes = append(wantNodes, fmt.Sprintf("nvidia-cap%d", rootfs.CapMinor(0, instance.ID, ci.ID)))
		}
	}
	files, nodes := capabilities(t, node, 0)
	got := []string{}
	for name, content := range files {
		if !strings.HasSuffix(content, "DeviceFileModify: 1\n") {
			t.Errorf("%s is not whole: %q", name, content)
		}
		got = append(got, name)
	}
	slices.Sort(got)
	slices.Sort(wantFiles)
	slices.Sort(wantNodes)
	if diff := cmp.Diff(wantFiles, got); diff != "" {
		t.Errorf("capability files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantNodes, append([]string{}, nodes...)); diff != "" {
		t.Errorf("capability nodes (-want +got):\n%s", diff)
	}
}

// Of 28 processes that want a seventh each, seven get one.
func TestRacingCreators(t *testing.T) {
	t.Parallel()
	node, _ := migOn(t, "h100-sxm5-80gb")
	const racers = 28
	var group sync.WaitGroup
	results := make([]int, racers)
	gate := make(chan struct{})
	for i := range racers {
		group.Go(func() {
			<-gate
			_, results[i] = smi(t, node, "mig", "-cgi", "1g.10gb", "-C")
		})
	}
	close(gate)
	group.Wait()
	slices.Sort(results)
	want := slices.Concat(slices.Repeat([]int{0}, 7), slices.Repeat([]int{23}, racers-7))
	if diff := cmp.Diff(want, results); diff != "" {
		t.Errorf("exit codes (-want +got):\n%s", diff)
	}
	instances, err := node.MIGInstances(0)
	do(t, err)
	if len(instances) != 7 {
		t.Errorf("%d instances, want 7", len(instances))
	}
	consistent(t, node)
}

// Processes that make and end instances of all sizes at once never break a rule.
func TestChurningProcesses(t *testing.T) {
	t.Parallel()
	node, _ := migOn(t, "h100-sxm5-80gb")
	const processes = 20
	var group sync.WaitGroup
	total := make([]int, processes)
	for i := range processes {
		group.Go(func() {
			out, err := childCommand(t, node, "churn", "40").Output()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
				return
			}
			_, err = fmt.Sscanf(string(out), "started\n%d", &total[i])
			if err != nil {
				t.Errorf("process %d printed %q: %v", i, out, err)
			}
		})
	}
	for range 200 {
		state, err := node.State()
		do(t, err)
		var units uint64
		for _, instance := range gpusim.Instances(&state.GPUs[0]) {
			mask := (uint64(1)<<instance.Size - 1) << instance.Start
			if units&mask != 0 {
				t.Fatalf("instances overlap: %+v", gpusim.Instances(&state.GPUs[0]))
			}
			units |= mask
		}
	}
	group.Wait()
	sum := 0
	for _, made := range total {
		sum += made
	}
	if sum < processes {
		t.Errorf("%d instances were made in all", sum)
	}
	if instances, err := node.MIGInstances(0); err != nil || len(instances) != 0 {
		t.Errorf("at the end there are %v, %v", instances, err)
	}
	consistent(t, node)
}

// A process that dies in the middle of a change leaves a node on which the next change works
// and puts everything right.
func TestKilledCreators(t *testing.T) {
	t.Parallel()
	node, s := migOn(t, "h100-sxm5-80gb")
	dirty := 0
	for range 25 {
		cmd := childCommand(t, node, "churn", "1000000")
		out, err := cmd.StdoutPipe()
		do(t, err)
		do(t, cmd.Start())
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(rand.IntN(4000)) * time.Microsecond)
		do(t, cmd.Process.Kill())
		_ = cmd.Wait()
		state, err := node.State()
		do(t, err)
		dirty += int(state.GPUs[0].MIG.Dirty)
		// What is left can be seen and ended, whatever it is.
		for _, left := range gpusim.Instances(&state.GPUs[0]) {
			for _, ci := range left.Compute {
				s.want(fmt.Sprintf("cidestroy 0 %d %d", left.ID, ci.ID), ok)
			}
			s.want(fmt.Sprintf("gidestroy 0 %d", left.ID), ok)
		}
		s.want("gicreate 0 0", "gi 0 at 0")
		consistent(t, node)
		s.want("gidestroy 0 0", ok)
		consistent(t, node)
	}
	t.Logf("%d of 25 died in the middle of a change", dirty)
}

// The next change repairs any difference between the table and the files.
func TestRepairAfterACrash(t *testing.T) {
	t.Parallel()
	node, s := migOn(t, "h100-sxm5-80gb")
	kept, err := node.CreateMIG(0, "3g.40gb", 4)
	do(t, err)
	caps := filepath.Join(node.DevRoot(), "dev/nvidia-caps")
	dir := filepath.Join(node.ProcRoot(), "driver/nvidia/capabilities/gpu0/mig")
	// Files of an instance that never came to be, and an instance whose files are half there.
	do(t, os.MkdirAll(filepath.Join(dir, "gi9/ci3"), 0o755))
	do(t, os.WriteFile(filepath.Join(dir, "gi9/access"), nil, 0o444))
	do(t, os.WriteFile(filepath.Join(caps, "nvidia-cap84"), nil, 0o444))
	do(t, os.Remove(filepath.Join(caps, fmt.Sprintf("nvidia-cap%d", rootfs.CapMinor(0, kept.ID, 0)))))
	do(t, os.WriteFile(filepath.Join(dir, "gi2/access"), []byte("Dev"), 0o444))
	file, err := simstate.Open(node.StateFile())
	do(t, err)
	do(t, file.Update(func(n *simstate.Node) error { n.GPUs[0].MIG.Dirty = 1; return nil }))
	do(t, file.Close())
	// Without its node the MIG device is not seen.
	s.want("migs 0", "")
	s.want("gicreate 0 19 0 1", "gi 7 at 0")
	s.want("migs 0", "0=2/0")
	consistent(t, node)
}

func TestContainerSeesItsMIGDeviceOnly(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	do(t, node.SetMIGMode(5, true))
	var instances []gpusim.MIGInstance
	for _, profile := range []string{"4g.40gb", "2g.20gb", "1g.10gb"} {
		instance, err := node.CreateMIG(5, profile, gpusim.AnyStart)
		do(t, err)
		instances = append(instances, instance)
	}
	c := newContainer(t, node, 5)
	head := "GPU 0: NVIDIA H100 80GB HBM3 (UUID: " + node.UUIDs()[5] + ")\n"
	line := func(i, index int) string {
		return fmt.Sprintf("  MIG %-11s Device %2d: (UUID: %s)\n", instances[i].Profile, index, instances[i].Compute[0].UUID)
	}
	check := func(what, want string) {
		t.Helper()
		out, exit := c.smi("-L")
		if diff := cmp.Diff(want, out); diff != "" || exit != 0 {
			t.Errorf("%s: exit %d (-want +got):\n%s", what, exit, diff)
		}
	}
	check("without capabilities", head)
	minor := int(node.Spec().GPUs[5].Minor)
	do(t, os.MkdirAll(filepath.Join(c.root, "dev/nvidia-caps"), 0o755))
	give := func(instance, ci int) {
		c.mknod(fmt.Sprintf("nvidia-caps/nvidia-cap%d", rootfs.CapMinor(minor, instance, ci)), uint32(rootfs.CapMinor(minor, instance, ci)))
	}
	give(instances[1].ID, -1)
	check("with the node of the GPU instance alone", head)
	give(instances[1].ID, 0)
	check("with both nodes", head+line(1, 0))
	out, exit := c.smi("mig", "-lgi")
	if exit != 0 || !strings.Contains(out, "MIG 2g.20gb") || strings.Contains(out, "4g.40gb") || strings.Contains(out, "1g.10gb") {
		t.Errorf("-lgi in the container: exit %d\n%s", exit, out)
	}
	give(instances[2].ID, -1)
	give(instances[2].ID, 0)
	// Indices follow the ids of the GPU instances.
	check("with two", head+line(1, 0)+line(2, 1))
	if out, exit := smi(t, node, "-L", "-i", node.UUIDs()[5]); exit != 0 || strings.Count(out, "MIG ") != 3 {
		t.Errorf("on the host: exit %d\n%s", exit, out)
	}
}

// nvcdi reads two places of the host's proc, so it runs where those are the node's.
func TestNVCDIWritesMIGSpecs(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	do(t, node.SetMIGMode(3, true))
	instance, err := node.CreateMIG(3, "2g.20gb", 4)
	do(t, err)
	plain := childCommand(t, node, "common", node.DriverRoot(), instance.Compute[0].UUID)
	script := `mount --bind "$1" /proc/driver && shift && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{
		"--mount", "--propagation", "private", "sh", "-ec", script, "sh",
		filepath.Join(node.ProcRoot(), "driver"), plain.Path,
	}, plain.Args[1:]...)...)
	cmd.Env = plain.Env
	got := decode[edits](t, cmd)
	minor := int(node.Spec().GPUs[3].Minor)
	dev := filepath.Join(node.DevRoot(), "dev")
	want := []string{
		filepath.Join(dev, fmt.Sprintf("nvidia%d", minor)),
		filepath.Join(dev, fmt.Sprintf("nvidia-caps/nvidia-cap%d", rootfs.CapMinor(minor, instance.ID, -1))),
		filepath.Join(dev, fmt.Sprintf("nvidia-caps/nvidia-cap%d", rootfs.CapMinor(minor, instance.ID, 0))),
	}
	nodes := got.Devices[instance.Compute[0].UUID]
	slices.Sort(nodes)
	slices.Sort(want)
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Errorf("device nodes of the MIG device (-want +got):\n%s", diff)
	}
}
