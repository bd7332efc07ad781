//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// TestSharing has claims of whole GPUs ask for ways of sharing them, and pods of the time of the
// device plugin share two GPUs as its configuration file says. The cases run side by side, each
// on a node of its own.
func TestSharing(t *testing.T) {
	s := begin(t)
	pluginConfig := fmt.Sprintf(`version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: %d
      devices:
      - %s
      - %s
`, replicas, s.gpu(cube, 0), s.gpu(cube, 1))
	values := rig.Values{
		"sharing.mps.enabled": "true", "sharing.mps.shmSize": "16m",
		"sharing.devicePluginConfig": pluginConfig, "sharing.failRequestsGreaterThanOne": "true",
		"deviceClasses.extendedResourceName": "", "deviceClasses.sharedExtendedResourceName": extended,
	}
	maps.Copy(values, enforcedShares())
	s.with(values)
	// It kills the plugin, and a pod that another case began just then would wait for the kubelet's
	// next try.
	t.Run("MPS", func(t *testing.T) { sharedByMPS(begin(t)) })
	for name, test := range map[string]func(*scene){
		"time slices": timeSliced, "device plugin config": replicated,
		"kills": killedByMPS, "never ready": neverReady, "spill and reboot": spills,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(begin(t))
		})
	}
}

// computing makes a pod whose container runs a program that computes, as far as others see, on
// the GPU of a claim with one configuration; none for an empty text.
func computing(name string, node int, gpu, parameters string) rig.Objects {
	objects := newPod(name, node, request{cel: is("uuid", gpu)})
	if parameters != "" {
		opaque := &resourceapi.OpaqueDeviceConfiguration{Driver: rig.Driver}
		opaque.Parameters.Raw = []byte(parameters)
		objects[0].(*resourceapi.ResourceClaimTemplate).Spec.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque},
		}}
	}
	objects.Pods()[0].Spec.Containers[0].Command = []string{"sh", "-c", "exec " + client + " --allocate 500 --hold"}
	return objects
}

// client is the simulated driver's program, where containers of ours have it.
const client = "/usr/lib/*/libgpusim-client.so.*"

// says waits until a pod's program has said a line with all the words.
func (s *scene) says(pod string, words ...string) {
	s.Helper()
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("pod %s says %q", pod, words), func(ctx context.Context) (string, error) {
		text, err := s.client.CoreV1().Pods(s.namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
		for line := range strings.Lines(string(text)) {
			missing := false
			for _, word := range words {
				missing = missing || !strings.Contains(line, word)
			}
			if !missing {
				return "", nil
			}
		}
		return string(text), err
	}))
}

// tries runs a second program in a pod's container, which must say all the words.
func (s *scene) tries(pod string, mib int, words ...string) {
	s.Helper()
	out := s.second(pod, mib)
	for _, word := range words {
		if !strings.Contains(out, word) {
			s.Errorf("a second program in pod %s says %q, want %q in it", pod, out, word)
		}
	}
}

// second runs a second program in a pod's container, and gives what it says.
func (s *scene) second(pod string, mib int) string {
	s.Helper()
	out, _ := s.exec(pod, "main", "sh", "-c", fmt.Sprintf("%s --allocate %d </dev/null", client, mib))
	return out
}

// shares waits until a GPU is shared as said.
func (s *scene) shares(node, number int, want gpusim.Sharing) {
	s.Helper()
	machine, err := s.Machine(s.Context(), node)
	s.must(err)
	s.must(rig.Wait(s.Context(), podLimit, fmt.Sprintf("GPU %d is shared as %+v", number, want), func(context.Context) (string, error) {
		got, err := machine.Sharing(number)
		if got == want {
			return "", err
		}
		return fmt.Sprintf("it is shared as %+v", got), err
	}))
}

