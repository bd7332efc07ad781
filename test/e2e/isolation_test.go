//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
)

// opens says how the kernel answers a container that opens a device of the GPU driver's major
// number: "No such device or address" where the device cgroup lets it through, since this
// machine has no such hardware, "Operation not permitted" where it does not. The container
// makes the node itself, which the runtime's default capabilities allow.
func (s *scene) opens(pod string, major, minor uint32) string {
	s.Helper()
	node := fmt.Sprintf("/tmp/device-%d-%d", major, minor)
	out, err := s.exec(pod, "main", "sh", "-c", fmt.Sprintf("rm -f %[1]s; mknod %[1]s c %d %d && cat %[1]s", node, major, minor))
	if err == nil {
		s.Fatalf("pod %s read from %s: %s", pod, node, out)
	}
	return out
}

const (
	allowed = "No such device or address"
	denied  = "Operation not permitted"
)

// device returns the numbers of a board's device node.
func (s *scene) device(node, gpu int) (major, minor uint32) {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	state, err := machine.State()
	s.must(err)
	var stat unix.Stat_t
	s.must(unix.Stat(filepath.Join(machine.DevRoot(), "dev", fmt.Sprintf("nvidia%d", state.GPUs[gpu].Minor)), &stat))
	return unix.Major(stat.Rdev), unix.Minor(stat.Rdev)
}

// TestWithoutClaim finds nothing of the GPUs in a container that has no claim: neither files nor
// devices, not even one that it makes itself.
func TestWithoutClaim(t *testing.T) {
	s := begin(t)
	s.create(append(newPod("user", islands, request{}), plainPod("none", islands)))
	s.running("user", "none")
	if out, err := s.exec("none", "main", "sh", "-c", "ls /dev | grep nvidia; which nvidia-smi"); err == nil {
		t.Errorf("a container without a claim finds %s", out)
	}
	major, minor := s.device(islands, 0)
	if out := s.opens("none", major, minor); !strings.Contains(out, denied) {
		t.Errorf("a container without a claim opens a GPU's device: %s", out)
	}
}

// TestOtherGPUsAreDenied opens, from a container with one GPU, its own device and the others'.
func TestOtherGPUsAreDenied(t *testing.T) {
	s := begin(t)
	machine, err := s.Machine(t.Context(), islands)
	s.must(err)
	_, gpus := s.start("user", islands, request{})
	for i, uuid := range machine.UUIDs() {
		want := denied
		if uuid == gpus[0].UUID {
			want = allowed
		}
		major, minor := s.device(islands, i)
		if out := s.opens("user", major, minor); !strings.Contains(out, want) {
			t.Errorf("GPU %d of a pod that has %s: %q, not %q", i, gpus[0].UUID, out, want)
		}
	}
}

// TestSecondContainerWithoutClaim keeps a claim's GPUs from a container of the same pod that does
// not name the claim.
func TestSecondContainerWithoutClaim(t *testing.T) {
	s := begin(t)
	objects := newPod("pair", islands, request{})
	pod := objects.Pods()[0]
	side := pod.Spec.Containers[0].DeepCopy()
	side.Name, side.Resources.Claims = "side", nil
	pod.Spec.Containers = append(pod.Spec.Containers, *side)
	s.create(objects)
	s.running("pair")
	if out, err := s.exec("pair", "side", "sh", "-c", "ls /dev | grep nvidia; which nvidia-smi"); err == nil {
		t.Errorf("the container without the claim finds %s", out)
	}
	if seen := s.sees("pair", "main"); len(seen) != 1 {
		t.Errorf("the container with the claim sees %q", seen)
	}
}

// TestDeviceMetadata reads, in a container, the file that tells it of its devices (KEP-5304).
func TestDeviceMetadata(t *testing.T) {
	s := begin(t)
	pod, gpus := s.start("reader", islands, request{count: 2})
	out, err := s.exec(pod.Name, "main", "cat", "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu/gpu.nvidia.com-metadata.json")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seen := map[string]string{}
	// The file holds one document per version of the format.
	for decoder := json.NewDecoder(strings.NewReader(out)); decoder.More(); {
		var document v1beta1.DeviceMetadata
		s.must(decoder.Decode(&document))
		if document.APIVersion != v1beta1.SchemeGroupVersion.String() {
			continue
		}
		for _, r := range document.Requests {
			for _, d := range r.Devices {
				for name, value := range d.Attributes {
					if name == "uuid" && value.StringValue != nil {
						seen[d.Name] = *value.StringValue
					}
				}
			}
		}
	}
	for _, g := range gpus {
		if seen[g.Device] != g.UUID {
			t.Errorf("the file says %q of %s, whose UUID is %s:\n%s", seen[g.Device], g.Device, g.UUID, out)
		}
	}
}
