package kernellog_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/health/kernellog"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/pkg/pci"
)

func address(t *testing.T, text string) pci.Address {
	t.Helper()
	a, err := pci.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// source tells the events that are put into it.
type source chan vitals.Event

func (s source) Watch(ctx context.Context, _ []inventory.GPUID, _ func(map[inventory.GPUID]error), tell func(vitals.Event)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s:
			tell(e)
		}
	}
}

func (source) Read(context.Context, inventory.GPUID, int) health.Vitals { return health.Vitals{} }

// bench is a log that is read, beside a source.
type bench struct {
	t      *testing.T
	log    *kernellog.Log
	source source
	// told are the messages, passed the events of the source that came through, and opened how
	// often the log was opened or failed.
	told   chan kernellog.Message
	passed chan vitals.Event
	opened chan error
	stop   func()
}

func run(t *testing.T, path string) *bench {
	b := &bench{
		t: t, source: make(source), told: make(chan kernellog.Message, 100), passed: make(chan vitals.Event, 100), opened: make(chan error, 100),
	}
	b.log = &kernellog.Log{Path: path, Failed: func(_ context.Context, err error) { b.opened <- err }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() {
		b.log.Run(ctx, func(_ context.Context, m kernellog.Message) { b.told <- m })
		done <- struct{}{}
	}()
	go func() {
		err := b.log.Beside(b.source).Watch(ctx, nil, nil, func(e vitals.Event) { b.passed <- e })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("watch: %v", err)
		}
		done <- struct{}{}
	}()
	b.stop = func() {
		cancel()
		<-done
		<-done
	}
	return b
}

func (b *bench) expect(want ...kernellog.Message) {
	b.t.Helper()
	for _, w := range want {
		if diff := cmp.Diff(w, <-b.told); diff != "" {
			b.t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func record(xid int, gpu string) string {
	return fmt.Sprintf("3,1,1,-;NVRM: Xid (PCI:%s): %d, pid=1, name=x\n SUBSYSTEM=pci\n", gpu, xid)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What lay in the log before is not told, nor what NVML told; the rest is. The time between the two
// counts, so it is the test's own.
func TestFile(t *testing.T) { synctest.Test(t, testFile) }

func testFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(path, []byte(record(79, "0000:01:00")), 0o600); err != nil {
		t.Fatal(err)
	}
	b := run(t, path)
	defer b.stop()
	if err := <-b.opened; err != nil {
		t.Fatal(err)
	}
	gpu := address(t, "0000:01:00.0")
	b.source <- vitals.Event{GPU: inventory.GPUID{PCI: gpu}, XID: 95, Instance: -1}
	b.source <- vitals.Event{Instance: -1}
	b.source <- vitals.Event{GPU: inventory.GPUID{PCI: gpu}, Instance: -1}
	for range 3 {
		<-b.passed
	}
	text := record(95, "0000:01:00") + record(48, "0000:02:00") + record(119, "0000:01:00 GPU-I:03")
	write(t, path, text[:len(text)/2])
	write(t, path, text[len(text)/2:])
	// Of those that are due at once, in the order of the bus.
	b.expect(kernellog.Message{GPU: gpu, XID: 119, Instance: 3}, kernellog.Message{GPU: address(t, "0000:02:00.0"), XID: 48, Instance: -1})
}

// A pipe can be waited at, as the device can; what is no record is passed over, however long.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// Held open for writing, so that its end is never seen.
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	b := run(t, path)
	defer b.stop()
	if err := <-b.opened; err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 100<<10)
	if _, err := w.Write(append(noise, []byte("\n"+record(79, "0000:03:00"))...)); err != nil {
		t.Fatal(err)
	}
	b.expect(kernellog.Message{GPU: address(t, "0000:03:00.0"), XID: 79, Instance: -1})
}

func TestMissing(t *testing.T) {
	b := run(t, filepath.Join(t.TempDir(), "missing"))
	defer b.stop()
	if err := <-b.opened; !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestNilLog(t *testing.T) {
	var l *kernellog.Log
	l.Run(t.Context(), nil)
	if s := make(source); l.Beside(s) != kernellog.Source(s) {
		t.Error("another source")
	}
}
