// Package leavings removes what killed instances of the plugin left behind: sockets on which nobody
// listens, and files that they were writing. It is for package agent. It must not know claims:
// what they left is the reconciler's.
package leavings

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

const (
	// socketAge is the age from which a socket that refuses cannot be one that is about to listen.
	socketAge = time.Minute
	dialLimit = 200 * time.Millisecond
	// tempAge is the age from which a temporary file cannot belong to a write in progress.
	tempAge = 5 * time.Minute
)

// Dirs are the directories in which an instance leaves things.
type Dirs struct {
	// Driver is the driver's name.
	Driver string
	// Data is the driver's directory, Registry that in which the kubelet looks for plugins.
	Data, Registry string
}

// RemoveStaleSockets removes the sockets of instances that were killed. Nobody else does, and the
// kubelet would dial each of them again and again.
func (d Dirs) RemoveStaleSockets(ctx context.Context) { d.removeSockets(ctx, socketAge) }

// RemoveDeadSockets does so for who is the only instance: however young, none is about to listen. A
// socket that somebody listens on is another driver's of the same name.
func (d Dirs) RemoveDeadSockets(ctx context.Context) { d.removeSockets(ctx, 0) }

func (d Dirs) removeSockets(ctx context.Context, age time.Duration) {
	for _, path := range d.sockets() {
		if !isStale(ctx, path, age) {
			continue
		}
		err := os.Remove(path)
		klog.FromContext(ctx).Info("Removed the socket of an instance that was killed", "path", path, "error", err)
	}
}

// sockets lists the sockets of this driver's instances, by the names that the library gives them.
func (d Dirs) sockets() []string {
	var paths []string
	for dir, ours := range map[string]func(name string) bool{
		d.Data: func(name string) bool {
			return strings.HasPrefix(name, "dra") && strings.HasSuffix(name, ".sock")
		},
		d.Registry: func(name string) bool {
			return strings.HasPrefix(name, d.Driver+"-") && strings.HasSuffix(name, "reg.sock")
		},
	} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.Type()&os.ModeSocket != 0 && ours(e.Name()) {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	return paths
}

// isStale tells whether nobody listens on a socket that has been there for so long.
func isStale(ctx context.Context, path string, age time.Duration) bool {
	info, err := os.Lstat(path)
	if err != nil || time.Since(info.ModTime()) < age {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// RemoveTemps removes what killed processes left of files that they were writing in the data
// directory, of the given names; the directories below it sweep themselves.
func (d Dirs) RemoveTemps(ctx context.Context, names ...string) {
	entries, err := os.ReadDir(d.Data)
	if err != nil {
		return
	}
	for _, e := range entries {
		ours := slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(e.Name(), "."+name) })
		info, err := e.Info()
		if !ours || !e.Type().IsRegular() || err != nil || time.Since(info.ModTime()) < tempAge {
			continue
		}
		klog.FromContext(ctx).Info("Removed a file that a killed process did not finish", "file", e.Name(), "error", os.Remove(filepath.Join(d.Data, e.Name())))
	}
}
