// Package spec reads the description of a container image: which Debian packages, which
// files and which configuration it is made of. It is for imagebuild; it reads no packages
// and writes no image, and it knows nothing of what the image is for.
package spec

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// ErrInvalid is wrapped by every error about the content of a description.
var ErrInvalid = errors.New("invalid image description")

// Image describes one image. Paths inside the image are absolute and clean.
type Image struct {
	// Name is the image's reference, such as "localhost/busybox:1".
	Name string `json:"name"`
	// Packages are names of Debian packages, "name" or "name=version".
	Packages []string `json:"packages,omitempty"`
	// Exclude are glob patterns (see Excluded) of package files to leave out.
	Exclude []string `json:"exclude,omitempty"`
	// Directories are made empty, in addition to the parents of files.
	Directories []Directory `json:"directories,omitempty"`
	// Files are copied from the building machine.
	Files []File `json:"files,omitempty"`
	// Links are symbolic links.
	Links []Links `json:"links,omitempty"`
	// Config is what a runtime applies.
	Config Config `json:"config"`
}

// Directory is an empty folder of the image.
type Directory struct {
	Path string `json:"path"`
	// Mode is octal, "0755" when empty; "1777" makes it sticky.
	Mode string `json:"mode,omitempty"`
}

// File is one file of the image: copied from Source, or written from Content.
type File struct {
	Path    string `json:"path"`
	Source  string `json:"source,omitempty"`
	Content string `json:"content,omitempty"`
	// Mode is octal, "0644" when empty.
	Mode string `json:"mode,omitempty"`
}

// Links are symbolic links of the given names in one folder, all to one target.
type Links struct {
	In     string   `json:"in"`
	Target string   `json:"target"`
	Names  []string `json:"names"`
}

// Config is the part of the image's configuration that a runtime applies.
type Config struct {
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	User       string            `json:"user,omitempty"`
	WorkingDir string            `json:"workingDir,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// Read decodes the description in file, replaces ${KEY} by the definitions, and checks it.
func Read(file string, definitions map[string]string) (*Image, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read image description: %w", err)
	}
	img, err := Decode(raw, definitions)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return img, nil
}

// Decode is Read for bytes. Unknown fields and undefined keys are errors.
func Decode(raw []byte, definitions map[string]string) (*Image, error) {
	var img Image
	if err := yaml.UnmarshalStrict(raw, &img); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := img.expand(definitions); err != nil {
		return nil, err
	}
	if err := img.Validate(); err != nil {
		return nil, err
	}
	return &img, nil
}

// expand replaces ${KEY} in the fields that name something outside of the image or that
// differ from build to build: the name, the sources and the labels.
func (img *Image) expand(definitions map[string]string) error {
	missing := map[string]bool{}
	replace := func(s string) string {
		return os.Expand(s, func(key string) string {
			value, ok := definitions[key]
			if !ok {
				missing[key] = true
			}
			return value
		})
	}
	img.Name = replace(img.Name)
	for i := range img.Files {
		img.Files[i].Source = replace(img.Files[i].Source)
	}
	for key, value := range img.Config.Labels {
		img.Config.Labels[key] = replace(value)
	}
	if len(missing) > 0 {
		keys := slices.Sorted(maps.Keys(missing))
		return fmt.Errorf("%w: no value for ${%s}: pass --define %s=VALUE", ErrInvalid, strings.Join(keys, "}, ${"), keys[0])
	}
	return nil
}

// Validate reports every fault of the description at once.
func (img *Image) Validate() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	if img.Name == "" {
		fault("name is empty: give a reference such as localhost/app:1")
	}
	if len(img.Packages)+len(img.Files) == 0 {
		fault("the image would be empty: list packages or files")
	}
	for i, pattern := range img.Exclude {
		if _, err := path.Match(strings.TrimSuffix(pattern, "/**"), ""); err != nil {
			fault("exclude[%d]: %q is not a glob pattern", i, pattern)
		}
	}
	img.validateEntries(fault)
	return errors.Join(errs...)
}

func (img *Image) validateEntries(fault func(string, ...any)) {
	seen := map[string]bool{}
	place := func(field, p string) {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			fault("%s: %q must be an absolute, clean path such as /usr/bin/app", field, p)
		}
		if seen[p] {
			fault("%s: %q is given twice", field, p)
		}
		seen[p] = true
	}
	mode := func(field, m string) {
		if _, err := ParseMode(m, 0); err != nil {
			fault("%s: %v", field, err)
		}
	}
	for i, d := range img.Directories {
		place(fmt.Sprintf("directories[%d].path", i), d.Path)
		mode(fmt.Sprintf("directories[%d].mode", i), d.Mode)
	}
	for i, f := range img.Files {
		place(fmt.Sprintf("files[%d].path", i), f.Path)
		mode(fmt.Sprintf("files[%d].mode", i), f.Mode)
		if (f.Source == "") == (f.Content == "") {
			fault("files[%d] (%s): give either source or content", i, f.Path)
		}
	}
	for i, l := range img.Links {
		if l.Target == "" {
			fault("links[%d].target is empty", i)
		}
		for _, name := range l.Names {
			place(fmt.Sprintf("links[%d]", i), path.Join(l.In, name))
		}
	}
}

// ParseMode reads octal permission bits, at most 07777; empty gives the fallback.
func ParseMode(s string, fallback int64) (int64, error) {
	if s == "" {
		return fallback, nil
	}
	m, err := strconv.ParseInt(s, 8, 64)
	if err != nil || m < 0 || m > 0o7777 {
		return 0, fmt.Errorf("mode %q must be octal, 0 to 7777", s)
	}
	return m, nil
}

// Excluded tells whether a path of a package is left out. A pattern matches as path.Match
// does, against the whole path without its leading slash; "DIR/**" matches all below DIR.
func (img *Image) Excluded(p string) bool {
	p = strings.TrimPrefix(p, "/")
	return slices.ContainsFunc(img.Exclude, func(pattern string) bool {
		dir, below := strings.CutSuffix(pattern, "/**")
		if !below {
			ok, err := path.Match(pattern, p)
			return err == nil && ok
		}
		for parent := path.Dir(p); parent != "."; parent = path.Dir(parent) {
			if ok, err := path.Match(dir, parent); err == nil && ok {
				return true
			}
		}
		return false
	})
}
