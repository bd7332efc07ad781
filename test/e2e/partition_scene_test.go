//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Machines whose GPUs can be cut, in the places of the others.
const (
	hopper    = iota // eight H100: MIG mode is switched for a claim and back
	ampere           // eight A100: the mode is as it was at boot
	blackwell        // eight RTX PRO 6000: twelve memory slices
	small            // four A30: four memory slices, the mode is on
)

// GPUs of the ampere machine: one in MIG mode, one with a partition that somebody made, and
// whole ones.
const (
	empty = iota
	foreign
	whole
)

// cutMachines are the machines' node files.
func cutMachines() ([]*nodefile.File, error) {
	var files []*nodefile.File
	var errs []error
	for _, preset := range []string{hopper: "hgx-h100-8", ampere: "dgx-a100-80", blackwell: "rtx-pro-6000-8", small: "a30-4"} {
		file, err := nodefile.Preset(preset)
		files, errs = append(files, file), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	files[ampere].GPUs[empty].MIG = &nodefile.MIG{Enabled: true}
	files[ampere].GPUs[foreign].MIG = &nodefile.MIG{Enabled: true, Instances: []nodefile.MIGInstance{{Profile: "3g.40gb", Start: new(uint32(4))}}}
	files[small].MIG = &nodefile.MIG{Enabled: true}
	return files, nil
}

// cutGPUs gives every node a machine whose GPUs can be cut and installs the driver with
// partitions on. When the test ends the nodes have their own machines again.
func cutGPUs(t *testing.T) {
	t.Helper()
	s := begin(t)
	files, err := cutMachines()
	s.must(err)
	ctx := context.WithoutCancel(t.Context())
	install := func(files []*nodefile.File, values rig.Values) error {
		if err := s.Uninstall(ctx, s.client); err != nil {
			return err
		}
		for i := range s.Presets {
			if files == nil {
				_, err = s.NewMachine(ctx, i)
			} else {
				_, err = s.MakeMachine(ctx, i, files[i])
			}
			if err != nil {
				return err
			}
		}
		if files != nil {
			s.lateFabric(hopper)
		}
		return s.Install(ctx, version, values)
	}
	t.Cleanup(func() {
		if err := install(nil, s.values); err != nil {
			t.Errorf("end of the test: %v", err)
		}
	})
	s.must(s.makeLayouts(ctx))
	s.must(install(files, cutValues()))
}

// cutValues are those of the release that cuts GPUs.
func cutValues() rig.Values {
	return rig.Values{
		"migDevices": "on-demand", "migLayouts.configMap": layoutMap, "rescanInterval": "1s", "logVerbosity": "4",
		"sharing.mps.enabled": "true", "sharing.mps.shmSize": "16m",
		"health.evict": "true", "health.holdDown": "2s", "health.interval": "1s",
	}
}

// ask is a request of a claim for count devices of a class that match all selectors.
func ask(name, class string, count int64, selectors ...string) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count, AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	for _, expression := range selectors {
		exactly.Selectors = append(exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exactly}
}

// either asks for the first of the requests that can be met.
func either(name string, requests ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	out := resourceapi.DeviceRequest{Name: name}
	for _, r := range requests {
		out.FirstAvailable = append(out.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: r.Name, DeviceClassName: r.Exactly.DeviceClassName, Selectors: r.Exactly.Selectors,
			AllocationMode: r.Exactly.AllocationMode, Count: r.Exactly.Count,
		})
	}
	return out
}

const (
	gpuClass  = "gpu.nvidia.com"
	partClass = "mig.nvidia.com"
)

// is selects by an attribute; a device without it does not match.
func is(attribute string, values ...string) string {
	return fmt.Sprintf(`device.attributes["gpu.nvidia.com"].?%s.orValue("") in ["%s"]`, attribute, strings.Join(values, `","`))
}

// memoryOf selects by the least memory.
func memoryOf(least string) string {
	return fmt.Sprintf(`device.capacity["gpu.nvidia.com"].?memory.orValue(quantity("0")).compareTo(quantity(%q)) >= 0`, least)
}

// computeOf selects by the least number of multiprocessors.
func computeOf(least string) string {
	return fmt.Sprintf(`device.capacity["gpu.nvidia.com"].?multiprocessors.orValue(quantity("0")).compareTo(quantity(%q)) >= 0`, least)
}

