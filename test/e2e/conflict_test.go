//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	devicepb "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// devicePlugin is one of the kubelet's device plugins, with GPUs that are all well.
type devicePlugin struct {
	devicepb.UnimplementedDevicePluginServer
}

// GetDevicePluginOptions implements the device plugin API.
func (devicePlugin) GetDevicePluginOptions(context.Context, *devicepb.Empty) (*devicepb.DevicePluginOptions, error) {
	return &devicepb.DevicePluginOptions{}, nil
}

// ListAndWatch implements the device plugin API.
func (devicePlugin) ListAndWatch(_ *devicepb.Empty, stream grpc.ServerStreamingServer[devicepb.ListAndWatchResponse]) error {
	all := &devicepb.ListAndWatchResponse{}
	for i := range 2 {
		all.Devices = append(all.Devices, &devicepb.Device{ID: fmt.Sprintf("GPU-%d", i), Health: devicepb.Healthy})
	}
	if err := stream.Send(all); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// startDevicePlugin registers one for nvidia.com/gpu with a node's kubelet. stop ends it; so does
// the test's end.
func (s *scene) startDevicePlugin(node int) (stop func()) {
	s.Helper()
	dir := filepath.Join(s.Nodes.KubeletRoot(node), "device-plugins")
	const name = "e2e-gpu.sock"
	listener, err := (&net.ListenConfig{}).Listen(s.Context(), "unix", filepath.Join(dir, name))
	s.must(err)
	server := grpc.NewServer()
	devicepb.RegisterDevicePluginServer(server, devicePlugin{})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-ended; err != nil {
			s.Errorf("device plugin: %v", err)
		}
	})
	s.Cleanup(stop)
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, filepath.Base(devicepb.KubeletSocket)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	defer func() { _ = conn.Close() }()
	_, err = devicepb.NewRegistrationClient(conn).Register(s.Context(), &devicepb.RegisterRequest{
		Version: devicepb.Version, Endpoint: name, ResourceName: "nvidia.com/gpu",
	})
	s.must(err)
	return stop
}

// soleOwner waits until the plugin of a node is ready as the only one that hands out its GPUs, or
// is not for a conflict, and all its devices have the taint that says so, or none.
func (s *scene) soleOwner(node int, conflict string) {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	plugin := s.plugin(node).Name
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("the conflict on %s is %q", cluster.NodeName(node), conflict), func(ctx context.Context) (string, error) {
		gpus, err := rig.GPUs(ctx, s.client)
		if err != nil {
			return "", err
		}
		seen := 0
		for _, g := range gpus {
			if g.Node != cluster.NodeName(node) {
				continue
			}
			seen++
			want := conflict == "" && len(g.Taints) == 0 || conflict != "" && len(g.Taints) == 1 && strings.HasPrefix(g.Taints[0], rig.Driver+"/conflict="+conflict+":")
			if !want {
				return fmt.Sprintf("%s has the taints %v", g.Device, g.Taints), nil
			}
		}
		if seen != machine.GPUCount() {
			return fmt.Sprintf("%d GPUs are published", seen), nil
		}
		// A plugin that is not ready answers with an error.
		if page, err := s.page(ctx, plugin, "readyz"); (err == nil) != (conflict == "") {
			return fmt.Sprintf("readyz: %v: %s", err, page), nil
		}
		return "", nil
	}))
}

// TestSecondOwner has a device plugin offer GPUs on one node, and another DRA driver register on
// another: nothing new is handed out there, claims that are prepared go on and end, and all is as
// before when the others are gone.
func TestSecondOwner(t *testing.T) {
	s := begin(t)
	users := map[int]*corev1.Pod{}
	for _, node := range []int{mixed, cube} {
		users[node], _ = s.start(cluster.NodeName(node)+"-user", node, request{})
	}
	stopPlugin := s.startDevicePlugin(mixed)
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(s.Nodes.KubeletRoot(cube), "plugins_registry", rig.Driver+"-reg.sock"))
	s.must(err)
	t.Cleanup(func() { _ = other.Close() })
	s.soleOwner(mixed, "device-plugin")
	s.nodeEvent("OtherOwner", "a device plugin on this node hands out GPUs, too (nvidia.com/gpu: 2)")
	s.nodeEvent("OtherOwner", "another DRA driver for GPUs serves this node")
	waits := cluster.NodeName(mixed) + "-waits"
	s.create(newPod(waits, mixed, request{}))
	s.unallocatable(waits)
	out, err := s.tryKubectlGPU("", "doctor", "-o", "wide")
	if !strings.Contains(out, "a device plugin on this node hands out GPUs") {
		t.Errorf("doctor: %v: %s", err, out)
	}
	for node, pod := range users {
		s.undisturbed(pod, 1)
		s.ended(node, pod.Name)
	}

	stopPlugin()
	s.must(other.Close())
	for node := range users {
		s.soleOwner(node, "")
	}
	s.holds(s.running(waits)[0], 1)
	s.ended(mixed, waits)
}
