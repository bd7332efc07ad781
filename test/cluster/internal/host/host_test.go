package host

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestParseMounts(t *testing.T) {
	raw := "proc /proc proc rw 0 0\n/dev/sda /a\\040b ext4 rw 0 0\nbroken\nx /c\\134d tmpfs rw 0 0\n"
	want := []string{"/proc", "/a b", `/c\d`}
	if diff := cmp.Diff(want, parseMounts(raw)); diff != "" {
		t.Error(diff)
	}
}

func TestUnescapeUndoesTheKernelsEscapes(t *testing.T) {
	escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.StringMatching(`/[a-z \t\n\\]{0,20}`).Draw(t, "path")
		if got := unescape(escape.Replace(path)); got != path {
			t.Fatalf("got %q, want %q", got, path)
		}
	})
}

func FuzzParseMounts(f *testing.F) {
	f.Add("a /b\\040c d e 0 0\n")
	f.Add("a /b\\9 \\")
	f.Fuzz(func(t *testing.T, raw string) {
		if got := parseMounts(raw); len(got) > strings.Count(raw, "\n")+1 {
			t.Errorf("%d mounts from %q", len(got), raw)
		}
	})
}

func TestMountsOfThisMachine(t *testing.T) {
	points, err := Mounts()
	if err != nil || !slices.Contains(points, "/proc") {
		t.Errorf("no /proc in %v, %v", points, err)
	}
	if err := UnmountBelow(t.TempDir()); err != nil {
		t.Errorf("a folder without mounts: %v", err)
	}
}

func TestLedgerPutsTheMachineBack(t *testing.T) {
	root := t.TempDir()
	l := Ledger{File: filepath.Join(root, "run/ledger.json"), ProcSys: filepath.Join(root, "sys")}
	panicFile := filepath.Join(root, "sys/kernel/panic")
	write(t, panicFile, "0\n")
	there := filepath.Join(root, "there")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	deep, filled := filepath.Join(root, "a/b/c"), filepath.Join(root, "filled")
	// Twice, with the setting changed between: a second cluster must not record it.
	for range 2 {
		if err := l.KeepSysctls("kernel.panic", "kernel.no_such"); err != nil {
			t.Fatal(err)
		}
		if err := l.MakeDirectories(there, deep, filled); err != nil {
			t.Fatal(err)
		}
		write(t, panicFile, "10\n")
	}
	write(t, filepath.Join(filled, "file"), "x")
	for range 2 {
		if err := l.Restore(); err != nil {
			t.Fatal(err)
		}
	}
	if got := content(t, panicFile); got != "0" {
		t.Errorf("kernel.panic is %q, want 0", got)
	}
	for dir, want := range map[string]bool{there: true, filled: true, deep: false, filepath.Join(root, "a"): false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: there is %v, want %v", dir, err == nil, want)
		}
	}
}

func TestDamagedLedgerIsNotOverwritten(t *testing.T) {
	l := Ledger{File: filepath.Join(t.TempDir(), "ledger.json"), ProcSys: t.TempDir()}
	write(t, l.File, "{")
	for name, err := range map[string]error{
		"keep": l.KeepSysctls("kernel.panic"), "make": l.MakeDirectories("/"), "restore": l.Restore(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if got := content(t, l.File); got != "{" {
		t.Errorf("the ledger now holds %q", got)
	}
}

// recorder is a Runner that knows the answer to some commands and notes all.
type recorder struct {
	fail  []string
	lines []string
}

func (r *recorder) run(_ context.Context, name string, args ...string) ([]byte, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	r.lines = append(r.lines, line)
	for _, f := range r.fail {
		if strings.HasPrefix(line, f) {
			return nil, errors.New("exit status 1")
		}
	}
	return nil, nil
}

func testNetwork(r *recorder, file string) Network {
	return Network{
		Run: r.run, File: file, Link: "kc-a",
		Outer: netip.MustParsePrefix("198.18.0.1/24"), Inner: netip.MustParsePrefix("198.18.0.2/24"),
		Local: []netip.Addr{netip.MustParseAddr("198.18.1.1")},
	}
}

func TestNetworkUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "netns")
	enter := "nsenter --net=" + file
	r := &recorder{fail: []string{enter + " true", "ip link show kc-a"}}
	if err := testNetwork(r, file).Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		enter + " true",
		"unshare --net=" + file + " true",
		"ip link show kc-a",
		"ip link add kc-a type veth peer name eth0 netns " + file,
		"ip addr replace 198.18.0.1/24 dev kc-a",
		"ip link set kc-a up",
		enter + " -- ip link set lo up",
		enter + " -- ip addr replace 198.18.1.1/32 dev lo",
		enter + " -- ip addr replace 198.18.0.2/24 dev eth0",
		enter + " -- ip link set eth0 up",
		enter + " -- ip route replace default via 198.18.0.1",
	}
	if diff := cmp.Diff(want, r.lines); diff != "" {
		t.Error(diff)
	}
}

func TestNetworkUpKeepsWhatIsThere(t *testing.T) {
	r := &recorder{}
	n := testNetwork(r, filepath.Join(t.TempDir(), "netns"))
	if err := n.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range r.lines {
		if strings.HasPrefix(line, "unshare") || strings.Contains(line, "link add") {
			t.Errorf("made again: %s", line)
		}
	}
	if err := n.AddAddress(t.Context(), netip.MustParsePrefix("198.18.0.3/24")); err != nil {
		t.Fatal(err)
	}
	if last := r.lines[len(r.lines)-1]; !strings.HasSuffix(last, "ip addr replace 198.18.0.3/24 dev eth0") {
		t.Errorf("the last command is %q", last)
	}
}

func TestNetworkUpNamesTheFailure(t *testing.T) {
	for _, fail := range []string{"unshare", "ip link add", "ip addr", "nsenter --net"} {
		file := filepath.Join(t.TempDir(), "netns")
		r := &recorder{fail: []string{"nsenter --net=" + file + " true", "ip link show", fail}}
		if err := testNetwork(r, file).Up(t.Context()); err == nil || !strings.Contains(err.Error(), "network") {
			t.Errorf("%s fails: got %v", fail, err)
		}
	}
}

func TestNetworkDownIsIdempotent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "netns")
	write(t, file, "")
	r := &recorder{fail: []string{"ip link show", "nsenter"}}
	for range 2 {
		if err := testNetwork(r, file).Down(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the namespace's file is still there")
	}
}

func TestExecShowsTheError(t *testing.T) {
	out, err := Exec(t.Context(), "sh", "-c", "echo out; echo why >&2; exit 4")
	if string(out) != "out\n" || err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %q, %v", out, err)
	}
}
