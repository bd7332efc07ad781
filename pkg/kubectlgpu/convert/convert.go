// Package convert turns manifests written for the NVIDIA device plugin into ones with claims: pods
// and workloads that ask for nvidia.com/gpu or nvidia.com/mig-…, their node selectors and affinity
// by product and memory, configurations of the device plugin and of mig-parted, and quota. It is
// for the command convert. It is pure. What has no equal is left as it was, and said in a comment:
// nothing is dropped in silence.
package convert

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// Document is one object of the result.
type Document struct {
	// Comments say what was done, and what has no equal.
	Comments []string
	// Object is what is written; nil for a document of comments alone.
	Object any
}

// Options choose what cannot be known from a manifest.
type Options struct {
	// Driver is the DRA driver's name.
	Driver string
	// NVLink adds the constraint of one NVLink domain to claims for several GPUs.
	NVLink bool
}

// converter collects documents.
type converter struct {
	Options
	out []Document
	// classes are the classes made so far, by name, and templates those of claims, by namespace and name.
	classes, templates map[string]bool
}

// Convert converts a stream of YAML or JSON. Documents that have nothing to do with GPUs come out
// as they are. The error names the document: one that Kubernetes would not take is not converted.
func Convert(data []byte, o Options) ([]Document, error) {
	c := &converter{Options: o, classes: map[string]bool{}, templates: map[string]bool{}}
	err := state.Documents(data, c.document)
	return c.out, err
}

// Render writes documents as a stream of YAML.
func Render(documents []Document) ([]byte, error) {
	var b bytes.Buffer
	for _, d := range documents {
		b.WriteString("---\n")
		for _, line := range d.Comments {
			for part := range strings.SplitSeq(line, "\n") {
				fmt.Fprintf(&b, "# %s\n", part)
			}
		}
		if d.Object == nil {
			continue
		}
		object := d.Object
		if typed, ok := object.(runtime.Object); ok {
			var err error
			if object, err = cleaned(typed); err != nil {
				return nil, err
			}
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		b.Write(text)
	}
	return b.Bytes(), nil
}

func (c *converter) document(document []byte) error {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	object, _, err := decoder.Decode(document, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err), runtime.IsMissingKind(err), runtime.IsMissingVersion(err):
		return c.foreign(document)
	case err != nil:
		return err
	}
	return c.object(object, document)
}

// foreign passes on what is not Kubernetes' own, or reads a bare configuration.
func (c *converter) foreign(document []byte) error {
	var raw any
	if err := yaml.Unmarshal(document, &raw); err != nil {
		return err
	}
	if c.settings("the file", "nvidia", string(document)) {
		return nil
	}
	note := mentions(document)
	if fields, ok := raw.(map[string]any); ok {
		object := &unstructured.Unstructured{Object: fields}
		done, err := c.foreignPods(object)
		if done || err != nil {
			return err
		}
		if kind := object.GroupVersionKind(); note != "" && kind.Group == "kueue.x-k8s.io" {
			note = fmt.Sprintf("Kueue counts devices of claims under a name of its configuration; with this one the quota stays as it is: "+
				"resources.deviceClassMappings: [{name: %sgpu, deviceClassNames: [%s]}], and feature gate DynamicResourceAllocation.", vendor, gpuClass)
		}
	}
	c.add(raw, nonEmpty(note)...)
	return nil
}

// foreignPods converts the pod templates of another project's kind that is known here. It is not
// done where there are none.
func (c *converter) foreignPods(object *unstructured.Unstructured) (done bool, err error) {
	pods := manifest.PodsOf(object)
	var comments []string
	for _, pod := range pods {
		if pod.Unknown != nil {
			comments = append(comments, fmt.Sprintf("No equal: %s was left as it is, since its template is not understood: %v.", pod.Subject, pod.Unknown))
			continue
		}
		// What Kubernetes would add is not written where nothing was converted.
		said, changed := c.convertPod(object, pod)
		comments = append(comments, said...)
		if !changed {
			continue
		}
		spec, err := pod.Store()
		if err != nil {
			return false, err
		}
		prune(spec)
	}
	if len(pods) == 0 {
		return false, nil
	}
	c.add(object.Object, nonEmpty(comments...)...)
	return true, nil
}

// mentions warns of resources of the device plugin in an object that is not understood.
func mentions(document []byte) string {
	if bytes.Contains(document, []byte("nvidia.com/gpu")) || bytes.Contains(document, []byte("nvidia.com/mig-")) {
		return "No equal: this kind is not known here, and it names resources of the device plugin. It was left as it is."
	}
	return ""
}

func nonEmpty(lines ...string) []string {
	var out []string
	for _, l := range lines {
		if l != "" {
			out = append(out, l)
		}
	}
	return out
}

func (c *converter) add(object any, comments ...string) {
	c.out = append(c.out, Document{Comments: comments, Object: object})
}

func (c *converter) object(object runtime.Object, document []byte) error {
	switch o := object.(type) {
	case *corev1.List:
		for _, item := range o.Items {
			if err := c.document(item.Raw); err != nil {
				return err
			}
		}
		return nil
	case *corev1.ConfigMap:
		return c.configMap(o)
	case *corev1.ResourceQuota:
		return c.quota(o)
	}
	pods := manifest.PodsOf(object)
	if len(pods) == 0 {
		var raw any
		if err := yaml.Unmarshal(document, &raw); err != nil {
			return err
		}
		c.add(raw)
		return nil
	}
	accessor, ok := object.(metav1.Object)
	if !ok {
		return errors.New("the object has no metadata")
	}
	comments, _ := c.convertPod(accessor, pods[0])
	return c.keep(object, comments...)
}

// keep passes an object on, without what only the API server writes.
func (c *converter) keep(object runtime.Object, comments ...string) error {
	clean, err := cleaned(object)
	if err != nil {
		return err
	}
	c.add(clean, nonEmpty(comments...)...)
	return nil
}

func cleaned(object runtime.Object) (map[string]any, error) {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	switch object.(type) {
	case *corev1.Pod, *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet, *appsv1.ReplicaSet, *batchv1.Job, *batchv1.CronJob,
		*corev1.ReplicationController, *corev1.ResourceQuota, *resourceapi.ResourceClaim:
		delete(out, "status")
	}
	prune(out)
	return out, nil
}

// prune takes null and empty objects out, which typed objects have where nothing was said. Fields
// that mean something when they are empty are kept.
func prune(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			prune(inner)
			m, isMap := inner.(map[string]any)
			if inner == nil || isMap && len(m) == 0 && emptySays(key) {
				delete(v, key)
			}
		}
	case []any:
		for _, inner := range v {
			prune(inner)
		}
	}
}

// emptySays tells that a field says nothing when it is empty. An emptyDir, a selector or a
// securityContext says something.
func emptySays(key string) bool {
	return key == "resources" || key == "strategy" || key == "updateStrategy" || key == "metadata"
}

// selector is a CEL selector.
func selector(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

func typed(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: kind}
}
