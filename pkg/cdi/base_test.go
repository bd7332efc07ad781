package cdi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

const baseFile = driver + "-driver.json"

func TestBaseThroughTheLibrary(t *testing.T) {
	n := newNode(t)
	b := NewBase(n.dir, newSource())
	must(t, b.Ensure(t.Context()))
	ensureClaim(t, n, gpu("r", 1))
	// Containers with two devices name the base twice.
	spec := n.inject(t, n.dir.ClaimID(gpu("r", 1).Name), n.dir.BaseID())
	var paths []string
	for _, d := range spec.Linux.Devices {
		if d.Type != "c" || d.Major == 0 {
			t.Errorf("the node %+v would be looked up by the runtime", d)
		}
		paths = append(paths, d.Path)
	}
	want := []string{"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env); diff != "" {
		t.Error(diff)
	}
	if len(spec.Mounts) != 1 || len(spec.Hooks.CreateContainer) != 1 {
		t.Errorf("mounts %v, hooks %v", spec.Mounts, spec.Hooks)
	}
	if text := n.read(t, baseFile); !strings.Contains(text, `"cdiVersion":"0.5.0"`) {
		t.Error(text)
	}
}

func TestBaseIsMadeAgainWhenNeeded(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, n *node, s *source, path string)
		calls  int
	}{
		{"nothing changed", func(*testing.T, *node, *source, string) {}, 1},
		{"the driver changed", func(_ *testing.T, _ *node, s *source, _ string) {
			s.fingerprint = "b"
			s.edits.Env = []string{"NEW=1"}
		}, 2},
		{"the file vanished", func(t *testing.T, _ *node, _ *source, path string) { must(t, os.Remove(path)) }, 2},
		{"the file was changed", func(t *testing.T, _ *node, _ *source, path string) { must(t, os.WriteFile(path, []byte("x"), 0o600)) }, 2},
		{"the file was replaced by one as long", func(t *testing.T, n *node, _ *source, path string) {
			must(t, os.WriteFile(path, []byte(strings.ToUpper(n.read(t, baseFile))), 0o600))
			must(t, os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)))
		}, 2},
		{"the module has another major", func(_ *testing.T, n *node, _ *source, _ string) {
			n.majors["nvidia-uvm"] = 509
			n.stats["nvidia-uvm"], n.stats["nvidia-uvm-tools"] = char(509, 0), char(509, 1)
		}, 2},
		{"an optional node is not right", func(_ *testing.T, n *node, _ *source, _ string) { n.stats["nvidia-modeset"] = char(1, 3) }, 2},
		{"an optional node went", func(_ *testing.T, n *node, _ *source, _ string) { delete(n.stats, "nvidia-modeset") }, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, s := newNode(t), newSource()
			b := NewBase(n.dir, s)
			must(t, b.Ensure(t.Context()))
			tt.change(t, n, s, filepath.Join(n.specs, baseFile))
			must(t, b.Ensure(t.Context()))
			must(t, b.Ensure(t.Context()))
			if s.calls != tt.calls {
				t.Errorf("the edits were made %d times, want %d", s.calls, tt.calls)
			}
			n.inject(t, n.dir.BaseID())
		})
	}
}

func TestIncompleteBaseIsNeverWritten(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name   string
		change func(n *node, s *source)
		want   string
	}{
		{"no control device", func(n *node, _ *source) { delete(n.stats, "nvidiactl") }, "nvidiactl is missing"},
		{"no UVM", func(n *node, _ *source) { delete(n.stats, "nvidia-uvm") }, "nvidia-uvm is missing"},
		{"no UVM tools", func(n *node, _ *source) { delete(n.stats, "nvidia-uvm-tools") }, "nvidia-uvm-tools is missing"},
		{"UVM of another driver", func(n *node, _ *source) { n.stats["nvidia-uvm"] = char(195, 0) }, "major number 195"},
		{"no libcuda", func(_ *node, s *source) { s.edits.Mounts = nil }, "libcuda.so"},
		{"driver root gone", func(_ *node, s *source) { s.err = broken }, "broken"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, s := newNode(t), newSource()
			good := *s
			stats := map[string]NodeStat{}
			for k, v := range n.stats {
				stats[k] = v
			}
			b := NewBase(n.dir, s)
			tt.change(n, s)
			if err := b.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
			if text := n.read(t, baseFile); text != "" {
				t.Errorf("written: %s", text)
			}
			// It heals by itself.
			*s, n.stats = good, stats
			must(t, b.Ensure(t.Context()))
			n.inject(t, n.dir.BaseID())
		})
	}
}

func TestLibcudaNeedsAVersion(t *testing.T) {
	n, s := newNode(t), newSource()
	s.edits.Mounts = []*specs.Mount{{HostPath: "/x/libcudadebugger.so.1", ContainerPath: "/x/libcudadebugger.so.1"}}
	missing := new(MissingLibraryError)
	if err := NewBase(n.dir, s).Ensure(t.Context()); !errors.As(err, &missing) || missing.Library != "libcuda.so" {
		t.Error(err)
	}
}

// brokenEdits is a source that finds the driver changed and fails as the library does.
type brokenEdits struct {
	CommonSource
	errs []error
}

func (b brokenEdits) CommonEdits(context.Context) (*specs.ContainerEdits, error) {
	return nil, errors.Join(b.errs...)
}

func TestErrorsOfTheSourceAreOneLine(t *testing.T) {
	first, second := errors.New("no such library"), errors.New("no such socket")
	err := NewBase(newNode(t).dir, brokenEdits{newSource(), []error{first, second}}).Ensure(t.Context())
	if !errors.Is(err, second) || !strings.HasSuffix(err.Error(), "no such library; no such socket") {
		t.Errorf("%v, want both errors in one line", err)
	}
}

func TestBaseRemove(t *testing.T) {
	n, s := newNode(t), newSource()
	b := NewBase(n.dir, s)
	must(t, b.Ensure(t.Context()))
	for range 2 {
		must(t, b.Remove(t.Context()))
	}
	if n.read(t, baseFile) != "" {
		t.Error("the base spec is still there")
	}
	must(t, b.Ensure(t.Context()))
	n.inject(t, n.dir.BaseID())
}

// A source that hangs in the driver holds nobody longer than the caller's time.
func TestHangingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := newNode(t), newSource()
		s.hang = make(chan struct{})
		b := NewBase(n.dir, s)
		for _, want := range []string{"driver's files", "wait for the base"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := b.Ensure(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		close(s.hang)
		must(t, b.Ensure(t.Context()))
		n.inject(t, n.dir.BaseID())
	})
}

func BenchmarkBaseUnchanged(b *testing.B) {
	n := newNode(b)
	base := NewBase(n.dir, newSource())
	for b.Loop() {
		must(b, base.Ensure(b.Context()))
	}
}
