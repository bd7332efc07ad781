package walkthrough

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

func edits(node string) specs.ContainerEdits {
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: node, Type: "c", Major: 195}}}
}

func TestFindSpec(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("v-claim_1.json", `{"cdiVersion": "0.5.0", "kind": "v/claim", "devices": [{"name": "a", "containerEdits": {}}]}`)
	write("v-claim_2.json", `{"cdiVersion"`)
	path, spec, err := specFile(dir, "*-claim_1.json")
	if err != nil || path != filepath.Join(dir, "v-claim_1.json") || spec.Kind != "v/claim" || len(spec.Devices) != 1 {
		t.Errorf("%s, %+v, %v", path, spec, err)
	}
	for pattern, want := range map[string]string{"*-claim_*.json": "want one", "absent": "found []", "[": "syntax", "*_2.json": "decode"} {
		if _, _, err := specFile(dir, pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pattern %q: %v, want %q", pattern, err, want)
		}
	}
}

func TestSpecInYAML(t *testing.T) {
	spec := &specs.Spec{Version: "0.5.0", Kind: "v/claim", Devices: []specs.Device{
		{Name: "one", ContainerEdits: edits("/dev/nvidia1")}, {Name: "two", ContainerEdits: edits("/dev/nvidia2")}, {Name: "three"},
	}}
	got, err := inYAML(spec)
	want := strings.TrimPrefix(`
cdiVersion: 0.5.0
containerEdits: {}
devices:
- containerEdits:
    deviceNodes:
    - major: 195
      path: /dev/nvidia1
      type: c
  name: one
kind: v/claim
# and alike: two (/dev/nvidia2)
# and alike: three
`, "\n")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if len(spec.Devices) != 3 {
		t.Error("the spec was changed")
	}
	if got, err := inYAML(&specs.Spec{Kind: "v/none"}); err != nil || strings.Contains(got, "alike") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSummaryOfAllEdits(t *testing.T) {
	whole := edits("/dev/nvidiactl")
	whole.Env = []string{"A=1"}
	own := edits("/dev/nvidia-uvm")
	own.Mounts = []*specs.Mount{{HostPath: "/lib"}}
	own.Hooks = []*specs.Hook{{Args: []string{"nvidia-cdi-hook", "update-ldcache"}}, {Args: []string{"nvidia-cdi-hook", "update-ldcache"}}, {}}
	got := summary(combined(&specs.Spec{ContainerEdits: whole, Devices: []specs.Device{{ContainerEdits: own}}}))
	want := "2 device nodes (/dev/nvidiactl, /dev/nvidia-uvm), 1 mounts of driver files, 1 variables, 3 hooks (update-ldcache)"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