// sharedByMPS has two programs in one container run into the limits of their claim. The plugin's
// pods are replaced and killed meanwhile, and the control daemons' DaemonSet is updated: nobody
// notices. The next pod on the GPU finds nothing of it.
func sharedByMPS(s *scene) {
	uuid := s.gpu(islands, 0)
	s.create(computing("mps", islands, uuid, byMPSWith(25, "1Gi")))
	pod := s.running("mps")[0]
	s.says("mps", "uuid="+uuid, "compute_mode=3", "thread_percentage=25.0", "pinned_limit=1024")
	s.says("mps", "total=500")
	s.tries("mps", 1000, "total=1000")
	s.tries("mps", 1025, "CUDA_ERROR_OUT_OF_MEMORY", "pinned memory limit of 1024 MiB")
	s.shares(islands, 0, gpusim.Sharing{ComputeMode: gpusim.ComputeExclusiveProcess})
	s.killPlugin(islands)
	daemons := s.client.AppsV1().DaemonSets(rig.Namespace)
	list, err := daemons.List(s.Context(), metav1.ListOptions{})
	s.must(err)
	for _, set := range list.Items {
		if out, err := s.kubectl(s.Context(), "rollout", "restart", "--namespace", rig.Namespace, "daemonset/"+set.Name); err != nil {
			s.Fatalf("update of DaemonSet %s: %v: %s", set.Name, err, out)
		}
	}
	s.must(s.ready(s.Context()))
	s.tries("mps", 1000, "thread_percentage=25.0", "total=1000")
	if now := s.getPod("mps"); containerID(now) != containerID(pod) || now.Status.ContainerStatuses[0].State.Running == nil {
		s.Errorf("the program's container was %s and is %+v", containerID(pod), now.Status.ContainerStatuses[0])
	}
	s.remove("mps")
	s.shares(islands, 0, gpusim.Sharing{})
	s.create(computing("plain", islands, uuid, ""))
	s.running("plain")
	s.says("plain", "uuid="+uuid, "compute_mode=0", "mps=none", "pinned_limit=none")
}

// timeSliced has the interval of a claim for as long as its pod.
func timeSliced(s *scene) {
	uuid := s.gpu(bridges, 1)
	s.create(computing("slices", bridges, uuid, `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
		"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`))
	s.running("slices")
	s.shares(bridges, 1, gpusim.Sharing{TimeSlice: gpusim.TimeSliceLong})
	s.shares(bridges, 0, gpusim.Sharing{})
	s.tries("slices", 1000, "compute_mode=0", "mps=none", "total=1000")
	s.remove("slices")
	s.shares(bridges, 1, gpusim.Sharing{})
}

const (
	// extended is the resource that pods of the time of the device plugin ask for.
	extended = "nvidia.com/gpu"
	// replicas is in how many parts each of two GPUs is given out.
	replicas = 4
)

// asking makes a pod from the time of the device plugin.
func asking(name, count string) *corev1.Pod {
	pod := plainPod(name, cube)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{extended: resource.MustParse(count)}
	return pod
}

// replicated has as many pods as there are replicas ask for one GPU each: the two GPUs of the
// configuration file hold the same number of them, one more has to wait for one to end, and a pod
// that asks for two is refused.
func replicated(s *scene) {
	var objects rig.Objects
	for i := range 2 * replicas {
		objects = append(objects, asking(fmt.Sprintf("replica-%d", i), "1"))
	}
	names := s.create(objects)
	holders := map[string]int{}
	for _, pod := range s.running(names...) {
		for _, gpu := range s.given(pod) {
			holders[gpu.UUID]++
		}
	}
	if diff := cmp.Diff(map[string]int{s.gpu(cube, 0): replicas, s.gpu(cube, 1): replicas}, holders); diff != "" {
		s.Errorf("pods by GPU (-want +got):\n%s", diff)
	}
	s.holds(s.getPod(names[0]), 1)
	s.create(rig.Objects{asking("more", "1")})
	s.pending("more")
	s.remove(names[0])
	s.holds(s.running("more")[0], 1)

	two := asking("two", "2")
	_, err := s.client.CoreV1().Pods(s.namespace).Create(s.Context(), two, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil || !strings.Contains(err.Error(), extended) {
		s.Errorf("a pod that asks for two shares: %v, want it refused", err)
	}
}
