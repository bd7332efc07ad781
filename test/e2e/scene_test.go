//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// podLimit bounds the start of a pod, on a machine with much else to do. It is below the time
// after which the kubelet repeats a failed prepare: one failure fails the test.
const podLimit = 50 * time.Second

// scene is one test's part of the cluster: a namespace of its own, empty when the test ends.
type scene struct {
	*testing.T
	*suite

	namespace string
}

// begin waits until the driver serves every node and gives the test a namespace. The other way
// round when the test ends: all its pods must end, which proves that their claims were undone.
func begin(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, suite: shared}
	s.must(s.ready(t.Context()))
	s.namespace = s.makeNamespace(nil)
	t.Cleanup(s.dump)
	return s
}

// makeNamespace makes a namespace that goes, with all in it, when the test ends.
func (s *scene) makeNamespace(labels map[string]string) string {
	s.Helper()
	all := map[string]string{testLabel: "true"}
	for k, v := range labels {
		all[k] = v
	}
	ns, err := s.client.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: all},
	}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		if err := s.empty(context.WithoutCancel(s.Context()), ns.Name); err != nil {
			s.Errorf("end of the test: %v", err)
		}
	})
	return ns.Name
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// dump keeps, for a test that failed, what a person needs to understand it.
func (s *scene) dump() {
	if !s.Failed() {
		return
	}
	dir := filepath.Join(s.Out, "failures", strings.ReplaceAll(s.Name(), "/", "-"))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), time.Minute)
	defer cancel()
	errs := []error{os.RemoveAll(dir), s.Nodes.Dump(ctx, dir)}
	for _, pod := range s.plugins(ctx) {
		for _, previous := range []bool{false, true} {
			name := fmt.Sprintf("plugin-%s-%s-%t.log", pod.Spec.NodeName, pod.Name, previous)
			text, err := s.client.CoreV1().Pods(rig.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Previous: previous}).DoRaw(ctx)
			if err == nil {
				errs = append(errs, os.WriteFile(filepath.Join(dir, name), text, 0o644))
			}
		}
		for _, page := range []string{"readyz", "metrics"} {
			text, err := s.page(ctx, pod.Name, page)
			if err == nil {
				errs = append(errs, os.WriteFile(filepath.Join(dir, page+"-"+pod.Name), text, 0o644))
			}
		}
	}
	out, _ := s.kubectl(ctx, "describe", "pods,resourceclaims", "--all-namespaces")
	errs = append(errs, os.WriteFile(filepath.Join(dir, "describe"), out, 0o644))
	if err := errors.Join(errs...); err != nil {
		s.Logf("dump: %v", err)
	}
	s.Logf("what is known of the failure: %s", dir)
}

// with has the driver run with more values until the test ends.
func (s *scene) with(more rig.Values) {
	s.Helper()
	values := maps.Clone(s.values)
	maps.Copy(values, more)
	s.Cleanup(func() {
		if err := s.Upgrade(context.WithoutCancel(s.Context()), version, s.values); err != nil {
			s.Errorf("end of the test: %v", err)
		}
	})
	s.must(s.Upgrade(s.Context(), version, values))
}

// repair installs the driver anew, so that the next test finds it as it was.
func (s *scene) repair() {
	ctx := context.WithoutCancel(s.Context())
	if err := errors.Join(s.Uninstall(ctx, s.client), s.Install(ctx, version, s.values)); err != nil {
		s.Errorf("repair: %v", err)
	}
}

// repairAfterFailure repairs when the test has ended, if it failed.
func (s *scene) repairAfterFailure() {
	s.Cleanup(func() {
		if s.Failed() {
			s.repair()
		}
	})
}

