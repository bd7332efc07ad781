package walkthrough

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/scheduler"
)

const (
	namespace     = "default"
	containerName = "main"
)

//go:embed manifests/*.yaml
var manifests embed.FS

// manifest gives the text of a manifest, as a user would write it.
func manifest(name string) (string, error) {
	text, err := manifests.ReadFile("manifests/" + name + ".yaml")
	if err != nil {
		return "", fmt.Errorf("manifest %s: %w", name, err)
	}
	return string(text), nil
}

// claimFrom decodes a claim strictly.
func claimFrom(text string) (*resourceapi.ResourceClaim, error) {
	var claim resourceapi.ResourceClaim
	if err := yaml.UnmarshalStrict([]byte(text), &claim); err != nil {
		return nil, fmt.Errorf("decode claim: %w", err)
	}
	return &claim, nil
}

// podFor is the pod that uses a claim in its only container.
func podFor(claim string) *corev1.Pod {
	const ref = "gpus"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: containerName, Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: ref}}}}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: ref, ResourceClaimName: &claim}},
		},
	}
}

// loadScene puts what a cluster has before the walk: the node and the DeviceClass.
func (w *walk) loadScene(api *kubeapi.Server) error {
	class, err := manifest("class")
	if err != nil {
		return err
	}
	if err := api.Load(strings.NewReader(class)); err != nil {
		return err
	}
	return api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.options.Preset}})
}

// job is a pod with a claim for GPUs.
type job struct {
	pod   *corev1.Pod
	claim *resourceapi.ResourceClaim
	// gpus are what the claim got, by number.
	gpus []gpu
	// cdi are the CDI devices that the kubelet passes to the container; empty before it is prepared.
	cdi []string
}

// schedule makes the claim of a manifest and its pod, and has the scheduler's allocator find GPUs.
func (w *walk) schedule(ctx context.Context, text string) (*job, error) {
	claim, err := claimFrom(text)
	if err != nil {
		return nil, err
	}
	claims := w.client.ResourceV1().ResourceClaims(namespace)
	if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create claim %s: %w", claim.Name, err)
	}
	pod, err := w.client.CoreV1().Pods(namespace).Create(ctx, podFor(claim.Name), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create pod %s: %w", claim.Name, err)
	}
	pod, err = w.scheduler.Schedule(ctx, pod)
	var misfit *scheduler.DoesNotFit
	if errors.As(err, &misfit) {
		return nil, &Problem{
			Err:    fmt.Errorf("claim %s stays pending on this machine: %s", claim.Name, misfit.Reason),
			Advice: "choose a machine whose NVLink domains have room for two and then four GPUs: --preset " + DefaultPreset + ", hgx-h100-8 or dgx1-v100",
		}
	}
	if err != nil {
		return nil, err
	}
	allocated, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read claim %s: %w", claim.Name, err)
	}
	got, err := allocatedGPUs(w.gpus, allocated)
	if err != nil {
		return nil, err
	}
	for _, g := range got {
		w.held[g.name] = claim.Name
	}
	return &job{pod: pod, claim: allocated, gpus: got}, nil
}

// allocatedGPUs are the GPUs in a claim's allocation, by number.
func allocatedGPUs(all []gpu, claim *resourceapi.ResourceClaim) ([]gpu, error) {
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s has no allocation", claim.Name)
	}
	names := map[string]bool{}
	for _, r := range claim.Status.Allocation.Devices.Results {
		names[r.Device] = true
	}
	var got []gpu
	for _, g := range all {
		if names[g.name] {
			got = append(got, g)
		}
	}
	if len(got) != len(names) {
		return nil, fmt.Errorf("claim %s got %d devices, of which %d are GPUs of this node", claim.Name, len(names), len(got))
	}
	return got, nil
}

// prepare has the kubelet prepare the job's claim.
func (w *walk) prepare(ctx context.Context, j *job) error {
	ids, err := w.kubelet.PreparePod(ctx, j.pod)
	if err != nil {
		return err
	}
	if j.cdi = ids[containerName]; len(j.cdi) == 0 {
		return fmt.Errorf("claim %s was prepared without CDI devices", j.claim.Name)
	}
	return nil
}

// release has the kubelet unprepare the job's claim, and removes the job.
func (w *walk) release(ctx context.Context, j *job) error {
	if err := w.kubelet.UnpreparePod(ctx, j.pod.UID); err != nil {
		return err
	}
	if err := w.scheduler.Remove(ctx, j.pod); err != nil {
		return err
	}
	for _, g := range j.gpus {
		delete(w.held, g.name)
	}
	return nil
}
