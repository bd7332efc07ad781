// Package gpusim makes simulated GPU nodes: a driver root with a libnvidia-ml.so.1 that
// answers like real hardware, device nodes, proc and sysfs, and faults at run time.
//
// It serves tests of anything that talks to NVML, and people who want to try such
// software without a GPU. Nothing that uses a node needs to know that it is simulated:
// only its roots differ. The package uses no cgo; what loads the library is a process of
// its own, because one process must never load two NVMLs.
package gpusim

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/test/gpusim/native"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/gpusim/rootfs"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

//go:embed lib/*.c lib/*.h smi/*.c smi/*.h tool/*.c tool/*.h mps/*.c mps/*.h mpsctl/*.c mpsctl/*.h mpssrv/*.c mpssrv/*.h client/*.c client/*.h
var sources embed.FS

// ErrNotANode says that a directory holds no simulated node.
var ErrNotANode = errors.New("not a simulated node")

// nodeFileName keeps the description of a node beside it, to open it again.
const nodeFileName = "node.yaml"

// Node is a simulated node on disk. Its methods may be called from several goroutines.
type Node struct {
	layout rootfs.Layout
	native rootfs.Native
	mu     sync.Mutex
	file   *nodefile.File
	node   *nodefile.Node
}

// Option changes how a node is created.
type Option func(*options)

type options struct {
	mutate []func(*nodefile.File)
	libDir string
	cache  string
}

// WithSeed sets what UUIDs and serials are made from. Nodes of one cluster need different seeds.
func WithSeed(seed string) Option {
	return WithFile(func(f *nodefile.File) { f.Seed = seed })
}

// WithFile changes the node file before it is resolved.
func WithFile(change func(*nodefile.File)) Option {
	return func(o *options) { o.mutate = append(o.mutate, change) }
}

// WithLibDir takes the native parts from an earlier build instead of building them.
func WithLibDir(dir string) Option { return func(o *options) { o.libDir = dir } }

// WithCacheDir keeps builds in dir instead of the user's cache directory.
func WithCacheDir(dir string) Option { return func(o *options) { o.cache = dir } }

// BuildLibrary builds the native parts, or finds them in the cache.
func BuildLibrary(ctx context.Context, cacheDir string, flags ...string) (*native.Artifacts, error) {
	return native.Build(ctx, native.Options{
		Sources:  sources,
		Layout:   simstate.Header(),
		StubName: rootfs.StubName,
		CacheDir: cacheDir,
		Flags:    flags,
	})
}

// Create lays out a node in dir, which must be absent, empty, or a node already: then it
// is laid out anew.
func Create(ctx context.Context, dir string, file *nodefile.File, opts ...Option) (*Node, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if err := prepareDir(dir); err != nil {
		return nil, err
	}
	changed, err := applyChanges(file, o.mutate)
	if err != nil {
		return nil, err
	}
	n, err := newNode(dir, changed)
	if err != nil {
		return nil, err
	}
	artifacts, err := buildOrFind(ctx, &o)
	if err != nil {
		return nil, err
	}
	n.native = rootfs.Native{Library: artifacts.Library, Programs: artifacts.Programs, Stub: artifacts.Stub}
	if err := n.builder().Create(); err != nil {
		return nil, err
	}
	if err := n.writeState(); err != nil {
		return nil, err
	}
	return n, errors.Join(n.save(), n.makeInstances())
}

func buildOrFind(ctx context.Context, o *options) (*native.Artifacts, error) {
	if o.libDir != "" {
		return native.Prebuilt(o.libDir)
	}
	return BuildLibrary(ctx, o.cache)
}

// applyChanges works on a copy: a preset may be used for many nodes.
func applyChanges(file *nodefile.File, changes []func(*nodefile.File)) (*nodefile.File, error) {
	raw, err := json.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("copy node file: %w", err)
	}
	out := &nodefile.File{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("copy node file: %w", err)
	}
	for _, change := range changes {
		change(out)
	}
	return out, nil
}

func prepareDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, nodeFileName)); err != nil {
		return fmt.Errorf("%s is not empty and %w; choose another directory", dir, ErrNotANode)
	}
	return Remove(dir)
}

