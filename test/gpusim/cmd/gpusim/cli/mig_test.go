package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
)

// migState is what inspect says about MIG of one GPU.
type migState struct {
	MIG       string               `json:"mig"`
	Instances []gpusim.MIGInstance `json:"instances"`
}

func inspectMIG(t *testing.T, dir string, number int) migState {
	t.Helper()
	var out struct {
		GPUs []migState `json:"gpus"`
	}
	if err := json.Unmarshal([]byte(good(t, "inspect", dir, "-o", "json")), &out); err != nil {
		t.Fatal(err)
	}
	return out.GPUs[number]
}

func TestMIGFromTheCommandLine(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "hgx-h100-8")
	good(t, "inject", "mig", "mode", dir, "2", "on")
	uuid := gpusim.MIGUUID(node(t, dir).UUIDs()[2], 2, 0)
	line := "mig: gpu=2 gi=2 profile=3g.40gb placement=4:4 ci=0 slices=0:3 uuid=" + uuid + " clients="
	if diff := cmp.Diff(line+"0\n", good(t, "inject", "mig", "create", dir, "2", "3g.40gb")); diff != "" {
		t.Errorf("create prints (-want +got):\n%s", diff)
	}
	good(t, "inject", "mig", "create", dir, "2", "1g.10gb", "--start", "1")
	good(t, "inject", "mig", "clients", dir, "2", "2", "0", "3")
	want := migState{MIG: "on", Instances: []gpusim.MIGInstance{
		{ID: 2, Profile: "3g.40gb", Start: 4, Size: 4, Compute: []gpusim.ComputeInstance{{Size: 3, UUID: uuid, Clients: 3}}},
		{ID: 8, Profile: "1g.10gb", Start: 1, Size: 1, Compute: []gpusim.ComputeInstance{{Size: 1, UUID: gpusim.MIGUUID(node(t, dir).UUIDs()[2], 8, 0)}}},
	}}
	if diff := cmp.Diff(want, inspectMIG(t, dir, 2)); diff != "" {
		t.Errorf("inspect (-want +got):\n%s", diff)
	}
	if table := good(t, "inspect", dir); !strings.Contains(table, line+"3\n") {
		t.Errorf("table lacks %q:\n%s", line, table)
	}
	if _, _, err := run(t, "inject", "mig", "destroy", dir, "2", "2"); err == nil || !strings.Contains(err.Error(), "In use") {
		t.Errorf("destroying an instance with clients: %v", err)
	}
	good(t, "inject", "mig", "clients", dir, "2", "2", "0", "0")
	good(t, "inject", "mig", "destroy", dir, "2", "2")
	good(t, "inject", "mig", "reset", dir, "2")
	if diff := cmp.Diff(migState{MIG: "on"}, inspectMIG(t, dir, 2)); diff != "" {
		t.Errorf("after a reset (-want +got):\n%s", diff)
	}
	good(t, "inject", "mig", "mode", dir, "all", "off")
}

func node(t *testing.T, dir string) *gpusim.Node {
	t.Helper()
	n, err := gpusim.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMIGModeCanStayPending(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "a30-4")
	good(t, "inject", "mig", "mode", dir, "1", "on", "--no-reset")
	if got := inspectMIG(t, dir, 1).MIG; got != "off (pending on)" {
		t.Errorf("mode %q", got)
	}
	good(t, "inject", "mig", "mode", dir, "1", "on")
	if got := inspectMIG(t, dir, 1).MIG; got != "on" {
		t.Errorf("mode %q", got)
	}
}

func TestMIGErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "mixed")
	tests := map[string]struct {
		args []string
		want string
	}{
		"mode word":       {[]string{"mode", dir, "0", "maybe"}, "must be on or off"},
		"board":           {[]string{"mode", dir, "3", "on"}, "Not Supported"},
		"mode is off":     {[]string{"create", dir, "0", "1g.10gb"}, "No MIG-enabled devices"},
		"GPU is no word":  {[]string{"create", dir, "first", "1g.10gb"}, "must be a number in PCI order"},
		"GPU is missing":  {[]string{"create", dir, "9", "1g.10gb"}, "no such GPU"},
		"id is no number": {[]string{"destroy", dir, "0", "x"}, "must be a number"},
		"no instance":     {[]string{"destroy", dir, "0", "4"}, "No GPU instances found"},
		"many clients":    {[]string{"clients", dir, "0", "1", "0", "33"}, "too many clients"},
		"client number":   {[]string{"clients", dir, "0", "1", "0", "-1"}, "unknown shorthand"},
		"reset":           {[]string{"reset", dir, "7"}, "no such GPU"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := run(t, append([]string{"inject", "mig"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}
