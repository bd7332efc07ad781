//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// rival stands in for NVIDIA's own DRA driver on one node, as far as others see it: its names of
// devices, its sockets, its CDI specs and its checkpoint. It hands out whole GPUs.
type rival struct {
	scene   *scene
	node    int
	machine *gpusim.Node
	// stop ends it and leaves what it wrote, as the other driver does.
	stop func()

	mu     sync.Mutex
	claims map[types.UID]any
}

// startRival has it serve a node on which no other driver does, and returns when its GPUs are
// published there, and nothing else.
func (s *scene) startRival(node int) *rival {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	r := &rival{scene: s, node: node, machine: machine, claims: map[types.UID]any{}}
	s.must(os.MkdirAll(s.dataDir(node), 0o750))
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	helper, err := kubeletplugin.Start(ctx, r,
		kubeletplugin.DriverName(rig.Driver), kubeletplugin.NodeName(cluster.NodeName(node)), kubeletplugin.KubeClient(s.client),
		kubeletplugin.PluginDataDirectoryPath(s.dataDir(node)), kubeletplugin.RegistrarDirectoryPath(filepath.Join(s.Nodes.KubeletRoot(node), "plugins_registry")),
		kubeletplugin.HealthService(false))
	r.stop = sync.OnceFunc(func() {
		cancel()
		if helper != nil {
			helper.Stop()
		}
	})
	s.Cleanup(r.stop)
	s.must(err)
	var slice resourceslice.Slice
	for _, g := range machine.Spec().GPUs {
		slice.Devices = append(slice.Devices, resourceapi.Device{
			Name:       rivalName(g.Minor),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: new("gpu")}, "uuid": {StringValue: &g.UUID}},
		})
	}
	s.must(helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		cluster.NodeName(node): {Slices: []resourceslice.Slice{slice}},
	}}))
	s.must(rig.Wait(s.Context(), podLimit, "the other driver's GPUs are published", func(ctx context.Context) (string, error) {
		gpus, err := rig.GPUs(ctx, s.client)
		gpus = slices.DeleteFunc(gpus, func(g rig.GPU) bool { return g.Node != cluster.NodeName(node) })
		if err == nil && len(gpus) == machine.GPUCount() && !slices.ContainsFunc(gpus, func(g rig.GPU) bool { return len(g.Device) > len("gpu-99") }) {
			return "", nil
		}
		return fmt.Sprintf("%d GPUs of the node are published: %+v", len(gpus), gpus), err
	}))
	return r
}

// rivalName is how that driver calls a GPU.
func rivalName(minor uint32) string { return fmt.Sprintf("gpu-%d", minor) }

// spec is where its CDI spec of a claim lies.
func (r *rival) spec(claim types.UID) string {
	return filepath.Join(r.scene.Nodes.CDIDir(r.node), "k8s.gpu.nvidia.com-claim_"+string(claim)+".json")
}

