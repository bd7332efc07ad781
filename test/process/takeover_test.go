package process_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// writeCheckpoint writes that of NVIDIA's driver, with one claim that has one GPU.
func writeCheckpoint(t *testing.T, b *process.Bed, claim kubelet.Claim, was, board string) (path string) {
	t.Helper()
	path = filepath.Join(b.DataDir(), "checkpoint.json")
	must(t, os.MkdirAll(b.DataDir(), 0o750))
	must(t, os.WriteFile(path, fmt.Appendf(nil,
		`{"checksum":1,"v2":{"checksum":2,"preparedClaims":{%q:{"checkpointState":"PrepareCompleted","status":{"allocation":{"devices":{"results":[{"request":%q,"driver":%q,"pool":%q,"device":%q}]}}},`+
			`"preparedDevices":[{"devices":[{"gpu":{"info":{"uuid":%q},"device":{"Requests":[%q],"PoolName":%q,"DeviceName":%q,"CDIDeviceIDs":["k8s.gpu.nvidia.com/claim=x"]}},"mig":null}],"configState":{}}],"name":%q,"namespace":%q}}}}`,
		claim.UID, process.Request, process.Driver, process.NodeName, was, board, process.Request, process.NodeName, was, claim.Name, claim.Namespace), 0o600))
	return path
}

// While the other driver still serves a node nothing of it is touched: it could not end the claims
// that it has. When it has gone, its claims are known before a new one is prepared.
func TestTheOtherDriverStillServes(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	board := b.Node.Spec().GPUs[2]
	was := fmt.Sprintf("gpu-%d", board.Minor)
	claim := b.Allocated("theirs", []int{2}, func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = was })
	theirs := []string{
		writeCheckpoint(t, b, claim, was, board.UUID),
		filepath.Join(b.CDIDir(), fmt.Sprintf("%s_metadata_%s_%s.json", process.Driver, claim.UID, process.Request)),
		filepath.Join(b.DataDir(), "mps", "daemon", "shm", "live"),
		filepath.Join(b.DataDir(), "dra-device-metadata", "default_theirs", "metadata.json"),
	}
	for _, path := range theirs[1:] {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte("{}"), 0o600))
	}
	must(t, os.MkdirAll(b.RegistryDir(), 0o755))
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(b.RegistryDir(), process.Driver+"-reg.sock"))
	must(t, err)
	t.Cleanup(func() { _ = other.Close() })
	settings := []process.Setting{process.Flag("holder-wait", "1ms"), process.Flag("rescan-interval", "1s"), process.Flag("reconcile-interval", "1s")}
	untouched := func() {
		t.Helper()
		for _, path := range theirs {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("beside the other driver: %v", err)
			}
		}
	}
	for range 2 {
		p := b.Start(settings...)
		// Claims that are gone are looked for, twice.
		b.Eventually("work of the reconciler", func() error {
			_, body, err := p.Get("/metrics")
			if found := lines(body, "gpu_dra_reconcile_duration_seconds_count"); err != nil || len(found) != 1 || strings.HasSuffix(found[0], " 0") || strings.HasSuffix(found[0], " 1") {
				return fmt.Errorf("%q, %w", found, err)
			}
			return nil
		})
		untouched()
		p.Terminate()
		untouched()
	}
	if out, err := b.Cleanup(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	untouched()
	b.Start(settings...)
	late := b.Allocated("late", []int{2})
	refused(t, b, late, "another DRA driver for GPUs")
	must(t, other.Close())
	b.Eventually("the other driver's claim is known", func() error {
		if _, err := b.Prepare(late); err == nil || !strings.Contains(err.Error(), "default/theirs") {
			return fmt.Errorf("prepare of its GPU: %w", err)
		}
		return nil
	})
	prepare(t, b, claim, 2)
	unprepare(t, b, claim)
	prepare(t, b, late, 2)
	unprepare(t, b, late)
}

// A node whose pods were started under NVIDIA's own driver: their claims keep their GPUs until
// they end, by the names that driver gave, and nobody else is sent there.
func TestTakeOverFromTheOtherDriver(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	board := b.Node.Spec().GPUs[2]
	was := fmt.Sprintf("gpu-%d", board.Minor)
	claim := b.Allocated("theirs", []int{2}, func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = was })
	checkpoint := writeCheckpoint(t, b, claim, was, board.UUID)
	// The CDI specs of a claim that runs, and of one that it forgot.
	spec, forgotten := filepath.Join(b.CDIDir(), "k8s.gpu.nvidia.com-claim_"+string(claim.UID)+".json"), filepath.Join(b.CDIDir(), "k8s.gpu.nvidia.com-claim_"+string(uuid.NewUUID())+".json")
	for _, path := range []string{spec, forgotten} {
		must(t, os.WriteFile(path, []byte(`{"cdiVersion":"0.6.0","kind":"k8s.gpu.nvidia.com/claim","devices":[]}`), 0o600))
	}
	gone := func(path string) {
		t.Helper()
		b.Eventually("end of "+path, func() error {
			if _, err := os.Stat(path); err == nil {
				return errors.New("it is there")
			}
			return nil
		})
	}
	// The other driver is still there: its checkpoint is its own.
	rival, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(b.RegistryDir(), process.Driver+"-reg.sock"))
	must(t, err)
	t.Cleanup(func() { _ = rival.Close() })
	p := b.Start(process.Flag("holder-wait", "1ms"), process.Flag("reconcile-interval", "1s"), process.Flag("rescan-interval", "1s"))
	unready(t, b, p, "another DRA driver for GPUs serves this node")
	if _, err := os.Stat(checkpoint); err != nil {
		t.Errorf("the checkpoint of a driver that is there: %v", err)
	}
	must(t, rival.Close())
	p.WaitReady()
	gone(forgotten)
	tainted := func(want bool) error {
		devices := pool(t, b)
		if len(devices) != 4 {
			return fmt.Errorf("published are %v", names(devices))
		}
		for _, d := range devices {
			if taken := len(d.Taints) == 1 && d.Taints[0].Effect == resourceapi.DeviceTaintEffectNoSchedule; taken != (want && d.Name == b.Device(2)) {
				return fmt.Errorf("%s has taints %v", d.Name, d.Taints)
			}
		}
		return nil
	}
	b.Eventually("the taint of what was taken over", func() error { return tainted(true) })
	other := b.Allocated("other", []int{2})
	refused(t, b, other, "default/theirs")
	prepare(t, b, claim, 2) // the kubelet was started again
	// A restart does not read the file again.
	p.Kill()
	if _, err := os.Stat(checkpoint); !os.IsNotExist(err) {
		t.Errorf("the checkpoint is still in its place: %v", err)
	}
	b.Start(process.Flag("holder-wait", "1ms"), process.Flag("reconcile-interval", "1s")).WaitReady()
	must(t, tainted(true))
	if _, err := os.Stat(spec); err != nil {
		t.Errorf("the spec from which the claim's containers are started: %v", err)
	}
	unprepare(t, b, claim)
	gone(spec)
	b.Eventually("end of the taint", func() error { return tainted(false) })
	prepare(t, b, other, 2)
	unprepare(t, b, other)
	clean(t, b)
}
