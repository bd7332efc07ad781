package storage

import (
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A stored object is encoded for many at once, also with quantities that were calculated and have
// no text yet. The race detector sees what goes wrong otherwise.
func TestStoredObjectsMayBeEncodedAtOnce(t *testing.T) {
	t.Parallel()
	s := New(10, time.Now)
	r, ok := s.Find(resourceapi.SchemeGroupVersion.WithResource("resourceslices"))
	if !ok {
		t.Fatal("no slices")
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"}, Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{
		Name: "gpu", Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {
			Value: *resource.NewQuantity(1<<34, resource.BinarySI), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: resource.NewQuantity(1<<30, resource.BinarySI), ValidValues: []resource.Quantity{*resource.NewQuantity(1<<30, resource.BinarySI)},
			},
		}},
	}}}}
	if err := s.Put(r, slice); err != nil {
		t.Fatal(err)
	}
	stored, err := s.Get(r, types.NamespacedName{Name: "slice"})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if data, err := stored.(interface{ Marshal() ([]byte, error) }).Marshal(); err != nil || len(data) == 0 {
				t.Errorf("the object is encoded as %d bytes, %v", len(data), err)
			}
		})
	}
	group.Wait()
}
