package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpu-dra/driver/test/cluster"
)

// Objects are those of a manifest, in its order.
type Objects []metav1.Object

// Spec reads a manifest of demo/specs. Its pods get an image that every node has, and may end
// at once.
func (r *Rig) Spec(name string) (Objects, error) {
	text, err := os.ReadFile(filepath.Join(r.Repository, "demo/specs", name+".yaml"))
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	objects, err := ParseManifest(text)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	for _, pod := range objects.Pods() {
		Localise(pod)
	}
	return objects, nil
}

// ParseManifest reads the objects of a YAML text.
func ParseManifest(text []byte) (Objects, error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	decoder := scheme.Codecs.UniversalDeserializer()
	var objects Objects
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		decoded, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		object, ok := decoded.(metav1.Object)
		if !ok {
			return nil, fmt.Errorf("%T is no object", decoded)
		}
		objects = append(objects, object)
	}
}

// Localise lets a pod run on nodes that cannot pull images.
func Localise(pod *corev1.Pod) {
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Image = cluster.WorkloadImage
		pod.Spec.Containers[i].ImagePullPolicy = corev1.PullNever
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		grace := int64(5)
		pod.Spec.TerminationGracePeriodSeconds = &grace
	}
}

// Pods are the pods among the objects.
func (o Objects) Pods() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, object := range o {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Into puts what has no namespace yet, and needs one, into that namespace.
func (o Objects) Into(namespace string) {
	for _, object := range o {
		switch object.(type) {
		case *corev1.Namespace, *resourceapi.DeviceClass:
		default:
			if object.GetNamespace() == "" {
				object.SetNamespace(namespace)
			}
		}
	}
}

// Create makes the objects in their order.
func (o Objects) Create(ctx context.Context, client kubernetes.Interface) error {
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	for _, object := range o {
		var err error
		switch object := object.(type) {
		case *corev1.Namespace:
			_, err = client.CoreV1().Namespaces().Create(ctx, object, options)
		case *corev1.Pod:
			_, err = client.CoreV1().Pods(object.Namespace).Create(ctx, object, options)
		case *resourceapi.DeviceClass:
			_, err = client.ResourceV1().DeviceClasses().Create(ctx, object, options)
		case *resourceapi.ResourceClaim:
			_, err = client.ResourceV1().ResourceClaims(object.Namespace).Create(ctx, object, options)
		case *resourceapi.ResourceClaimTemplate:
			_, err = client.ResourceV1().ResourceClaimTemplates(object.Namespace).Create(ctx, object, options)
		default:
			err = fmt.Errorf("objects of type %T are not expected in a manifest", object)
		}
		if err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// DeleteGlobal removes those of the objects that live in no namespace. What is gone is no error.
func (o Objects) DeleteGlobal(ctx context.Context, client kubernetes.Interface) error {
	var errs []error
	for _, object := range o {
		var err error
		switch object.(type) {
		case *corev1.Namespace:
			err = client.CoreV1().Namespaces().Delete(ctx, object.GetName(), metav1.DeleteOptions{})
		case *resourceapi.DeviceClass:
			err = client.ResourceV1().DeviceClasses().Delete(ctx, object.GetName(), metav1.DeleteOptions{})
		}
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
