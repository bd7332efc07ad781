package device

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// rendering collects what is published of one device. It takes only what the vocabulary has
// and the API accepts; facts that the hardware does not tell (empty texts) are no omissions.
type rendering struct {
	vocabulary Vocabulary
	device     resourceapi.Device
	omissions  []Omission
}

func render(name string, vocabulary Vocabulary) *rendering {
	return &rendering{vocabulary: vocabulary, device: resourceapi.Device{
		Name:       name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
	}}
}

func (r *rendering) published(name string) bool {
	return r.vocabulary != VocabularyMinimal || InMinimal(name)
}

func (r *rendering) add(name, shown string, value resourceapi.DeviceAttribute) {
	if !r.published(name) {
		return
	}
	if err := CheckAttribute(resourceapi.QualifiedName(name), value); err != nil {
		r.omit(name, shown, err.Error())
		return
	}
	r.device.Attributes[resourceapi.QualifiedName(name)] = value
}

func (r *rendering) omit(name, value, reason string) {
	r.omissions = append(r.omissions, Omission{Device: r.device.Name, Name: name, Value: value, Reason: reason})
}

func (r *rendering) text(name, value string) {
	if value != "" {
		r.add(name, value, resourceapi.DeviceAttribute{StringValue: &value})
	}
}

func (r *rendering) texts(name string, values []string) {
	if len(values) > 0 {
		r.add(name, fmt.Sprint(values), resourceapi.DeviceAttribute{StringValues: slices.Clone(values)})
	}
}

func (r *rendering) number(name string, value int) {
	r.add(name, fmt.Sprint(value), resourceapi.DeviceAttribute{IntValue: ptr.To(int64(value))})
}

func (r *rendering) numbers(name string, values ...int64) {
	r.add(name, fmt.Sprint(values), resourceapi.DeviceAttribute{IntValues: values})
}

func (r *rendering) flag(name string, value *bool) {
	if value != nil {
		r.add(name, fmt.Sprint(*value), resourceapi.DeviceAttribute{BoolValue: ptr.To(*value)})
	}
}

// version publishes a version as drivers write it.
func (r *rendering) version(name, value string) {
	if value == "" || !r.published(name) {
		return
	}
	version, err := Version(value)
	if err != nil {
		r.omit(name, value, err.Error())
		return
	}
	r.add(name, value, resourceapi.DeviceAttribute{VersionValue: &version})
}

// bytes publishes a capacity in bytes; 0 is a size that the hardware does not tell.
func (r *rendering) bytes(name string, value uint64) {
	const most = 1<<63 - 1
	switch {
	case value == 0 || !r.published(name):
	case value > most:
		r.omit(name, fmt.Sprint(value), fmt.Sprintf("size is over %d bytes", uint64(most)))
	default:
		r.capacity(name, resource.NewQuantity(int64(value), resource.BinarySI))
	}
}

// amount publishes a capacity that is a number of things, also of none.
func (r *rendering) amount(name string, value int) {
	if r.published(name) {
		r.capacity(name, resource.NewQuantity(int64(value), resource.DecimalSI))
	}
}

func (r *rendering) capacity(name string, value *resource.Quantity) {
	if r.device.Capacity == nil {
		r.device.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	}
	r.device.Capacity[resourceapi.QualifiedName(name)] = resourceapi.DeviceCapacity{Value: *value}
}
