//go:build cluster

package cluster_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// machine lists what a cluster changes on this machine while it runs: mounts, interfaces,
// addresses, routes, control groups, kernel settings, folders, and its processes.
func machine(t *testing.T) map[string][]string {
	t.Helper()
	state := map[string][]string{}
	for name, line := range map[string][]string{
		"links":     {"ip", "-o", "link"},
		"addresses": {"ip", "-o", "addr", "show", "scope", "global"},
		"routes":    {"ip", "route"},
	} {
		out, err := exec.Command(line[0], line[1:]...).Output()
		must(t, err)
		state[name] = strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	state["mounts"] = strings.Split(strings.TrimSpace(string(mounts)), "\n")
	state["cgroups"] = folders(t, "/sys/fs/cgroup", 9)
	for _, dir := range []string{"/run", "/etc/cdi", "/var/lib", "/var/log", "/var/tmp", "/opt", "/usr/libexec"} {
		state[dir] = folders(t, dir, 2)
	}
	state["sysctls"] = sysctls(t)
	state["processes"] = processes(t)
	return state
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

// processes lists the programs of a cluster that run, whoever's they are. What has ended but
// is not reaped yet has no command line.
func processes(t *testing.T) []string {
	t.Helper()
	names := []string{"etcd", "kube-apiserver", "kube-controller", "kube-scheduler", "kubelet", "containerd", "containerd-shim", "runc", "pause"}
	var found []string
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	must(t, err)
	for _, f := range files {
		raw, err := os.ReadFile(f)
		line, lineErr := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		if errors.Join(err, lineErr) != nil || len(line) == 0 {
			continue
		}
		if name := strings.TrimSpace(string(raw)); slices.Contains(names, name) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}
