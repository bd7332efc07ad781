package cdi

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	classClaim  = "claim"
	classDriver = "driver"
	baseDevice  = "base"
)

// Edits are what one device adds to its containers.
type Edits struct {
	// Nodes are the device nodes; they are looked up on the host.
	Nodes []NodeWant
	// Env are variables in the form NAME=value.
	Env    []string
	Mounts []*specs.Mount
	Hooks  []*specs.Hook
}

// Device is one device of a claim's spec.
type Device struct {
	// Name is its name in the spec, made by DeviceName.
	Name  string
	Edits Edits
}

// DeviceName is the name of one device of one claim, equal to no other's as long as the parts
// differ: none of them contains the separator. A slash, as in "request/subrequest", becomes a
// dot, which requests have not. The claim's UID makes sure that a name is never used again for
// another container, since runtimes keep what they have read.
func DeviceName(claim types.UID, request, device string, share *types.UID) string {
	parts := []string{string(claim), strings.ReplaceAll(request, "/", "."), device}
	if share != nil {
		parts = append(parts, string(*share))
	}
	return strings.Join(parts, "_")
}

// render makes the bytes of a spec, with the oldest version number that covers its content:
// runtimes refuse specs newer than they are.
func render(spec *specs.Spec) ([]byte, error) {
	if err := checkNames(spec); err != nil {
		return nil, err
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("find the version of CDI spec %s: %w", spec.Kind, err)
	}
	spec.Version = version
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode CDI spec %s: %w", spec.Kind, err)
	}
	return append(data, '\n'), nil
}

// checkNames refuses what a runtime would refuse, since a runtime that cannot read a file only
// says that a device is unknown.
func checkNames(spec *specs.Spec) error {
	if len(spec.Devices) == 0 {
		return fmt.Errorf("CDI spec %s has no device", spec.Kind)
	}
	seen := map[string]bool{}
	for _, d := range spec.Devices {
		if err := parser.ValidateDeviceName(d.Name); err != nil {
			return fmt.Errorf("CDI device name %q: %w", d.Name, err)
		}
		if seen[d.Name] {
			return fmt.Errorf("CDI device name %q is used twice in one spec", d.Name)
		}
		seen[d.Name] = true
		e := d.ContainerEdits
		if len(e.DeviceNodes)+len(e.Env)+len(e.Mounts)+len(e.Hooks) == 0 {
			return fmt.Errorf("CDI device %q would add nothing to a container", d.Name)
		}
	}
	return nil
}
