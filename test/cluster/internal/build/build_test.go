package build

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/cluster/internal/progress"
)

// source is the folder of test/cluster.
const source = "../.."

func TestPinned(t *testing.T) {
	tests := map[string]struct{ gomod, want string }{
		"block":        {"require (\n\tx/a v1.0.0\n\tx/b v2.3.4 // indirect\n)\n", "v2.3.4"},
		"line":         {"require x/b v0.1.0\n", "v0.1.0"},
		"longer name":  {"require (\n\tx/b/c v9.0.0\n\tx/b v1.0.0\n)\n", "v1.0.0"},
		"not required": {"require x/c v1.0.0\n", ""},
		"only a tool":  {"tool x/b\n", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := pinned(tc.gomod, "x/b")
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

// Every component is pinned by the module that it names, as a tool.
func TestComponentsArePinned(t *testing.T) {
	outputs := map[string]bool{}
	for _, c := range Components() {
		gomod, err := os.ReadFile(filepath.Join(source, "modules", c.Module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(gomod), "\t"+c.Package+"\n") && !strings.Contains(string(gomod), "tool "+c.Package+"\n") {
			t.Errorf("modules/%s has no tool %s", c.Module, c.Package)
		}
		flags, err := c.linkerFlags(string(gomod))
		if err != nil || !strings.HasPrefix(flags, "-s -w") || strings.Contains(flags, "%") {
			t.Errorf("%s: linker flags %q, %v", c.Output, flags, err)
		}
		if outputs[c.Output] {
			t.Errorf("%s is built twice", c.Output)
		}
		outputs[c.Output] = true
	}
}

func TestLinkerFlags(t *testing.T) {
	const gomod = "require (\n\tk8s.io/kubernetes v1.37.2\n\tgithub.com/opencontainers/runc v1.5.3\n)\n"
	find := func(output string) Component {
		all := Components()
		return all[slices.IndexFunc(all, func(c Component) bool { return c.Output == output })]
	}
	flags, err := find("kubelet").linkerFlags(gomod)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"version.gitVersion=v1.37.2 ", "version.gitMinor=37 ", "version.gitTreeState=clean "} {
		if !strings.Contains(flags, want) {
			t.Errorf("no %q in %q", want, flags)
		}
	}
	if flags, err := find("runc").linkerFlags(gomod); err != nil || !strings.Contains(flags, "main.version=1.5.3") {
		t.Errorf("runc: %q, %v", flags, err)
	}
	if _, err := find("containerd").linkerFlags(gomod); err == nil {
		t.Error("a version that is not pinned was filled in")
	}
}

func TestSelect(t *testing.T) {
	all, err := Select(nil)
	if err != nil || len(all) == 0 || slices.ContainsFunc(all, func(c Component) bool { return c.Optional }) {
		t.Errorf("the default has %d components, %v", len(all), err)
	}
	some, err := Select([]string{"etcd", "dra-test-driver"})
	var got []string
	for _, c := range some {
		got = append(got, c.Output)
	}
	if diff := cmp.Diff([]string{"etcd", "etcdctl", "dra-test-driver"}, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := Select([]string{"etc"}); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("got %v, want the groups that there are", err)
	}
	if none, err := Select([]string{Images}); err != nil || len(none) != 0 {
		t.Errorf("images alone: %d components, %v", len(none), err)
	}
}

func TestArguments(t *testing.T) {
	c := Component{Package: "x/cmd", Tags: "a,b", CGO: true}
	want := []string{"build", "-v", "-trimpath", "-o", "/b/x", "-ldflags", "-s", "-tags", "a,b", "x/cmd"}
	if diff := cmp.Diff(want, c.arguments("/b/x", "-s")); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(c.environment(), "CGO_ENABLED=1") || !slices.Contains(Component{}.environment(), "CGO_ENABLED=0") {
		t.Error("cgo is not as asked")
	}
}

func TestStampTellsWhatIsOutdated(t *testing.T) {
	b := Builder{Bin: t.TempDir()}
	if b.upToDate("cni/x", "1") {
		t.Error("up to date without a stamp")
	}
	if err := b.stamp("cni/x", "1"); err != nil {
		t.Fatal(err)
	}
	if b.upToDate("cni/x", "1") {
		t.Error("up to date without the program")
	}
	if err := os.MkdirAll(filepath.Join(b.Bin, "cni"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.Bin, "cni/x"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if !b.upToDate("cni/x", "1") || b.upToDate("cni/x", "2") {
		t.Error("the stamp's content does not count")
	}
	if hash("a", "b") == hash("ab") || hash("a") == hash("") {
		t.Error("the hash does not tell inputs apart")
	}
}

func TestCountPackages(t *testing.T) {
	var last string
	count := countPackages(func(s string) { last = s })
	for _, line := range []string{"go: downloading x v1", "fmt", "x/y", "x/y.go:1: an error"} {
		count(line)
	}
	if want := "(1 modules downloaded, 2 packages compiled)"; last != want {
		t.Errorf("got %q, want %q", last, want)
	}
}

func TestRunKeepsTheLastLines(t *testing.T) {
	var lines []string
	err := run(t.Context(), t.TempDir(), []string{"X=1"}, func(s string) { lines = append(lines, s) },
		"sh", "-c", "for i in $(seq 30); do echo line$i; done; echo why $X >&2; exit 2")
	if err == nil || !strings.Contains(err.Error(), "why 1") || strings.Contains(err.Error(), "line5\n") {
		t.Errorf("got %v", err)
	}
	if len(lines) != 31 {
		t.Errorf("saw %d lines, want 31", len(lines))
	}
}

// The smallest component is really built, once.
func TestBuildIsIdempotent(t *testing.T) {
	dir, err := filepath.Abs(source)
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	b := Builder{Source: dir, Bin: t.TempDir(), Say: progress.New(&told)}
	for range 2 {
		if err := b.Build(t.Context(), []string{"cni"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bridge", "loopback", "host-local"} {
		if _, err := os.Stat(filepath.Join(b.Bin, "cni", name)); err != nil {
			t.Error(err)
		}
	}
	// A build that takes long is told several times; its end once.
	if got := strings.Count(told.String(), "build cni/bridge (1 of 3): "); got != 1 {
		t.Errorf("built %d times:\n%s", got, told.String())
	}
}

func TestBuildTellsWhatIsMissing(t *testing.T) {
	b := Builder{Source: t.TempDir(), Bin: t.TempDir(), Say: progress.New(io.Discard)}
	if err := b.Build(t.Context(), []string{"etcd"}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("got %v", err)
	}
	if err := b.Build(t.Context(), []string{Images}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("images: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, "/", nil, func(string) {}, "true"); err == nil {
		t.Error("ran although it was cancelled")
	}
}
