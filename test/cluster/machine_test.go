//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// machine lists what a cluster changes on this machine while it runs: mounts, interfaces,
// addresses, routes, control groups, kernel settings, folders, and its processes. What
// belongs to other clusters, with state folders not below root, is left out; alone tells
// whether there are none, and only then are kernel settings and shared folders listed.
func machine(t *testing.T, root string) (state map[string][]string, alone bool) {
	t.Helper()
	state = map[string][]string{}
	own, others := processes(t, root)
	state["processes"] = own
	for name, line := range map[string][]string{
		"links":     {"ip", "-o", "link"},
		"addresses": {"ip", "-o", "addr", "show", "scope", "global"},
		"routes":    {"ip", "route"},
	} {
		out, err := exec.CommandContext(context.Background(), line[0], line[1:]...).Output()
		must(t, err)
		state[name] = withoutOthers(strings.Split(strings.TrimSpace(string(out)), "\n"))
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if !strings.HasPrefix(line, "nsfs ") || strings.Contains(line, root) {
			state["mounts"] = append(state["mounts"], line)
		}
	}
	// A cluster has one group at the top of each hierarchy; deeper ones are other programs'.
	state["cgroups"] = withoutOthers(folders(t, "/sys/fs/cgroup", 2))
	if len(others) > 0 {
		return state, false
	}
	for _, dir := range []string{"/run", "/etc/cdi", "/var/lib", "/var/log", "/opt", "/usr/libexec"} {
		state[dir] = folders(t, dir, 2)
	}
	state["sysctls"] = sysctls(t)
	return state, true
}

// otherCluster matches the name that a cluster's link and control group have, those of this
// test excepted.
var otherCluster = regexp.MustCompile(`\bkc-(.*)`)

func withoutOthers(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		m := otherCluster.FindStringSubmatch(line)
		return m != nil && !strings.HasPrefix(m[1], smokeName)
	})
}

// folders lists the folders below dir, down to a depth.
func folders(t *testing.T, dir string, depth int) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		if e.IsDir() {
			found = append(found, path)
			if strings.Count(strings.TrimPrefix(path, dir), "/") >= depth {
				return fs.SkipDir
			}
		}
		return nil
	})
	must(t, err)
	return found
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return err
}

// sysctls reads the settings of the machine, those of this network namespace included.
func sysctls(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"kernel/*", "kernel/keys/*", "vm/*", "net/ipv4/ip_forward", "net/ipv4/conf/all/*", "fs/inotify/*"} {
		files, err := filepath.Glob("/proc/sys/" + pattern)
		must(t, err)
		for _, f := range files {
			// Counters and values that the kernel tunes by itself.
			if slices.Contains([]string{"ns_last_pid", "pty", "random", "tainted", "perf_event_max_sample_rate"}, filepath.Base(f)) {
				continue
			}
			if raw, err := os.ReadFile(f); err == nil {
				found = append(found, f+"="+strings.TrimSpace(string(raw)))
			}
		}
	}
	return found
}

// processes lists every process of a cluster whose state folder is below root, and the
// state folders of other clusters.
func processes(t *testing.T, root string) (own, others []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	must(t, err)
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		for pair := range strings.SplitSeq(string(raw), "\x00") {
			owner, marked := strings.CutPrefix(pair, "TEST_CLUSTER_OWNER=")
			switch {
			case marked && strings.HasPrefix(owner, root+"/"):
				own = append(own, f)
			case marked:
				others = append(others, owner)
			}
		}
	}
	return own, others
}
