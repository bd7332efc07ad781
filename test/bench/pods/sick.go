package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/test/bench/sample"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Sick is how soon a pod whose GPU falls ill, and the slices, say so, and say that it is well again.
type Sick struct {
	// Tainted and Told are from the error to the taint and to the pod's status, Offered and Well from the end of the fault
	// to the end of the taint and to the pod's status.
	Tainted, Told, Offered, Well sample.Series
}

// rest is more than the plugin's pause between two publications, so that a round does not wait for the one before, and less than
// the kubelet's heartbeat from the plugin.
const rest = 2 * time.Second

// TimeSick has a GPU of the cluster's one node, a simulated machine, fall ill and get well under a pod, again and again.
func TimeSick(ctx context.Context, client kubernetes.Interface, image string, machine *gpusim.Node, rounds int) (s Sick, err error) {
	t := podTimer{client: client, image: image}
	if err := t.setUp(ctx); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, t.tearDown(ctx)) }()
	v, err := t.newVictim(ctx, machine)
	if err != nil {
		return s, err
	}
	defer v.end()
	// The first round meets cold caches and does not count.
	for i := range rounds + 1 {
		if err := pause(ctx, rest); err != nil {
			return s, err
		}
		tainted, told, err := v.change(ctx, true)
		if err != nil {
			return s, fmt.Errorf("round %d: %w", i, err)
		}
		if err := pause(ctx, rest); err != nil {
			return s, err
		}
		offered, well, err := v.change(ctx, false)
		if err != nil {
			return s, fmt.Errorf("round %d: %w", i, err)
		}
		if i > 0 {
			s.Tainted, s.Told = append(s.Tainted, tainted), append(s.Told, told)
			s.Offered, s.Well = append(s.Offered, offered), append(s.Well, well)
		}
	}
	return s, nil
}

// victim is a pod with a GPU, and what tells of both.
type victim struct {
	machine    *gpusim.Node
	gpu        int
	device     string
	pod, slice watch.Interface
}

func (v *victim) end() {
	v.pod.Stop()
	v.slice.Stop()
}

// newVictim runs a pod with a GPU.
func (t podTimer) newVictim(ctx context.Context, machine *gpusim.Node) (*victim, error) {
	pod, device, err := t.withGPU(ctx)
	if err != nil {
		return nil, err
	}
	v := &victim{machine: machine, device: device, gpu: numberOf(machine, device)}
	if v.gpu < 0 {
		return nil, fmt.Errorf("device %s of the pod is none of the machine in %s: it is another node's", device, machine.Dir())
	}
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String(), ResourceVersion: pod.ResourceVersion}
	if v.pod, err = t.client.CoreV1().Pods(namespace).Watch(ctx, options); err != nil {
		return nil, fmt.Errorf("watch the pod: %w", err)
	}
	options = metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + pod.Spec.NodeName}
	if v.slice, err = t.client.ResourceV1().ResourceSlices().Watch(ctx, options); err != nil {
		v.pod.Stop()
		return nil, fmt.Errorf("watch the slices: %w", err)
	}
	return v, nil
}

// withGPU makes a pod with a GPU and waits until it runs.
func (t podTimer) withGPU(ctx context.Context) (*corev1.Pod, string, error) {
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	const name = "victim"
	events, err := t.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return nil, "", fmt.Errorf("watch: %w", err)
	}
	defer events.Stop()
	if _, err := t.client.CoreV1().Pods(namespace).Create(ctx, t.podOf(withClaim, name), metav1.CreateOptions{}); err != nil {
		return nil, "", fmt.Errorf("create: %w", err)
	}
	var pod *corev1.Pod
	err = await(ctx, events, func(e watch.Event) bool {
		p, ok := e.Object.(*corev1.Pod)
		pod = p
		return ok && p.Status.Phase == corev1.PodRunning && len(p.Status.ResourceClaimStatuses) > 0
	})
	if err != nil {
		return nil, "", fmt.Errorf("wait for Running: %w", err)
	}
	claim, err := t.client.ResourceV1().ResourceClaims(namespace).Get(ctx, *pod.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("claim of the pod: %w", err)
	}
	if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) == 0 {
		return nil, "", fmt.Errorf("claim %s of a running pod is not allocated", claim.Name)
	}
	return pod, claim.Status.Allocation.Devices.Results[0].Device, nil
}

// numberOf is the GPU of a machine that a device is; -1 for none.
func numberOf(machine *gpusim.Node, device string) int {
	return slices.IndexFunc(machine.Spec().GPUs, func(g nodefile.ResolvedGPU) bool {
		return device == "gpu-"+strings.NewReplacer(":", "-", ".", "-").Replace(g.PCI.String())
	})
}

// change makes the GPU ill, or well, and gives when the slices and the pod said so.
func (v *victim) change(ctx context.Context, ill bool) (slice, pod time.Duration, err error) {
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type outcome struct {
		at  time.Time
		err error
	}
	told := make(chan outcome, 1)
	begun := time.Now()
	go func() {
		err := await(ctx, v.pod, func(e watch.Event) bool { return podSays(e, ill) })
		told <- outcome{time.Now(), err}
	}()
	if err = v.set(ill); err == nil {
		err = await(ctx, v.slice, func(e watch.Event) bool { return sliceSays(e, v.device, ill) })
	}
	slice = time.Since(begun)
	if err != nil {
		cancel()
	}
	of := <-told
	if err = errors.Join(err, of.err); err != nil {
		return 0, 0, fmt.Errorf("device %s: ill is %t, and the slices or the pod do not say so: %w", v.device, ill, err)
	}
	return slice, of.at.Sub(begun), nil
}

func (v *victim) set(ill bool) error {
	if !ill {
		return v.machine.SetRecoveryAction(v.gpu, 0)
	}
	if err := v.machine.SetRecoveryAction(v.gpu, 1); err != nil {
		return err
	}
	const uncontained = 95
	return v.machine.InjectXID(v.gpu, gpusim.XID{Code: uncontained})
}

// podSays tells whether a pod's status has the health that goes with a GPU that is ill, or not.
func podSays(e watch.Event, ill bool) bool {
	pod, ok := e.Object.(*corev1.Pod)
	if !ok || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	want := corev1.ResourceHealthStatusHealthy
	if ill {
		want = corev1.ResourceHealthStatusUnhealthy
	}
	for _, status := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
		for _, r := range status.Resources {
			return r.Health == want
		}
	}
	return false
}

// sliceSays tells whether a slice has the device, and new pods avoid it, or do not.
func sliceSays(e watch.Event, device string, ill bool) bool {
	slice, ok := e.Object.(*resourceapi.ResourceSlice)
	if !ok {
		return false
	}
	i := slices.IndexFunc(slice.Spec.Devices, func(d resourceapi.Device) bool { return d.Name == device })
	if i < 0 {
		return false
	}
	avoided := slices.ContainsFunc(slice.Spec.Devices[i].Taints, func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone })
	return avoided == ill
}

// String is the result as Markdown.
func (s Sick) String() string {
	t := sample.NewTable("from … to …", "p50, ms", "p99, ms", "times")
	for _, row := range []struct {
		what string
		took sample.Series
	}{
		{"the error to the taint in the API server", s.Tainted},
		{"the error to the pod's status", s.Told},
		{"the end of the fault to the end of the taint", s.Offered},
		{"the end of the fault to the pod's status", s.Well},
	} {
		t.Add(row.what, sample.Milliseconds(row.took.Median()), sample.Milliseconds(row.took.Percentile(99)), strconv.Itoa(len(row.took)))
	}
	return fmt.Sprintf("### Health, on a cluster\n\n%s", t)
}
