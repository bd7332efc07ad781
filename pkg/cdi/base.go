package cdi

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"
)

// CommonSource makes the edits that containers of all GPUs share. Sub-package nvidia has the
// product's.
type CommonSource interface {
	// Fingerprint is equal for as long as the edits are: it covers the driver's version, its
	// files and whatever paths go into the edits. It is asked before every prepare, so it has
	// to be cheap.
	Fingerprint() (string, error)
	// CommonEdits gives mounts, hooks and variables in the host's view. Device nodes in it are
	// passed over: this package looks them up itself.
	CommonEdits(ctx context.Context) (*specs.ContainerEdits, error)
}

// MissingLibraryError tells that the driver root lacks a library without which a container
// cannot use its GPU.
type MissingLibraryError struct {
	Library string
}

func (e *MissingLibraryError) Error() string {
	return fmt.Sprintf("%s was not found under the driver root: see that --driver-root names the tree the GPU driver is installed in "+
		"and that the installation is complete", e.Library)
}

// Base keeps the base spec of a directory. It is safe for concurrent use.
type Base struct {
	dir    *Dir
	source CommonSource

	// turn is full while somebody works on the spec; last belongs to whoever has the turn.
	turn chan struct{}
	last written
}

// written is what is known of the base spec after it was last seen right.
type written struct {
	fingerprint string
	nodes       []*specs.DeviceNode
	modTime     time.Time
	size        int64
}

// NewBase returns the keeper of the directory's base spec.
func NewBase(dir *Dir, source CommonSource) *Base {
	return &Base{dir: dir, source: source, turn: make(chan struct{}, 1)}
}

// Ensure makes the base spec exist and be right: it is written at the first call, when what it
// depends on has changed, and when the file has vanished or was changed. When all is as it was,
// that costs a few looks at the file system. An incomplete spec is never written. Errors:
// *NodeError, *MissingLibraryError, those of the source and of the file system; all may be
// gone at the next try.
//
// The source may hang in the GPU driver: the wait for it, and for another call that hangs
// there, ends with the context.
func (b *Base) Ensure(ctx context.Context) error {
	return b.inTurn(ctx, b.ensure)
}

// inTurn runs work when nobody else works on the spec. The turn is given back when the work
// ends, which may be after its caller has gone.
func (b *Base) inTurn(ctx context.Context, work func(context.Context) error) error {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for the base CDI spec: %w", ctx.Err())
	}
	done := make(chan error, 1)
	go func() {
		err := work(ctx)
		<-b.turn
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the driver's files for containers: %w", ctx.Err())
	}
}

func (b *Base) ensure(ctx context.Context) error {
	now, err := b.look(ctx)
	if err != nil {
		return err
	}
	if b.last.same(now) {
		return nil
	}
	edits, err := b.source.CommonEdits(ctx)
	if err != nil {
		return fmt.Errorf("find the driver's files for containers: %w", oneLineError{err})
	}
	data, err := b.render(edits, now.nodes)
	if err != nil {
		return err
	}
	path := b.dir.basePath()
	if _, err := b.dir.ensure(path, data); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at the base CDI spec: %w", err)
	}
	now.modTime, now.size = info.ModTime(), info.Size()
	b.last = now
	return nil
}

// oneLineError shows an error of the source, which joins what went wrong with new lines, in one
// line of the log.
type oneLineError struct{ error }

func (e oneLineError) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", "; ") }

func (e oneLineError) Unwrap() error { return e.error }

// look gathers what the base spec depends on and the state of its file.
func (b *Base) look(ctx context.Context) (written, error) {
	var w written
	majors, err := b.dir.host.majors(ctx)
	if err != nil {
		return w, err
	}
	if w.nodes, err = b.dir.host.resolve(controlNodes(), majors); err != nil {
		return w, err
	}
	if w.fingerprint, err = b.source.Fingerprint(); err != nil {
		return w, fmt.Errorf("look for changes of the driver's files: %w", err)
	}
	info, err := os.Stat(b.dir.basePath())
	if err == nil {
		w.modTime, w.size = info.ModTime(), info.Size()
	} else if !os.IsNotExist(err) {
		return w, fmt.Errorf("look at the base CDI spec: %w", err)
	}
	return w, nil
}

func (w written) same(other written) bool {
	sameNode := func(a, b *specs.DeviceNode) bool {
		return a.Path == b.Path && a.HostPath == b.HostPath && a.Major == b.Major && a.Minor == b.Minor
	}
	return w.size > 0 && w.size == other.size && w.modTime.Equal(other.modTime) &&
		w.fingerprint == other.fingerprint && slices.EqualFunc(w.nodes, other.nodes, sameNode)
}

// requiredLibrary is the one library without which no CUDA program starts.
const requiredLibrary = "libcuda.so"

// visibleDevices keeps NVIDIA's legacy runtime from adding GPUs of its own to containers whose
// image asks for them.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

func (b *Base) render(edits *specs.ContainerEdits, nodes []*specs.DeviceNode) ([]byte, error) {
	has := slices.ContainsFunc(edits.Mounts, func(m *specs.Mount) bool {
		return strings.HasPrefix(path.Base(m.ContainerPath), requiredLibrary+".")
	})
	if !has {
		return nil, &MissingLibraryError{Library: requiredLibrary}
	}
	all := *edits
	all.DeviceNodes = nodes
	// Group ids of device nodes: the nodes are open to all in the container.
	all.AdditionalGIDs = nil
	all.Env = slices.DeleteFunc(slices.Clone(edits.Env), func(e string) bool {
		return strings.HasPrefix(e, visibleDevices+"=")
	})
	all.Env = append(all.Env, visibleDevices+"=void")
	return render(&specs.Spec{
		Kind:    b.dir.vendor + "/" + classDriver,
		Devices: []specs.Device{{Name: baseDevice, ContainerEdits: all}},
	})
}

// Remove removes the base spec; for an uninstall.
func (b *Base) Remove(ctx context.Context) error {
	return b.inTurn(ctx, func(context.Context) error {
		b.last = written{}
		if err := os.Remove(b.dir.basePath()); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove the base CDI spec: %w", err)
		}
		return nil
	})
}
