package gpusim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// withLimits makes a node's driver new enough for memory limits.
func withLimits(f *nodefile.File) { f.Driver = nodefile.Driver{Version: "600.10", CUDA: "13.4"} }

// limitChild obeys orders for the first GPU: "set DIR SOFT HARD" in bytes, and "get DIR". Its
// answers are codes, and MiB.
func limitChild(lib nvml.Interface, args []string) (any, error) {
	return initialised(lib, func() ([]string, error) {
		absent := lib.Extensions().LookupSymbol("nvmlDeviceSetMemoryLimits_v1")
		if absent != nil {
			return []string{"absent"}, nil //nolint:nilerr // That it cannot be found is an answer.
		}
		device, ret := lib.DeviceGetHandleByIndex(0)
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		var answers []string
		for _, order := range args {
			answers = append(answers, limitOrder(device, strings.Fields(order)))
		}
		return answers, nil
	})
}

func limitOrder(device nvml.Device, words []string) string {
	if words[0] == "get" {
		limits, ret := device.GetMemoryLimits_v1(words[1])
		return orText(fmt.Sprint(limits.SoftLimit>>20, " ", limits.HardLimit>>20, " ", limits.CurrentUsed>>20), ret)
	}
	var bytes [2]uint64
	for i := range bytes {
		value, err := strconv.ParseUint(words[i+2], 10, 64)
		if err != nil {
			return err.Error()
		}
		bytes[i] = value
	}
	return code(device.SetMemoryLimits_v1(words[1], bytes[0], bytes[1]))
}

// limitOrders are orders and the answers that they must get.
type limitOrders [][2]string

func wantLimits(t *testing.T, node *gpusim.Node, orders limitOrders) {
	t.Helper()
	var args, want []string
	for _, o := range orders {
		args, want = append(args, o[0]), append(want, o[1])
	}
	if diff := cmp.Diff(want, inChild[[]string](t, node, "limit", args...)); diff != "" {
		t.Errorf("answers to %q (-want +got):\n%s", args, diff)
	}
}

const (
	limitMiB = 1 << 20
	// noLimit is NVML_DEVICE_MEMORY_LIMIT_MAX.
	noLimit = "18446744073709551615"
)

// setOrder asks for limits in MiB.
func setOrder(dir string, soft, hard int) string {
	return fmt.Sprintf("set %s %d %d", dir, soft*limitMiB, hard*limitMiB)
}

func TestMemoryLimitsOfCgroups(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4", gpusim.WithFile(withLimits))
	first, second := t.TempDir(), t.TempDir()
	wantLimits(t, node, limitOrders{
		{"get " + first, "code 6"},
		{setOrder(first, 100, 300), "code 0"},
		{setOrder(second, 0, 500), "code 0"},
		{setOrder(first, 400, 300), "code 2"},
		{setOrder(first, 0, 999999), "code 2"},
		{setOrder("/"+strings.Repeat("x", 300), 0, 1), "code 2"},
		{setOrder(first+"/missing", 0, 1), "code 17"},
		{"get " + first + "/missing", "code 17"},
	})
	env := func(dir string) []string {
		return append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+first, "CUDA_VISIBLE_DEVICES=0", "GPUSIM_CGROUP="+dir)
	}
	// Two programs of one cgroup share its limit; those of another have theirs.
	a, b, c := startProgram(t, node, env(first), "--allocate", "200"), startProgram(t, node, env(first)), startProgram(t, node, env(second), "--allocate", "450")
	a.want("cgroup_limit=300")
	a.want("total=200")
	c.want("cgroup_limit=500")
	c.want("total=450")
	b.want("cgroup_limit=300")
	b.order("allocate 101")
	b.want("CUDA_ERROR_OUT_OF_MEMORY", "limit of the cgroup")
	b.order("allocate 100")
	b.want("total=100")
	wantLimits(t, node, limitOrders{{"get " + first, "100 300 300"}, {"get " + second, "0 500 450"}})
	a.order("free 150")
	a.want("total=50")
	b.order("allocate 150")
	b.want("total=250")
	// Without the limit there is only the GPU's memory.
	wantLimits(t, node, limitOrders{{"set " + first + " 0 " + noLimit, "code 0"}, {"get " + first, "code 6"}})
	b.order("allocate 1000")
	b.want("total=1250")
	// What a program has when the limit comes counts against it.
	wantLimits(t, node, limitOrders{{setOrder(first, 0, 1300), "code 0"}})
	b.order("allocate 100")
	b.want("CUDA_ERROR_OUT_OF_MEMORY")
	b.order("free 50")
	b.want("total=1200")
	wantLimits(t, node, limitOrders{{"get " + first, "0 1300 1250"}})
}

