package host

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
	"syscall"
	"time"
)

// Cgroups makes and removes control groups in every hierarchy of the machine: one per
// controller in version 1, one in all in version 2, both in hybrid mode.
type Cgroups struct {
	// Root is where they are mounted, /sys/fs/cgroup.
	Root string
}

// controllersV1 are the hierarchies of version 1 that a kubelet or runc makes groups in.
func controllersV1() []string {
	return []string{
		"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "net_cls", "net_prio",
		"perf_event", "systemd", "unified",
	}
}

// delegated are the controllers of version 2 that a kubelet needs in its group.
func delegated() []string {
	return []string{"cpu", "cpuset", "memory", "pids", "io", "hugetlb"}
}

// V2 tells whether the machine has version 2 alone.
func (c Cgroups) V2() bool {
	_, err := os.Stat(filepath.Join(c.Root, "cgroup.controllers"))
	return err == nil
}

func (c Cgroups) hierarchies() []string {
	if c.V2() {
		return []string{c.Root}
	}
	var found []string
	for _, name := range controllersV1() {
		dir := filepath.Join(c.Root, name)
		// cpu may be a link to cpu,cpuacct: the same hierarchy must not be taken twice.
		if real, err := filepath.EvalSymlinks(dir); err == nil && !slices.Contains(found, real) {
			found = append(found, real)
		}
	}
	return found
}

// Make makes the group, such as "name/n0", with its parents, in every hierarchy.
func (c Cgroups) Make(group string) error {
	for _, h := range c.hierarchies() {
		dir := h
		for part := range strings.SplitSeq(group, "/") {
			if err := c.enable(dir); err != nil {
				return fmt.Errorf("cgroup %s: %w", group, err)
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("cgroup %s: %w", group, err)
			}
			if err := inheritCPUs(parent, dir); err != nil {
				return fmt.Errorf("cgroup %s: %w", group, err)
			}
		}
	}
	return nil
}

// enable hands the controllers of version 2 down to the groups below dir.
func (c Cgroups) enable(dir string) error {
	if !c.V2() {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var want []string
	for _, name := range strings.Fields(string(raw)) {
		if slices.Contains(delegated(), name) {
			want = append(want, "+"+name)
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(want, " ")), 0o644)
}

// inheritCPUs copies the CPUs and memory nodes of the parent: in version 1, a new cpuset
// has none and no process may enter it.
func inheritCPUs(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil || strings.TrimSpace(string(have)) != "" {
			continue // version 2 inherits by itself
		}
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Processes returns every process in the group and below it.
func (c Cgroups) Processes(group string) ([]int, error) {
	found := map[int]bool{}
	for _, h := range c.hierarchies() {
		err := filepath.WalkDir(filepath.Join(h, group), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.Name() != "cgroup.procs" {
				return skipGone(err)
			}
			raw, err := os.ReadFile(path)
			for field := range strings.FieldsSeq(string(raw)) {
				// 0 stands for a process outside of our own pid namespace.
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					found[pid] = true
				}
			}
			return skipGone(err)
		})
		if err != nil {
			return nil, fmt.Errorf("cgroup %s: %w", group, err)
		}
	}
	pids := make([]int, 0, len(found))
	for pid := range found {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids, nil
}

// skipGone drops the errors of groups that vanish while they are read.
func skipGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return err
}

// Kill ends every process in the group and waits until none is left.
func (c Cgroups) Kill(ctx context.Context, group string) error {
	var left []int
	err := retry(ctx, 10*time.Second, func() bool {
		pids, err := c.Processes(group)
		if err != nil {
			return false
		}
		left = pids
		for _, pid := range pids {
			// A process that is gone by now is what we want.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(pids) == 0
	})
	if err != nil {
		return fmt.Errorf("cgroup %s: processes %v do not end: %w", group, left, err)
	}
	return nil
}

// Remove removes the group and all below it from every hierarchy. A group that ends is busy
// for a moment, so it tries for a few seconds.
func (c Cgroups) Remove(ctx context.Context, group string) error {
	for _, h := range c.hierarchies() {
		dir := filepath.Join(h, group)
		var last error
		err := retry(ctx, 5*time.Second, func() bool {
			last = removeTree(dir)
			return last == nil
		})
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w: %w", dir, err, last)
		}
	}
	return nil
}

// removeTree removes the folders, deepest first; the files in them are the kernel's.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return skipGone(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return skipGone(syscall.Rmdir(dir))
}

func retry(ctx context.Context, limit time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}
