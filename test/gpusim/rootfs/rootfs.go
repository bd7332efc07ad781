// Package rootfs lays out what a machine with an NVIDIA driver shows to software: the
// driver's files, device nodes, proc and sysfs, all below one directory.
//
//	<dir>/driver        the driver root, with dev/, proc/, usr/, lib/ and etc/ (also the dev root)
//	<dir>/proc          what replaces /proc: a link to the driver root's
//	<dir>/sys           what replaces /sys
//
// It knows how files look, not what the simulated library answers: the state file is
// written by the caller.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Layout names the places of one root.
type Layout struct {
	// Dir holds everything.
	Dir string
	// Version is the driver's version, part of many file names.
	Version string
}

// Driver is the driver root; it holds dev/ and so is the dev root as well.
func (l Layout) Driver() string { return filepath.Join(l.Dir, "driver") }

// Dev is the directory of device nodes.
func (l Layout) Dev() string { return filepath.Join(l.Driver(), "dev") }

// Proc replaces /proc. It is a link to a directory of the driver root: who may write that
// (the simulated library that makes a MIG instance, in a container) can show capabilities.
func (l Layout) Proc() string { return filepath.Join(l.Dir, "proc") }

// Sys replaces /sys.
func (l Layout) Sys() string { return filepath.Join(l.Dir, "sys") }

// Lib is the directory of the driver's libraries.
func (l Layout) Lib() string { return filepath.Join(l.Driver(), "usr", "lib", Triplet()) }

// State is the state file, beside the library and named so that tools which collect a
// driver's libraries by version mount it into containers.
func (l Layout) State() string { return filepath.Join(l.Lib(), "libnvidia-simstate.so."+l.Version) }

// NodePath is the device node of a GPU.
func (l Layout) NodePath(minor uint32) string {
	return filepath.Join(l.Dev(), fmt.Sprintf("nvidia%d", minor))
}

// Triplet is the library directory of this machine's architecture.
func Triplet() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

// Parts are the names of what a node file may list as missing.
func Parts() []string {
	return []string{"computeLibraries", "firmware", "graphics", "migMinors", "modeset", "mps", "persistenced", "procVersion", "smi", "uvm", "uvmTools"}
}

// ErrUnknownPart says that a node file leaves out a part that does not exist.
var ErrUnknownPart = errors.New("unknown part")

// Native are the built files that a root needs.
type Native struct {
	Library string
	// Programs are the driver's tools by their names.
	Programs map[string]string
	// Stub is a shared library whose SONAME is StubName.
	Stub string
}

// Builder lays out one node.
type Builder struct {
	Layout
	Node   *nodefile.Node
	Native Native
}

func (b *Builder) has(part string) bool { return !slices.Contains(b.Node.Missing, part) }

