package kernellog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
)

const (
	// grace is how long NVML may take to tell what the log has, and the other way round.
	grace = 2 * time.Second
	// poll is the time between two looks at a log whose end cannot be waited at.
	poll = 250 * time.Millisecond
	// reopen is how long after a failure the log is opened again.
	reopen = 30 * time.Second
	// longest is more than a record of /dev/kmsg can have, which refuses to give a part of one.
	longest = 16 << 10
)

// Source watches and reads GPUs, as the monitor wants it.
type Source interface {
	Watch(ctx context.Context, gpus []inventory.GPUID, listening func(deaf map[inventory.GPUID]error), tell func(vitals.Event)) error
	Read(ctx context.Context, gpu inventory.GPUID, links int) health.Vitals
}

// Log is a kernel log. A nil Log has no messages.
type Log struct {
	// Path is the log's: /dev/kmsg, or a file that grows with such records.
	Path string
	// Failed is told why the log cannot be read, and nil when it can; it may be nil.
	Failed func(ctx context.Context, err error)

	begin sync.Once
	mu    sync.Mutex
	sieve *sieve
	// hint holds at most one wish to look what is due next.
	hint chan struct{}
}

func (l *Log) init() {
	l.begin.Do(func() { l.sieve, l.hint = newSieve(grace), make(chan struct{}, 1) })
}

// Beside gives a source that does what the given one does, and has the log know what that tells.
func (l *Log) Beside(s Source) Source {
	if l == nil {
		return s
	}
	l.init()
	return beside{s, l}
}

type beside struct {
	Source
	log *Log
}

// Watch implements Source.
func (b beside) Watch(ctx context.Context, gpus []inventory.GPUID, listening func(map[inventory.GPUID]error), tell func(vitals.Event)) error {
	return b.Source.Watch(ctx, gpus, listening, func(e vitals.Event) {
		if e.XID != 0 && e.GPU != (inventory.GPUID{}) {
			b.log.mu.Lock()
			b.log.sieve.tells(e.GPU.PCI, e.XID, time.Now())
			b.log.mu.Unlock()
		}
		tell(e)
	})
}

// Run reads the log from its end on, and tells what is in it alone, until the context ends.
func (l *Log) Run(ctx context.Context, tell func(context.Context, Message)) {
	if l == nil {
		return
	}
	l.init()
	var group sync.WaitGroup
	group.Go(func() { l.tell(ctx, tell) })
	for ctx.Err() == nil {
		err := l.read(ctx)
		if ctx.Err() != nil {
			break
		}
		klog.FromContext(ctx).Error(err, "The kernel log is not read for errors of GPUs; trying again")
		l.failed(ctx, err)
		wait(ctx, reopen)
	}
	group.Wait()
}

func (l *Log) failed(ctx context.Context, err error) {
	if l.Failed != nil {
		l.Failed(ctx, err)
	}
}

// read reads until the context ends or the log fails.
func (l *Log) read(ctx context.Context) error {
	// Without O_NONBLOCK a read of the device could not be ended.
	f, err := os.OpenFile(l.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer func() {
		if stop() {
			_ = f.Close()
		}
	}()
	// What lies there already is old. A pipe has no end to go to.
	if _, err := f.Seek(0, io.SeekEnd); err != nil && !errors.Is(err, syscall.ESPIPE) {
		return fmt.Errorf("kernel log: %w", err)
	}
	klog.FromContext(ctx).Info("Reading the kernel log for errors of GPUs", "path", l.Path)
	l.failed(ctx, nil)
	var rest []byte
	buffer := make([]byte, longest)
	for {
		n, err := f.Read(buffer)
		rest = l.take(ctx, append(rest, buffer[:n]...))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil, errors.Is(err, syscall.EPIPE):
			// EPIPE: records were overwritten before they were read.
		case errors.Is(err, io.EOF):
			wait(ctx, poll)
		default:
			return fmt.Errorf("kernel log: %w", err)
		}
	}
}

// take takes the whole lines in and gives what is left.
func (l *Log) take(ctx context.Context, data []byte) []byte {
	for {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			break
		}
		data = rest
		if m, ok := Parse(line); ok {
			l.logged(ctx, m)
		}
	}
	if len(data) > longest {
		return nil
	}
	return bytes.Clone(data)
}

func (l *Log) logged(ctx context.Context, m Message) {
	l.mu.Lock()
	room := l.sieve.logged(m, time.Now())
	l.mu.Unlock()
	if !room {
		klog.FromContext(ctx).Info("Too many errors in the kernel log; this one is dropped", "gpu", m.GPU, "xid", m.XID)
	}
	select {
	case l.hint <- struct{}{}:
	default:
	}
}

// tell tells what is due, until the context ends.
func (l *Log) tell(ctx context.Context, tell func(context.Context, Message)) {
	for {
		l.mu.Lock()
		due, next := l.sieve.due(time.Now()), l.sieve.next()
		l.mu.Unlock()
		for _, m := range due {
			tell(ctx, m)
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-l.hint:
		case <-timer:
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
