package cdi

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Root is one directory of the host in its two views.
type Root struct {
	// Host is the path as the host and the container runtime see it: it goes into specs.
	Host string
	// Container is the path under which this process sees the same directory.
	Container string
}

// NodeWant is a device node that a device needs.
type NodeWant struct {
	// Name is its path below the directory of device nodes: "nvidia3", "nvidia-caps/nvidia-cap21".
	Name string
	// Drivers are the names under which the kernel may list the node's major number in
	// /proc/devices; the first that is listed counts.
	Drivers []string
	// Minor is the expected minor number; nil where only the major is known beforehand.
	Minor *int
	// Optional nodes are left out of the spec where they are missing or not right.
	Optional bool
}

// Names of the kernel drivers' major numbers in /proc/devices. Open kernel module sources:
// nvidia registers "nvidia" (before release 550 "nvidia-frontend"), nvidia-uvm its own.
const (
	driverNVIDIA   = "nvidia"
	driverFrontend = "nvidia-frontend"
	driverCtl      = "nvidiactl"
	driverUVM      = "nvidia-uvm"
	driverCaps     = "nvidia-caps"
	driverModeset  = "nvidia-modeset"
)

// GPUNode is the node of the physical GPU with that minor number.
func GPUNode(minor int) NodeWant {
	return NodeWant{Name: "nvidia" + strconv.Itoa(minor), Drivers: []string{driverNVIDIA, driverFrontend}, Minor: &minor}
}

// CapNode is the node of the capability with that minor number: access to a GPU or compute
// instance.
func CapNode(minor int) NodeWant {
	return NodeWant{Name: "nvidia-caps/nvidia-cap" + strconv.Itoa(minor), Drivers: []string{driverCaps}, Minor: &minor}
}

// controlNodes are needed by every container with a GPU. The minor numbers are those of the
// kernel modules (nv.h: control device 255, modeset 254; UVM 0 and 1).
func controlNodes() []NodeWant {
	minor := func(n int) *int { return &n }
	frontend := []string{driverNVIDIA, driverFrontend, driverCtl}
	return []NodeWant{
		{Name: "nvidiactl", Drivers: frontend, Minor: minor(255)},
		{Name: "nvidia-uvm", Drivers: []string{driverUVM}, Minor: minor(0)},
		{Name: "nvidia-uvm-tools", Drivers: []string{driverUVM}, Minor: minor(1)},
		{Name: "nvidia-modeset", Drivers: append([]string{driverModeset}, frontend...), Minor: minor(254), Optional: true},
	}
}

// NodeError tells that a device node is missing on the host or not what it should be. Trying
// again helps once the node is there.
type NodeError struct {
	// Path is the node's path on the host.
	Path string
	// Problem says what was found, Remedy what to do about it.
	Problem, Remedy string
	Err             error
}

// What to do about a node. A node that is there is left alone by the tools that make nodes.
const (
	makeNodes    = "run \"nvidia-modprobe -u -c=0 -m\" or \"nvidia-smi\" to make the nodes"
	remedyMake   = "on the host, " + makeNodes + ", and see that --dev-root is the host's directory of device nodes"
	remedyRemake = "see that --dev-root is the host's directory of device nodes; if it is, remove this one on the host, then " + makeNodes
	remedyLoad   = "on the host, load the kernel module, such as with \"nvidia-modprobe -u -c=0 -m\", and see that --proc-root-mount is the host's /proc"
	remedyAccess = "see that --dev-root is the host's directory of device nodes and that this process may read it"
)

func (e *NodeError) Error() string {
	msg := fmt.Sprintf("device node %s %s; %s", e.Path, e.Problem, e.Remedy)
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", msg, e.Err)
	}
	return msg
}

func (e *NodeError) Unwrap() error { return e.Err }

// NodeStat is what the file system says of a path.
type NodeStat struct {
	Mode         fs.FileMode
	Major, Minor uint32
}

