package chart

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	chartDir = "../../deployments/helm/gpu-dra-driver"
	specsDir = "../../demo/specs"
	// reference is the Kubernetes version that the driver is made for first.
	reference = "1.37.0"
)

// valueSets are the value files that come with the chart; "" means the defaults.
func valueSets(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*-values.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("value sets of the chart: %v, %v", files, err)
	}
	return append([]string{""}, files...)
}

func valuesFrom(file string, set ...string) Values {
	v := Values{Set: set}
	if file != "" {
		v.Files = []string{file}
	}
	return v
}

func render(t *testing.T, v Values, version string) Rendered {
	t.Helper()
	rendered, err := Render(t.Context(), Release{Name: "gpu-dra-driver", Namespace: "gpu-dra-driver", Chart: chartDir, Values: v}, version)
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

// decode reads every object of a stream of documents strictly: an unknown or doubled field
// fails the test. Kinds that are not Kubernetes' own are returned as they are.
func decode(t *testing.T, stream string) []runtime.Object {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(stream)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if isEmpty(document) {
			continue
		}
		object, _, err := strict.Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			unknown := &unstructured.Unstructured{}
			err = yaml.UnmarshalStrict(document, &unknown.Object)
			object = unknown
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		objects = append(objects, object)
	}
}

// one finds the only object of a type.
func one[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	all := every[T](objects)
	if len(all) != 1 {
		t.Fatalf("%d objects of type %T, want one", len(all), *new(T))
	}
	return all[0]
}

func every[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

func isEmpty(document []byte) bool {
	for line := range strings.Lines(string(document)) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

func readFile(t *testing.T, elements ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
