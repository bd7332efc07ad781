package gather_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/doctor"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/explain"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/gather"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

const secret = "s3cr3t"

// fill puts the secret into every text of a value, however deep; path is where it is.
func fill(v reflect.Value, path string, depth int) {
	const deepest = 12
	if depth > deepest {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path, depth+1)
	case reflect.Struct:
		switch v.Addr().Interface().(type) {
		case *resource.Quantity, *metav1.Time, *metav1.MicroTime, *runtime.RawExtension:
			return
		case *intstr.IntOrString:
			v.Set(reflect.ValueOf(intstr.FromString(secret)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), path+"."+v.Type().Field(i).Name, depth+1)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(secret))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path+"[]", depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, path, depth+1)
		fill(value, path, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(secret)
	}
}

// A pod with the secret in every text that a pod can have; but for what may be told: names, node
// and claims.
func hostile() *corev1.Pod {
	p := &corev1.Pod{}
	fill(reflect.ValueOf(p).Elem(), "", 0)
	p.ObjectMeta = metav1.ObjectMeta{Name: "p", Namespace: Namespace, Labels: p.Labels, Annotations: p.Annotations, ManagedFields: p.ManagedFields}
	p.Spec.NodeName, p.Spec.SchedulerName, p.Spec.PriorityClassName = "node-0", "s", "c"
	p.Spec.NodeSelector, p.Spec.Affinity, p.Spec.Tolerations = nil, nil, nil
	claim := "c"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	for _, all := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		all[0].Name = "main"
		all[0].Resources = corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}
	}
	p.Status.Phase, p.Status.Reason, p.Status.QOSClass = corev1.PodPending, "r", "q"
	p.Status.ResourceClaimStatuses, p.Status.ExtendedResourceClaimStatus = nil, nil
	p.Status.Conditions[0].Type, p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason = "Ready", "False", "r"
	return p
}

func bundle(t *testing.T, s *state.State) []gather.File {
	t.Helper()
	files, err := gather.Bundle(s, Driver, "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A secret that is anywhere in a pod, a node, an event, a label or another driver's configuration is
// not in the bundle.
func TestNoSecrets(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	s.Pods = append(s.Pods, hostile())
	node := &corev1.Node{}
	fill(reflect.ValueOf(node).Elem(), "", 0)
	node.ObjectMeta = metav1.ObjectMeta{Name: "node-0", Labels: map[string]string{"team": secret}, Annotations: map[string]string{"a": secret}}
	node.Spec.Taints, node.Status.Capacity, node.Status.Allocatable = nil, nil, nil
	node.Status.NodeInfo = corev1.NodeSystemInfo{MachineID: secret, SystemUUID: secret, BootID: secret}
	s.Nodes = append(s.Nodes, node)
	s.Events = append(s.Events,
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Reason: "BackOff", Message: secret, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: Namespace, Name: "p"}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "f"}, Reason: "FailedScheduling", Message: secret, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: Namespace, Name: "unrelated"}})
	other := resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "nic.example.com", Parameters: runtime.RawExtension{Raw: []byte(`{"key":"` + secret + `"}`)}}}
	claim := Take(s, "c", Names(s, "node-0", "gpu")[0])
	claim.Labels, claim.Annotations = map[string]string{"l": secret}, map[string]string{"a": secret}
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: other}}
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{DeviceConfiguration: other}}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "nic.example.com", Data: &runtime.RawExtension{Raw: []byte(`"` + secret + `"`)}}}
	s.Classes[0].Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: other}}
	s.Templates = append(s.Templates, &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Annotations: map[string]string{"a": secret}}})
	s.Templates[0].Spec.ObjectMeta.Annotations = map[string]string{"a": secret}
	s.Templates[0].Spec.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: other}}
	for _, f := range bundle(t, s) {
		if text := string(f.Data); strings.Contains(text, secret) {
			at := strings.Index(text, secret)
			t.Errorf("%s tells the secret: …%s…", f.Name, text[max(0, at-200):at+len(secret)])
		}
		if strings.Contains(f.Name, "secret") || strings.Contains(f.Name, "configmap") {
			t.Errorf("there is a file %s", f.Name)
		}
	}
	if s.Pods[0].Spec.Containers[0].Image != secret || claim.Spec.Devices.Config[0].Opaque.Parameters.Raw[2] != 'k' {
		t.Error("the state was changed")
	}
}

