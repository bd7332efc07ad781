//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// byMPSWith is a configuration with so many per cent of the threads and so much memory.
func byMPSWith(threads int, memory string) string {
	return fmt.Sprintf(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS",
		"mpsConfig": {"defaultActiveThreadPercentage": %d, "defaultPinnedDeviceMemoryLimit": %q}}}`, threads, memory)
}

// mpsProcess finds a process of the MPS pod on a node, by its name and, where that is given, by the
// device of its daemon, whose directory is in its environment.
func (s *scene) mpsProcess(node int, name, device string) int {
	s.Helper()
	list, err := s.client.CoreV1().Pods(rig.Namespace).List(s.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=mps-daemon", FieldSelector: "spec.nodeName=" + cluster.NodeName(node),
	})
	s.must(err)
	if len(list.Items) != 1 {
		s.Fatalf("%d MPS pods on %s", len(list.Items), cluster.NodeName(node))
	}
	found := 0
	s.must(rig.Wait(s.Context(), podLimit, "the MPS pod has a process "+name, func(ctx context.Context) (string, error) {
		out, err := s.Nodes.Ctr(ctx, node, "tasks", "ps", containerID(&list.Items[0])).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			pid, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			// A process of the list may have ended since.
			command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			environ, _ := os.ReadFile(filepath.Join("/proc", pid, "environ"))
			if !strings.Contains(string(command), name) || device != "" && !strings.Contains(string(environ)+"\x00", "/daemons/"+device+"\x00") {
				continue
			}
			if found, err = strconv.Atoi(pid); err == nil {
				return "", nil
			}
		}
		return string(out), nil
	}))
	return found
}

// kill ends a process at once.
func (s *scene) kill(pid int) {
	s.Helper()
	process, err := os.FindProcess(pid)
	s.must(err)
	s.must(process.Kill())
}

// killedByMPS kills the supervisor, of which programs that share a GPU notice nothing, and then
// their control daemon, which ends them: they find their limits again when they are started again.
func killedByMPS(s *scene) {
	uuid := s.gpu(islands, 2)
	objects := computing("killed", islands, uuid, byMPSWith(40, "2Gi"))
	objects.Pods()[0].Spec.RestartPolicy = corev1.RestartPolicyAlways
	s.create(objects)
	before := s.running("killed")[0]
	device := s.given(before)[0].Device
	limits := []string{"uuid=" + uuid, "thread_percentage=40.0", "pinned_limit=2048"}
	s.says("killed", limits...)

	daemon := s.mpsProcess(islands, "nvidia-cuda-mps-control", device)
	s.kill(s.mpsProcess(islands, "\x00supervise\x00", ""))
	s.tries("killed", 1500, "total=1500")
	// The next supervisor takes orders, and has the daemon as it was.
	s.create(computing("beside", islands, s.gpu(islands, 3), byMPSWith(10, "1Gi")))
	s.running("beside")
	s.says("beside", "thread_percentage=10.0")
	if now := s.mpsProcess(islands, "nvidia-cuda-mps-control", device); now != daemon {
		s.Errorf("the control daemon was process %d and is %d", daemon, now)
	}
	if now := s.getPod("killed"); containerID(now) != containerID(before) {
		s.Errorf("the program was started again: container %s, then %s", containerID(before), containerID(now))
	}

	s.kill(daemon)
	s.nodeEvent("MPSDaemonRestarted", device)
	s.runAgain(podLimit, before)
	s.says("killed", limits...)
	// A program that came just before the daemon had its limits is cut off and started once more.
	s.must(rig.Wait(s.Context(), podLimit, "a second program runs into the limit", func(context.Context) (string, error) {
		if out := s.second("killed", 2049); !strings.Contains(out, "pinned memory limit of 2048 MiB") {
			return out, nil
		}
		return "", nil
	}))
	s.remove("killed", "beside")
	for _, number := range []int{2, 3} {
		s.shares(islands, number, gpusim.Sharing{})
	}
}

// neverReady has a control daemon that never answers: an Event says so, and what the kubelet tries
// again is as it should be.
func neverReady(s *scene) {
	machine, err := s.Machine(s.Context(), bridges)
	s.must(err)
	s.must(machine.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-control:ready", GPU: gpusim.AnyGPU, Hang: true, Count: gpusim.Forever}))
	s.Cleanup(func() {
		if err := machine.ClearFaults(); err != nil {
			s.Error(err)
		}
	})
	uuid := s.gpu(bridges, 3)
	s.create(computing("late", bridges, uuid, byMPSWith(25, "1Gi")))
	late := s.getPod("late")
	s.event("PrepareFailed", "did not get ready")
	s.shares(bridges, 3, gpusim.Sharing{})
	s.must(machine.ClearFaults())
	s.runAgain(retryLimit, late)
	s.says("late", "uuid="+uuid, "thread_percentage=25.0", "pinned_limit=1024")
}

const (
	// sharers is in how many parts each of two GPUs of a node is given out, enforced by MPS.
	sharers = 2
	// part is what each has of 80 GiB, in MiB.
	part = 81920 / sharers
)

// enforcedShares declares them.
func enforcedShares() rig.Values {
	const at = "sharing.devices[0]."
	return rig.Values{
		at + "nodes[0]": cluster.NodeName(mixed), at + "enforcement": "mps", at + "replicas": strconv.Itoa(sharers),
		at + "devices.indices[0]": "0", at + "devices.indices[1]": "1",
	}
}

// replicasOf makes a Deployment whose replicas each have a share of a GPU.
func (s *scene) replicasOf(name string, count int32) {
	s.Helper()
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "shared.gpu.nvidia.com"}}}
	s.create(rig.Objects{template})
	pod := plainPod(name, mixed)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	pod.Spec.Containers[0].Command = []string{"sh", "-c", "exec " + client + " --allocate 500 --hold"}
	labels := map[string]string{"app": name}
	deployments := s.client.AppsV1().Deployments(s.namespace)
	_, err := deployments.Create(s.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		err := deployments.Delete(context.WithoutCancel(s.Context()), name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
		if err != nil {
			s.Error(err)
		}
	})
}

// replicasRun waits until so many replicas run, and gives their names and the GPUs that they share.
func (s *scene) replicasRun(name string, count int) (names []string, holders map[string]int) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("there are %d pods of %s", count, name), func(ctx context.Context) (string, error) {
		list, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		names = nil
		for _, pod := range list.Items {
			names = append(names, pod.Name)
		}
		if len(names) != count {
			return fmt.Sprint(names), err
		}
		return "", err
	}))
	holders = map[string]int{}
	for _, pod := range s.running(names...) {
		for _, gpu := range s.given(pod) {
			holders[gpu.UUID]++
		}
	}
	return names, holders
}

// spills scales a service from two replicas, which fill a GPU, to four: the others have the next
// GPU. None gets more memory than its part, and all are as they were after a reboot of the node.
func spills(s *scene) {
	first, second := s.gpu(mixed, 0), s.gpu(mixed, 1)
	s.replicasOf("service", sharers)
	_, holders := s.replicasRun("service", sharers)
	if diff := cmp.Diff(map[string]int{first: sharers}, holders); diff != "" {
		s.Errorf("two replicas by GPU (-want +got):\n%s", diff)
	}
	if out, err := s.kubectl(s.Context(), "scale", "--namespace", s.namespace, "deployment/service", "--replicas=4"); err != nil {
		s.Fatalf("scale: %v: %s", err, out)
	}
	names, holders := s.replicasRun("service", 2*sharers)
	if diff := cmp.Diff(map[string]int{first: sharers, second: sharers}, holders); diff != "" {
		s.Errorf("four replicas by GPU (-want +got):\n%s", diff)
	}
	limited := func() {
		s.Helper()
		for _, name := range names {
			s.says(name, "compute_mode=3", fmt.Sprintf("pinned_limit=%d", part))
			s.tries(name, part+1, "CUDA_ERROR_OUT_OF_MEMORY", "pinned memory limit")
		}
		// Two that share a GPU fill it: neither has taken the other's part.
		s.tries(names[0], part-1000, fmt.Sprintf("total=%d", part-1000))
	}
	limited()
	before := s.running(names...)
	s.reboot(mixed, rebooted)
	s.runAgain(retryLimit, before...)
	limited()
	for _, number := range []int{0, 1} {
		s.shares(mixed, number, gpusim.Sharing{ComputeMode: gpusim.ComputeExclusiveProcess})
	}
	if out, err := s.kubectl(s.Context(), "scale", "--namespace", s.namespace, "deployment/service", "--replicas=0"); err != nil {
		s.Fatalf("scale: %v: %s", err, out)
	}
	for _, number := range []int{0, 1} {
		s.shares(mixed, number, gpusim.Sharing{})
	}
}