// Open opens the node in dir to look at it or to inject faults.
func Open(dir string) (*Node, error) {
	text, err := os.ReadFile(filepath.Join(dir, nodeFileName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w; make one with `gpusim create --preset hgx-h100-8 %s`", dir, ErrNotANode, dir)
	}
	if err != nil {
		return nil, err
	}
	file, err := nodefile.Parse(text)
	if err != nil {
		return nil, err
	}
	return newNode(dir, file)
}

func newNode(dir string, file *nodefile.File) (*Node, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	resolved, err := nodefile.Resolve(file)
	if err != nil {
		return nil, err
	}
	layout := rootfs.Layout{Dir: abs, Version: resolved.Driver.Version}
	return &Node{layout: layout, file: file, node: resolved}, nil
}

// Remove deletes the node in dir; a directory that holds no node is left alone.
func Remove(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, nodeFileName)); err != nil {
		return fmt.Errorf("%s: %w", dir, ErrNotANode)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) builder() *rootfs.Builder {
	return &rootfs.Builder{Layout: n.layout, Node: n.node, Native: n.native}
}

func (n *Node) save() error {
	text, err := yaml.Marshal(n.file)
	if err != nil {
		return err
	}
	// Who reads the log waits for a file that grows.
	log, err := os.OpenFile(n.KernelLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(log.Close(), os.WriteFile(filepath.Join(n.layout.Dir, nodeFileName), text, 0o644))
}

func (n *Node) writeState() error {
	state, err := Compile(n.node)
	if err != nil {
		return err
	}
	return simstate.Create(n.layout.State(), state)
}

// Dir is the directory that holds the node.
func (n *Node) Dir() string { return n.layout.Dir }

// DriverRoot is the driver root: usr/, lib/, etc/ and dev/ lie in it.
func (n *Node) DriverRoot() string { return n.layout.Driver() }

// DevRoot is the root whose dev/ holds the device nodes: the driver root.
func (n *Node) DevRoot() string { return n.layout.Driver() }

// ProcRoot is the directory that replaces /proc.
func (n *Node) ProcRoot() string { return n.layout.Proc() }

// SysRoot is the directory that replaces /sys.
func (n *Node) SysRoot() string { return n.layout.Sys() }

// Library is the path of the simulated libnvidia-ml.so.1.
func (n *Node) Library() string { return filepath.Join(n.layout.Lib(), "libnvidia-ml.so.1") }

// SMI is the path of the simulated nvidia-smi.
func (n *Node) SMI() string { return filepath.Join(n.layout.Driver(), "usr/bin/nvidia-smi") }

// StateFile is the path of the shared state.
func (n *Node) StateFile() string { return n.layout.State() }

// Spec is the resolved description of the node; callers must not change it.
func (n *Node) Spec() *nodefile.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.node
}

// GPUCount is the number of boards, visible or not.
func (n *Node) GPUCount() int { return len(n.Spec().GPUs) }

// UUIDs returns the UUID of every board in PCI order.
func (n *Node) UUIDs() []string {
	spec := n.Spec()
	out := make([]string, len(spec.GPUs))
	for i := range spec.GPUs {
		out[i] = spec.GPUs[i].UUID
	}
	return out
}

// update changes the shared state.
func (n *Node) update(change func(*simstate.Node) error) error {
	file, err := simstate.Open(n.layout.State())
	if err != nil {
		return err
	}
	return errors.Join(file.Update(change), file.Close())
}

// look reads the shared state, of which State makes a copy: that is large.
func (n *Node) look(read func(*simstate.Node) error) error {
	file, err := simstate.Open(n.layout.State())
	if err != nil {
		return err
	}
	return errors.Join(file.Read(read), file.Close())
}

// State returns a copy of the shared state.
func (n *Node) State() (*simstate.Node, error) {
	file, err := simstate.Open(n.layout.State())
	if err != nil {
		return nil, err
	}
	state, err := file.Snapshot()
	return state, errors.Join(err, file.Close())
}

// TB is what New needs of a test or benchmark.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	TempDir() string
	Context() context.Context
}

// New creates a node from a preset in a directory that goes with the test.
func New(t TB, preset string, opts ...Option) *Node {
	t.Helper()
	file, err := nodefile.Preset(preset)
	if err != nil {
		t.Fatalf("simulated node: %v", err)
	}
	return NewFromFile(t, file, opts...)
}

// NewFromFile creates a node from a node file in a directory that goes with the test.
func NewFromFile(t TB, file *nodefile.File, opts ...Option) *Node {
	t.Helper()
	opts = append([]Option{WithCacheDir(cmp.Or(os.Getenv("GPUSIM_CACHE"), ""))}, opts...)
	n, err := Create(t.Context(), filepath.Join(t.TempDir(), "node"), file, opts...)
	if err != nil {
		t.Fatalf("simulated node: %v", err)
	}
	return n
}
