// Package assemble turns files into image layers and layers into an image archive that
// `ctr images import`, `docker load` and `podman load` take. Equal inputs give equal bytes:
// entries are sorted, owned by root and carry one fixed time. It does not know where the
// files come from.
package assemble

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// ErrEntry is wrapped when an archive holds an entry that an image must not have.
var ErrEntry = errors.New("archive entry not allowed in an image")

// Tree is the content of one layer. Keys are clean paths without a leading slash.
type Tree struct {
	entries map[string]entry
}

type entry struct {
	kind byte // tar.TypeDir, tar.TypeReg or tar.TypeSymlink
	mode int64
	link string
	data []byte
}

// NewTree returns an empty tree.
func NewTree() *Tree { return &Tree{entries: map[string]entry{}} }

// merged are the top-level folders that Debian keeps as links into /usr. Packages may still
// ship files below the old names.
func merged() []string { return []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} }

// place returns the key of a path: clean, relative, below usr where Debian merged it.
func place(p string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+p), "/")
	if clean == "" || slices.Contains(strings.Split(p, "/"), "..") {
		return "", fmt.Errorf("%w: path %q", ErrEntry, p)
	}
	top, _, below := strings.Cut(clean, "/")
	if below && slices.Contains(merged(), top) {
		clean = "usr/" + clean
	}
	return clean, nil
}

func (t *Tree) put(p string, e entry) error {
	key, err := place(p)
	if err != nil {
		return err
	}
	t.entries[key] = e
	return nil
}

// AddFile adds a regular file with octal permission bits.
func (t *Tree) AddFile(p string, mode int64, data []byte) error {
	return t.put(p, entry{kind: tar.TypeReg, mode: mode, data: data})
}

// AddDirectory adds a folder; parents come by themselves, with mode 0755.
func (t *Tree) AddDirectory(p string, mode int64) error {
	return t.put(p, entry{kind: tar.TypeDir, mode: mode})
}

// AddLink adds a symbolic link.
func (t *Tree) AddLink(p, target string) error {
	return t.put(p, entry{kind: tar.TypeSymlink, mode: 0o777, link: target})
}

// AddTar adds the entries of an archive, but those for which skip is true. Hard links become
// copies; devices and pipes are refused.
func (t *Tree) AddTar(r io.Reader, skip func(path string) bool) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		name := path.Clean("/" + h.Name)
		if name == "/" || skip(name) {
			continue
		}
		if err := t.addHeader(name, h, archive); err != nil {
			return err
		}
	}
}

func (t *Tree) addHeader(name string, h *tar.Header, body io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		if slices.Contains(merged(), strings.TrimPrefix(name, "/")) {
			return nil // becomes a link into usr
		}
		return t.AddDirectory(name, h.Mode&0o7777)
	case tar.TypeSymlink:
		return t.AddLink(name, h.Linkname)
	case tar.TypeReg:
		data, err := io.ReadAll(body)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		return t.AddFile(name, h.Mode&0o7777, data)
	case tar.TypeLink:
		target, err := place(h.Linkname)
		if err != nil {
			return err
		}
		e, ok := t.entries[target]
		if !ok {
			return fmt.Errorf("%w: hard link %s to %s, which is not there", ErrEntry, name, h.Linkname)
		}
		return t.put(name, e)
	default:
		return fmt.Errorf("%w: %s has type %q", ErrEntry, name, h.Typeflag)
	}
}

// Paths returns every path of the tree, absolute and sorted, without implied parents.
func (t *Tree) Paths() []string {
	paths := make([]string, 0, len(t.entries))
	for key := range t.entries {
		paths = append(paths, "/"+key)
	}
	slices.Sort(paths)
	return paths
}

// Len is the number of entries, without implied parents.
func (t *Tree) Len() int { return len(t.entries) }

// complete adds implied parents and the links of the merged folders.
func (t *Tree) complete() map[string]entry {
	all := maps.Clone(t.entries)
	for key := range t.entries {
		for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = entry{kind: tar.TypeDir, mode: 0o755}
			}
		}
	}
	for _, top := range merged() {
		if _, ok := all["usr/"+top]; ok {
			all[top] = entry{kind: tar.TypeSymlink, mode: 0o777, link: "usr/" + top}
		}
	}
	return all
}

// Tar writes the layer: sorted, owned by root, every entry with the given time.
func (t *Tree) Tar(modified time.Time) ([]byte, error) {
	all := t.complete()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		e := all[key]
		name := key
		if e.kind == tar.TypeDir {
			name += "/"
		}
		h := &tar.Header{Name: name, Typeflag: e.kind, Mode: e.mode, Linkname: e.link, Size: int64(len(e.data)), ModTime: modified}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("write %s: %w", key, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, fmt.Errorf("write %s: %w", key, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	return out.Bytes(), nil
}
