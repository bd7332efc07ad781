package gpusim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/test/gpusim"
)

// childVariable names what a re-executed test binary does: one process may load one NVML
// only, so everything that needs the library runs in a child of its own.
const (
	childVariable   = "GPUSIM_TEST_CHILD"
	libraryVariable = "GPUSIM_TEST_LIBRARY"
)

// child is the work of one such process: it prints its result as JSON.
type child func(lib nvml.Interface, args []string) (any, error)

func children() map[string]child {
	return map[string]child{
		"dump":   dumpChild,
		"live":   liveChild,
		"common": commonEditsChild,
		"mig":    migChild,
		"walk":   walkChild,
		"churn":  churnChild,
		"limit":  limitChild,
	}
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		os.Exit(runChild(name))
	}
	os.Exit(m.Run())
}

func runChild(name string) int {
	lib := nvml.New(nvml.WithLibraryPath(os.Getenv(libraryVariable)))
	result, err := children()[name](lib, os.Args[1:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// childCommand prepares a child on a node.
func childCommand(t *testing.T, node *gpusim.Node, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GPUSIM_STATE=") }),
		childVariable+"="+name, libraryVariable+"="+node.Library())
	return cmd
}

// inChild runs a child on a node and decodes what it prints.
func inChild[T any](t *testing.T, node *gpusim.Node, name string, args ...string) T {
	t.Helper()
	return decode[T](t, childCommand(t, node, name, args...))
}

// decode runs a child and decodes what it prints.
func decode[T any](t *testing.T, cmd *exec.Cmd) T {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
	}
	var result T
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		t.Fatalf("%v printed %q: %v", cmd.Args, stdout.String(), err)
	}
	return result
}

// initialised runs do between Init and Shutdown.
func initialised[T any](lib nvml.Interface, do func() (T, error)) (T, error) {
	var none T
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return none, fmt.Errorf("init: %w", ret)
	}
	result, err := do()
	if ret := lib.Shutdown(); ret != nvml.SUCCESS && err == nil {
		err = fmt.Errorf("shutdown: %w", ret)
	}
	return result, err
}
