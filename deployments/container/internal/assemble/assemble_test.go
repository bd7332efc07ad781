package assemble

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"pgregory.net/rapid"
)

var epoch = time.Unix(0, 0).UTC()

func never(string) bool { return false }

// entries reads a layer back: "path mode link content", in order.
func entries(t testing.TB, layer []byte) []string {
	t.Helper()
	var list []string
	r := tar.NewReader(bytes.NewReader(layer))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(epoch) {
			t.Errorf("%s belongs to %d:%d (%q) and is of %s", h.Name, h.Uid, h.Gid, h.Uname, h.ModTime)
		}
		list = append(list, strings.TrimSpace(strings.Join([]string{h.Name, h.FileInfo().Mode().String(), h.Linkname, string(body)}, " ")))
	}
}

// archive makes a tar from headers; a regular file's content is its name.
func archive(t testing.TB, headers ...tar.Header) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = h.Name
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestTarOfAPackage(t *testing.T) {
	tree := NewTree()
	err := tree.AddTar(archive(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./lib/libc.so.6", Typeflag: tar.TypeReg, Mode: 0o755, Uid: 7, Uname: "x"},
		tar.Header{Name: "./lib/hard", Typeflag: tar.TypeLink, Linkname: "./lib/libc.so.6"},
		tar.Header{Name: "./usr/bin/su", Typeflag: tar.TypeReg, Mode: 0o4755},
		tar.Header{Name: "./etc/os", Typeflag: tar.TypeSymlink, Linkname: "../usr/lib/os"},
		tar.Header{Name: "./usr/share/doc/x", Typeflag: tar.TypeReg, Mode: 0o644},
	), func(p string) bool { return strings.HasPrefix(p, "/usr/share/doc") })
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tree.Tar(epoch)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"etc/ drwxr-xr-x",
		"etc/os Lrwxrwxrwx ../usr/lib/os",
		"lib Lrwxrwxrwx usr/lib",
		"usr/ drwxr-xr-x",
		"usr/bin/ drwxr-xr-x",
		"usr/bin/su urwxr-xr-x  ./usr/bin/su",
		"usr/lib/ drwxr-xr-x",
		"usr/lib/hard -rwxr-xr-x  ./lib/libc.so.6",
		"usr/lib/libc.so.6 -rwxr-xr-x  ./lib/libc.so.6",
	}
	// /bin is a link as well: something lies in usr/bin.
	want = slices.Insert(want, 0, "bin Lrwxrwxrwx usr/bin")
	if diff := cmp.Diff(want, entries(t, layer)); diff != "" {
		t.Error(diff)
	}
}

func TestAddTarRefuses(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"device":    {Name: "./dev/null", Typeflag: tar.TypeChar},
		"pipe":      {Name: "./p", Typeflag: tar.TypeFifo},
		"dead link": {Name: "./l", Typeflag: tar.TypeLink, Linkname: "./none"},
		"way out":   {Name: "./l", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"},
	} {
		if err := NewTree().AddTar(archive(t, h), never); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: got %v, want ErrEntry", name, err)
		}
	}
	if err := NewTree().AddTar(strings.NewReader("no tar, but long enough to be read as a header"), never); err == nil {
		t.Error("no error for what is not an archive")
	}
	if err := NewTree().AddFile("/a/../../b", 0o644, nil); !errors.Is(err, ErrEntry) {
		t.Errorf("a path upwards: got %v", err)
	}
}

