// Package manifest finds the pods in manifests: pods themselves, and the templates of workloads. It
// is for commands that read files people wrote.
package manifest

import (
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Read reads files; "-" is in.
func Read(in io.Reader, paths ...string) ([]byte, error) {
	var all []byte
	for _, path := range paths {
		var data []byte
		var err error
		if path == "-" {
			data, err = io.ReadAll(in)
		} else {
			data, err = os.ReadFile(path)
		}
		if err != nil {
			return nil, err
		}
		all = append(append(all, "\n---\n"...), data...)
	}
	return all, nil
}

// Pod is the pod of an object, or what its pods are made from.
type Pod struct {
	// Subject names the object: "Deployment web".
	Subject string
	// Namespace is the object's.
	Namespace string
	// Meta and Spec are the object's own: a change changes the object, after Store.
	Meta *metav1.ObjectMeta
	Spec *corev1.PodSpec
	// Replicas is how many pods there will be; 1 where the object does not say.
	Replicas int
	// Role tells the templates of one object apart, "leader"; empty where there is one alone.
	Role string
	// Unknown says what Kubernetes does not know in the template of another project's kind. Spec
	// is then without it.
	Unknown error

	// template is what Spec was read from; nil where Spec is the object's own.
	template map[string]any
}

// Store has the object hold a Spec that was changed, and returns what it holds now. Nil is for
// Kubernetes' own kinds, where nothing has to be done.
func (p *Pod) Store() (map[string]any, error) {
	if p.template == nil {
		return nil, nil
	}
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.Spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Subject, err)
	}
	p.template["spec"] = spec
	return spec, nil
}

// PodsOf finds the pods of an object: one, of Kubernetes' own kinds, or several, of kinds of others
// that run GPU work. None for everything else.
func PodsOf(object runtime.Object) []*Pod {
	if raw, ok := object.(*unstructured.Unstructured); ok {
		return foreign(raw)
	}
	pod := podOf(object)
	if pod == nil {
		return nil
	}
	if named, ok := object.(metav1.Object); ok {
		pod.Namespace = named.GetNamespace()
	}
	return []*Pod{pod}
}

func podOf(object runtime.Object) *Pod {
	of := func(kind, name string, t *corev1.PodTemplateSpec, replicas *int32) *Pod {
		n := 1
		if replicas != nil {
			n = int(*replicas)
		}
		return &Pod{Subject: fmt.Sprintf("%s %s", kind, name), Meta: &t.ObjectMeta, Spec: &t.Spec, Replicas: n}
	}
	switch o := object.(type) {
	case *corev1.Pod:
		return &Pod{Subject: "Pod " + o.Name, Meta: &o.ObjectMeta, Spec: &o.Spec, Replicas: 1}
	case *corev1.PodTemplate:
		return of("PodTemplate", o.Name, &o.Template, nil)
	case *corev1.ReplicationController:
		if o.Spec.Template == nil {
			return nil
		}
		return of("ReplicationController", o.Name, o.Spec.Template, o.Spec.Replicas)
	case *appsv1.Deployment:
		return of("Deployment", o.Name, &o.Spec.Template, o.Spec.Replicas)
	case *appsv1.StatefulSet:
		return of("StatefulSet", o.Name, &o.Spec.Template, o.Spec.Replicas)
	case *appsv1.ReplicaSet:
		return of("ReplicaSet", o.Name, &o.Spec.Template, o.Spec.Replicas)
	case *appsv1.DaemonSet:
		return of("DaemonSet", o.Name, &o.Spec.Template, nil)
	case *batchv1.Job:
		return of("Job", o.Name, &o.Spec.Template, o.Spec.Parallelism)
	case *batchv1.CronJob:
		return of("CronJob", o.Name, &o.Spec.JobTemplate.Spec.Template, o.Spec.JobTemplate.Spec.Parallelism)
	}
	return nil
}
