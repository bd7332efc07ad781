package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/cmd/gpusim/cli"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// run executes a command line and returns what it prints.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	root := cli.New(&out, &errOut)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// good runs a command line that must succeed.
func good(t *testing.T, args ...string) string {
	t.Helper()
	out, errOut, err := run(t, args...)
	if err != nil {
		t.Fatalf("gpusim %s: %v\n%s", strings.Join(args, " "), err, errOut)
	}
	return out
}

// newNode creates a node by the command line.
func newNode(t *testing.T, preset string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "node")
	good(t, "create", "--preset", preset, dir)
	return dir
}

// gpuLine is what the tests read of an inspected GPU.
type gpuLine struct {
	Number      int    `json:"number"`
	Status      string `json:"status"`
	LinksActive int    `json:"linksActive"`
	Fabric      string `json:"fabric"`
	Peers       []int  `json:"nvlinkPeers"`
	MIG         string `json:"mig"`
}

type inspection struct {
	Driver string    `json:"driver"`
	GPUs   []gpuLine `json:"gpus"`
	Faults []struct {
		Function  string `json:"function"`
		Code      int    `json:"code"`
		Remaining int    `json:"remaining"`
	} `json:"faults"`
}

func inspect(t *testing.T, dir string) inspection {
	t.Helper()
	var out inspection
	if err := json.Unmarshal([]byte(good(t, "inspect", dir, "-o", "json")), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCreateInspectRemove(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "node")
	out, errOut, err := run(t, "create", "--preset", "two-islands", dir)
	if err != nil {
		t.Fatal(err)
	}
	want := "driver-root: " + dir + "/driver\ndev-root: " + dir + "/driver\nproc-root: " + dir + "/proc\nsys-root: " + dir + "/sys\n"
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("create prints (-want +got):\n%s", diff)
	}
	if !strings.Contains(errOut, "Next: ") {
		t.Errorf("create does not say what to try next:\n%s", errOut)
	}
	got := inspect(t, dir)
	if diff := cmp.Diff(gpuLine{Number: 5, Status: "ok", LinksActive: 12, Peers: []int{4, 6, 7}, MIG: "off"}, got.GPUs[5]); diff != "" {
		t.Errorf("GPU 5 (-want +got):\n%s", diff)
	}
	if table := good(t, "inspect", dir); !strings.Contains(table, "0000:c1:00.0") || !strings.Contains(table, "12/12") {
		t.Errorf("table:\n%s", table)
	}
	if text := good(t, "inspect", dir, "-o", "yaml"); !strings.Contains(text, "driverRoot: "+dir+"/driver\n") {
		t.Errorf("yaml:\n%s", text)
	}
	good(t, "remove", dir)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after remove: %v", err)
	}
}

func TestCreateFromANodeFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "node.yaml")
	text := "apiVersion: gpusim/v1\nname: one\ndriver: {version: 550.1, cuda: \"12.4\"}\ngpus:\n- {board: l40s-48gb, pci: \"0000:01:00.0\", root: pci0000:00}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	good(t, "create", "--node", path, a)
	good(t, "create", "--node", path, "--seed", "other", b)
	if got := inspect(t, a); got.Driver != "550.1" || len(got.GPUs) != 1 || got.GPUs[0].MIG != "none" {
		t.Errorf("inspect: %+v", got)
	}
	first, errA := gpusim.Open(a)
	second, errB := gpusim.Open(b)
	if errA != nil || errB != nil || first.UUIDs()[0] == second.UUIDs()[0] {
		t.Errorf("two seeds, UUIDs %v and %v", first.UUIDs(), second.UUIDs())
	}
}

