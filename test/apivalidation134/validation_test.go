// Package apivalidation134 holds what the driver would publish in a cluster of Kubernetes 1.34
// against that API server's own validation, without an API server.
package apivalidation134

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	internal "k8s.io/kubernetes/pkg/apis/resource"
	conversion "k8s.io/kubernetes/pkg/apis/resource/v1"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
)

// validate gives what the API server says about an object.
func validate(t *testing.T, object *resourceapi.ResourceSlice) field.ErrorList {
	t.Helper()
	var in internal.ResourceSlice
	if err := conversion.Convert_v1_ResourceSlice_To_resource_ResourceSlice(object, &in, nil); err != nil {
		t.Fatal(err)
	}
	return validation.ValidateResourceSlice(&in)
}

// line is what test/slicedump of the driver's module writes.
type line struct {
	Machine string
	Slice   resourceapi.ResourceSlice
}

// published are the slices that the driver would publish.
func published(t *testing.T) []line {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", "./test/slicedump", "1.34")
	cmd.Dir = "../.."
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("slicedump: %v: %s", err, errs.String())
	}
	var lines []line
	decoder := json.NewDecoder(bytes.NewReader(out))
	// A field that this release does not know would be lost there.
	decoder.DisallowUnknownFields()
	for decoder.More() {
		var l line
		if err := decoder.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Every slice of every machine is valid, and the rules catch what is not: counters in a slice of
// their own, as later releases want them.
func TestSlices(t *testing.T) {
	lines := published(t)
	cut := 0
	for _, l := range lines {
		t.Run(l.Machine+", "+l.Slice.Name, func(t *testing.T) {
			if errs := validate(t, &l.Slice); len(errs) > 0 {
				t.Errorf("the API server says %v", errs)
			}
			if len(l.Slice.Spec.SharedCounters) == 0 {
				return
			}
			cut++
			apart := l.Slice.DeepCopy()
			apart.Spec.SharedCounters = nil
			if errs := validate(t, apart); len(errs) == 0 {
				t.Error("devices without their counters are taken")
			}
		})
	}
	if cut < len(lines)/2 {
		t.Errorf("%d of %d slices have counters", cut, len(lines))
	}
}
