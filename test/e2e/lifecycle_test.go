//go:build e2e

package e2e

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// TestDriverComesLater installs the plugin on a node whose GPU driver is absent: the plugin is
// ready, with no device and a note that says so, and the devices appear when the driver does.
func TestDriverComesLater(t *testing.T) {
	s := begin(t)
	machine, err := s.Machine(t.Context(), mixed)
	s.must(err)
	s.repairAfterFailure()
	s.must(s.Uninstall(t.Context(), s.client))
	s.must(machine.RemoveDriver())
	restore := func() {
		if err := machine.RestoreDriver(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			restore()
		}
	})
	// Installation waits until every plugin is ready.
	s.must(s.Install(t.Context(), version, s.values))
	plugin := s.plugin(mixed)
	page, err := s.page(t.Context(), plugin.Name, "readyz")
	if err != nil || !strings.Contains(string(page), "GPU driver") {
		t.Errorf("/readyz: %v: it does not say that the GPU driver is missing: %s", err, page)
	}
	s.nodeEvent("GPUDriverMissing", cluster.NodeName(mixed))
	gpus, err := rig.GPUs(t.Context(), s.client)
	s.must(err)
	for _, g := range gpus {
		if g.Node == cluster.NodeName(mixed) {
			t.Errorf("%s is published on a node without the GPU driver", g.Device)
		}
	}
	s.create(newPod("waits", mixed, request{}))
	s.unallocatable("waits")

	restore()
	s.must(s.ready(t.Context()))
	s.holds(s.running("waits")[0], 1)
	now, err := s.client.CoreV1().Pods(rig.Namespace).Get(t.Context(), plugin.Name, metav1.GetOptions{})
	s.must(err)
	if containerID(now) != containerID(plugin) {
		t.Error("the plugin was started again")
	}
}
