package spec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const full = `
name: localhost/app:${TAG}
packages: [libc6, base-files=12.4]
exclude: [usr/share/doc/**]
directories:
- {path: /tmp, mode: "1777"}
files:
- {path: /usr/bin/app, source: "${BIN}/app", mode: "0755"}
- {path: /etc/motd, content: "costs $5\n"}
links:
- {in: /bin, target: busybox, names: [sh, ls]}
config:
  entrypoint: [/usr/bin/app]
  cmd: [--help]
  user: "0:0"
  workingDir: /
  env: {PATH: /usr/bin}
  labels: {version: "${TAG}"}
`

func TestDecode(t *testing.T) {
	got, err := Decode([]byte(full), map[string]string{"TAG": "1", "BIN": "/b", "UNUSED": "x"})
	if err != nil {
		t.Fatal(err)
	}
	want := &Image{
		Name: "localhost/app:1", Packages: []string{"libc6", "base-files=12.4"}, Exclude: []string{"usr/share/doc/**"},
		Directories: []Directory{{Path: "/tmp", Mode: "1777"}},
		// The content is the image's own text: nothing in it is replaced.
		Files: []File{{Path: "/usr/bin/app", Source: "/b/app", Mode: "0755"}, {Path: "/etc/motd", Content: "costs $5\n"}},
		Links: []Links{{In: "/bin", Target: "busybox", Names: []string{"sh", "ls"}}},
		Config: Config{
			Entrypoint: []string{"/usr/bin/app"}, Cmd: []string{"--help"}, User: "0:0", WorkingDir: "/",
			Env: map[string]string{"PATH": "/usr/bin"}, Labels: map[string]string{"version": "1"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeNamesTheFault(t *testing.T) {
	const file = "name: a\nconfig: {}\nfiles: "
	tests := map[string]struct{ raw, want string }{
		"unknown field":      {"name: a\nfile: []\n", "file"},
		"not YAML":           {"\tname", "YAML"},
		"no name":            {"packages: [a]\nconfig: {}\n", "name is empty"},
		"nothing in it":      {"name: a\nconfig: {}\n", "would be empty"},
		"undefined key":      {file + `[{path: /a, source: "${NO}"}]`, "--define NO="},
		"relative path":      {file + "[{path: a, content: x}]", "files[0].path"},
		"path not clean":     {file + "[{path: /a/../b, content: x}]", "files[0].path"},
		"path is the root":   {file + "[{path: /, content: x}]", "files[0].path"},
		"path twice":         {file + "[{path: /a, content: x}, {path: /a, content: y}]", "given twice"},
		"source and content": {file + "[{path: /a, content: x, source: y}]", "either source or content"},
		"neither":            {file + "[{path: /a}]", "either source or content"},
		"mode":               {file + `[{path: /a, content: x, mode: "8"}]`, "mode"},
		"mode too large":     {file + `[{path: /a, content: x, mode: "17777"}]`, "mode"},
		"pattern":            {"name: a\nconfig: {}\npackages: [b]\nexclude: ['[']\n", "exclude[0]"},
		"link without end":   {"name: a\nconfig: {}\npackages: [b]\nlinks: [{in: /, names: [x]}]\n", "links[0].target"},
		"link over a file":   {file + "[{path: /a, content: x}]\nlinks: [{in: /, target: b, names: [a]}]\n", "given twice"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(tc.raw), nil)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestReadNamesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image.yaml")
	if _, err := Read(file, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(file, []byte("x: 1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}

func TestExcluded(t *testing.T) {
	img := &Image{Exclude: []string{"usr/share/doc/**", "usr/lib/*/gconv/**", "etc/*.d", "usr/share/man/*/[^k]*"}}
	tests := map[string]bool{
		"/usr/share/doc/libc6/copyright":    true,
		"/usr/share/doc":                    false,
		"/usr/share/docs/x":                 false,
		"/usr/lib/x86_64-linux-gnu/gconv/a": true,
		"/usr/lib/gconv/a":                  false,
		"/etc/profile.d":                    true,
		"/etc/profile.d/x":                  false,
		"/usr/share/man/de/less.1":          true,
		"/usr/share/man/de/keep.1":          false,
		"/usr/bin/app":                      false,
	}
	for path, want := range tests {
		if got := img.Excluded(path); got != want {
			t.Errorf("%s: excluded is %v, want %v", path, got, want)
		}
	}
}

func TestParseModeReadsOctal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Int64Range(0, 0o7777).Draw(t, "mode")
		var digits []byte
		for n := want; n > 0; n /= 8 {
			digits = append([]byte{byte('0' + n%8)}, digits...)
		}
		if got, err := ParseMode("0"+string(digits), 1); err != nil || got != want {
			t.Fatalf("got %o, %v; want %o", got, err, want)
		}
	})
	if got, err := ParseMode("", 0o755); err != nil || got != 0o755 {
		t.Errorf("empty: got %o, %v", got, err)
	}
	if _, err := ParseMode("-1", 0); err == nil {
		t.Error("a negative mode is taken")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("name: [a"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		img, err := Decode(raw, map[string]string{"TAG": "1", "BIN": "/b"})
		if err != nil {
			return
		}
		if err := img.Validate(); err != nil {
			t.Errorf("what was decoded is invalid: %v", err)
		}
	})
}
