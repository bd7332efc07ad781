package agent

import (
	"testing"

	"github.com/gpu-dra/driver/pkg/config"
)

func TestSocket(t *testing.T) {
	c := config.Default()
	a := &Agent{config: c}
	if got := a.socket(); got != "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock" {
		t.Error(got)
	}
	c.PodUID = "pod"
	if got := a.socket(); got != "/var/lib/kubelet/plugins/gpu.nvidia.com/dra-pod.sock" {
		t.Error(got)
	}
}
