package bed

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseFields(t *testing.T) {
	var rss, threads int64
	fields := func() map[string]*int64 { return map[string]*int64{"VmRSS": &rss, "Threads": &threads} }
	if err := parseFields([]byte("Name:\tx\nVmRSS:\t   1234 kB\nThreads:\t9\n"), fields()); err != nil {
		t.Fatal(err)
	}
	if rss != 1234 || threads != 9 {
		t.Errorf("VmRSS %d and Threads %d, want 1234 and 9", rss, threads)
	}
	for name, text := range map[string]string{
		"a field is missing": "VmRSS: 1 kB\n", "no number": "VmRSS: many kB\nThreads: 2\n", "empty": "",
	} {
		if err := parseFields([]byte(text), fields()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzParseFields(f *testing.F) {
	f.Add([]byte("write_bytes: 1\nwchar: 2\n"))
	f.Add([]byte("write_bytes:\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		const unset = -1 << 40
		disk, calls := int64(unset), int64(unset)
		if err := parseFields(raw, map[string]*int64{"write_bytes": &disk, "wchar": &calls}); err == nil && disk == unset && calls == unset {
			t.Error("no error, and no field was read")
		}
	})
}

func TestCPU(t *testing.T) {
	const rest = " 1 0 0 0 -1 0 5 6 7 8 "
	for text, want := range map[string]time.Duration{
		"7 (a) S" + rest + "250 50 9 9 20": 3 * time.Second, "7 (a) (b c) 1) R" + rest + "0 1 9": 10 * time.Millisecond,
	} {
		if got, err := parseCPU([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %s, want %s, %v", text, got, want, err)
		}
	}
	for _, text := range []string{"", "7 (a) S 1", "7 (a) S" + rest + "x 1", "7 (a) S" + rest + "-1 1"} {
		if _, err := parseCPU([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
	before, err := readCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for used := before; used <= before; {
		if used, err = readCPU(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := readCPU(-1); err == nil {
		t.Error("no error for a process that is not there")
	}
}

func FuzzParseCPU(f *testing.F) {
	f.Add([]byte("7 (a) S 1 0 0 0 -1 0 5 6 7 8 250 50 9 9 20"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if used, err := parseCPU(raw); err == nil && used < 0 {
			t.Errorf("%s", used)
		}
	})
}

// The figures of this process are what the Go runtime says of itself, or more.
func TestReadMemory(t *testing.T) {
	held := make([]byte, 32<<20)
	for i := range held {
		held[i] = 1
	}
	m, err := readMemory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if m.Anon < int64(len(held)) || m.RSS < m.Anon || m.File == 0 || m.Threads == 0 {
		t.Errorf("%+v with %d bytes held", m, len(held))
	}
	runtime.KeepAlive(held)
	if _, err := readMemory(-1); err == nil {
		t.Error("no error for a process that is not there")
	}
}

func TestReadIO(t *testing.T) {
	before, err := readIO(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 100_000
	if err := os.WriteFile(filepath.Join(t.TempDir(), "f"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := readIO(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if after.Calls-before.Calls < size {
		t.Errorf("%d bytes written by calls, want at least %d", after.Calls-before.Calls, size)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	got, err := Files(dir, filepath.Join(dir, "absent"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{path: 5}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