// What is needed for an answer is in the bundle: it gives the same one as the cluster.
func TestBundleAnswersTheSame(t *testing.T) {
	s := Machines(t, "two-islands", 2, false)
	gpus := Names(s, "node-0", "gpu")
	Take(s, "a", gpus...)
	Taint(s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, Names(s, "node-1", "gpu")[0])
	Pending(s, "p", Driver+"/nvlinkDomain", Request("gpu.nvidia.com", 8))
	s.Pods = append(s.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: Namespace}})
	dir := t.TempDir()
	for _, f := range bundle(t, s) {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	again, err := state.FromFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Pods) != 1 || len(again.Slices) != len(s.Slices) {
		t.Errorf("%d pods, %d slices", len(again.Pods), len(again.Slices))
	}
	answer := func(s *state.State) explain.Explanation {
		x, err := explain.New(s, explain.Options{Search: 1}).Pod(t.Context(), Namespace, "p")
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	a, b := answer(s), answer(again)
	if a.Reason != b.Reason || a.Verdict != b.Verdict || a.Verdict != explain.DoesNotFit {
		t.Errorf("the cluster says %q, the bundle %q", a.Reason, b.Reason)
	}
}

// The driver's own pods are in the bundle, so that doctor finds in it what it finds in the cluster: how
// they are, and nothing of what is in them.
func TestDriversOwnPods(t *testing.T) {
	s := Machines(t, "t4-4", 1, false)
	own := hostile()
	own.Name, own.Spec.ResourceClaims = "plugin", nil
	own.Labels = map[string]string{"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": "kubelet-plugin", "team": secret}
	for _, all := range [][]corev1.ContainerStatus{own.Status.ContainerStatuses, own.Status.InitContainerStatuses} {
		all[0].Name, all[0].RestartCount = "gpus", 3
		all[0].State.Waiting.Reason, all[0].State.Terminated.Reason, all[0].LastTerminationState.Terminated.Reason = "ImagePullBackOff", "Error", "OOMKilled"
	}
	s.Pods = append(s.Pods, own)
	s.Features = map[string]bool{"DRADeviceTaints": false}
	dir := t.TempDir()
	for _, f := range bundle(t, s) {
		if strings.Contains(string(f.Data), secret) {
			t.Errorf("%s tells the secret:\n%s", f.Name, f.Data)
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	again, err := state.FromFiles(dir)
	if err != nil || len(again.Pods) != 1 {
		t.Fatalf("%d pods, %v", len(again.Pods), err)
	}
	c := again.Pods[0].Status.ContainerStatuses[0]
	if c.RestartCount != 3 || c.State.Waiting.Reason != "ImagePullBackOff" || c.LastTerminationState.Terminated.Reason != "OOMKilled" || c.Image != "" {
		t.Errorf("the container is told as %+v", c)
	}
	found := func(s *state.State) string {
		var text strings.Builder
		if err := doctor.Check(t.Context(), doctor.Cluster{State: s, Driver: Driver}).Text(&text, true); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	before, after := found(s), found(again)
	// Messages of containers are not in the bundle.
	if before = strings.ReplaceAll(before, "ImagePullBackOff "+secret, "ImagePullBackOff "); before != after {
		t.Errorf("the cluster and the bundle:\n%s", cmp.Diff(before, after))
	}
	for _, w := range []string{"is not ready: container gpus waits: ImagePullBackOff", "DRADeviceTaints is off"} {
		if !strings.Contains(after, w) {
			t.Errorf("doctor does not find %q:\n%s", w, after)
		}
	}
}

func TestAbout(t *testing.T) {
	files := bundle(t, &state.State{Unread: []state.Unread{{Kind: "Nodes", Err: os.ErrPermission}}})
	at := slices.IndexFunc(files, func(f gather.File) bool { return f.Name == "about.txt" })
	if text := string(files[at].Data); !strings.Contains(text, "v1.2.3") || !strings.Contains(text, "Nodes could not be read") {
		t.Error(text)
	}
}
