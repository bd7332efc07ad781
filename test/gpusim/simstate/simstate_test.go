package simstate_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// The header asserts the size and offset of every field: a C compiler that takes it
// proves that both views are equal.
func TestHeaderIsWhatACompilerLaysOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	header := filepath.Join(dir, "sim_layout.h")
	if err := os.WriteFile(header, []byte(simstate.Header()), 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(source string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"+dir, "-x", "c", "-")
		cmd.Stdin = strings.NewReader(source)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := check("#include \"sim_layout.h\"\n"); err != nil {
		t.Errorf("the layouts differ: %v\n%s", err, out)
	}
	// The assertions bite: one moved field is found.
	moved := strings.Replace(simstate.Header(), "uint32_t layout_version;", "uint64_t layout_version;", 1)
	if err := os.WriteFile(header, []byte(moved), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := check("#include \"sim_layout.h\"\n"); err == nil {
		t.Error("a moved field was not noticed")
	}
}

func TestEveryFieldIsAsserted(t *testing.T) {
	t.Parallel()
	header := simstate.Header()
	for _, want := range []string{"offset of sim_gpu.memory_total", "offset of sim_link.plane", "offset of sim_fault.delay_usec", "offset of sim_node.event_seq", "size of sim_memory_limit", "#define SIM_FEATURE_MODULE_ID "} {
		if !strings.Contains(header, want) {
			t.Errorf("the header lacks %q", want)
		}
	}
}

func create(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	if err := simstate.Create(path, &simstate.Node{GPUCount: 3}); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) *simstate.File {
	t.Helper()
	file, err := simstate.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func snapshot(t *testing.T, file *simstate.File) *simstate.Node {
	t.Helper()
	state, err := file.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestUpdateIsSeenByOtherMappings(t *testing.T) {
	t.Parallel()
	path := create(t)
	a, b := open(t, path), open(t, path)
	err := a.Update(func(n *simstate.Node) error {
		n.GPUs[2].ComputeMode = 3
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := snapshot(t, b)
	if got.GPUs[2].ComputeMode != 3 || got.Generation != 2 || got.GPUCount != 3 {
		t.Errorf("other mapping sees mode %d, generation %d, count %d", got.GPUs[2].ComputeMode, got.Generation, got.GPUCount)
	}
}

func TestFailedUpdateCountsNothing(t *testing.T) {
	t.Parallel()
	file := open(t, create(t))
	cause := errors.New("no")
	if err := file.Update(func(*simstate.Node) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("Update gave %v, want the cause", err)
	}
	if got := snapshot(t, file).Generation; got != 1 {
		t.Errorf("generation %d after a failed update, want 1", got)
	}
}

func TestCreateAgainKeepsTheFile(t *testing.T) {
	t.Parallel()
	path := create(t)
	mapped := open(t, path)
	before := snapshot(t, mapped)
	if err := simstate.Create(path, &simstate.Node{GPUCount: 9}); err != nil {
		t.Fatal(err)
	}
	after := snapshot(t, mapped)
	if after.GPUCount != 9 || after.Generation != before.Generation+1 || after.InstanceID == before.InstanceID {
		t.Errorf("count %d, generation %d, same instance %t", after.GPUCount, after.Generation, after.InstanceID == before.InstanceID)
	}
}

func TestConcurrentUpdatesAreAllCounted(t *testing.T) {
	t.Parallel()
	path := create(t)
	var group sync.WaitGroup
	for range 4 {
		file := open(t, path)
		for range 2 {
			group.Go(func() {
				for range 50 {
					if err := file.Update(func(n *simstate.Node) error { n.GPUs[0].MemoryUsed++; return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	group.Wait()
	got := snapshot(t, open(t, path))
	if got.GPUs[0].MemoryUsed != 400 || got.Generation != 401 {
		t.Errorf("%d increments and generation %d, want 400 and 401", got.GPUs[0].MemoryUsed, got.Generation)
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(create(t))
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		out := bytes.Clone(good)
		out[at] ^= 0xff
		return out
	}
	for name, content := range map[string][]byte{
		"empty": {}, "short": good[:len(good)-1], "long": append(bytes.Clone(good), 0), "magic": flip(0), "version": flip(8), "size": flip(12),
	} {
		path := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := simstate.Open(path); !errors.Is(err, simstate.ErrIncompatible) {
			t.Errorf("%s: %v, want ErrIncompatible", name, err)
		}
	}
	if _, err := simstate.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func TestClosedFile(t *testing.T) {
	t.Parallel()
	file, err := simstate.Open(create(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Close(), file.Close()); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if _, err := file.Snapshot(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("reading a closed file: %v", err)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ -~]{0,40}`).Draw(t, "text")
		size := rapid.IntRange(1, 48).Draw(t, "size")
		field := bytes.Repeat([]byte{'x'}, size)
		err := simstate.SetString(field, text)
		if len(text) >= size {
			if err == nil || !bytes.Equal(field, bytes.Repeat([]byte{'x'}, size)) {
				t.Fatalf("text of %d in %d: %v, %q", len(text), size, err, field)
			}
			return
		}
		if diff := cmp.Diff(text, simstate.String(field)); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
	})
	if got := simstate.String([]byte("full")); got != "full" {
		t.Errorf("a field without a zero gives %q", got)
	}
}

func BenchmarkUpdate(b *testing.B) {
	path := filepath.Join(b.TempDir(), "state")
	if err := simstate.Create(path, &simstate.Node{}); err != nil {
		b.Fatal(err)
	}
	file, err := simstate.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	for b.Loop() {
		if err := file.Update(func(n *simstate.Node) error { n.GPUs[0].MemoryUsed++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
