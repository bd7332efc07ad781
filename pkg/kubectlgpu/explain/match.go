package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// StepKind is what removes devices.
type StepKind string

// The kinds of steps, in the order in which they are taken.
const (
	StepClass      StepKind = "class"
	StepSelector   StepKind = "selector"
	StepCapacity   StepKind = "capacity"
	StepTaint      StepKind = "taint"
	StepInUse      StepKind = "in use"
	StepCounter    StepKind = "counter"
	StepConstraint StepKind = "constraint"
)

// Step is one reason for which devices are no choice.
type Step struct {
	Kind StepKind `json:"kind"`
	// Detail names the class, expression, taint keys, owners or attribute.
	Detail string `json:"detail,omitempty"`
	// Removed is how many devices it removed, Left how many were left.
	Removed int `json:"removed"`
	Left    int `json:"left"`
	// Decisive is the first step that leaves too few.
	Decisive bool `json:"decisive,omitempty"`

	before []state.Device
}

// want is one request, or one alternative of a request, as it is counted.
type want struct {
	name, class string
	count       int
	all         bool
	admin       bool
	selectors   []resourceapi.DeviceSelector
	tolerations []resourceapi.DeviceToleration
	capacity    *resourceapi.CapacityRequirements
}

func exactly(r resourceapi.DeviceRequest) want {
	e := r.Exactly
	return want{
		name: r.Name, class: e.DeviceClassName, count: int(e.Count), all: e.AllocationMode == resourceapi.DeviceAllocationModeAll,
		admin: ptr.Deref(e.AdminAccess, false), selectors: e.Selectors, tolerations: e.Tolerations, capacity: e.Capacity,
	}
}

func alternative(r resourceapi.DeviceRequest, s resourceapi.DeviceSubRequest) want {
	return want{
		name: resourceclaim.CreateSubRequestRef(r.Name, s.Name), class: s.DeviceClassName, count: int(s.Count),
		all: s.AllocationMode == resourceapi.DeviceAllocationModeAll, selectors: s.Selectors, tolerations: s.Tolerations, capacity: s.Capacity,
	}
}

// matcher evaluates selectors. Its cache holds compiled expressions.
type matcher struct{ cache *cel.Cache }

// selectorError is an expression that cannot be compiled, or fails on a device. The scheduler gives
// up the pod on every node then.
type selectorError struct{ where, expression, device, cause string }

func (e *selectorError) Error() string {
	on := ""
	if e.device != "" {
		on = " on device " + e.device
	}
	return fmt.Sprintf("%s fails%s: %s; the expression is %s. One failing expression ends the pod's scheduling on every node: guard what a device may lack with ?. and orValue", e.where, on, e.cause, e.expression)
}

func (m *matcher) matches(ctx context.Context, where string, selector resourceapi.DeviceSelector, d state.Device) (bool, error) {
	if selector.CEL == nil {
		return true, nil
	}
	expression := selector.CEL.Expression
	compiled := m.cache.GetOrCompile(expression)
	if compiled.Error != nil {
		return false, &selectorError{where: where, expression: expression, cause: compiled.Error.Error()}
	}
	ok, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver: d.Driver, AllowMultipleAllocations: ptr.To(d.Shared()), Attributes: d.Spec.Attributes, Capacity: d.Spec.Capacity,
	})
	if err != nil {
		return false, &selectorError{where: where, expression: expression, device: d.Name, cause: err.Error()}
	}
	return ok, nil
}

// sieve takes the steps of one request on a node.
type sieve struct {
	steps []Step
	left  []state.Device
	need  int
}

// take removes the devices that keep refuses. A step that removes nothing is not worth a word, but
// for the class.
func (s *sieve) take(kind StepKind, detail string, keep func(state.Device) (bool, error)) error {
	var left []state.Device
	for _, d := range s.left {
		ok, err := keep(d)
		if err != nil {
			return err
		}
		if ok {
			left = append(left, d)
		}
	}
	if kind == StepClass || len(left) < len(s.left) {
		s.add(kind, detail, left)
	}
	return nil
}

func (s *sieve) add(kind StepKind, detail string, left []state.Device) {
	s.steps = append(s.steps, Step{Kind: kind, Detail: detail, Removed: len(s.left) - len(left), Left: len(left), before: s.left})
	s.left = left
}

// judge marks the first step that left less than needed, and tells whether there is one.
func (s *sieve) judge() bool {
	for i := range s.steps {
		if s.steps[i].Left < s.need {
			s.steps[i].Decisive = true
			return true
		}
	}
	return false
}

