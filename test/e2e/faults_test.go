//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// TestForceDelete takes a pod with all GPUs out of the API at once, while its container runs on
// and another pod waits for the same GPUs: the second must not start before the first has ended.
func TestForceDelete(t *testing.T) {
	s := begin(t)
	beats, err := os.MkdirTemp(s.Machines, "beats-")
	s.must(err)
	t.Cleanup(func() {
		if err := os.RemoveAll(beats); err != nil {
			t.Error(err)
		}
	})
	pod := func(name, script string) rig.Objects {
		objects := newPod(name, islands, request{count: 8})
		spec := &objects.Pods()[0].Spec
		spec.Containers[0].Command = []string{"sh", "-c", script}
		spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "beats", MountPath: "/beats"}}
		spec.Volumes = []corev1.Volume{{Name: "beats", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: beats}}}}
		return objects
	}
	// Deaf to SIGTERM, it runs until the kubelet kills it.
	s.create(pod("first", `trap "" TERM; while :; do touch /beats/first; usleep 10000; done`))
	first := s.holds(s.running("first")[0], 8)
	s.create(pod("second", `trap "exit 0" TERM; touch /beats/second; sleep infinity & wait`))
	s.unallocatable("second")
	now := int64(0)
	s.must(s.client.CoreV1().Pods(s.namespace).Delete(t.Context(), "first", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	second := s.holds(s.running("second")[0], 8)
	if diff := cmp.Diff(rig.UUIDs(first), rig.UUIDs(second)); diff != "" {
		t.Fatalf("the pods did not want the same GPUs (-first +second):\n%s", diff)
	}
	beat := func(name string) time.Time {
		info, err := os.Stat(filepath.Join(beats, name))
		s.must(err)
		return info.ModTime()
	}
	last, begun := beat("first"), beat("second")
	t.Logf("the second pod's container started %s after the first one's last sign of life", begun.Sub(last).Round(time.Millisecond))
	if !begun.After(last) {
		t.Errorf("two containers had the same GPUs for %s", last.Sub(begun))
	}
	s.noFailedPrepare()
}

// TestGPULost takes a GPU off the bus while the plugin runs: that device is tainted, whoever uses the
// others does not notice, who used it can end, and it is offered again when it answers again.
func TestGPULost(t *testing.T) {
	s := begin(t)
	machine, err := s.Machine(t.Context(), islands)
	s.must(err)
	t.Cleanup(func() {
		for i := range machine.GPUCount() {
			if err := machine.HealGPU(i); err != nil {
				t.Error(err)
			}
		}
	})
	victim, lost := s.start("victim", islands, request{})
	user, _ := s.start("user", islands, request{count: 2})
	plugin := s.plugin(islands)
	number := slices.Index(machine.UUIDs(), lost[0].UUID)
	s.must(machine.LoseGPU(number))
	offered := func(want bool) {
		t.Helper()
		s.must(rig.Wait(t.Context(), 2*time.Minute, fmt.Sprintf("GPU %s is offered: %t", lost[0].Device, want), func(ctx context.Context) (string, error) {
			gpus, err := rig.GPUs(ctx, s.client)
			gpus = slices.DeleteFunc(gpus, func(g rig.GPU) bool { return g.Node != cluster.NodeName(islands) })
			is := slices.ContainsFunc(gpus, func(g rig.GPU) bool { return g.UUID == lost[0].UUID && len(g.Taints) == 0 })
			if err != nil || is == want && len(gpus) == 8 {
				return "", err
			}
			return fmt.Sprintf("%d GPUs are published, or it is not as it should be", len(gpus)), nil
		}))
	}
	offered(false)
	s.nodeEvent("GPUUnusable", lost[0].PCI)
	s.nodeEvent("GPUSick", lost[0].PCI)
	s.undisturbed(user, 2)
	s.start("meanwhile", islands, request{count: 5})
	s.create(newPod("too-many", islands, request{}))
	s.unallocatable("too-many")
	s.remove(victim.Name)
	s.must(machine.HealGPU(number))
	offered(true)
	back := s.holds(s.running("too-many")[0], 1)
	if diff := cmp.Diff(lost[0].Device, back[0].Device); diff != "" {
		t.Errorf("device that came back (-before +after):\n%s", diff)
	}
	if now := s.plugin(islands); containerID(now) != containerID(plugin) {
		t.Error("the plugin was started again")
	}
	s.ended(islands, "user", "meanwhile", "too-many")
}
