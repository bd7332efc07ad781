package build

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpu-dra/driver/deployments/container/internal/debian"
	"github.com/gpu-dra/driver/deployments/container/internal/spec"
)

// packages is a Packages in memory: each package has one library and its documentation.
type packages struct{ fail error }

func (p packages) Fetch(_ context.Context, names []string) ([]debian.Package, error) {
	var list []debian.Package
	for _, n := range names {
		list = append(list, debian.Package{Name: n, Version: "1.0-" + n, Arch: "amd64"})
	}
	return list, p.fail
}

func (packages) Control(_ context.Context, p debian.Package) ([]byte, error) {
	return []byte("Package: " + p.Name + "\nVersion: " + p.Version + "\n"), nil
}

func (packages) Files(_ context.Context, p debian.Package) (io.Reader, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range []string{"./lib/" + p.Name + ".so", "./usr/share/doc/" + p.Name + "/copyright", "./usr/share/doc/" + p.Name + "/README"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			return nil, err
		}
	}
	return &out, w.Close()
}

func content(t *testing.T, img v1.Image, layer int) map[string]string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[layer].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	archive := tar.NewReader(r)
	for h, err := archive.Next(); err == nil; h, err = archive.Next() {
		raw, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files["/"+strings.TrimSuffix(h.Name, "/")] = string(raw)
	}
	return files
}

