package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// statLine is a stat file with 52 fields, as the kernel writes it.
func statLine(pid int, name, state string, session int, start uint64) string {
	fields := []string{strconv.Itoa(pid), "(" + name + ")", state, "1", strconv.Itoa(pid), strconv.Itoa(session)}
	for len(fields) < 52 {
		fields = append(fields, "0")
	}
	fields[21] = strconv.FormatUint(start, 10)
	return strings.Join(fields, " ") + "\n"
}

func TestParseStat(t *testing.T) {
	tests := map[string]struct {
		raw     string
		want    stat
		wantErr bool
	}{
		"plain":                 {raw: statLine(7, "etcd", "S", 7, 99), want: stat{session: 7, start: 99}},
		"blank and parentheses": {raw: statLine(7, "a) S 1 (b", "R", 3, 5), want: stat{session: 3, start: 5}},
		"zombie":                {raw: statLine(7, "x", "Z", 7, 1), want: stat{zombie: true, session: 7, start: 1}},
		"empty":                 {raw: "", wantErr: true},
		"cut":                   {raw: "7 (x) S 1 2", wantErr: true},
		"no number":             {raw: strings.Replace(statLine(7, "x", "S", 7, 99), " 99 ", " y ", 1), wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(tc.raw)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, want one: %v", err, tc.wantErr)
			}
			if tc.wantErr && !errors.Is(err, errStat) {
				t.Errorf("error %v does not wrap errStat", err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(stat{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseStatAnyName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[ -~]{0,15}`).Draw(t, "name")
		want := stat{session: rapid.IntRange(0, 1<<22).Draw(t, "session"), start: rapid.Uint64().Draw(t, "start")}
		got, err := parseStat(statLine(1, name, "S", want.session, want.start))
		if err != nil || got != want {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add(statLine(1, "x", "S", 1, 1))
	f.Add("1 (")
	f.Fuzz(func(t *testing.T, raw string) {
		if s, err := parseStat(raw); err != nil && s != (stat{}) {
			t.Errorf("an error came with %+v", s)
		}
	})
}

// addProcess writes a process into a proc file system.
func addProcess(t testing.TB, root string, pid int, stat string, environ ...string) {
	t.Helper()
	dir := filepath.Join(root, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"stat": stat, "environ": strings.Join(environ, "\x00") + "\x00", "statm": "100 25 3 0 0 0 0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestScan(t *testing.T) {
	root := t.TempDir()
	marks := func(owner, component string) []string {
		return []string{"HOME=/", ownerKey + "=" + owner, componentKey + "=" + component, specKey + "=h"}
	}
	addProcess(t, root, 20, statLine(20, "etcd", "S", 20, 7), marks("/a", "etcd")...)
	addProcess(t, root, 9, statLine(9, "shim", "S", 20, 8), marks("/a", "etcd")...)
	addProcess(t, root, 21, statLine(21, "etcd", "S", 21, 9), marks("/b", "etcd")...)
	addProcess(t, root, 22, statLine(22, "dead", "Z", 22, 9), marks("/a", "dead")...)
	addProcess(t, root, 23, statLine(23, "other", "S", 23, 9), "HOME=/")
	addProcess(t, root, 24, "broken", marks("/a", "broken")...)
	if err := os.Mkdir(filepath.Join(root, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := Table{Root: root}
	got, err := table.Scan("/a")
	if err != nil {
		t.Fatal(err)
	}
	want := []Process{
		{PID: 9, Start: 8, Owner: "/a", Component: "etcd", Spec: "h"},
		{PID: 20, Start: 7, Owner: "/a", Component: "etcd", Spec: "h", Leader: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if all, err := table.Scan(""); err != nil || len(all) != 3 {
		t.Errorf("all owners: got %d processes, %v; want 3", len(all), err)
	}
	if got, want := table.RSS(want[0]), int64(25*os.Getpagesize()); got != want {
		t.Errorf("RSS is %d, want %d", got, want)
	}
	if got := table.RSS(Process{PID: 404}); got != 0 {
		t.Errorf("RSS of a process that is gone is %d, want 0", got)
	}
}

func TestScanWithoutProc(t *testing.T) {
	if _, err := (Table{Root: filepath.Join(t.TempDir(), "none")}).Scan(""); err == nil {
		t.Error("no error without a proc file system")
	}
}

// In the middle of an exec the environment is empty: a young process is read again, an old
// one and a kernel thread are not.
func TestScanWaitsForAnExec(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "uptime"), []byte("1000.00 1.00\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	table := Table{Root: root}
	kernel := strings.Replace(statLine(3, "kworker", "S", 0, 99900), "(kworker) S 1 3 0 0 0 0", "(kworker) S 1 3 0 0 0 2097152", 1)
	for pid, line := range map[int]string{2: statLine(2, "old", "S", 2, 100), 3: kernel, 4: statLine(4, "new", "S", 4, 99900)} {
		addProcess(t, root, pid, line)
		if err := os.Truncate(filepath.Join(root, strconv.Itoa(pid), "environ"), 0); err != nil {
			t.Fatal(err)
		}
		if got, want := table.young(pid), pid == 4; got != want {
			t.Errorf("process %d is young: %v, want %v", pid, got, want)
		}
	}
	done := make(chan error, 1)
	go func() {
		done <- os.WriteFile(filepath.Join(root, "4/environ"), []byte(ownerKey+"=/a\x00"), 0o644)
	}()
	found, err := table.Scan("/a")
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].PID != 4 {
		t.Errorf("found %+v, want process 4", found)
	}
}

// A pid that was given to another process is not ours.
func TestAliveComparesStartTimes(t *testing.T) {
	root := t.TempDir()
	addProcess(t, root, 5, statLine(5, "x", "S", 5, 100))
	table := Table{Root: root}
	if !table.Alive(Process{PID: 5, Start: 100}) {
		t.Error("the process itself counts as dead")
	}
	if table.Alive(Process{PID: 5, Start: 99}) {
		t.Error("a successor with the same PID counts as alive")
	}
	if table.Alive(Process{PID: 6, Start: 100}) {
		t.Error("a process that is gone counts as alive")
	}
}

func BenchmarkScan(b *testing.B) {
	root := b.TempDir()
	for pid := range 300 {
		addProcess(b, root, pid+1, statLine(pid+1, "x", "S", 1, 1), fmt.Sprintf("%s=/o%d", ownerKey, pid%10))
	}
	table := Table{Root: root}
	for b.Loop() {
		if _, err := table.Scan("/o1"); err != nil {
			b.Fatal(err)
		}
	}
}