// The order in which files come in makes no difference, and every parent is there before
// its children.
func TestTarIsReproducible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.SliceOfNDistinct(rapid.StringMatching(`(/(usr|bin|lib|x|y)){1,3}/f[0-9]`), 1, 8, rapid.ID).Draw(t, "paths")
		build := func(order []string) []byte {
			tree := NewTree()
			for _, p := range order {
				if err := tree.AddFile(p, 0o644, []byte("same")); err != nil {
					t.Fatal(err)
				}
			}
			raw, err := tree.Tar(epoch)
			if err != nil {
				t.Fatal(err)
			}
			return raw
		}
		a := build(paths)
		if !bytes.Equal(a, build(rapid.Permutation(paths).Draw(t, "order"))) {
			t.Fatal("another order gave other bytes")
		}
		seen := map[string]bool{"": true}
		r := tar.NewReader(bytes.NewReader(a))
		for h, err := r.Next(); err == nil; h, err = r.Next() {
			name := strings.TrimSuffix(h.Name, "/")
			if parent := strings.TrimSuffix(filepath.Dir("/"+name), "/"); !seen[strings.TrimPrefix(parent, "/")] {
				t.Fatalf("%s comes before its parent", name)
			}
			seen[name] = true
		}
	})
}

func FuzzAddTar(f *testing.F) {
	raw, err := io.ReadAll(archive(f, tar.Header{Name: "./lib/x", Typeflag: tar.TypeReg, Mode: 0o644}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		tree := NewTree()
		if err := tree.AddTar(bytes.NewReader(raw), never); err != nil {
			return
		}
		for _, p := range tree.Paths() {
			if slices.Contains(strings.Split(p, "/"), "..") || !strings.HasPrefix(p, "/") {
				t.Errorf("the tree holds %q", p)
			}
		}
	})
}

func testImage(t *testing.T) string {
	t.Helper()
	base, empty, files := NewTree(), NewTree(), NewTree()
	if err := base.AddFile("/lib/libc.so.6", 0o755, []byte("c")); err != nil {
		t.Fatal(err)
	}
	if err := files.AddFile("/app", 0o755, []byte("app")); err != nil {
		t.Fatal(err)
	}
	img, err := Image([]Layer{{base, "base"}, {empty, "nothing"}, {files, "files"}}, Settings{
		Architecture: "arm64", Created: epoch, Entrypoint: []string{"/app"}, Cmd: []string{"-x"}, User: "0:0", WorkingDir: "/",
		Env: map[string]string{"B": "2", "A": "1"}, Labels: map[string]string{"l": "v"},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "x.tar")
	if err := Write(file, "localhost/app:1", img); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestImageReadBack(t *testing.T) {
	img, err := tarball.ImageFromPath(testImage(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != "arm64" || !c.Created.Equal(epoch) || len(c.History) != 2 {
		t.Errorf("got %s/%s of %s with %d steps", c.OS, c.Architecture, c.Created, len(c.History))
	}
	if diff := cmp.Diff([]string{"A=1", "B=2"}, c.Config.Env); diff != "" {
		t.Error(diff)
	}
	if c.Config.Entrypoint[0] != "/app" || c.Config.Cmd[0] != "-x" || c.Config.User != "0:0" || c.Config.Labels["l"] != "v" || c.Config.WorkingDir != "/" {
		t.Errorf("configuration is %+v", c.Config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, %v; want 2: an empty one is left out", len(layers), err)
	}
	r, err := layers[1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"app -rwxr-xr-x  app"}, entries(t, raw)); diff != "" {
		t.Error(diff)
	}
}

func TestArchiveIsReproducible(t *testing.T) {
	a, err := os.ReadFile(testImage(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(testImage(t))
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("two builds differ (%v)", err)
	}
}

func TestWriteLeavesNothingHalf(t *testing.T) {
	img, err := Image(nil, Settings{Architecture: "amd64", Created: epoch})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Write(filepath.Join(dir, "x.tar"), "Not A Name", img); err == nil {
		t.Error("a bad name was taken")
	}
	if err := Write(filepath.Join(dir, "none", "x.tar"), "a:1", img); err == nil {
		t.Error("no error for a folder that is not there")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func BenchmarkTar(b *testing.B) {
	tree := NewTree()
	for i := range 500 {
		if err := tree.AddFile(filepath.Join("/lib", strings.Repeat("d/", i%5), string(rune('a'+i%26)), "f"), 0o644, make([]byte, 4096)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := tree.Tar(epoch); err != nil {
			b.Fatal(err)
		}
	}
}
