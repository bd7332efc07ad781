package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

const (
	// socketAge is the age from which a socket that refuses cannot be one that is about to listen.
	socketAge = time.Minute
	dialLimit = 200 * time.Millisecond
)

// removeStaleSockets removes the sockets of instances that were killed. Nobody else does, and the
// kubelet would dial each of them again and again.
func (a *Agent) removeStaleSockets(ctx context.Context) {
	for _, path := range a.sockets() {
		if !isStale(ctx, path) {
			continue
		}
		err := os.Remove(path)
		klog.FromContext(ctx).Info("Removed the socket of an instance that was killed", "path", path, "error", err)
	}
}

// sockets lists the sockets of this driver's instances, by the names that the library gives them.
func (a *Agent) sockets() []string {
	var paths []string
	for dir, ours := range map[string]func(name string) bool{
		a.config.DataDir(): func(name string) bool {
			return strings.HasPrefix(name, "dra") && strings.HasSuffix(name, ".sock")
		},
		a.config.KubeletRegistryDir: func(name string) bool {
			return strings.HasPrefix(name, a.config.DriverName+"-") && strings.HasSuffix(name, "reg.sock")
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

// isStale tells whether nobody listens on a socket that has been there for a while.
func isStale(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || time.Since(info.ModTime()) < socketAge {
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