// plugins are the node plugin's pods.
func (s *suite) plugins(ctx context.Context) []corev1.Pod {
	list, err := s.client.CoreV1().Pods(rig.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=kubelet-plugin"})
	if err != nil {
		return nil
	}
	return list.Items
}

// plugin is the driver's pod on a node.
func (s *scene) plugin(node int) *corev1.Pod {
	s.Helper()
	for _, pod := range s.plugins(s.Context()) {
		if pod.Spec.NodeName == cluster.NodeName(node) && pod.DeletionTimestamp == nil {
			return &pod
		}
	}
	s.Fatalf("no plugin runs on %s", cluster.NodeName(node))
	return nil
}

// page reads one of the plugin's HTTP pages through the API server.
func (s *suite) page(ctx context.Context, pod, page string) ([]byte, error) {
	return s.client.CoreV1().Pods(rig.Namespace).ProxyGet("http", pod, "8080", page, nil).DoRaw(ctx)
}

// kubectl runs kubectl as an administrator and returns its output, errors included.
func (s *suite) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Cluster.Bin, "kubectl"), append([]string{"--kubeconfig", s.Nodes.Kubeconfig()}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.Bytes(), err
}

// spec reads one of the examples that users see, to be made in the test's namespace.
func (s *scene) spec(name string) rig.Objects {
	s.Helper()
	objects, err := s.Spec(name)
	s.must(err)
	objects.Into(s.namespace)
	return objects
}

// create makes the objects and returns the names of the pods among them.
func (s *scene) create(objects rig.Objects) []string {
	s.Helper()
	objects.Into(s.namespace)
	s.Cleanup(func() {
		if err := objects.DeleteGlobal(context.WithoutCancel(s.Context()), s.client); err != nil {
			s.Error(err)
		}
	})
	s.must(objects.Create(s.Context(), s.client))
	var names []string
	for _, pod := range objects.Pods() {
		names = append(names, pod.Name)
	}
	return names
}

// pin lets the pods run on one node alone.
func pin(node int, pods ...*corev1.Pod) {
	for _, pod := range pods {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: cluster.NodeName(node)}
	}
}

// request is what a claim of newClaim asks for.
type request struct {
	count int64
	all   bool
	admin bool
	match string
	cel   string
}

func (q request) spec() resourceapi.ResourceClaimSpec {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", Count: max(q.count, 1), AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if q.all {
		exactly.Count, exactly.AllocationMode = 0, resourceapi.DeviceAllocationModeAll
	}
	if q.admin {
		exactly.AdminAccess = &q.admin
	}
	if q.cel != "" {
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: q.cel}}}
	}
	devices := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}}
	if q.match != "" {
		attribute := resourceapi.FullyQualifiedName(q.match)
		devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
	}
	return resourceapi.ResourceClaimSpec{Devices: devices}
}

// newPod makes a pod on a node with a claim of its own, made from a template of its name.
func newPod(name string, node int, q request) rig.Objects {
	template := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: q.spec()},
	}
	pod := plainPod(name, node)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return rig.Objects{template, pod}
}

// plainPod makes a pod on a node without a claim. It runs until it is told to end.
func plainPod(name string, node int) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name:    "main",
				Command: []string{"sh", "-c", `trap "exit 0" TERM; sleep infinity & wait`},
			}},
		},
	}
	rig.Localise(pod)
	pin(node, pod)
	return pod
}

func (s *scene) getPod(name string) *corev1.Pod {
	s.Helper()
	pod, err := s.client.CoreV1().Pods(s.namespace).Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	return pod
}

// running waits until all containers of the pods run.
func (s *scene) running(names ...string) []*corev1.Pod {
	s.Helper()
	return s.runningWithin(podLimit, names...)
}

// runningWithin is running for pods that take longer.
func (s *scene) runningWithin(limit time.Duration, names ...string) []*corev1.Pod {
	s.Helper()
	var pods []*corev1.Pod
	for _, name := range names {
		s.must(rig.Wait(s.Context(), limit, "pod "+name+" runs", func(ctx context.Context) (string, error) {
			pod, err := s.client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
				return "", fmt.Errorf("the pod ended: %s", pod.Status.Phase)
			}
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					pods = append(pods, pod)
					return "", nil
				}
			}
			return string(pod.Status.Phase), nil
		}))
	}
	return pods
}