// board is the GPU that it calls so.
func (r *rival) board(device string) (minor uint32, uuid string, err error) {
	for _, g := range r.machine.Spec().GPUs {
		if rivalName(g.Minor) == device {
			return g.Minor, g.UUID, nil
		}
	}
	return 0, "", fmt.Errorf("there is no %s", device)
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (r *rival) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		devices, err := r.prepare(c)
		results[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

type object = map[string]any

// prepare writes a claim's CDI spec and the checkpoint with it.
func (r *rival) prepare(c *resourceapi.ResourceClaim) (devices []kubeletplugin.Device, err error) {
	const kind = "k8s.gpu.nvidia.com/claim"
	var nodes, entries []any
	for _, result := range c.Status.Allocation.Devices.Results {
		minor, uuid, err := r.board(result.Device)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s-%s", c.UID, result.Device)
		path := fmt.Sprintf("/dev/nvidia%d", minor)
		nodes = append(nodes, object{"name": name, "containerEdits": object{"deviceNodes": []any{
			object{"path": path, "hostPath": filepath.Join(r.scene.Mount(), "driver", path)},
		}}})
		d := kubeletplugin.Device{Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, CDIDeviceIDs: []string{kind + "=" + name}}
		devices = append(devices, d)
		entries = append(entries, object{"gpu": object{"info": object{"uuid": uuid}, "device": d}, "mig": nil})
	}
	spec, err := json.Marshal(object{"cdiVersion": "0.6.0", "kind": kind, "devices": nodes})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(r.spec(c.UID), spec, 0o600); err != nil {
		return nil, err
	}
	r.claims[c.UID] = object{
		"checkpointState": "PrepareCompleted", "status": c.Status, "name": c.Name, "namespace": c.Namespace,
		"preparedDevices": []any{object{"devices": entries, "configState": object{}}},
	}
	boot, err := os.ReadFile(filepath.Join(r.machine.ProcRoot(), "sys/kernel/random/boot_id"))
	if err != nil {
		return nil, err
	}
	checkpoint, err := json.Marshal(object{"checksum": 1, "v1": object{"preparedClaims": object{}}, "v2": object{
		"checksum": 2, "nodeBootID": strings.TrimSpace(string(boot)), "preparedClaims": r.claims,
	}})
	if err != nil {
		return nil, err
	}
	return devices, os.WriteFile(filepath.Join(r.scene.dataDir(r.node), "checkpoint.json"), checkpoint, 0o600)
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin. The claims outlive the rival.
func (r *rival) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		results[c.UID] = nil
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (r *rival) HandleError(_ context.Context, err error, message string) {
	r.scene.Logf("the other driver: %s: %v", message, err)
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (r *rival) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// theirs starts a pod that has a GPU from the rival.
func (r *rival) theirs() (pod *corev1.Pod, claim *resourceapi.ResourceClaim) {
	s := r.scene
	s.Helper()
	objects := newPod("theirs", r.node, request{})
	objects.Pods()[0].Spec.RestartPolicy = corev1.RestartPolicyAlways
	s.create(objects)
	pod = s.running("theirs")[0]
	claim, err := s.client.ResourceV1().ResourceClaims(s.namespace).Get(s.Context(), rig.ClaimNames(pod)[0], metav1.GetOptions{})
	s.must(err)
	return pod, claim
}

// takesOver is for a node where the rival has stopped and this driver was installed: the pod of its
// claim runs on, its GPU is kept for it until it ends, a container of it that is made anew has that
// GPU by the rival's name, and then nothing of the rival's is left.
func (r *rival) takesOver(pod *corev1.Pod, claim *resourceapi.ResourceClaim) {
	s := r.scene
	s.Helper()
	_, uuid, err := r.board(claim.Status.Allocation.Devices.Results[0].Device)
	s.must(err)
	if now := s.running(pod.Name)[0]; now.UID != pod.UID || containerID(now) != containerID(pod) {
		s.Errorf("pod %s was started again", pod.Name)
	}
	s.tainted(r.node, uuid, rig.Driver+"/taken-over=claim-of-former-driver:NoSchedule")
	all := int64(r.machine.GPUCount())
	s.start("ours", r.node, request{count: all - 1})
	s.create(newPod("waits", r.node, request{}))
	s.unallocatable("waits")

	// A kubelet that was started again asks for the devices of a pod whose sandbox is gone.
	s.must(s.ClusterCommand(s.Context(), "stop", fmt.Sprintf("kubelet-%d", r.node), "KILL"))
	s.killSandbox(r.node, pod)
	s.must(s.ClusterCommand(s.Context(), "up"))
	s.runAgain(retryLimit, pod)
	s.same("the GPU of the claim", []string{uuid}, s.sees(pod.Name, "main"))

	spec := r.spec(claim.UID)
	if _, err := os.Stat(spec); err != nil {
		s.Errorf("the CDI spec of a claim that is in use: %v", err)
	}
	s.remove(pod.Name)
	s.holds(s.running("waits")[0], 1)
	s.same("the GPU that was waited for", []string{uuid}, s.sees("waits", "main"))
	s.ended(r.node, "ours", "waits")
	s.must(rig.Wait(s.Context(), podLimit, "the former driver's CDI spec is removed", func(context.Context) (string, error) {
		if _, err := os.Stat(spec); err == nil {
			return "it is there", nil
		}
		return "", nil
	}))
}

// killSandbox kills all processes of a pod.
func (s *scene) killSandbox(node int, pod *corev1.Pod) {
	s.Helper()
	out, err := s.Nodes.Ctr(s.Context(), node, "containers", "ls", "--quiet", fmt.Sprintf("labels.%q==%q", "io.kubernetes.pod.uid", pod.UID)).CombinedOutput()
	if err != nil {
		s.Fatalf("containers of pod %s: %v: %s", pod.Name, err, out)
	}
	killed := 0
	for _, id := range strings.Fields(string(out)) {
		// Of a container that has ended there is no task.
		if s.Nodes.Ctr(s.Context(), node, "tasks", "kill", "--all", "--signal", "SIGKILL", id).Run() == nil {
			killed++
		}
	}
	if killed < 2 {
		s.Fatalf("of pod %s %d containers were killed: %s", pod.Name, killed, out)
	}
}