func TestImage(t *testing.T) {
	source := filepath.Join(t.TempDir(), "app")
	if err := os.WriteFile(source, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	description := &spec.Image{
		Name: "localhost/app:1", Packages: []string{"libc6", "base-files"}, Exclude: []string{"usr/share/doc/*/[^c]*"},
		Directories: []spec.Directory{{Path: "/tmp", Mode: "1777"}},
		Files:       []spec.File{{Path: "/usr/bin/app", Source: source, Mode: "0755"}, {Path: "/etc/x", Content: "y"}},
		Links:       []spec.Links{{In: "/usr/bin", Target: "app", Names: []string{"a", "b"}}},
		Config:      spec.Config{Entrypoint: []string{"/usr/bin/app"}, Labels: map[string]string{"l": "v"}},
	}
	img, err := Image(t.Context(), description, packages{}, "amd64", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	base, files := content(t, img, 0), content(t, img, 1)
	for _, want := range []string{"/usr/lib/libc6.so", "/usr/share/doc/libc6/copyright", "/var/lib/dpkg/status.d/base-files"} {
		if _, ok := base[want]; !ok {
			t.Errorf("the first layer lacks %s", want)
		}
	}
	if _, ok := base["/usr/share/doc/libc6/README"]; ok {
		t.Error("what is excluded is there")
	}
	if got := base["/var/lib/dpkg/status.d/libc6"]; got != "Package: libc6\nVersion: 1.0-libc6\n" {
		t.Errorf("scanners find %q", got)
	}
	if files["/usr/bin/app"] != "#!/bin/sh\n" || files["/etc/x"] != "y" {
		t.Errorf("the second layer holds %q", files)
	}
	for _, want := range []string{"/tmp", "/usr/bin/a", "/usr/bin/b"} {
		if _, ok := files[want]; !ok {
			t.Errorf("the second layer lacks %s", want)
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Config.Labels[PackagesLabel]; got != "libc6=1.0-libc6,base-files=1.0-base-files" || c.Config.Labels["l"] != "v" {
		t.Errorf("labels are %v", c.Config.Labels)
	}
	if len(description.Config.Labels) != 1 {
		t.Error("the description was changed")
	}
}

// A new build of a program leaves the layer of the packages as it was.
func TestLayersAreIndependent(t *testing.T) {
	digest := func(text string) (string, string) {
		img, err := Image(t.Context(), &spec.Image{
			Name: "a:1", Packages: []string{"libc6"}, Files: []spec.File{{Path: "/a", Content: text}},
		}, packages{}, "amd64", time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		first, err := layers[0].Digest()
		if err != nil {
			t.Fatal(err)
		}
		second, err := layers[1].Digest()
		if err != nil {
			t.Fatal(err)
		}
		return first.String(), second.String()
	}
	base1, files1 := digest("1")
	base2, files2 := digest("2")
	if base1 != base2 || files1 == files2 {
		t.Errorf("packages equal: %v, files differ: %v; want both", base1 == base2, files1 != files2)
	}
}

func TestImageNamesTheFailure(t *testing.T) {
	boom := errors.New("boom")
	description := &spec.Image{Name: "a:1", Packages: []string{"libc6"}}
	if _, err := Image(t.Context(), description, packages{boom}, "amd64", time.Unix(0, 0)); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	description = &spec.Image{Name: "a:1", Files: []spec.File{{Path: "/usr/bin/app", Source: "/does/not/exist"}}}
	if _, err := Image(t.Context(), description, packages{}, "amd64", time.Unix(0, 0)); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/usr/bin/app") {
		t.Errorf("got %v", err)
	}
}

// program is the header of a program for a machine.
func program(t *testing.T, machine elf.Machine) []byte {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64, Shentsize: 64, Phentsize: 56}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	var out bytes.Buffer
	if err := binary.Write(&out, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestProgramsAreForTheImagesMachine(t *testing.T) {
	tests := map[string]struct {
		data         []byte
		architecture string
		want         bool
	}{
		"amd64 in amd64": {program(t, elf.EM_X86_64), "amd64", true},
		"arm64 in arm64": {program(t, elf.EM_AARCH64), "arm64", true},
		"amd64 in arm64": {program(t, elf.EM_X86_64), "arm64", false},
		"script":         {[]byte("#!/bin/sh"), "arm64", true},
		"cut program":    {[]byte(elf.ELFMAG), "amd64", false},
		"unknown image":  {program(t, elf.EM_X86_64), "riscv64", true},
		"nothing":        {nil, "amd64", true},
	}
	for name, tc := range tests {
		if err := checkProgram(tc.data, tc.architecture); (err == nil) != tc.want {
			t.Errorf("%s: got %v, want it taken: %v", name, err, tc.want)
		}
	}
	if err := checkProgram(program(t, elf.EM_X86_64), "arm64"); !errors.Is(err, ErrArchitecture) {
		t.Errorf("got %v, want ErrArchitecture", err)
	}
}

// The real packages, from the machine's archives: the base that the driver's image has.
func TestRealPackages(t *testing.T) {
	if !slices.ContainsFunc([]string{"/usr/bin/apt-get", "/bin/apt-get"}, func(p string) bool { _, err := os.Stat(p); return err == nil }) {
		t.Fatal("this test needs Debian's apt-get")
	}
	description, err := spec.Read("../../image.yaml", map[string]string{"BIN": t.TempDir(), "VERSION": "v0"})
	if err != nil {
		t.Fatal(err)
	}
	description.Files = nil
	fetcher := &debian.Fetcher{Dir: filepath.Join(t.TempDir(), "packages"), Arch: "amd64", Run: debian.Exec}
	img, err := Image(t.Context(), description, fetcher, "amd64", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	base := content(t, img, 0)
	for _, want := range []string{
		"/lib64", "/usr/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/etc/os-release",
		"/usr/share/doc/libc6/copyright", "/var/lib/dpkg/status.d/libc6",
	} {
		if _, ok := base[want]; !ok {
			t.Errorf("the image lacks %s", want)
		}
	}
	size := 0
	for path, data := range base {
		size += len(data)
		if strings.Contains(path, "/gconv/") || strings.HasSuffix(path, "changelog.gz") {
			t.Errorf("needless: %s", path)
		}
	}
	if size > 8<<20 {
		t.Errorf("the base has %d bytes, at most 8 MiB are expected", size)
	}
}