// pending waits until the scheduler has said that it finds no place for the pod, and returns
// its words.
func (s *scene) pending(name string) string {
	s.Helper()
	var reason string
	s.must(rig.Wait(s.Context(), podLimit, "the scheduler says that pod "+name+" has to wait", func(ctx context.Context) (string, error) {
		pod, err := s.client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if pod.Spec.NodeName != "" {
			return "", fmt.Errorf("the pod was placed on %s", pod.Spec.NodeName)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				reason = c.Message
				return "", nil
			}
		}
		return string(pod.Status.Phase), nil
	}))
	return reason
}

// remove ends pods and waits until they are gone.
func (s *scene) remove(names ...string) {
	s.Helper()
	pods := s.client.CoreV1().Pods(s.namespace)
	for _, name := range names {
		s.must(pods.Delete(s.Context(), name, metav1.DeleteOptions{}))
	}
	for _, name := range names {
		s.must(rig.Wait(s.Context(), podLimit, "pod "+name+" is gone", func(ctx context.Context) (string, error) {
			_, err := pods.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			return "it is there", err
		}))
	}
}

// exec runs a command in a container and returns its output.
func (s *scene) exec(pod, container string, line ...string) (string, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), podLimit)
	defer cancel()
	args := append([]string{"exec", "--namespace", s.namespace, pod, "--container", container, "--"}, line...)
	out, err := s.kubectl(ctx, args...)
	return string(out), err
}

// given returns the GPUs that the scheduler gave to a pod.
func (s *scene) given(pod *corev1.Pod) []rig.GPU {
	s.Helper()
	gpus, err := rig.Given(s.Context(), s.client, pod)
	s.must(err)
	return gpus
}

// sees returns the UUIDs that nvidia-smi lists in a container, sorted.
func (s *scene) sees(pod, container string) []string {
	s.Helper()
	out, err := s.exec(pod, container, "nvidia-smi", "-L")
	if err != nil {
		s.Fatalf("nvidia-smi in %s/%s: %v: %s", pod, container, err, out)
	}
	uuids, err := rig.ParseList(out)
	s.must(err)
	slices.Sort(uuids)
	return uuids
}

// holds checks that each container of a running pod sees exactly the GPUs that the scheduler gave
// to the pod, and returns them.
func (s *scene) holds(pod *corev1.Pod, count int) []rig.GPU {
	s.Helper()
	gpus := s.given(pod)
	if len(gpus) != count {
		s.Fatalf("pod %s was given %d GPUs, not %d: %+v", pod.Name, len(gpus), count, gpus)
	}
	for _, c := range pod.Spec.Containers {
		if diff := cmp.Diff(rig.UUIDs(gpus), s.sees(pod.Name, c.Name)); diff != "" {
			s.Errorf("%s/%s does not see what it was given (-given +seen):\n%s", pod.Name, c.Name, diff)
		}
	}
	return gpus
}

// start makes a pod of newPod and returns it running, with its GPUs.
func (s *scene) start(name string, node int, q request) (*corev1.Pod, []rig.GPU) {
	s.Helper()
	s.create(newPod(name, node, q))
	pod := s.running(name)[0]
	return pod, s.holds(pod, int(max(q.count, 1)))
}

// links reads the topology that a container sees.
func (s *scene) links(pod *corev1.Pod) rig.Links {
	s.Helper()
	out, err := s.exec(pod.Name, pod.Spec.Containers[0].Name, "nvidia-smi", "topo", "-m")
	if err != nil {
		s.Fatalf("nvidia-smi topo -m in %s: %v: %s", pod.Name, err, out)
	}
	links, err := rig.ParseTopology(out)
	s.must(err)
	return links
}