// claimPod makes a pod with a claim of those requests, all of one GPU if that is said. Each
// request has a container of its own, named after it, and the container "main" has them all.
func claimPod(name string, node int, oneGPU bool, requests ...resourceapi.DeviceRequest) rig.Objects {
	objects := newPod(name, node, request{})
	// newPod's first object is the template.
	devices := &objects[0].(*resourceapi.ResourceClaimTemplate).Spec.Spec.Devices
	devices.Requests = requests
	if oneGPU {
		devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName("gpu.nvidia.com/parentUUID"))}}
	}
	if len(requests) > 1 {
		spec := &objects.Pods()[0].Spec
		for _, r := range requests {
			c := spec.Containers[0].DeepCopy()
			c.Name, c.Resources.Claims[0].Request = r.Name, r.Name
			spec.Containers = append(spec.Containers, *c)
		}
	}
	return objects
}

// cut makes a pod of claimPod and returns its partitions, once every container sees exactly its
// own.
func (s *scene) cut(name string, node int, oneGPU bool, requests ...resourceapi.DeviceRequest) []rig.GPU {
	s.Helper()
	s.create(claimPod(name, node, oneGPU, requests...))
	return s.seesParts(s.running(name)[0])
}

func (s *scene) seesParts(pod *corev1.Pod) []rig.GPU {
	s.Helper()
	all := s.given(pod)
	for _, c := range pod.Spec.Containers {
		want := []rig.Part{}
		for _, g := range all {
			if only := c.Resources.Claims[0].Request; only == "" || only == g.Request || strings.HasPrefix(g.Request, only+"/") {
				want = append(want, s.part(pod, g))
			}
		}
		out, err := s.exec(pod.Name, c.Name, "nvidia-smi", "-L")
		if err != nil {
			s.Fatalf("nvidia-smi in %s/%s: %v: %s", pod.Name, c.Name, err, out)
		}
		got, err := rig.ParseParts(out)
		s.must(err)
		for _, parts := range [][]rig.Part{want, got} {
			slices.SortFunc(parts, func(a, b rig.Part) int { return strings.Compare(a.UUID, b.UUID) })
		}
		if diff := cmp.Diff(want, got); diff != "" {
			s.Errorf("%s/%s does not see what it was given (-given +seen):\n%s", pod.Name, c.Name, diff)
		}
	}
	return all
}

// part is a partition as the simulated driver has it.
func (s *scene) part(pod *corev1.Pod, g rig.GPU) rig.Part {
	s.Helper()
	for node := range s.Presets {
		machine, err := s.Machine(s.Context(), node)
		s.must(err)
		i := slices.Index(machine.UUIDs(), g.Parent)
		if i < 0 {
			continue
		}
		found, err := machine.MIGInstances(i)
		s.must(err)
		for _, instance := range found {
			if instance.Profile == g.Profile && int64(instance.Start) == g.Start && len(instance.Compute) == 1 {
				return rig.Part{GPU: g.Parent, Profile: g.Profile, UUID: instance.Compute[0].UUID}
			}
		}
	}
	s.Fatalf("pod %s was given %s, which does not exist", pod.Name, g.Device)
	return rig.Part{}
}

// gpu is a GPU of a node, by its number.
func (s *scene) gpu(node, number int) string {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	return machine.UUIDs()[number]
}

// profiles are those of the devices; parents the GPUs that they are of, in order, each once.
func profiles(devices []rig.GPU) (out []string) {
	for _, g := range devices {
		out = append(out, g.Profile)
	}
	return out
}

func parents(devices []rig.GPU) (out []string) {
	for _, g := range devices {
		if !slices.Contains(out, g.Parent) {
			out = append(out, g.Parent)
		}
	}
	return out
}

// same fails when got is not what was wanted.
func (s *scene) same(what string, want, got []string) {
	s.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// leaves waits until a GPU has those partitions, "1g.10gb:6", and its MIG mode is as said.
func (s *scene) leaves(node, number int, mode bool, want ...string) {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	s.must(rig.Wait(s.Context(), 30*time.Second, fmt.Sprintf("GPU %d has the partitions %q and its mode is on: %t", number, want, mode), func(context.Context) (string, error) {
		state, err := machine.State()
		if err != nil {
			return "", err
		}
		found, err := machine.MIGInstances(number)
		if got := names(found); !slices.Equal(got, want) || mode != (state.GPUs[number].MIG.CurrentMode != 0) {
			return fmt.Sprintf("it has %q, the mode is %d", got, state.GPUs[number].MIG.CurrentMode), err
		}
		return "", err
	}))
}

func names(found []gpusim.MIGInstance) (out []string) {
	for _, i := range found {
		out = append(out, fmt.Sprintf("%s:%d", i.Profile, i.Start))
	}
	return out
}
