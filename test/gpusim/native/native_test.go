package native_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim/native"
)

const header = `
/* nvmlReturn_t DECLDIR nvmlInComment is only spoken of */
typedef int nvmlReturn_t;
#define DECLDIR
nvmlReturn_t DECLDIR nvmlOne(void);
nvmlReturn_t DECLDIR nvmlTwo(int a,
    int b);
const DECLDIR char* nvmlText(nvmlReturn_t result);
__attribute__((deprecated)) nvmlReturn_t DECLDIR nvmlOld (void);
`

// sources are the smallest C parts that build.
func sources() fstest.MapFS {
	return fstest.MapFS{
		"lib/one.c": {Data: []byte("#include \"nvml.h\"\n#define SIM_EXPORT __attribute__((visibility(\"default\")))\n" +
			"int sim_stub(const char *function);\nint sim_stub(const char *function) { return function[0] == 'n' ? 3 : 0; }\n" +
			"SIM_EXPORT nvmlReturn_t nvmlOne(void)\n{\n\treturn 0;\n}\n")},
		"lib/text.c":   {Data: []byte("#define SIM_EXPORT __attribute__((visibility(\"default\")))\nSIM_EXPORT const char *nvmlText(int result);\nSIM_EXPORT const char *nvmlText(int result)\n{\n\treturn result ? \"x\" : \"y\";\n}\n")},
		"tool/start.c": {Data: []byte("void _start(void);\nvoid _start(void)\n{\n\tfor (;;)\n\t\t;\n}\n")},
	}
}

func options(t *testing.T) native.Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvml.h")
	if err := os.WriteFile(path, []byte(header), 0o644); err != nil {
		t.Fatal(err)
	}
	return native.Options{Sources: sources(), StubName: "libname.so.0", Header: path, CacheDir: t.TempDir()}
}

func build(t *testing.T, o native.Options) *native.Artifacts {
	t.Helper()
	artifacts, err := native.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return artifacts
}

func TestSymbols(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]string{"nvmlOld", "nvmlOne", "nvmlText", "nvmlTwo"}, native.Symbols([]byte(header))); diff != "" {
		t.Errorf("symbols of the header (-want +got):\n%s", diff)
	}
}

func TestStubsFillTheGaps(t *testing.T) {
	t.Parallel()
	implemented := map[string][]byte{
		"lib/a.c": []byte("SIM_EXPORT nvmlReturn_t nvmlOne(void)\n{\n}\nSIM_ALIAS(nvmlOld, nvmlOne);\n"),
		"lib/b.c": []byte("SIM_EXPORT const char *nvmlText(nvmlReturn_t r)\n"),
		"smi/c.c": []byte("SIM_EXPORT nvmlReturn_t nvmlTwo(int a)\n"),
	}
	stubs, err := native.Stubs([]byte(header), implemented)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(stubs); strings.Count(got, "STUB(nvml") != 1 || !strings.Contains(got, "STUB(nvmlTwo)") {
		t.Errorf("stubs:\n%s\nwant one, for nvmlTwo", got)
	}
	if _, err := native.Stubs([]byte("int main;"), nil); err == nil {
		t.Error("a header without functions gave stubs")
	}
}

func TestBuildIsCached(t *testing.T) {
	t.Parallel()
	o := options(t)
	first := build(t, o)
	before, err := os.Stat(first.Library)
	if err != nil {
		t.Fatal(err)
	}
	second := build(t, o)
	after, err := os.Stat(second.Library)
	if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("the second build made %v anew (%v)", second.Library, err)
	}
	changed := sources()
	changed["lib/more.c"] = &fstest.MapFile{Data: []byte("int more;\n")}
	o.Sources = changed
	if third := build(t, o); third.Dir == first.Dir {
		t.Error("other sources took the old build")
	}
	o.Flags = []string{"-O2"}
	if fourth := build(t, o); fourth.Dir == first.Dir {
		t.Error("other flags took the old build")
	}
}

func TestConcurrentBuildsMakeOne(t *testing.T) {
	t.Parallel()
	o := options(t)
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			if _, err := native.Build(t.Context(), o); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	entries, err := os.ReadDir(o.CacheDir)
	if err != nil {
		t.Fatal(err)
	}
	dirs := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() })
	if len(dirs) != 1 {
		t.Errorf("the cache holds %v, want one finished build and nothing half", dirs)
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	t.Parallel()
	o := options(t)
	broken := sources()
	broken["lib/bad.c"] = &fstest.MapFile{Data: []byte("int f(void) { int unused; }\n")}
	o.Sources = broken
	_, err := native.Build(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "lib/bad.c") {
		t.Errorf("error %v, want the compiler's words about lib/bad.c", err)
	}
	if left, err := filepath.Glob(filepath.Join(o.CacheDir, "*")); err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v, want the lock only", left)
	}
}

func TestNoCompiler(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Compiler = "no-such-compiler"
	if _, err := native.Build(t.Context(), o); !errors.Is(err, native.ErrNoCompiler) {
		t.Errorf("%v, want ErrNoCompiler", err)
	}
}

func TestPrebuilt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "lib")
	if _, err := native.Prebuilt(dir); err == nil || !strings.Contains(err.Error(), "gpusim build-lib") {
		t.Errorf("a missing build gives %v, want what to do", err)
	}
	made := build(t, options(t))
	if err := made.CopyTo(dir); err != nil {
		t.Fatal(err)
	}
	copied, err := native.Prebuilt(dir)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{made.Library: copied.Library, made.Programs["nvidia-smi"]: copied.Programs["nvidia-smi"], made.Stub: copied.Stub} {
		a, errA := os.ReadFile(from)
		b, errB := os.ReadFile(to)
		if err := errors.Join(errA, errB); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s and %s differ: %v", from, to, err)
		}
	}
}
