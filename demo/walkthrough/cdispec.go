package walkthrough

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/specs-go"
)

// specFile finds the one CDI spec in a directory whose name matches a pattern.
func specFile(dir, pattern string) (path string, spec *specs.Spec, err error) {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return "", nil, fmt.Errorf("find CDI spec %s: %w", pattern, err)
	}
	if len(found) != 1 {
		return "", nil, fmt.Errorf("CDI specs %s in %s: found %q, want one", pattern, dir, found)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return "", nil, fmt.Errorf("read CDI spec: %w", err)
	}
	spec = &specs.Spec{}
	if err := json.Unmarshal(text, spec); err != nil {
		return "", nil, fmt.Errorf("decode CDI spec %s: %w", found[0], err)
	}
	return found[0], spec, nil
}

// inYAML shows a spec as YAML, which has fewer lines, with the first device in full and the names of the
// others, which are alike.
func inYAML(spec *specs.Spec) (string, error) {
	first := *spec
	first.Devices = spec.Devices[:min(1, len(spec.Devices))]
	text, err := yaml.Marshal(first)
	if err != nil {
		return "", fmt.Errorf("show CDI spec: %w", err)
	}
	var others strings.Builder
	for _, d := range spec.Devices[len(first.Devices):] {
		others.WriteString("# and alike: " + d.Name + nodesOf(d.ContainerEdits) + "\n")
	}
	return string(text) + others.String(), nil
}

// nodesOf names the device nodes of edits.
func nodesOf(e specs.ContainerEdits) string {
	var paths []string
	for _, n := range e.DeviceNodes {
		paths = append(paths, n.Path)
	}
	if len(paths) == 0 {
		return ""
	}
	return " (" + strings.Join(paths, ", ") + ")"
}

// summary tells in a line what edits add to a container.
func summary(e specs.ContainerEdits) string {
	var hooks []string
	for _, h := range e.Hooks {
		// nvidia-cdi-hook <what>
		if len(h.Args) > 1 && !slices.Contains(hooks, h.Args[1]) {
			hooks = append(hooks, h.Args[1])
		}
	}
	return fmt.Sprintf("%d device nodes%s, %d mounts of driver files, %d variables, %d hooks (%s)",
		len(e.DeviceNodes), nodesOf(e), len(e.Mounts), len(e.Env), len(e.Hooks), strings.Join(hooks, ", "))
}

// combined are the edits of a spec as a whole and of its devices together.
func combined(spec *specs.Spec) specs.ContainerEdits {
	all := spec.ContainerEdits
	for _, d := range spec.Devices {
		e := d.ContainerEdits
		all.Env = slices.Concat(all.Env, e.Env)
		all.DeviceNodes = slices.Concat(all.DeviceNodes, e.DeviceNodes)
		all.Mounts = slices.Concat(all.Mounts, e.Mounts)
		all.Hooks = slices.Concat(all.Hooks, e.Hooks)
	}
	return all
}
