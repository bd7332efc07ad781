package usage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/procstat"
)

// Numbers knows the device numbers of this moment; inventory/sysfs.Tree is one.
type Numbers interface {
	GPUMinor(ctx context.Context, at pci.Address) (int, error)
	Majors(ctx context.Context) (map[string]uint32, error)
}

// Proc looks through the open files of all processes of a /proc.
type Proc struct {
	// Root is the /proc of the host's pid namespace.
	Root    string
	Numbers Numbers
	// Self is this process, which has devices open as well.
	Self int
}

// gpuDriver is the name under which the kernel lists the device nodes of GPUs.
const gpuDriver = "nvidia-frontend"

// Open implements Openers. A program that began before the claim was prepared is not of its pods,
// where the record says when that was. Nor is one that has the node of another GPU open too: agents
// that watch a node open all of it, and containers see nothing but what their claims gave them.
func (p Proc) Open(ctx context.Context, record *journal.Record) ([]string, error) {
	own, err := p.minors(ctx, record)
	if err != nil || len(own) == 0 {
		return nil, err
	}
	majors, err := p.Numbers.Majors(ctx)
	if err != nil {
		return nil, err
	}
	major, ok := majors[gpuDriver]
	if !ok {
		if major, ok = majors["nvidia"]; !ok {
			return nil, nil // no driver, nothing is open
		}
	}
	boot, err := p.bootTime()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(p.Root)
	if err != nil {
		return nil, fmt.Errorf("processes of the host: %w", err)
	}
	var users []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == p.Self || !within(p.openMinors(pid, major), own) {
			continue
		}
		if began, err := p.began(pid, boot); err != nil || began.Before(record.Created) {
			continue
		}
		users = append(users, fmt.Sprintf("process %d (%s)", pid, p.command(pid)))
	}
	return users, ctx.Err()
}

// within tells whether something is open and nothing but one's own.
func within(open, own []int) bool {
	return len(open) > 0 && !slices.ContainsFunc(open, func(minor int) bool { return !slices.Contains(own, minor) })
}

// minors are the numbers of the GPUs that the record owns.
func (p Proc) minors(ctx context.Context, record *journal.Record) ([]int, error) {
	var out []int
	for _, d := range record.Devices {
		// The node of a GPU is open to the claims of all its partitions.
		if d.AdminAccess || d.Partition != "" {
			continue
		}
		minor, err := p.Numbers.GPUMinor(ctx, d.PCI)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, minor)
	}
	return out, nil
}

// maxGPUMinor is the highest number of a GPU's node; control nodes have the numbers above.
const maxGPUMinor = 250

// openMinors are the GPUs that a process has open, each once. A process that ended, or that may
// not be looked at, has none.
func (p Proc) openMinors(pid int, major uint32) []int {
	dir := filepath.Join(p.Root, strconv.Itoa(pid), "fd")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var minors []int
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, f.Name()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		minor := int(unix.Minor(st.Rdev))
		if unix.Major(st.Rdev) == major && minor <= maxGPUMinor && !slices.Contains(minors, minor) {
			minors = append(minors, minor)
		}
	}
	return minors
}

// began is when the process began.
func (p Proc) began(pid int, boot time.Time) (time.Time, error) {
	stat, err := procstat.Read(p.Root, pid)
	return boot.Add(time.Duration(stat.Started) * time.Second / procstat.TicksPerSecond), err
}

// bootTime is when the machine began, to the second.
func (p Proc) bootTime() (time.Time, error) {
	data, err := os.ReadFile(filepath.Join(p.Root, "stat"))
	if err != nil {
		return time.Time{}, fmt.Errorf("time of the boot: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "btime "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("time of the boot: %w", err)
			}
			return time.Unix(n, 0), nil
		}
	}
	return time.Time{}, fmt.Errorf("time of the boot: no btime in %s", filepath.Join(p.Root, "stat"))
}

// command is the process's name, for people.
func (p Proc) command(pid int) string {
	name, err := os.ReadFile(filepath.Join(p.Root, strconv.Itoa(pid), "comm"))
	if err != nil {
		return "ended"
	}
	return strings.TrimSpace(string(name))
}