// sift takes the steps that concern each device by itself.
func (p *problem) sift(ctx context.Context, w want, devices []state.Device) (*sieve, error) {
	s := &sieve{left: devices, need: w.count}
	class, err := p.state.Class(w.class)
	if err != nil {
		return nil, err
	}
	if err := s.take(StepClass, w.class, func(d state.Device) (bool, error) {
		for i, selector := range class.Spec.Selectors {
			ok, err := p.match.matches(ctx, fmt.Sprintf("selector %d of class %s", i+1, w.class), selector, d)
			if !ok || err != nil {
				return false, err
			}
		}
		return true, nil
	}); err != nil {
		return nil, err
	}
	for i, selector := range w.selectors {
		if selector.CEL == nil {
			continue
		}
		where := fmt.Sprintf("selector %d of request %s", i+1, w.name)
		if err := s.take(StepSelector, selector.CEL.Expression, func(d state.Device) (bool, error) {
			return p.match.matches(ctx, where, selector, d)
		}); err != nil {
			return nil, err
		}
	}
	if w.all {
		// Every match has to be free, and there has to be one.
		s.need = max(1, len(s.left))
	}
	return s, s.conditions(w)
}

// conditions takes the steps that time may heal.
func (s *sieve) conditions(w want) error {
	if w.capacity != nil {
		if err := s.take(StepCapacity, "", func(d state.Device) (bool, error) { return hasCapacity(d, w.capacity), nil }); err != nil {
			return err
		}
	}
	if err := s.take(StepTaint, taintKeys(s.left, w.tolerations), func(d state.Device) (bool, error) {
		return len(untolerated(d, w.tolerations)) == 0, nil
	}); err != nil || w.admin {
		return err
	}
	if err := s.take(StepInUse, holders(s.left, w), func(d state.Device) (bool, error) { return !taken(d, w), nil }); err != nil {
		return err
	}
	return s.take(StepCounter, blockers(s.left), func(d state.Device) (bool, error) { return d.Blocked == "", nil })
}

func hasCapacity(d state.Device, c *resourceapi.CapacityRequirements) bool {
	for name, amount := range c.Requests {
		have := d.Capacity(string(name))
		if have.Cmp(amount) < 0 {
			return false
		}
	}
	return true
}

func untolerated(d state.Device, tolerations []resourceapi.DeviceToleration) []resourceapi.DeviceTaint {
	return slices.DeleteFunc(d.Repelling(), func(taint resourceapi.DeviceTaint) bool {
		return slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, taint) })
	})
}

func taintKeys(devices []state.Device, tolerations []resourceapi.DeviceToleration) string {
	var keys []string
	for _, d := range devices {
		for _, t := range untolerated(d, tolerations) {
			keys = append(keys, t.Key)
		}
	}
	return distinct(keys)
}

// taken tells that nothing is left of a device for a request: somebody has it, or those who share it have
// too much of it. What a share takes is rounded up by the scheduler, so this is never too strict.
func taken(d state.Device, w want) bool {
	if !d.Shared() {
		return len(d.Exclusive()) > 0
	}
	for name, capacity := range d.Spec.Capacity {
		left := capacity.Value.DeepCopy()
		for _, o := range d.Exclusive() {
			if amount, err := resource.ParseQuantity(o.Capacity[string(name)]); err == nil {
				left.Sub(amount)
			}
		}
		if need := needed(name, capacity, w); left.Cmp(need) < 0 {
			return true
		}
	}
	return false
}

// needed is what a request takes of one capacity of a shared device: what it asks for, or the device's
// default, or all of it.
func needed(name resourceapi.QualifiedName, capacity resourceapi.DeviceCapacity, w want) resource.Quantity {
	if w.capacity != nil {
		if amount, ok := w.capacity.Requests[name]; ok {
			return amount
		}
	}
	if p := capacity.RequestPolicy; p != nil && p.Default != nil {
		return *p.Default
	}
	return capacity.Value
}

func holders(devices []state.Device, w want) string {
	var names []string
	for _, d := range devices {
		if taken(d, w) {
			for _, o := range d.Exclusive() {
				names = append(names, o.String())
			}
		}
	}
	return distinct(names)
}

func blockers(devices []state.Device) string {
	var names []string
	for _, d := range devices {
		if d.Blocked != "" {
			names = append(names, d.Blocked)
		}
	}
	return distinct(names)
}

// distinct lists values once each, and of many only some.
func distinct(values []string) string {
	const most = 4
	slices.Sort(values)
	values = slices.Compact(values)
	text := ""
	for i, v := range values {
		if i == most {
			return text + fmt.Sprintf(" and %d more", len(values)-most)
		}
		if i > 0 {
			text += "; "
		}
		text += v
	}
	return text
}

// valueOf gives what a constraint compares; empty where the device has no such attribute.
func valueOf(d state.Device, attribute string) string {
	domain, name := "", attribute
	if i := slices.Index([]byte(attribute), '/'); i >= 0 {
		domain, name = attribute[:i], attribute[i+1:]
	}
	text := d.Text(attribute)
	if domain == d.Driver {
		text = cmp.Or(text, d.Text(name))
	}
	return text
}
