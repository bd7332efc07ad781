// Package declaration knows which MIG layout is declared for a node: a configuration of a file,
// chosen by the node's label nvidia.com/mig.config or else by a setting. It tells what other
// tools read of it in the label nvidia.com/mig.config.state, and notices when another tool acts
// on these labels. It is for the plugin's wiring. It must not know how GPUs are laid out.
package declaration

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/layout"
)

// The labels that MIG managers use, and by which a GPU Operator deploys its own.
const (
	ConfigLabel  = "nvidia.com/mig.config"
	StateLabel   = "nvidia.com/mig.config.state"
	managerLabel = "nvidia.com/gpu.deploy.mig-manager"
)

// State is the value of the state label.
type State string

// The states, as MIG managers name them.
const (
	Pending State = "pending"
	Success State = "success"
	Failed  State = "failed"
)

// OtherToolError tells that another tool acts on the labels of this node.
type OtherToolError struct {
	// Sign is what shows it.
	Sign string
}

func (e *OtherToolError) Error() string {
	return fmt.Sprintf("another tool lays out the GPUs of this node (%s), so no MIG layout is applied: switch it off for this node "+
		"(GPU Operator: label %s=false, or migManager.enabled=false), then remove the label %s", e.Sign, managerLabel, StateLabel)
}

// Node is what is known of the Node object.
type Node struct{ Labels, Annotations map[string]string }

// Source knows the declaration. It is safe for concurrent use.
type Source struct {
	path, fallback, annotation string

	mu   sync.Mutex
	data []byte
	// file is the last one that could be read, err what is wrong with the present one.
	file layout.File
	err  error
	node *Node
	// last is the last configuration in force that the file had.
	last string
}

// NewSource makes a Source that reads its file at the first Read. config is the name of the
// configuration of nodes without the label; empty for none. driver is the domain of the
// annotation by which our own state label is known again.
func NewSource(path, config, driver string) *Source {
	return &Source{path: path, fallback: config, annotation: stateAnnotation(driver)}
}

// Read reads the file again, and tells whether it says something else now.
func (s *Source) Read() (changed bool) {
	if s.path == "" {
		return false
	}
	data, err := os.ReadFile(s.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.err == nil && bytes.Equal(data, s.data) {
		return false
	}
	before := s.err
	s.data, s.err = data, err
	if err == nil {
		var file layout.File
		if file, s.err = layout.Parse(data); s.err == nil {
			s.file = file
		}
	}
	return s.err == nil || before == nil || before.Error() != s.err.Error()
}

// Observe notes what the node says, and tells whether that changes anything.
func (s *Source) Observe(n Node) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.node
	s.node = &n
	if before == nil {
		return true
	}
	for _, label := range []string{ConfigLabel, StateLabel, managerLabel} {
		if before.Labels[label] != n.Labels[label] {
			return true
		}
	}
	return before.Annotations[s.annotation] != n.Annotations[s.annotation]
}

// Known tells whether the node was seen: before, it is not known what its label says.
func (s *Source) Known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node != nil
}

// Layouts are the declared layouts of a node's GPUs. With an error nothing may be changed; what is
// returned then tells which GPUs have a layout as far as that is known. Errors to tell apart:
// *OtherToolError, *layout.UnknownConfigError.
func (s *Source) Layouts(snapshot inventory.Snapshot) (layout.Layouts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		return nil, errors.New("the Node object was not read yet, so it is not known what its labels say")
	}
	other := s.otherTool()
	config := s.config()
	if config == "" {
		s.last = ""
		return nil, other
	}
	layouts, err := s.file.Select(config, snapshot)
	if err == nil {
		s.last = config
	} else if s.last != "" {
		// A slip of the pen must not open GPUs to other claims that would then be in the way.
		layouts, _ = s.file.Select(s.last, snapshot)
	}
	if s.err != nil {
		err = s.err
	}
	return layouts, errors.Join(other, err)
}

// Config is the name of the configuration in force; empty for none.
func (s *Source) Config() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config()
}

func (s *Source) config() string {
	if s.node == nil {
		return ""
	}
	return cmp.Or(s.node.Labels[ConfigLabel], s.fallback)
}

func (s *Source) otherTool() error { return otherTool(*s.node, s.annotation) }

// OtherTool looks for signs of another tool than the driver of that name: a GPU Operator deploys
// one here, or the state label is not what we wrote. It is an *OtherToolError, or nil.
func OtherTool(n Node, driver string) error { return otherTool(n, stateAnnotation(driver)) }

func stateAnnotation(driver string) string { return driver + "/mig.config.state" }

func otherTool(n Node, annotation string) error {
	if n.Labels[managerLabel] == "true" {
		return &OtherToolError{Sign: "label " + managerLabel + "=true"}
	}
	if state := n.Labels[StateLabel]; state != "" && state != n.Annotations[annotation] {
		return &OtherToolError{Sign: fmt.Sprintf("label %s=%s, which this driver did not write", StateLabel, state)}
	}
	return nil
}

// Patch is the merge patch of the Node object that tells a state; nil where the node tells it
// already or where another tool has the label. The empty State takes the label away.
func (s *Source) Patch(state State) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil || s.otherTool() != nil {
		return nil
	}
	if s.node.Labels[StateLabel] == string(state) && s.node.Annotations[s.annotation] == string(state) {
		return nil
	}
	var value any
	if state != "" {
		value = string(state)
	}
	return map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{StateLabel: value},
		"annotations": map[string]any{s.annotation: value},
	}}
}
