package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// archive stands for apt-get and dpkg-deb. It has the packages of the machine's own lists
// and those of lists fetched by `update`.
type archive struct {
	machine, fetched map[string]string // "name:arch" to file name
	updated          bool
	lines            []string
}

func (a *archive) run(_ context.Context, dir, name string, args ...string) ([]byte, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	a.lines = append(a.lines, line)
	known := a.machine
	if strings.Contains(line, "Dir::State=") {
		known = a.fetched
	}
	last := args[len(args)-1]
	switch {
	case name == "dpkg-deb":
		return []byte(args[0] + " of " + filepath.Base(last)), nil
	case last == "update":
		a.updated = true
		return nil, nil
	case slices.Contains(args, "--print-uris"):
		file, ok := known[strings.Split(last, "=")[0]]
		if !ok {
			return nil, fmt.Errorf("E: Unable to locate package %s", last)
		}
		return fmt.Appendf(nil, "Reading package lists...\n'http://example.com/pool/%s' %s 2758700 SHA256:ab\n", file, file), nil
	default: // download
		for _, p := range args[slices.Index(args, "download")+1:] {
			if err := os.WriteFile(filepath.Join(dir, known[strings.Split(p, "=")[0]]), nil, 0o644); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}

func (a *archive) count(part string) (n int) {
	for _, line := range a.lines {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

func TestFetch(t *testing.T) {
	a := &archive{machine: map[string]string{"libc6:amd64": "libc6_2.36-9_amd64.deb", "busybox:amd64": "busybox_1%3a1.35_amd64.deb"}}
	f := &Fetcher{Dir: filepath.Join(t.TempDir(), "d"), Arch: "amd64", Run: a.run}
	want := []Package{
		{Name: "busybox", Version: "1:1.35", Arch: "amd64", File: filepath.Join(f.Dir, "busybox_1%3a1.35_amd64.deb")},
		{Name: "libc6", Version: "2.36-9", Arch: "amd64", File: filepath.Join(f.Dir, "libc6_2.36-9_amd64.deb")},
	}
	for range 2 {
		got, err := f.Fetch(t.Context(), []string{"busybox", "libc6=2.36-9"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if a.updated || a.count(" download busybox:amd64 libc6:amd64=2.36-9") != 1 {
		t.Errorf("want one download and no update:\n%s", strings.Join(a.lines, "\n"))
	}
}

// Another architecture, or a machine without lists: lists of its own.
func TestFetchForAnotherArchitecture(t *testing.T) {
	a := &archive{fetched: map[string]string{"libc6:arm64": "libc6_2.36-9_arm64.deb"}}
	f := &Fetcher{Dir: t.TempDir(), Arch: "arm64", Run: a.run}
	got, err := f.Fetch(t.Context(), []string{"libc6"})
	if err != nil || len(got) != 1 || got[0].Arch != "arm64" || !a.updated {
		t.Errorf("got %+v, %v, updated %v", got, err, a.updated)
	}
	for _, line := range a.lines {
		if strings.HasSuffix(line, "update") && !strings.Contains(line, "Dir::State="+f.Dir) {
			t.Errorf("the machine's own lists were touched: %s", line)
		}
	}
}

func TestFetchOfAnUnknownPackage(t *testing.T) {
	f := &Fetcher{Dir: t.TempDir(), Arch: "amd64", Run: (&archive{}).run}
	if _, err := f.Fetch(t.Context(), []string{"nosuch"}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("got %v", err)
	}
	if got, err := f.Fetch(t.Context(), nil); err != nil || got != nil {
		t.Errorf("nothing asked for: %v, %v", got, err)
	}
}

func TestReadPackage(t *testing.T) {
	f := &Fetcher{Dir: t.TempDir(), Arch: "amd64", Run: (&archive{}).run}
	p := Package{File: "/x/libc6.deb"}
	control, err := f.Control(t.Context(), p)
	if err != nil || string(control) != "--field of libc6.deb" {
		t.Errorf("got %q, %v", control, err)
	}
	r, err := f.Files(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(r); err != nil || string(raw) != "--fsys-tarfile of libc6.deb" {
		t.Errorf("got %q, %v", raw, err)
	}
}

func TestParseFileName(t *testing.T) {
	for _, bad := range []string{"", "libc6.deb", "a_b_c", "a_b_c_d.deb", "../a_1_amd64.deb", "a_%zz_amd64.deb"} {
		if p, err := parseFileName(bad); err == nil {
			t.Errorf("%q became %+v", bad, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("'http://x/a_1_amd64.deb' a_1_amd64.deb 10 SHA256:ab\n")
	f.Add("'x' ../a_1_b.deb 1 ")
	f.Fuzz(func(t *testing.T, out string) {
		file, err := parseURI(out)
		if err != nil {
			return
		}
		if p, err := parseFileName(file); err == nil && strings.ContainsRune(p.Name, '/') {
			t.Errorf("%q leads out of the folder", file)
		}
	})
}

func TestExecShowsTheError(t *testing.T) {
	dir := t.TempDir()
	out, err := Exec(t.Context(), dir, "sh", "-c", "pwd; echo why >&2; exit 3")
	if strings.TrimSpace(string(out)) != dir || err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %q, %v", out, err)
	}
}
