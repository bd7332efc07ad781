package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/bench/sample"
)

// namespace is made for a measurement and removed after it.
const namespace = "bench-pods"

// Kinds of pods that are compared.
const (
	withoutClaim     = "without a GPU"
	unusedClaim      = "with a claim for a GPU that no container uses: nothing is injected"
	withClaim        = "with a claim for a GPU, from a template"
	extendedResource = "with nvidia.com/gpu: 1 and no claim"
)

func podKinds() []string { return []string{withoutClaim, unusedClaim, withClaim, extendedResource} }

// Starts is how long pods take from their creation to Running.
type Starts struct {
	Took map[string]sample.Series
}

// podTimer makes pods one after the other in a cluster.
type podTimer struct {
	client kubernetes.Interface
	image  string
}

// TimeStarts runs n pods of each kind on a cluster on which the driver is installed, one at a time and in turn.
func TimeStarts(ctx context.Context, client kubernetes.Interface, image string, n int) (p Starts, err error) {
	p.Took = map[string]sample.Series{}
	t := podTimer{client: client, image: image}
	if err := t.setUp(ctx); err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, t.tearDown(ctx)) }()
	// The first of each kind meets cold caches and does not count.
	for i := range n + 1 {
		for _, kind := range podKinds() {
			took, err := t.run(ctx, kind, fmt.Sprintf("p%d", i))
			if err != nil {
				return p, fmt.Errorf("pod %d %s: %w", i, kind, err)
			}
			if i > 0 {
				p.Took[kind] = append(p.Took[kind], took)
			}
		}
	}
	return p, nil
}

func (t podTimer) setUp(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := t.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("namespace of the pods: %w", err)
	}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com"}}}
	if _, err := t.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, template, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("template of the claims: %w", err)
	}
	// A pod is refused until a controller has made its service account.
	const (
		again = 100 * time.Millisecond
		limit = 100
	)
	for range limit {
		_, err := t.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("service account of the pods: %w", err)
		}
		if err := pause(ctx, again); err != nil {
			return err
		}
	}
	return errors.New("service account of the pods: no controller makes it")
}

func (t podTimer) tearDown(ctx context.Context) error {
	return t.client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{})
}

// podOf makes a pod that sleeps.
func (t podTimer) podOf(kind, name string) *corev1.Pod {
	c := corev1.Container{Name: "c", Image: t.image, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if kind == withClaim || kind == unusedClaim {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}
	}
	switch kind {
	case withClaim:
		c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	case extendedResource:
		c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	}
	// With a grace period of 0 the pod would be gone from the API before the kubelet has unprepared its claim,
	// and the next pod would wait for its GPU.
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

// run makes a pod, waits until it runs, and removes it.
func (t podTimer) run(ctx context.Context, kind, name string) (time.Duration, error) {
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pods := t.client.CoreV1().Pods(namespace)
	events, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	defer events.Stop()
	begun := time.Now()
	if _, err := pods.Create(ctx, t.podOf(kind, name), metav1.CreateOptions{}); err != nil {
		return 0, fmt.Errorf("create: %w", err)
	}
	err = await(ctx, events, func(e watch.Event) bool {
		pod, ok := e.Object.(*corev1.Pod)
		return ok && pod.Status.Phase == corev1.PodRunning
	})
	took := time.Since(begun)
	if err != nil {
		return took, fmt.Errorf("wait for Running: %w", err)
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return took, fmt.Errorf("delete: %w", err)
	}
	if err := await(ctx, events, func(e watch.Event) bool { return e.Type == watch.Deleted }); err != nil {
		return took, fmt.Errorf("wait for the end: %w", err)
	}
	// The next pod must not find the node busy with the end of this one.
	const rest = 300 * time.Millisecond
	return took, pause(ctx, rest)
}

// await reads events until one of them is the right one.
func await(ctx context.Context, events watch.Interface, right func(watch.Event) bool) error {
	for {
		select {
		case e, ok := <-events.ResultChan():
			if !ok {
				return errors.New("the watch ended")
			}
			if right(e) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// String is the result as Markdown.
func (p Starts) String() string {
	t := sample.NewTable("pod", "created to Running, median, s", "least to most, s", "ratio")
	base := sample.Rounds{p.Took[withoutClaim]}
	for _, kind := range podKinds() {
		took := p.Took[kind]
		if len(took) == 0 {
			continue
		}
		t.Add(kind, sample.Seconds(took.Median()), sample.Seconds(slices.Min(took))+" to "+sample.Seconds(slices.Max(took)), sample.Times(sample.Rounds{took}.Ratio(base)))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "### Pods\n\n%s\n%d pods of each kind, one after the other and in turn.\n", t, len(p.Took[withoutClaim]))
	return b.String()
}

// pause waits, unless the context ends before.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
