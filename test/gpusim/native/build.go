// Package native builds the C parts of the simulated node with the machine's compiler:
// libnvidia-ml.so.1, nvidia-smi and the small stub libraries of a driver root.
//
// Builds are cached on disk by the content of everything that goes into them, and safe
// to run from many processes at once. The package knows no node and no preset.
package native

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoCompiler says that the C compiler could not be run.
var ErrNoCompiler = errors.New("no C compiler")

// Options says what to build from. The zero value of every field but Sources is usable.
type Options struct {
	// Sources holds *.c and *.h in lib and in the directories of Tools.
	Sources fs.FS
	// Layout is the generated header of the state file, written as sim_layout.h.
	Layout string
	// StubName is the SONAME of the stub library.
	StubName string
	// Header is the path of nvml.h; empty means that of the go-nvml module.
	Header string
	// CacheDir holds finished builds; empty means gpusim in the user's cache directory.
	CacheDir string
	// Compiler is the C compiler; empty means $CC or gcc.
	Compiler string
	// Flags are added to every compilation, for example -fsanitize=address.
	Flags []string
}

// Artifacts are the paths of a finished build. They are shared: copy, never change.
type Artifacts struct {
	Dir     string
	Library string
	Stub    string
	// Programs are the paths of the tools, by their names.
	Programs map[string]string
}

// Build returns the artifacts for opts, from the cache when they are there.
func Build(ctx context.Context, opts Options) (*Artifacts, error) {
	opts, err := complete(ctx, opts)
	if err != nil {
		return nil, err
	}
	header, err := os.ReadFile(opts.Header)
	if err != nil {
		return nil, fmt.Errorf("read nvml.h: %w", err)
	}
	sources, err := readSources(opts.Sources)
	if err != nil {
		return nil, fmt.Errorf("read C sources: %w", err)
	}
	sources["gen/nvml.h"] = header
	sources["gen/sim_layout.h"] = []byte(opts.Layout)
	stubs, err := Stubs(header, sources)
	if err != nil {
		return nil, err
	}
	sources["lib/stubs.c"] = stubs
	dir := filepath.Join(opts.CacheDir, key(opts, sources))
	if err := buildOnce(ctx, opts, dir, sources); err != nil {
		return nil, err
	}
	return artifacts(dir), nil
}

func artifacts(dir string) *Artifacts {
	a := &Artifacts{
		Dir:      dir,
		Library:  filepath.Join(dir, "libnvidia-ml.so.1"),
		Stub:     filepath.Join(dir, "stub.so"),
		Programs: map[string]string{},
	}
	for _, tool := range Tools() {
		a.Programs[tool.Name] = filepath.Join(dir, tool.Name)
	}
	return a
}

// paths are those of every file of a, in a fixed order.
func (a *Artifacts) paths() []string {
	out := []string{a.Library, a.Stub}
	for _, tool := range Tools() {
		out = append(out, a.Programs[tool.Name])
	}
	return out
}

// Prebuilt returns the artifacts of an earlier build that lie in dir.
func Prebuilt(dir string) (*Artifacts, error) {
	a := artifacts(dir)
	for _, path := range a.paths() {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("prebuilt simulator: %w; run `gpusim build-lib %s` where Go and gcc are", err, dir)
		}
	}
	return a, nil
}

func complete(ctx context.Context, opts Options) (Options, error) {
	if opts.Compiler == "" {
		opts.Compiler = os.Getenv("CC")
	}
	if opts.Compiler == "" {
		opts.Compiler = "gcc"
	}
	if opts.CacheDir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		opts.CacheDir = filepath.Join(base, "gpusim")
	}
	if opts.Header == "" {
		header, err := FindHeader(ctx)
		if err != nil {
			return opts, err
		}
		opts.Header = header
	}
	return opts, nil
}

// FindHeader returns the path of nvml.h in the go-nvml module that the surrounding Go
// module uses, so that the simulated library cannot drift from the Go binding.
func FindHeader(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		return "", fmt.Errorf("find nvml.h of the go-nvml module: %w: %s; run inside the repository with Go installed, or give a prebuilt library",
			errors.Join(err, errors.New("go list -m")), strings.TrimSpace(stderr.String()))
	}
	return filepath.Join(dir, "pkg", "nvml", "nvml.h"), nil
}

func readSources(sources fs.FS) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, pattern := range []string{"*/*.c", "*/*.h"} {
		names, err := fs.Glob(sources, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := fs.ReadFile(sources, name)
			if err != nil {
				return nil, err
			}
			out[name] = data
		}
	}
	return out, nil
}

// key names a build by everything that went into it.
func key(opts Options, sources map[string][]byte) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\x00%s\x00%q\x00%q\x00", opts.Compiler, opts.StubName, opts.Flags, flags())
	for _, name := range sortedNames(sources) {
		fmt.Fprintf(sum, "%s\x00%d\x00", name, len(sources[name]))
		sum.Write(sources[name])
	}
	return hex.EncodeToString(sum.Sum(nil))[:24]
}

func sortedNames(sources map[string][]byte) []string {
	names := make([]string, 0, len(sources))
	for name := range sources {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// buildOnce makes dir unless it is complete; of several processes one builds, the rest wait.
func buildOnce(ctx context.Context, opts Options, dir string, sources map[string][]byte) error {
	if isDir(dir) {
		return nil
	}
	if err := os.MkdirAll(opts.CacheDir, 0o755); err != nil {
		return fmt.Errorf("make build cache: %w", err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("lock build cache: %w", err)
	}
	defer lock.Close()
	if err := flock(ctx, lock); err != nil {
		return fmt.Errorf("wait for another build in %s: %w", opts.CacheDir, err)
	}
	if isDir(dir) {
		return nil
	}
	work, err := os.MkdirTemp(opts.CacheDir, "build-")
	if err != nil {
		return fmt.Errorf("make build directory: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	if err := compile(ctx, opts, work, sources); err != nil {
		return err
	}
	// Complete builds appear by one rename: a directory of this name is always whole.
	return os.Rename(work, dir)
}

func flock(ctx context.Context, file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// CopyTo copies the artifacts to dir, for Prebuilt.
func (a *Artifacts) CopyTo(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	to := artifacts(dir).paths()
	for i, from := range a.paths() {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(to[i], data, 0o755); err != nil {
			return err
		}
	}
	return nil
}