func TestFaultsFromTheCommandLine(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "hgx-h100-8")
	good(t, "inject", "lose", dir, "1", "2")
	good(t, "inject", "unplug", dir, "3")
	good(t, "inject", "fabric", dir, "all", "inProgress")
	good(t, "inject", "fabric", dir, "5", "completed", "--status", "999")
	good(t, "inject", "link", dir, "6", "all", "down")
	good(t, "inject", "link", dir, "6", "17", "up")
	good(t, "inject", "call", dir, "nvmlDeviceGetName", "--code", "15", "--count", "-1")
	good(t, "inject", "latency", dir, "10us")
	good(t, "inject", "xid", dir, "4", "79")
	got := inspect(t, dir)
	want := []gpuLine{
		{0, "ok", 18, "inProgress", nil, "off"},
		{1, "lost", 18, "inProgress", nil, "off"},
		{2, "lost", 18, "inProgress", nil, "off"},
		{3, "absent", 18, "inProgress", nil, "off"},
		{4, "ok", 18, "inProgress", nil, "off"},
		{5, "ok", 18, "completed", nil, "off"},
		{6, "ok", 1, "inProgress", nil, "off"},
		{7, "ok", 18, "inProgress", nil, "off"},
	}
	for i := range got.GPUs {
		got.GPUs[i].Peers = nil
	}
	if diff := cmp.Diff(want, got.GPUs); diff != "" {
		t.Errorf("after the faults (-want +got):\n%s", diff)
	}
	if len(got.Faults) != 1 || got.Faults[0].Function != "nvmlDeviceGetName" || got.Faults[0].Code != 15 || got.Faults[0].Remaining != -1 {
		t.Errorf("call faults %+v", got.Faults)
	}
	if status := state(t, dir).GPUs[5].Fabric.Status; status != 999 {
		t.Errorf("fabric status %d, want 999", status)
	}
	if event := state(t, dir).Events[0]; event.GPU != 4 || event.Data != 79 {
		t.Errorf("event %+v, want XID 79 of GPU 4", event)
	}
	good(t, "inject", "clear", dir)
	good(t, "inject", "heal", dir, "1")
	good(t, "inject", "plug", dir, "3")
	after := inspect(t, dir)
	if after.GPUs[1].Status != "ok" || after.GPUs[3].Status != "ok" || len(after.Faults) != 0 {
		t.Errorf("after healing: %+v", after)
	}
	good(t, "inject", "reboot", dir, "--seed", "3")
	if got := inspect(t, dir).GPUs[2]; got.Status != "ok" || got.Fabric != "completed" {
		t.Errorf("after a reboot: %+v", got)
	}
}

func state(t *testing.T, dir string) *simstate.Node {
	t.Helper()
	node, err := gpusim.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := node.State()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestDriverComesAndGoes(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "t4-4")
	good(t, "inject", "driver-absent", dir)
	if _, _, err := run(t, "inspect", dir); err == nil || !strings.Contains(err.Error(), "driver-present") {
		t.Errorf("inspect without a driver: %v, want what to do", err)
	}
	good(t, "inject", "driver-present", dir)
	if got := inspect(t, dir); len(got.GPUs) != 4 {
		t.Errorf("after the return: %+v", got)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	dir := newNode(t, "t4-4")
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		want string
	}{
		"unknown preset":     {[]string{"create", "--preset", "nope", "x"}, "known are a100-pcie-8"},
		"no source":          {[]string{"create", "x"}, "at least one of the flags"},
		"two sources":        {[]string{"create", "--preset", "t4-4", "--node", "f", "x"}, "none of the others can be"},
		"foreign directory":  {[]string{"create", "--preset", "t4-4", full}, "choose another directory"},
		"no node":            {[]string{"inspect", full}, "gpusim create --preset"},
		"remove no node":     {[]string{"remove", full}, "not a simulated node"},
		"prebuilt missing":   {[]string{"create", "--preset", "t4-4", "--lib-dir", full, filepath.Join(full, "n")}, "gpusim build-lib"},
		"wrong output":       {[]string{"inspect", dir, "-o", "xml"}, "must be table, json or yaml"},
		"GPU is no number":   {[]string{"inject", "lose", dir, "first"}, "must be a number in PCI order"},
		"GPU does not exist": {[]string{"inject", "lose", dir, "4"}, "no such GPU"},
		"idle fault":         {[]string{"inject", "call", dir, "nvmlInit"}, "this fault does nothing"},
		"xid":                {[]string{"inject", "xid", dir, "0", "bad"}, "must be a number such as 79"},
		"link state":         {[]string{"inject", "link", dir, "0", "0", "sideways"}, "must be up or down"},
		"link number":        {[]string{"inject", "link", dir, "0", "x", "up"}, "must be a number or all"},
		"no link":            {[]string{"inject", "link", dir, "0", "0", "up"}, "has no NVLink 0"},
		"no fabric":          {[]string{"inject", "fabric", dir, "0", "completed"}, "registers with no fabric"},
		"latency":            {[]string{"inject", "latency", dir, "soon"}, "invalid duration"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := run(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestPresetsAreListed(t *testing.T) {
	t.Parallel()
	out := good(t, "presets")
	for _, name := range nodefile.Presets() {
		if !strings.Contains(out, name+" ") {
			t.Errorf("%s is not listed:\n%s", name, out)
		}
	}
}

func TestBuildLibServesCreate(t *testing.T) {
	t.Parallel()
	lib, dir := filepath.Join(t.TempDir(), "lib"), filepath.Join(t.TempDir(), "node")
	good(t, "build-lib", lib)
	good(t, "create", "--preset", "t4-4", "--lib-dir", lib, dir)
	if got := inspect(t, dir); len(got.GPUs) != 4 {
		t.Errorf("inspect: %+v", got)
	}
}
