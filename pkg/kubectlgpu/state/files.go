package state

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// FromFiles reads saved objects: files of YAML or JSON, as `kubectl get -o yaml` prints them, and
// folders of such files, like the one that gather makes.
func FromFiles(paths ...string) (*State, error) {
	s := &State{}
	for _, path := range paths {
		files, err := manifests(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			objects, err := Decode(data)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			for _, o := range objects {
				if err := s.Add(o); err != nil {
					return nil, fmt.Errorf("%s: %w", file, err)
				}
			}
		}
	}
	s.sort()
	return s, nil
}

// manifests are the files of YAML and JSON at and below a path, in order.
func manifests(path string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		ext := filepath.Ext(name)
		if !entry.IsDir() && (name == path || slices.Contains([]string{".yaml", ".yml", ".json"}, ext)) {
			files = append(files, name)
		}
		return nil
	})
	return files, err
}

// Decode reads a stream of YAML or JSON documents, and takes lists apart. Objects of kinds that are
// not Kubernetes' own are unstructured ones. What is no object at all is left out: what is around
// the objects in a file is none of our business.
func Decode(data []byte) ([]runtime.Object, error) {
	var out []runtime.Object
	decoder := serializer.NewCodecFactory(scheme.Scheme).UniversalDeserializer()
	err := Documents(data, func(document []byte) error {
		objects, err := decodeOne(decoder, document)
		out = append(out, objects...)
		return err
	})
	return out, err
}

// Documents calls do with each document of a stream of YAML or JSON, as JSON. The error says which
// document it was about.
func Documents(data []byte, do func(document []byte) error) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	// Empty documents are not counted: nobody sees them.
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
		document, err = utilyaml.ToJSON(document)
		if err != nil {
			return fmt.Errorf("document %d is no YAML: %w", n, err)
		}
		trimmed := bytes.TrimSpace(document)
		if len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null")) {
			n--
			continue
		}
		if trimmed[0] != '{' {
			const shown = 20
			return fmt.Errorf("document %d is no object of Kubernetes, it begins with %s: take it out, or name another file", n, trimmed[:min(shown, len(trimmed))])
		}
		if err := do(document); err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

func decodeOne(decoder runtime.Decoder, document []byte) ([]runtime.Object, error) {
	object, _, err := decoder.Decode(document, nil, nil)
	switch {
	case runtime.IsNotRegisteredError(err):
		foreign, _, err := unstructured.UnstructuredJSONScheme.Decode(document, nil, nil)
		if one, ok := foreign.(*unstructured.Unstructured); ok && err == nil {
			return []runtime.Object{one}, nil
		}
		return nil, nil
	case runtime.IsMissingKind(err), runtime.IsMissingVersion(err):
		return nil, nil
	case err != nil:
		return nil, err
	case !meta.IsListType(object):
		return []runtime.Object{object}, nil
	}
	items, err := meta.ExtractList(object)
	if err != nil {
		return nil, err
	}
	var out []runtime.Object
	for _, item := range items {
		if item == nil {
			continue
		}
		// The items of kind List are still raw.
		raw, ok := item.(*runtime.Unknown)
		if !ok {
			out = append(out, withKind(item, object))
			continue
		}
		nested, err := decodeOne(decoder, raw.Raw)
		if err != nil {
			return nil, err
		}
		out = append(out, nested...)
	}
	return out, nil
}

// withKind names the kind of an item of a typed list, which leaves it out.
func withKind(item, list runtime.Object) runtime.Object {
	if kind := item.GetObjectKind(); kind.GroupVersionKind().Empty() {
		if of, _, err := scheme.Scheme.ObjectKinds(item); err == nil && len(of) > 0 {
			kind.SetGroupVersionKind(of[0])
		} else {
			kind.SetGroupVersionKind(schema.GroupVersionKind{Group: list.GetObjectKind().GroupVersionKind().Group})
		}
	}
	return item
}
