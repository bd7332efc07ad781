package gpusim_test

import (
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/native"
)

func build(t *testing.T, flags ...string) *native.Artifacts {
	t.Helper()
	artifacts, err := gpusim.BuildLibrary(t.Context(), "", flags...)
	do(t, err)
	return artifacts
}

// dynamicSymbols lists what a library defines or needs.
func dynamicSymbols(t *testing.T, path string) []elf.Symbol {
	t.Helper()
	file, err := elf.Open(path)
	do(t, err)
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	do(t, err)
	return symbols
}

func TestEveryFunctionOfTheHeaderIsExported(t *testing.T) {
	t.Parallel()
	header, err := native.FindHeader(t.Context())
	do(t, err)
	text, err := os.ReadFile(header)
	do(t, err)
	var exported []string
	for _, symbol := range dynamicSymbols(t, build(t).Library) {
		if symbol.Section != elf.SHN_UNDEF {
			exported = append(exported, symbol.Name)
		}
	}
	slices.Sort(exported)
	// The real library exports this one too, and no header says so.
	want := append(native.Symbols(text), "nvmlInternalGetExportTable")
	slices.Sort(want)
	if diff := cmp.Diff(want, exported); diff != "" {
		t.Errorf("exported symbols differ from nvml.h (-want +got):\n%s", diff)
	}
	if len(exported) < 400 {
		t.Errorf("only %d symbols: is the header read in full?", len(exported))
	}
}

// Any glibc image must be able to load what gets injected into it.
func TestOldGlibcIsEnough(t *testing.T) {
	t.Parallel()
	artifacts := build(t)
	for _, path := range append(slices.Collect(maps.Values(artifacts.Programs)), artifacts.Library) {
		for _, symbol := range dynamicSymbols(t, path) {
			version, found := strings.CutPrefix(symbol.Version, "GLIBC_2.")
			if !found {
				continue
			}
			minor, _, _ := strings.Cut(version, ".")
			if n, err := strconv.Atoi(minor); err != nil || n > 28 {
				t.Errorf("%s needs %s of %s, newer than GLIBC_2.28", filepath.Base(path), symbol.Name, symbol.Version)
			}
		}
	}
}

func TestLibraryUnderSanitizers(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"address and undefined": {"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"},
		"thread":                {"-fsanitize=thread"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			artifacts := build(t, flags...)
			program := filepath.Join(t.TempDir(), "exercise")
			header, err := native.FindHeader(t.Context())
			do(t, err)
			args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-I" + filepath.Dir(header), "-Ilib", "-o", program}, flags...)
			args = append(args, "lib/testdata/exercise.c", "lib/testdata/exercise_mig.c", "lib/testdata/exercise_clients.c", artifacts.Library, "-pthread")
			if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
				t.Fatalf("compile the exercise: %v\n%s", err, out)
			}
			for _, preset := range []string{"hgx-h100-8", "mixed"} {
				node := gpusim.New(t, preset, gpusim.WithLibDir(artifacts.Dir), gpusim.WithFile(withLimits))
				cmd := exec.CommandContext(t.Context(), program)
				cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(node.Library()), "GPUSIM_CGROUP=/tmp")
				out, exit := outputOf(t, cmd)
				if want := fmt.Sprintln(node.GPUCount()); exit != 0 || out != want {
					t.Errorf("%s: exit %d, want output %q:\n%s", preset, exit, want, out)
				}
			}
		})
	}
}

// Many processes and many changes at once: every answer is one of the two legal ones.
func TestConcurrentProcesses(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "two-islands")
	before, err := node.State()
	do(t, err)
	const processes, changes = 6, 25
	var group sync.WaitGroup
	for range processes {
		s := start(t, node, 8)
		group.Go(func() {
			for i := range changes {
				gpu := i % 8
				if got := s.ask(fmt.Sprintf("setcompute %d %d", gpu, i%2*3)); got != ok && got != lost {
					t.Errorf("setcompute answered %q", got)
				}
				if got := s.ask(fmt.Sprintf("uuid %d", gpu)); got != node.UUIDs()[gpu] && got != lost {
					t.Errorf("uuid answered %q", got)
				}
			}
		})
	}
	for i := range changes {
		do(t, node.LoseGPU(i%8))
		do(t, node.HealGPU(i%8))
	}
	group.Wait()
	after, err := node.State()
	do(t, err)
	// No mutation was lost: the generation counts each one of the tool, and those of the
	// processes that did not meet a lost GPU.
	made := after.Generation - before.Generation
	if made < 2*changes || made > 2*changes+processes*changes {
		t.Errorf("generation moved by %d, want %d to %d", made, 2*changes, 2*changes+processes*changes)
	}
}
