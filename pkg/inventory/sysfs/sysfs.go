// Package sysfs reads what the kernel knows of a node's GPUs: the PCI bus under the sysfs root
// and device numbers and the driver module under the proc root. It is the Bus of a scan and
// tells the CDI writer the majors of device nodes. It must not know NVML, and it reads nothing
// outside its two roots: symbolic links that lead out of them are errors.
package sysfs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

const (
	pciDevices   = "bus/pci/devices"
	vendorNVIDIA = 0x10de
	// The upper 16 bits of the PCI class code: VGA controllers and 3D controllers.
	classVGA = 0x0300
	class3D  = 0x0302
)

// Tree reads below two directories. It keeps nothing; every call reads anew.
type Tree struct {
	sys, proc string
}

var _ inventory.Bus = (*Tree)(nil)

// New makes a Tree; sys and proc are where this process sees the node's /sys and /proc.
func New(sys, proc string) *Tree { return &Tree{sys: sys, proc: proc} }

// GPUs lists the NVIDIA display devices of the PCI bus by address. What cannot be read of one
// device is an error of that fact, or leaves the device out when it is its vendor or class:
// such errors are returned beside the other devices. The error is nil for a node without PCI.
func (t *Tree) GPUs(ctx context.Context) ([]inventory.Function, error) {
	root, err := os.OpenRoot(t.sys)
	if err != nil {
		return nil, fmt.Errorf("sysfs root: %w", err)
	}
	defer func() { _ = root.Close() }()
	tree, ok := root.FS().(fs.ReadLinkFS)
	if !ok {
		return nil, errors.New("sysfs root cannot read symbolic links")
	}
	entries, err := fs.ReadDir(tree, pciDevices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("PCI devices: %w", err)
	}
	var functions []inventory.Function
	var unreadable []error
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("reading the PCI bus: %w", err)
		}
		isGPU, err := isGPU(tree, e.Name())
		if err != nil {
			unreadable = append(unreadable, err)
		}
		if isGPU {
			functions = append(functions, function(tree, e.Name()))
		}
	}
	return functions, errors.Join(unreadable...)
}

// isGPU tells whether a directory of the bus is an NVIDIA display device.
func isGPU(tree fs.FS, name string) (bool, error) {
	vendor, err := readHex(tree, path.Join(pciDevices, name, "vendor"))
	if errors.Is(err, fs.ErrNotExist) {
		// Unplugged between the listing and now.
		return false, nil
	}
	if err != nil || vendor != vendorNVIDIA {
		return false, err
	}
	class, err := readHex(tree, path.Join(pciDevices, name, "class"))
	if err != nil {
		return false, err
	}
	if kind := class >> 8; kind != classVGA && kind != class3D {
		return false, nil
	}
	if _, err := pci.Parse(name); err != nil {
		return false, fmt.Errorf("PCI device: %w", err)
	}
	return true, nil
}

// function reads one device; name is an address that Parse takes.
func function(tree fs.ReadLinkFS, name string) inventory.Function {
	address, _ := pci.Parse(name)
	dir := path.Join(pciDevices, name)
	f := inventory.Function{PCI: address, NUMANode: numaNode(tree, dir), PCIeRoot: pcieRoot(tree, name)}
	if id, err := readHex(tree, path.Join(dir, "device")); err == nil && id <= math.MaxUint16 {
		f.Device = uint16(id)
	}
	if target, err := tree.ReadLink(path.Join(dir, "driver")); err == nil {
		f.Driver = path.Base(target)
	}
	if target, err := tree.ReadLink(path.Join(dir, "physfn")); err == nil {
		if physical, err := pci.Parse(path.Base(target)); err == nil {
			f.Physical = &physical
		}
	}
	return f
}

// numaNode reads the kernel's node of the device, which it gives as -1 when it knows none.
func numaNode(tree fs.FS, dir string) inventory.Fact[int] {
	text, err := readText(tree, path.Join(dir, "numa_node"))
	if errors.Is(err, fs.ErrNotExist) {
		// A kernel without NUMA has no such file.
		return inventory.Unknown[int](inventory.ErrNotSupported)
	}
	if err != nil {
		return inventory.Unknown[int](err)
	}
	node, err := strconv.Atoi(text)
	if err != nil {
		return inventory.Unknown[int](fmt.Errorf("NUMA node: %w", err))
	}
	if node < 0 {
		return inventory.Unknown[int](inventory.ErrNotSupported)
	}
	return inventory.Known(node)
}

// pcieRoot asks the library that defines the attribute, so that it has the same value as that
// of every other driver on the node.
func pcieRoot(tree fs.ReadLinkFS, name string) inventory.Fact[string] {
	attribute, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(name, deviceattribute.WithFS(tree))
	if err != nil {
		return inventory.Unknown[string](err)
	}
	if attribute.Value.StringValue == nil {
		return inventory.Unknown[string](inventory.ErrNotSupported)
	}
	return inventory.Known(*attribute.Value.StringValue)
}

func readText(tree fs.FS, name string) (string, error) {
	data, err := fs.ReadFile(tree, name)
	if err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(data)), nil
}

func readHex(tree fs.FS, name string) (uint64, error) {
	text, err := readText(tree, name)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// DriverModule is the version of the loaded NVIDIA kernel module, "580.95.05", from
// <proc>/driver/nvidia/version; empty when no module is loaded.
func (t *Tree) DriverModule(ctx context.Context) (string, error) {
	data, err := t.procFile(ctx, "driver/nvidia/version")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("version of the NVIDIA kernel module: %w", err)
	}
	return ParseDriverModule(data)
}

// Majors maps the names of character devices to their major numbers, from <proc>/devices:
// "nvidia" (or "nvidia-frontend" before driver 550), "nvidia-uvm", "nvidia-caps". The numbers
// of the last two are assigned anew at every load of the module: read them when they are needed.
func (t *Tree) Majors(ctx context.Context) (map[string]uint32, error) {
	data, err := t.procFile(ctx, "devices")
	if err != nil {
		return nil, fmt.Errorf("majors of character devices from %s: %w; --proc-root-mount must be where this process sees the host's /proc", path.Join(t.proc, "devices"), err)
	}
	return ParseMajors(data), nil
}

func (t *Tree) procFile(ctx context.Context, name string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(t.proc)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return root.ReadFile(name)
}

// ParseDriverModule finds the version in the module's version file, whose first line reads
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  <date>" or, for the open module,
// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build".
func ParseDriverModule(data []byte) (string, error) {
	first, _, _ := bytes.Cut(data, []byte("\n"))
	line, ok := bytes.CutPrefix(first, []byte("NVRM version:"))
	if ok {
		// The version is the first word of digits and dots; vendors append "-custom".
		if v := regexp.MustCompile(`(?:^|\s)(\d+\.\d+\S*)`).FindSubmatch(line); v != nil {
			return string(v[1]), nil
		}
	}
	return "", fmt.Errorf("no version in %q, want a line that starts with \"NVRM version:\"", first)
}

// ParseMajors reads the character devices of /proc/devices. Lines that are no "number name"
// pair are skipped; of two majors with one name the first counts.
func ParseMajors(data []byte) map[string]uint32 {
	majors := map[string]uint32{}
	characters := false
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasSuffix(line, ":") {
			characters = line == "Character devices:"
			continue
		}
		number, name, ok := strings.Cut(line, " ")
		major, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil || !characters {
			continue
		}
		if _, taken := majors[name]; !taken {
			majors[name] = uint32(major)
		}
	}
	return majors
}
