package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registry watches the directory of registration sockets. One goroutine serves each socket from its
// appearance to its removal.
type registry struct {
	kubelet *Kubelet
	watcher *fsnotify.Watcher
	sockets map[string]*socket
}

type socket struct {
	inode uint64
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func newRegistry(k *Kubelet) (*registry, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch registry: %w", err)
	}
	if err := watcher.Add(k.options.RegistryDir); err != nil {
		return nil, errors.Join(fmt.Errorf("watch registry %s: %w", k.options.RegistryDir, err), watcher.Close())
	}
	return &registry{kubelet: k, watcher: watcher, sockets: map[string]*socket{}}, nil
}

// run follows the directory until ctx ends.
func (r *registry) run(ctx context.Context) {
	defer func() {
		for path := range r.sockets {
			r.forget(path)
		}
		if err := r.watcher.Close(); err != nil {
			r.kubelet.options.Log.Warn("Closing the registry's watch failed", "err", err)
		}
	}()
	r.scan(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.watcher.Events:
			r.scan(ctx)
		case err := <-r.watcher.Errors:
			// An overflow loses events; the next scan finds what they told.
			r.kubelet.options.Log.Warn("Registry watch", "err", err)
			r.scan(ctx)
		}
	}
}

// scan compares the directory with the sockets that are served. Names that begin with a dot and
// files that are no sockets are not for the kubelet.
func (r *registry) scan(ctx context.Context) {
	found := map[string]uint64{}
	entries, err := os.ReadDir(r.kubelet.options.RegistryDir)
	if err != nil {
		r.kubelet.options.Log.Warn("Reading the registry failed", "err", err)
		return
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") || entry.Type()&fs.ModeSocket == 0 {
			continue
		}
		path := filepath.Join(r.kubelet.options.RegistryDir, entry.Name())
		if number, ok := inode(path); ok { // else it went between listing and looking
			found[path] = number
		}
	}
	for path, known := range r.sockets {
		if found[path] != known.inode {
			r.forget(path)
		}
	}
	for path, number := range found {
		if _, known := r.sockets[path]; !known {
			r.serve(ctx, path, number)
		}
	}
}

func (r *registry) forget(path string) {
	s := r.sockets[path]
	delete(r.sockets, path)
	s.stop()
	s.wg.Wait()
}

func (r *registry) serve(ctx context.Context, path string, number uint64) {
	ctx, stop := context.WithCancel(ctx)
	s := &socket{inode: number, stop: stop}
	r.sockets[path] = s
	s.wg.Go(func() { r.kubelet.serveSocket(ctx, path) })
}

// serveSocket registers the plugin behind path, with the kubelet's back-off, and deregisters it when
// ctx ends.
func (k *Kubelet) serveSocket(ctx context.Context, path string) {
	const first, longest = 500 * time.Millisecond, 2*time.Minute + 2*time.Second
	var i *instance
	for delay := first; ; delay = min(2*delay, longest) {
		var err error
		if i, err = k.register(ctx, path); err == nil {
			break
		}
		k.options.Log.Warn("Registration failed", "socket", path, "err", err)
		if !k.pause(ctx, delay) {
			return
		}
	}
	<-ctx.Done()
	k.deregister(i)
}

// register does one attempt: GetInfo, choice of versions, connection, NotifyRegistrationStatus.
func (k *Kubelet) register(ctx context.Context, path string) (*instance, error) {
	// A socket exists from bind on, a moment before its server listens. gRPC's usual second between two
	// attempts would use up the deadline of GetInfo.
	quick := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 2, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: GetInfoTimeout}
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quick))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	infoCtx, cancel := context.WithTimeout(ctx, GetInfoTimeout)
	defer cancel()
	info, err := client.GetInfo(infoCtx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("GetInfo of %s: %w", path, err)
	}
	i, refused := k.accept(ctx, path, info)
	status := &registerapi.RegistrationStatus{PluginRegistered: refused == nil}
	if refused != nil {
		status.Error = refused.Error()
	}
	notifyCtx, cancelNotify := context.WithTimeout(ctx, NotifyTimeout)
	defer cancelNotify()
	if _, err := client.NotifyRegistrationStatus(notifyCtx, status); err != nil {
		err = fmt.Errorf("NotifyRegistrationStatus of %s: %w", path, err)
		if i != nil {
			k.deregister(i)
		}
		return nil, errors.Join(refused, err)
	}
	return i, refused
}

// accept checks what a plugin says of itself and, if it may join, connects to its endpoint.
func (k *Kubelet) accept(ctx context.Context, path string, info *registerapi.PluginInfo) (*instance, error) {
	if info.Type != registerapi.DRAPlugin {
		return nil, fmt.Errorf("plugin %s is a %s, not a %s", info.Name, info.Type, registerapi.DRAPlugin)
	}
	known := []string{drav1.DRAPluginService, drav1beta1.DRAPluginService}
	n := slices.IndexFunc(info.SupportedVersions, func(v string) bool { return slices.Contains(known, v) })
	if n < 0 {
		return nil, fmt.Errorf("plugin %s offers %q, the kubelet knows %q", info.Name, info.SupportedVersions, known)
	}
	described := Instance{
		Driver: info.Name, Endpoint: info.Endpoint, RegistrationSocket: path,
		Service: info.SupportedVersions[n], Versions: slices.Clone(info.SupportedVersions),
	}
	for _, v := range []string{drahealthv1.DRAResourceHealthService, drahealthv1alpha1.DRAResourceHealthService} {
		if described.HealthService == "" && slices.Contains(info.SupportedVersions, v) {
			described.HealthService = v
		}
	}
	return k.join(ctx, described)
}

// inode tells one socket from a later one of the same name.
func inode(path string) (uint64, bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	return inodeOf(info)
}