// Stat reads a path without following a last symbolic link; the product's is Lstat.
type Stat func(path string) (NodeStat, error)

// Lstat asks the file system.
func Lstat(name string) (NodeStat, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return NodeStat{}, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return NodeStat{}, err
	}
	return NodeStat{Mode: info.Mode(), Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}, nil
}

// Majors knows the character devices that the kernel lists in /proc/devices: sysfs.Tree.
type Majors interface {
	// Majors maps the drivers' names to their major numbers.
	Majors(ctx context.Context) (map[string]uint32, error)
}

// Host looks at the device nodes of the host.
type Host struct {
	// Dev is the directory of device nodes, /dev on the host.
	Dev Root
	// Majors is asked each time: a reloaded kernel module may have another number.
	Majors Majors
	Stat   Stat
}

func (h *Host) majors(ctx context.Context) (map[string]uint32, error) {
	majors, err := h.Majors.Majors(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's major numbers: %w", err)
	}
	return majors, nil
}

// resolve looks each node up and returns it as specs have it, in the order of the arguments.
// It stops at the first fault, a *NodeError: missing nodes have one cause.
func (h *Host) resolve(wants []NodeWant, majors map[string]uint32) ([]*specs.DeviceNode, error) {
	nodes := make([]*specs.DeviceNode, 0, len(wants))
	for _, want := range wants {
		node, err := h.look(want, majors)
		if err != nil {
			return nil, err
		}
		if node != nil {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// look gives nil for an optional node that cannot be used.
func (h *Host) look(want NodeWant, majors map[string]uint32) (*specs.DeviceNode, error) {
	hostPath := filepath.Join(h.Dev.Host, want.Name)
	bad := func(err error, remedy, format string, args ...any) (*specs.DeviceNode, error) {
		if want.Optional {
			return nil, nil
		}
		return nil, &NodeError{Path: hostPath, Problem: fmt.Sprintf(format, args...), Remedy: remedy, Err: err}
	}
	st, err := h.Stat(filepath.Join(h.Dev.Container, want.Name))
	switch {
	case os.IsNotExist(err):
		return bad(nil, remedyMake, "is missing")
	case err != nil:
		return bad(err, remedyAccess, "cannot be looked at")
	case st.Mode&fs.ModeCharDevice == 0:
		return bad(nil, remedyRemake, "is not a character device but %s", kindOf(st.Mode))
	}
	major, driver, ok := firstListed(want.Drivers, majors)
	switch {
	case !ok:
		return bad(nil, remedyLoad, "has no driver: /proc/devices lists none of %s, so the kernel module is not loaded", strings.Join(want.Drivers, ", "))
	case st.Major != major:
		return bad(nil, remedyRemake, "has major number %d, but the kernel driver %s has %d", st.Major, driver, major)
	case want.Minor != nil && st.Minor != uint32(*want.Minor):
		return bad(nil, remedyRemake, "has minor number %d instead of %d", st.Minor, *want.Minor)
	}
	mode := fs.FileMode(0o666)
	node := &specs.DeviceNode{
		Path: path.Join("/dev", want.Name), HostPath: hostPath,
		// With type and major given, the runtime takes the numbers from here and does not
		// look at the host path again.
		Type: "c", Major: int64(st.Major), Minor: int64(st.Minor), FileMode: &mode, Permissions: "rwm",
	}
	if node.HostPath == node.Path {
		// The same meaning in specs that older runtimes read as well.
		node.HostPath = ""
	}
	return node, nil
}

// kindOf is what people call a file of that mode.
func kindOf(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeDevice:
		return "a block device"
	case fs.ModeNamedPipe:
		return "a named pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return fmt.Sprintf("a file of type %s", mode.Type())
}

func firstListed(drivers []string, majors map[string]uint32) (major uint32, driver string, ok bool) {
	for _, d := range drivers {
		if major, ok := majors[d]; ok {
			return major, d, true
		}
	}
	return 0, "", false
}
