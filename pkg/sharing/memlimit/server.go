package memlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit/hook"
)

// Records are those of claims; journal.Store has them.
type Records interface {
	Load(types.UID) (*journal.Record, error)
}

// Locks are those under which GPUs are changed; lock.Locker has them.
type Locks interface {
	Lock(ctx context.Context, key lock.Key) (unlock func(), err error)
}

// InUseError tells that a share is another container's.
type InUseError struct {
	Namespace, Name, Device, Cgroup string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("the share of device %s of claim %s/%s is another container's (cgroup %s), and the GPU driver's limit is one for each container: "+
		"give each container a share of its own, by a request of its own", e.Device, e.Namespace, e.Name, e.Cgroup)
}

// NotPreparedError tells that no claim has the share that a container came with.
type NotPreparedError struct {
	Claim, Device, Share string
	Err                  error
}

func (e *NotPreparedError) Error() string {
	return fmt.Sprintf("share %s of device %s is not prepared for claim %s: %v", e.Share, e.Device, e.Claim, e.Err)
}

func (e *NotPreparedError) Unwrap() error { return e.Err }

var errNoSuchShare = errors.New("the claim's record has no such share that is limited")

// Server answers hooks.
type Server struct {
	Node    Node
	Notes   Notes
	Records Records
	Locks   Locks
	// Key names the lock of a GPU.
	Key func(pci.Address) lock.Key
	// Path is the socket's.
	Path string
	// Interval is the time between two looks whether somebody listens there, and between two tries
	// to get it.
	Interval time.Duration
}

// requestTime bounds the answer to one hook.
const requestTime = 20 * time.Second

// acceptPause follows an error of the listener: the process has no file left to open, say.
const acceptPause = 100 * time.Millisecond

// Run answers hooks until the context ends, and then those that have begun. Of several instances
// of the plugin the one that came last has the socket; when it is gone, another takes it. A socket
// that cannot be had is no reason to end what else this process serves: it is tried again.
func (s *Server) Run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	told := ""
	for ctx.Err() == nil {
		err := s.serve(ctx, &calls)
		if err != nil && err.Error() != told {
			told = err.Error()
			klog.FromContext(ctx).Error(err, "Containers whose GPU memory the driver limits cannot be created; trying again")
		}
		if err != nil {
			wait(ctx, s.Interval)
		}
	}
}

// serve answers at the socket's name until somebody else had it and left.
func (s *Server) serve(ctx context.Context, calls *sync.WaitGroup) error {
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	calls.Go(func() {
		defer cancel()
		for wait(ctx, s.Interval) && !s.abandoned(ctx) {
		}
	})
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			klog.FromContext(ctx).Error(err, "A hook could not be let in")
			wait(ctx, acceptPause)
			continue
		}
		calls.Go(func() {
			defer func() { _ = conn.Close() }()
			if err := s.answer(context.WithoutCancel(ctx), conn); err != nil {
				klog.FromContext(ctx).Error(err, "A hook could not be answered")
			}
		})
	}
}

// abandoned tells whether nobody listens at the socket's name: an instance that took it was killed
// or rolled back, or somebody removed the file.
func (s *Server) abandoned(ctx context.Context) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// wait tells whether the time has passed before the context ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// listen takes the socket's name in one step: a hook finds the old socket or the new one.
func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	temp := s.Path + ".new"
	err := os.MkdirAll(filepath.Dir(s.Path), 0o700)
	if err == nil {
		err = os.Remove(temp)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket of limits of memory: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", temp)
	if err != nil {
		return nil, fmt.Errorf("socket of limits of memory: %w", err)
	}
	// The name may be another instance's when this one ends.
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	if err := errors.Join(os.Chmod(temp, 0o600), os.Rename(temp, s.Path)); err != nil {
		return nil, errors.Join(fmt.Errorf("socket of limits of memory: %w", err), listener.Close())
	}
	return listener, nil
}

