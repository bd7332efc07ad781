package partition_test

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/bench/partition"
	"github.com/gpu-dra/driver/test/bench/sample"
)

func TestTable(t *testing.T) {
	got := partition.Table([]partition.Times{{
		Latency: 500 * time.Millisecond, Calls: 2, One: sample.Series{1010 * time.Millisecond}, Two: sample.Series{1515 * time.Millisecond},
	}})
	for _, cell := range []string{"| 500 ", "| 1010.00 ", "| 10.00 ", "| 1515.00 ", "| 1.50 × |"} {
		if !strings.Contains(got, cell) {
			t.Errorf("there is no cell %q in\n%s", cell, got)
		}
	}
}

// Managed fields do not count, devices do.
func TestWeigh(t *testing.T) {
	slices := []resourceapi.ResourceSlice{{}, {Spec: resourceapi.ResourceSliceSpec{Devices: make([]resourceapi.Device, 3)}}}
	small, err := partition.Weigh(slices)
	if err != nil || small.Slices != 2 || small.Devices != 3 || small.JSON == 0 {
		t.Fatalf("%+v, %v", small, err)
	}
	slices[0].ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	if again, err := partition.Weigh(slices); err != nil || again != small {
		t.Errorf("with managed fields %+v, %v; without %+v", again, err, small)
	}
}
