package sharing_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// hookProgram is the executable of the hook of containers with a limit.
var hookProgram string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	// What is measured is the programs as they are in the image.
	var race []string
	if flag.Lookup("test.bench").Value.String() == "" {
		race = []string{"-race"}
	}
	// Control daemons see a /dev/shm of their own, so nothing of the node may lie there.
	dir, err := os.MkdirTemp("/var/tmp", "s")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		hookProgram = filepath.Join(dir, "gpu-limit-hook")
		err = errors.Join(os.Setenv("TMPDIR", dir), process.Build(context.Background(), dir, race...), process.BuildDaemon(context.Background(), dir, race...),
			build(hookProgram))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build makes a static program, as in the image.
func build(program string) error {
	name := filepath.Base(program)
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", program, "github.com/gpu-dra/driver/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bed is a node whose plugin shares devices.
type bed struct {
	*process.Bed
	T   testing.TB
	pod *process.MPSPod
}

func newBed(t testing.TB, preset string, options ...gpusim.Option) *bed {
	t.Helper()
	file, err := nodefile.Preset(preset)
	must(t, err)
	return &bed{Bed: process.NewOn(t, gpusim.NewFromFile(t, file, options...)), T: t}
}

// start runs the plugin, and waits until it is ready.
func (b *bed) start(settings ...process.Setting) *process.Plugin {
	b.T.Helper()
	p := b.Start(append([]process.Setting{process.Flag("mps", "true")}, settings...)...)
	p.WaitReady()
	return p
}

// startPod runs the supervisor's container.
func (b *bed) startPod() *process.MPSPod {
	b.T.Helper()
	b.pod = b.StartMPS()
	return b.pod
}

// daemon is the process of a device's control daemon.
func (b *bed) daemon(device string) int {
	b.T.Helper()
	pid := 0
	b.Eventually("a control daemon", func() error {
		text, err := os.ReadFile(filepath.Join(b.MPSDir(), "daemons", device, "pipe/nvidia-cuda-mps-control.pid"))
		if err != nil {
			return err
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	})
	return pid
}

// config is an opaque configuration of a claim.
func config(parameters string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: process.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		})
	}
}

// timeSlicing is the configuration of an interval.
func timeSlicing(interval string) func(*resourceapi.ResourceClaim) {
	return config(fmt.Sprintf(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
		"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": %q}}}`, interval))
}

// mps is the configuration of a share of the threads, in per cent, and of memory.
func mps(threads int, memory string) func(*resourceapi.ResourceClaim) {
	return mpsOf("GpuConfig", threads, memory)
}

func mpsOf(kind string, threads int, memory string) func(*resourceapi.ResourceClaim) {
	return config(fmt.Sprintf(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": %q, "sharing": {"strategy": "MPS",
		"mpsConfig": {"defaultActiveThreadPercentage": %d, "defaultPinnedDeviceMemoryLimit": %q}}}`, kind, threads, memory))
}

// partition makes a claim that was allocated one partition.
func (b *bed) partition(name, device string, changes ...func(*resourceapi.ResourceClaim)) kubelet.Claim {
	b.T.Helper()
	allocate := func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
			{Request: process.Request, Driver: process.Driver, Pool: process.NodeName, Device: device},
		}
	}
	return b.Allocated(name, nil, append(changes, allocate)...)
}

func (b *bed) prepare(c kubelet.Claim) []kubelet.Device {
	b.T.Helper()
	answer, err := b.Prepare(c)
	if err != nil {
		b.T.Fatalf("prepare of claim %s: %v", c.Name, err)
	}
	return answer
}

func (b *bed) unprepare(list ...kubelet.Claim) {
	b.T.Helper()
	for _, c := range list {
		if err := b.Unprepare(c); err != nil {
			b.T.Fatalf("unprepare of claim %s: %v", c.Name, err)
		}
	}
}

// refused tries to prepare a claim that must be refused with these words.
func (b *bed) refused(c kubelet.Claim, words ...string) {
	b.T.Helper()
	_, err := b.Prepare(c)
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			b.T.Errorf("prepare of claim %s: %v, want %q in an error", c.Name, err, word)
		}
	}
}

// wantSharing compares how a GPU is shared.
func (b *bed) wantSharing(gpu int, want gpusim.Sharing) {
	b.T.Helper()
	got, err := b.Node.Sharing(gpu)
	if err != nil || got != want {
		b.T.Errorf("GPU %d is shared as %+v (%v), want %+v", gpu, got, err, want)
	}
}

// untouched fails when something is left of claims or of sharing.
func (b *bed) untouched() {
	b.T.Helper()
	for _, left := range b.Leftovers() {
		if !strings.HasPrefix(filepath.Base(left), ".") {
			b.T.Errorf("left behind: %s", left)
		}
	}
	for i := range b.Node.GPUCount() {
		b.wantSharing(i, gpusim.Sharing{})
		if list, err := b.Node.Processes(i); err != nil || len(list) > 0 {
			b.T.Errorf("GPU %d has the processes %+v, %v", i, list, err)
		}
	}
	for _, pattern := range []string{"daemons/*", "devices/*.json"} {
		if left, err := filepath.Glob(filepath.Join(b.MPSDir(), pattern)); err != nil || len(left) > 0 {
			b.T.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// event waits until the API has an Event with the words in its note.
func (b *bed) event(words ...string) {
	b.T.Helper()
	b.Eventually("an Event", func() error {
		list, err := b.Client.EventsV1().Events("").List(b.T.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			notes = append(notes, e.Note)
			if e.Type == corev1.EventTypeWarning && hasAll(e.Note, words) {
				return nil
			}
		}
		return fmt.Errorf("Events %q", notes)
	})
}

func hasAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}