func (s *Server) answer(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if err := conn.SetDeadline(time.Now().Add(requestTime + time.Second)); err != nil {
		return err
	}
	r, err := hook.Read[hook.Request](conn)
	if errors.Is(err, io.EOF) {
		// Somebody looks whether anybody is here, or a hook was killed.
		return nil
	}
	if err == nil {
		err = s.Limit(ctx, r)
	}
	answer := hook.Response{Version: hook.Version}
	if err != nil {
		answer.Error = err.Error()
		klog.FromContext(ctx).Error(err, "A container does not get its limit of GPU memory, and is not created", "claimUID", r.Claim, "device", r.Device, "cgroup", r.Cgroup)
	}
	return hook.Write(conn, answer)
}

// Limit has the driver limit a container to its shares of a GPU: the one that is asked for, and
// those that it has already. *NotPreparedError, *InUseError, or what a Limiter gives.
func (s *Server) Limit(ctx context.Context, r hook.Request) error {
	if err := r.Validate(); err != nil {
		return err
	}
	p, err := s.find(r)
	if err != nil {
		return err
	}
	unlock, err := s.Locks.Lock(ctx, s.Key(p.PCI))
	if err != nil {
		return err
	}
	defer unlock()
	// Again, since whoever unprepares has had the lock.
	if p, err = s.find(r); err != nil {
		return err
	}
	inode, err := s.Node.inode(r.Cgroup)
	if err == nil && inode == 0 {
		err = fmt.Errorf("cgroup %s is not in %s: the driver's pod has to see the host's cgroups", r.Cgroup, s.Node.Cgroups)
	}
	if err != nil {
		return err
	}
	bytes, err := s.sum(p, r.Cgroup, inode)
	if err != nil {
		return err
	}
	// Before it is done: who comes between would give the share out twice.
	if err := s.Notes.put(note{stepParams: *p, Boot: s.Notes.Boot, Cgroup: r.Cgroup, Inode: inode}); err != nil {
		return err
	}
	if err := s.Node.Limiter.Set(ctx, p.gpu(), s.Node.path(r.Cgroup), bytes); err != nil {
		return fmt.Errorf("limit the memory of GPU %s to %d MiB: %w", p.PCI, bytes>>20, err)
	}
	klog.FromContext(ctx).Info("The GPU driver limits a container", "claim", klog.KRef(p.Namespace, p.Name), "device", p.Device, "MiB", bytes>>20, "cgroup", r.Cgroup)
	return nil
}

// find gives the step of the share in the claim's record.
func (s *Server) find(r hook.Request) (*stepParams, error) {
	refused := func(err error) error {
		return &NotPreparedError{Claim: r.Claim, Device: r.Device, Share: r.Share, Err: err}
	}
	record, err := s.Records.Load(types.UID(r.Claim))
	if err != nil {
		return nil, refused(err)
	}
	if record.State != journal.StatePrepared {
		return nil, refused(fmt.Errorf("the claim is %s, not %s", record.State, journal.StatePrepared))
	}
	i := slices.IndexFunc(record.Devices, func(d journal.Device) bool {
		return d.Name == r.Device && d.ShareID != nil && string(*d.ShareID) == r.Share
	})
	if i < 0 {
		return nil, refused(errNoSuchShare)
	}
	p, err := stepOf(record.Devices[i].Steps)
	if err == nil && p == nil {
		err = errNoSuchShare
	}
	if err != nil {
		return nil, refused(err)
	}
	return p, nil
}

// sum is what a container may have of a GPU with the share.
func (s *Server) sum(p *stepParams, cgroup string, inode uint64) (uint64, error) {
	notes, err := s.Notes.of(p.PCI)
	if err != nil {
		return 0, err
	}
	bytes := p.Bytes
	for _, n := range notes {
		same := n.Cgroup == cgroup && n.Inode == inode
		switch {
		case n.file() != p.file() && same:
			bytes += n.Bytes
		case n.file() == p.file() && !same:
			used, err := s.Node.inUse(n.Cgroup, n.Inode)
			if err != nil {
				return 0, err
			}
			if used {
				return 0, &InUseError{Namespace: p.Namespace, Name: p.Name, Device: p.Device, Cgroup: n.Cgroup}
			}
		}
	}
	return bytes, nil
}
