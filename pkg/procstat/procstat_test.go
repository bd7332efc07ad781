package procstat_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/procstat"
)

func line(pid int, name string, parent int, started uint64) string {
	return fmt.Sprintf("%d (%s) S %d 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 1 1\n", pid, name, parent, started)
}

func TestParse(t *testing.T) {
	for text, want := range map[string]procstat.Stat{
		line(12, "sleep", 7, 77):                       {Parent: 7, Started: 77},
		line(12, "a) b) S 1 2 (c", 0, 1<<63):           {Parent: 0, Started: 1 << 63},
		"12 (x) S 3 " + strings.Repeat("0 ", 17) + "5": {Parent: 3, Started: 5},
	} {
		if got, err := procstat.Parse([]byte(text)); err != nil || got != want {
			t.Errorf("%q gives %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "12", "12 (x", "12 (x)", "12 (x) S 3 " + strings.Repeat("0 ", 17), line(1, "x", -1, 5),
		strings.Replace(line(1, "x", 1, 5), " 5 ", " y ", 1), strings.Repeat("0 ", 30),
	} {
		if got, err := procstat.Parse([]byte(text)); err == nil {
			t.Errorf("%q gives %+v", text, got)
		}
	}
}

// Whatever a process is called.
func TestParseAnyName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := procstat.Stat{Parent: rapid.IntRange(0, 1<<22).Draw(t, "parent"), Started: rapid.Uint64().Draw(t, "started")}
		text := line(1, rapid.StringN(0, 15, 15).Draw(t, "name"), want.Parent, want.Started)
		if got, err := procstat.Parse([]byte(text)); err != nil || got != want {
			t.Fatalf("%q gives %+v, %v; want %+v", text, got, err, want)
		}
	})
}

// The processes of this machine: a child's parent is this one, and it began no earlier.
func TestRead(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := procstat.Read("/proc", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	self, err := procstat.Read("/proc", os.Getpid())
	if err != nil || child.Parent != os.Getpid() || self.Parent != os.Getppid() || child.Started < self.Started || self.Started == 0 {
		t.Errorf("this process %+v, its child %+v, %v", self, child, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if s, err := procstat.Read("/proc", cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that ended: %+v, %v", s, err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "5"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "5", "stat"), []byte("5 (x) S 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := procstat.Read(dir, 5); err == nil || !strings.Contains(err.Error(), "process 5") {
		t.Errorf("a stat that is cut short: %+v, %v", s, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(line(12, "a) b", 1, 20)))
	f.Add([]byte("12 (x) S 1"))
	f.Fuzz(func(t *testing.T, stat []byte) {
		if s, err := procstat.Parse(stat); err == nil && (len(stat) < 40 || s.Parent < 0) {
			t.Fatalf("%q gives %+v", stat, s)
		}
	})
}
