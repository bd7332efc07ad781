package rig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-dra/driver/test/cluster"
)

// TestSpecs reads every example: each can be made in a cluster without a registry.
func TestSpecs(t *testing.T) {
	r, _ := newRig(t, writeDown)
	files, err := filepath.Glob(filepath.Join(r.Repository, "demo/specs/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		objects, err := r.Spec(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		pods := objects.Pods()
		if len(pods) == 0 {
			t.Errorf("%s: no pod", name)
		}
		for _, pod := range pods {
			for _, c := range pod.Spec.Containers {
				if c.Image != cluster.WorkloadImage || c.ImagePullPolicy != corev1.PullNever {
					t.Errorf("%s: container %s has the image %s, pulled %s", name, c.Name, c.Image, c.ImagePullPolicy)
				}
			}
		}
		client := fake.NewClientset()
		objects.Into("somewhere")
		if err := objects.Create(t.Context(), client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := len(client.Actions()); got != len(objects) {
			t.Errorf("%s: %d objects, %d calls", name, len(objects), got)
		}
	}
	if _, err := r.Spec("no-such-example"); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("an example that does not exist: %v", err)
	}
}

// unwrapAll returns the innermost error that the standard library's older helpers understand.
func unwrapAll(err error) error {
	for {
		wrapped, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = wrapped.Unwrap()
	}
}

const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: class.example.com}
spec: {}
---
apiVersion: v1
kind: Pod
metadata: {name: with, namespace: team}
spec: {containers: [{name: main, image: some/image}], terminationGracePeriodSeconds: 90}
---
apiVersion: v1
kind: Pod
metadata: {name: without}
spec: {containers: [{name: main, image: some/image}]}
`

func TestObjects(t *testing.T) {
	objects, err := ParseManifest([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	objects.Into("test")
	var places []string
	for _, o := range objects {
		places = append(places, o.GetNamespace()+"/"+o.GetName())
	}
	if diff := cmp.Diff([]string{"/team", "/class.example.com", "team/with", "test/without"}, places); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	for i, want := range []int64{90, 5} {
		pod := objects.Pods()[i]
		Localise(pod)
		if got := *pod.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("pod %s may take %d s to end, want %d", pod.Name, got, want)
		}
	}

	client := fake.NewClientset()
	if err := objects.Create(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	if err := objects.Create(t.Context(), client); !apierrors.IsAlreadyExists(err) {
		t.Errorf("made twice: %v", err)
	}
	for range 2 {
		if err := objects.DeleteGlobal(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.ResourceV1().DeviceClasses().Get(t.Context(), "class.example.com", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the class is left: %v", err)
	}
	if _, err := client.CoreV1().Pods("test").Get(t.Context(), "without", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod went with the class: %v", err)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no kind":      "metadata: {name: x}",
		"unknown kind": "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}",
		"no YAML":      "a: b: c",
	} {
		if objects, err := ParseManifest([]byte(text)); err == nil {
			t.Errorf("%s: read as %v", name, objects)
		}
	}
	unexpected := Objects{&resourceapi.ResourceSlice{}}
	if err := unexpected.Create(t.Context(), fake.NewClientset()); err == nil || !strings.Contains(err.Error(), "ResourceSlice") {
		t.Errorf("an object that no example has: %v", err)
	}
}
