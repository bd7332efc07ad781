// Package debian fetches Debian packages by name with apt-get and reads them with dpkg-deb,
// for any architecture and without installing anything. It changes nothing of the machine's
// own package state, and does not know what the packages are for. The caller names every
// package that it wants: dependencies are not followed.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// ErrNotFound is wrapped when the configured archives have no such package.
var ErrNotFound = errors.New("package not found")

// Runner runs a command in a folder and returns what it wrote to standard output.
type Runner func(ctx context.Context, dir, name string, args ...string) ([]byte, error)

// Exec is the Runner of a real machine.
func Exec(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// Package is a package file on this machine.
type Package struct {
	Name, Version, Arch string
	// File is the path of the .deb.
	File string
}

// Fetcher keeps packages in a folder and fetches those that are missing.
type Fetcher struct {
	// Dir holds the packages and, where it is needed, package lists of its own.
	Dir string
	// Arch is Debian's name of the architecture, such as amd64 or arm64.
	Arch string
	Run  Runner
}

// Fetch returns the named packages ("name" or "name=version") in the order given. It uses
// the machine's package lists where they have the packages for this architecture and else
// fetches lists of its own into Dir.
func (f *Fetcher) Fetch(ctx context.Context, names []string) ([]Package, error) {
	if len(names) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the package folder: %w", err)
	}
	options := f.machineOptions()
	uris, err := f.resolve(ctx, options, names)
	if err != nil {
		if options, err = f.ownLists(ctx); err != nil {
			return nil, err
		}
		if uris, err = f.resolve(ctx, options, names); err != nil {
			return nil, fmt.Errorf("%w: %w (is /etc/apt/sources.list* in order?)", ErrNotFound, err)
		}
	}
	return f.download(ctx, options, names, uris)
}

func (f *Fetcher) machineOptions() []string {
	// A package is asked for by name:arch, so that a foreign one is refused here and not
	// mistaken for a native one. The sandbox user could not write into Dir.
	return []string{"-q", "-o", "APT::Sandbox::User=root"}
}

// ownLists makes package state of its own below Dir: the machine need not have this
// architecture enabled nor any lists at all.
func (f *Fetcher) ownLists(ctx context.Context) ([]string, error) {
	state := filepath.Join(f.Dir, "apt-"+f.Arch)
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(state, d), 0o755); err != nil {
			return nil, fmt.Errorf("make package lists: %w", err)
		}
	}
	options := append(f.machineOptions(),
		"-o", "APT::Architecture="+f.Arch, "-o", "APT::Architectures="+f.Arch,
		"-o", "Dir::State="+filepath.Join(state, "state"), "-o", "Dir::State::status=/dev/null",
		"-o", "Dir::Cache="+filepath.Join(state, "cache"))
	if _, err := f.Run(ctx, f.Dir, "apt-get", append(options, "update")...); err != nil {
		return nil, fmt.Errorf("fetch package lists for %s: %w", f.Arch, err)
	}
	return options, nil
}

// qualified turns "name=version" into "name:arch=version".
func (f *Fetcher) qualified(name string) string {
	name, version, pinned := strings.Cut(name, "=")
	name += ":" + f.Arch
	if pinned {
		name += "=" + version
	}
	return name
}

// uriLine is a line of `apt-get --print-uris download`: 'URI' FILE SIZE HASH.
var uriLine = regexp.MustCompile(`^'[^']+' (\S+\.deb) \d+ `)

// resolve returns the file name of each package, without fetching anything.
func (f *Fetcher) resolve(ctx context.Context, options, names []string) ([]string, error) {
	// apt-get names no file that lies in its working folder already.
	empty := filepath.Join(f.Dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return nil, fmt.Errorf("make the package folder: %w", err)
	}
	files := make([]string, 0, len(names))
	for _, name := range names {
		args := append(append([]string{}, options...), "--print-uris", "download", f.qualified(name))
		out, err := f.Run(ctx, empty, "apt-get", args...)
		if err != nil {
			return nil, err
		}
		file, err := parseURI(string(out))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.qualified(name), err)
		}
		files = append(files, file)
	}
	return files, nil
}

func parseURI(out string) (string, error) {
	for line := range strings.Lines(out) {
		if m := uriLine.FindStringSubmatch(line); m != nil {
			return m[1], nil
		}
	}
	return "", fmt.Errorf("%w: apt-get named no file", ErrNotFound)
}

// download fetches what Dir lacks; apt-get checks sizes and hashes.
func (f *Fetcher) download(ctx context.Context, options, names, files []string) ([]Package, error) {
	missing := append(append([]string{}, options...), "download")
	have := len(missing)
	packages := make([]Package, len(files))
	for i, file := range files {
		p, err := parseFileName(file)
		if err != nil {
			return nil, err
		}
		p.File = filepath.Join(f.Dir, file)
		packages[i] = p
		if _, err := os.Stat(p.File); err != nil {
			missing = append(missing, f.qualified(names[i]))
		}
	}
	if len(missing) > have {
		if _, err := f.Run(ctx, f.Dir, "apt-get", missing...); err != nil {
			return nil, fmt.Errorf("fetch packages: %w", err)
		}
	}
	return packages, nil
}

// parseFileName reads NAME_VERSION_ARCH.deb, in which a colon of the version is "%3a".
func parseFileName(file string) (Package, error) {
	parts := strings.Split(strings.TrimSuffix(file, ".deb"), "_")
	if len(parts) != 3 || !strings.HasSuffix(file, ".deb") || strings.ContainsRune(file, '/') {
		return Package{}, fmt.Errorf("%q is not NAME_VERSION_ARCH.deb", file)
	}
	version, err := url.PathUnescape(parts[1])
	if err != nil {
		return Package{}, fmt.Errorf("version in %q: %w", file, err)
	}
	return Package{Name: parts[0], Version: version, Arch: parts[2]}, nil
}

// Control returns the control fields of the package, as in dpkg's status file.
func (f *Fetcher) Control(ctx context.Context, p Package) ([]byte, error) {
	return f.Run(ctx, f.Dir, "dpkg-deb", "--field", p.File)
}

// Files returns the package's files as a tar archive.
func (f *Fetcher) Files(ctx context.Context, p Package) (io.Reader, error) {
	out, err := f.Run(ctx, f.Dir, "dpkg-deb", "--fsys-tarfile", p.File)
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(out), nil
}