// Create lays out everything but the state file. Directories that exist are kept.
func (b *Builder) Create() error {
	for _, part := range b.Node.Missing {
		if !slices.Contains(Parts(), part) {
			return fmt.Errorf("missing: %w %q: must be one of %s", ErrUnknownPart, part, strings.Join(Parts(), ", "))
		}
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{{"proc", b.linkProc}, {"driver files", b.driver}, {"device nodes", b.Devices}, {"proc", b.proc}, {"sysfs", b.sys}} {
		if err := step.run(); err != nil {
			return fmt.Errorf("lay out %s in %s: %w", step.name, b.Dir, err)
		}
	}
	return nil
}

func (b *Builder) linkProc() error {
	if err := os.MkdirAll(filepath.Join(b.Driver(), "proc"), 0o755); err != nil {
		return err
	}
	return link("driver/proc", b.Proc())
}

// Boot lays out anew what a reboot changes: device nodes, the files of every GPU, and the
// boot id.
func (b *Builder) Boot() error {
	if err := errors.Join(b.Devices(), b.ProcGPUs(), b.bootID()); err != nil {
		return err
	}
	for i := range b.Node.GPUs {
		if err := b.sysGPU(&b.Node.GPUs[i]); err != nil {
			return err
		}
	}
	return nil
}

// Devices makes the device nodes of the driver and of every GPU, replacing those there are.
func (b *Builder) Devices() error {
	if err := os.MkdirAll(filepath.Join(b.Dev(), "nvidia-caps"), 0o755); err != nil {
		return err
	}
	for _, pattern := range []string{"nvidia[0-9]*", "nvidia-caps/nvidia-cap*"} {
		if err := removeAll(filepath.Join(b.Dev(), pattern)); err != nil {
			return err
		}
	}
	majors := b.Node.Majors
	nodes := []struct {
		name         string
		major, minor uint32
		mode         uint32
		part         string
	}{
		{"nvidiactl", majors.GPU, 255, 0o666, ""},
		{"nvidia-modeset", majors.GPU, 254, 0o666, "modeset"},
		{"nvidia-uvm", majors.UVM, 0, 0o666, "uvm"},
		{"nvidia-uvm-tools", majors.UVM, 1, 0o666, "uvmTools"},
		{"nvidia-caps/nvidia-cap1", majors.Caps, 1, 0o400, ""},
		{"nvidia-caps/nvidia-cap2", majors.Caps, 2, 0o444, ""},
		{"null", 1, 3, 0o666, ""},
	}
	for _, n := range nodes {
		if n.part != "" && !b.has(n.part) {
			continue
		}
		if err := mknod(filepath.Join(b.Dev(), n.name), n.major, n.minor, n.mode); err != nil {
			return err
		}
	}
	for i := range b.Node.GPUs {
		if err := b.deviceNode(&b.Node.GPUs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Builder) deviceNode(gpu *nodefile.ResolvedGPU) error {
	return mknod(b.NodePath(gpu.Minor), b.Node.Majors.GPU, gpu.Minor, 0o666)
}

func mknod(path string, major, minor, mode uint32) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(major, minor)))
	if err != nil {
		return fmt.Errorf("make device node %s (%d:%d): %w; the simulator needs root (CAP_MKNOD) and a file system without nodev", path, major, minor, err)
	}
	// The umask must not narrow what the driver promises.
	return os.Chmod(path, fs.FileMode(mode))
}

// AddGPU makes a board visible that RemoveGPU took away.
func (b *Builder) AddGPU(gpu *nodefile.ResolvedGPU) error {
	return errors.Join(b.sysGPU(gpu), b.procGPU(gpu), b.deviceNode(gpu))
}

// RemoveGPU takes a board's device nodes, proc and sysfs entries away.
func (b *Builder) RemoveGPU(gpu *nodefile.ResolvedGPU) error {
	address := gpu.PCI.String()
	return errors.Join(
		remove(b.NodePath(gpu.Minor)),
		b.removeCaps(gpu),
		os.RemoveAll(filepath.Join(b.Proc(), "driver/nvidia/gpus", address)),
		remove(filepath.Join(b.Sys(), "bus/pci/devices", address)),
		remove(filepath.Join(b.Sys(), "bus/pci/drivers/nvidia", address)),
		remove(filepath.Join(b.Sys(), iommuGroup(gpu), "devices", address)),
		os.RemoveAll(filepath.Join(b.Sys(), devicePath(gpu))),
	)
}

// removeCaps takes away the capabilities of a board's MIG instances.
func (b *Builder) removeCaps(gpu *nodefile.ResolvedGPU) error {
	first := CapMinor(int(gpu.Minor), 0, -1)
	for minor := first; minor < CapMinor(int(gpu.Minor)+1, 0, -1); minor++ {
		if err := remove(filepath.Join(b.Dev(), fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor))); err != nil {
			return err
		}
	}
	return os.RemoveAll(b.capabilities(gpu))
}

// removeAll removes the files that match a pattern.
func removeAll(pattern string) error {
	paths, err := filepath.Glob(pattern)
	for _, path := range paths {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// write makes a file, and the directories above it where they are missing.
func write(path, content string) error {
	err := os.WriteFile(path, []byte(content), 0o644)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}

// link makes a symbolic link, replacing what is there.
func link(target, path string) error {
	err := os.Symlink(target, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	case errors.Is(err, fs.ErrExist):
		err = os.Remove(path)
	default:
		return err
	}
	if err != nil {
		return err
	}
	return os.Symlink(target, path)
}