func TestMemoryLimitsGoWithTheCgroup(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4", gpusim.WithFile(withLimits))
	for range 2 {
		// There is room for 32: a limit of a cgroup that is gone makes room.
		dirs := t.TempDir()
		var orders limitOrders
		for i := range 32 {
			dir := filepath.Join(dirs, strconv.Itoa(i))
			do(t, os.Mkdir(dir, 0o755))
			orders = append(orders, [2]string{setOrder(dir, 0, 100), "code 0"})
		}
		wantLimits(t, node, append(orders, [2]string{setOrder(dirs, 0, 100), "code 23"}))
		do(t, os.RemoveAll(dirs))
	}
}

func TestMemoryLimitsThatAreNotThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wantLimits(t, gpusim.New(t, "t4-4"), limitOrders{{"get " + dir, "absent"}})
	refused := gpusim.New(t, "t4-4", gpusim.WithFile(withLimits), gpusim.WithFile(func(f *nodefile.File) {
		f.GPUs[0].Override = []byte(`{"unsupported": ["memoryLimits"]}`)
	}))
	wantLimits(t, refused, limitOrders{{setOrder(dir, 0, 1), "code 3"}, {"get " + dir, "code 3"}})
}

// A container's programs count on the host, though the state is read-only in it.
func TestClientInContainer(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	c := newContainer(t, node, 2)
	c.copy(node.Client(), node.ContainerClient())
	c.mknodMajor("nvidia-uvm", 510, 0)
	inside := func(args ...string) *program {
		return startCommand(t, c.command("--pid", node.ContainerClient(), args...), []string{"PATH=" + os.Getenv("PATH"), "CUDA_MPS_PIPE_DIRECTORY=/nowhere"})
	}
	a, b := inside("--allocate", "10000"), inside()
	a.want("uuid="+node.UUIDs()[2], "pid=1")
	a.want("total=10000")
	b.want("uuid="+node.UUIDs()[2], "pid=1")
	b.order("allocate 6000")
	b.want("CUDA_ERROR_OUT_OF_MEMORY")
	list, err := node.Processes(2)
	if err != nil || len(list) != 2 {
		t.Fatalf("the host sees %+v (%v), want two processes", list, err)
	}
	for _, p := range list {
		if p.PID <= 1 || p.Name != node.ContainerClient() {
			t.Errorf("the host sees %+v, want a process of its own numbering", p)
		}
	}
	out, exit := c.run("--pid", "/usr/bin/nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
	if out != "" || exit != 0 {
		t.Errorf("another container sees processes %q, exit %d", out, exit)
	}
	do(t, node.SetComputeMode(2, gpusim.ComputeExclusiveProcess))
	inside().want("CUDA_ERROR_DEVICE_UNAVAILABLE")
	for _, p := range []*program{a, b} {
		p.order("quit")
		_ = p.end()
	}
	wantProcesses(t, node, 2, map[int]int{})
	none := newContainer(t, node)
	none.copy(node.Client(), node.ContainerClient())
	if out, exit := none.run("--pid", node.ContainerClient()); exit != 1 || !strings.Contains(out, "CUDA_ERROR_NO_DEVICE") {
		t.Errorf("without a GPU: exit %d, %q", exit, out)
	}
}

// Denied by the device cgroup an open fails otherwise than for want of hardware.
func TestClientMeetsDeniedNodes(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, os.Chmod(filepath.Join(node.DevRoot(), "dev/nvidia0"), 0))
	cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set=-all", "--inh-caps=-all", node.Client())
	p := startCommand(t, cmd, append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir(), "CUDA_VISIBLE_DEVICES=0"))
	p.want("code=100", "open nvidia0: Permission denied")
}
