package process

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/test/kubelet"
)

// Request is the name of the request of Allocated claims.
const Request = "gpus"

// Allocated puts a claim into the API that has the GPUs of those numbers in PCI order, as the
// scheduler would leave it. The changes are made before it is stored.
func (b *Bed) Allocated(name string, gpus []int, changes ...func(*resourceapi.ResourceClaim)) kubelet.Claim {
	b.t.Helper()
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uuid.NewUUID()},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name:    Request,
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: Class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(len(gpus))},
		}}}},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	for _, i := range gpus {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, b.Result(Request, i))
	}
	for _, change := range changes {
		change(claim)
	}
	check(b.t, b.API.Put(claim))
	return kubelet.ClaimOf(claim)
}

// Result is what the scheduler writes for one device.
func (b *Bed) Result(request string, gpu int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: Driver, Pool: NodeName, Device: b.Device(gpu)}
}

// Prepare is one call of the kubelet for one claim.
func (b *Bed) Prepare(c kubelet.Claim) ([]kubelet.Device, error) {
	result, err := b.Kubelet.Prepare(b.Context(), Driver, c)
	if err != nil {
		return nil, err
	}
	return result[c.UID].Devices, result[c.UID].Err
}

// Unprepare is one call of the kubelet for one claim.
func (b *Bed) Unprepare(c kubelet.Claim) error {
	result, err := b.Kubelet.Unprepare(b.Context(), Driver, c)
	if err != nil {
		return err
	}
	return result[c.UID]
}

// Spec reads a claim's CDI spec.
func (b *Bed) Spec(c kubelet.Claim) (*specs.Spec, error) {
	data, err := os.ReadFile(b.SpecPath(c))
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{}
	return spec, json.Unmarshal(data, spec)
}

// SpecPath is where a claim's CDI spec lies.
func (b *Bed) SpecPath(c kubelet.Claim) string {
	return filepath.Join(b.CDIDir(), Driver+"-claim_"+string(c.UID)+".json")
}

// CheckPrepared holds an answer and the claim's CDI spec against the hardware: the GPUs of those
// numbers, in that order, each by the device node that is its own at this moment.
func (b *Bed) CheckPrepared(c kubelet.Claim, answer []kubelet.Device, gpus ...int) error {
	spec, err := b.Spec(c)
	if err != nil {
		return err
	}
	nodes := map[string][]*specs.DeviceNode{}
	for _, d := range spec.Devices {
		nodes[spec.Kind+"="+d.Name] = d.ContainerEdits.DeviceNodes
	}
	if len(answer) != len(gpus) || len(nodes) != len(gpus) {
		return fmt.Errorf("%d devices in the answer and %d in the CDI spec, not %d", len(answer), len(nodes), len(gpus))
	}
	for i, gpu := range gpus {
		board := b.Node.Spec().GPUs[gpu]
		if answer[i].Name != b.Device(gpu) {
			return fmt.Errorf("device %d is %s, not %s (%s)", i, answer[i].Name, b.Device(gpu), board.UUID)
		}
		if len(answer[i].CDIDeviceIDs) == 0 {
			return fmt.Errorf("device %s has no CDI id", answer[i].Name)
		}
		own := nodes[answer[i].CDIDeviceIDs[0]]
		want := filepath.Join(b.devDir(), fmt.Sprintf("nvidia%d", board.Minor))
		if len(own) != 1 || own[0].HostPath != want && own[0].Path != want || own[0].Minor != int64(board.Minor) {
			return fmt.Errorf("device %s (%s) has nodes %+v, not %s", answer[i].Name, board.UUID, own, want)
		}
	}
	return nil
}

// Leftovers lists what lies in the state directories because of claims. Nothing does on a node
// without any.
func (b *Bed) Leftovers() []string {
	var found []string
	add := func(dir, pattern string) {
		matches, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			b.t.Fatal(err)
		}
		for _, m := range matches {
			if filepath.Base(m) != "quarantine" {
				found = append(found, strings.TrimPrefix(m, b.dir+"/"))
			}
		}
	}
	add(filepath.Join(b.DataDir(), "claims"), "*")
	add(filepath.Join(b.DataDir(), "claims"), ".*")
	add(filepath.Join(b.DataDir(), "holders"), "*/*")
	add(filepath.Join(b.DataDir(), "locks"), "claim_*")
	add(filepath.Join(b.DataDir(), "dra-device-metadata"), "*")
	add(b.CDIDir(), "*")
	add(b.CDIDir(), ".*")
	return slices.DeleteFunc(found, func(f string) bool { return f == "cdi/"+Driver+"-driver.json" })
}

// Record tells whether the journal has a record of the claim.
func (b *Bed) Record(uid types.UID) bool {
	_, err := os.Stat(b.recordPath(uid))
	return err == nil
}

func (b *Bed) recordPath(uid types.UID) string {
	return filepath.Join(b.DataDir(), "claims", string(uid)+".json")
}

// RecordPath is where the record of a claim lies.
func (b *Bed) RecordPath(c kubelet.Claim) string { return b.recordPath(c.UID) }

// HoldersOf is the directory that says which claims are on the GPU of that number in PCI order.
func (b *Bed) HoldersOf(gpu int) string {
	return filepath.Join(b.DataDir(), "holders", strings.TrimPrefix(b.Device(gpu), "gpu-"))
}
