package vitals_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/vitals"
	"github.com/gpu-dra/driver/test/gpusim"
)

func TestRead(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Minute)
	do(t, m.SetRecoveryAction(2, 4))
	do(t, m.SetMemoryHealth(2, gpusim.MemoryHealth{RemapPending: true, RemapFailed: true, Corrected: 7, Uncorrected: 3}))
	do(t, m.SetLinkErrors(2, 5, 11))
	do(t, m.SetUsedMemory(2, 1<<30))
	ill, well := m.reader.Read(t.Context(), m.gpus[2], 18), m.reader.Read(t.Context(), m.gpus[1], 18)
	if well.Err != nil || well.Recovery != inventory.Known(0) || well.RemapFailed != inventory.Known(false) || well.Uncorrected != inventory.Known(uint64(0)) {
		t.Errorf("a GPU that is well: %+v", well)
	}
	if ill.Recovery != inventory.Known(4) || ill.RemapPending != inventory.Known(true) || ill.RemapFailed != inventory.Known(true) {
		t.Errorf("recovery and rows: %+v", ill)
	}
	if ill.Corrected != inventory.Known(uint64(7)) || ill.Uncorrected != inventory.Known(uint64(3)) || ill.LinkErrors != inventory.Known(uint64(11)) {
		t.Errorf("counters: %+v", ill)
	}
	if ill.MemoryUsed.Value < 1<<30 || ill.MemoryTotal.Value <= ill.MemoryUsed.Value || ill.CelsiusDegrees.Err != nil || ill.PowerMilliwatts.Value == 0 {
		t.Errorf("what people like to see: %+v", ill)
	}
	if !errors.Is(ill.RetirementPending.Err, inventory.ErrNotSupported) {
		t.Errorf("boards that replace rows retire no pages: %+v", ill.RetirementPending)
	}
	other := m.gpus[1]
	other.UUID = "GPU-another"
	if got := m.reader.Read(t.Context(), other, 18); !errors.Is(got.Err, inventory.ErrNoSuchGPU) {
		t.Errorf("another board: %v", got.Err)
	}
	do(t, m.LoseGPU(3))
	if got := m.reader.Read(t.Context(), m.gpus[3], 18); !errors.Is(got.Err, inventory.ErrLost) {
		t.Errorf("a lost GPU: %v", got.Err)
	}
}

// Partitions are read by what they are, and one that cannot be read is left out.
func TestReadOfPartitions(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Minute)
	do(t, m.SetMIGMode(0, true))
	small, err := m.CreateMIG(0, "1g.10gb", 0)
	do(t, err)
	large, err := m.CreateMIG(0, "3g.40gb", 4)
	do(t, err)
	do(t, m.SetMIGClients(0, small.ID, small.Compute[0].ID, 2))
	found := map[string]health.Partition{}
	for _, p := range m.reader.Read(t.Context(), m.gpus[0], 18).Partitions {
		found[p.UUID] = p
	}
	used, unused := found[small.Compute[0].UUID], found[large.Compute[0].UUID]
	if len(found) != 2 || used.MemoryUsed == 0 || used.MemoryTotal <= used.MemoryUsed || unused.MemoryUsed != 0 || unused.MemoryTotal <= used.MemoryTotal {
		t.Errorf("partitions %+v of %s and %s", found, small.Compute[0].UUID, large.Compute[0].UUID)
	}
	if whole := m.reader.Read(t.Context(), m.gpus[1], 18); whole.Partitions != nil {
		t.Errorf("a GPU that is not in MIG mode has %+v", whole.Partitions)
	}
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetMigDeviceHandleByIndex", GPU: 0, Code: 999, Count: gpusim.Forever}))
	if v := m.reader.Read(t.Context(), m.gpus[0], 18); v.Err != nil || v.Partitions != nil || v.CelsiusDegrees.Err != nil {
		t.Errorf("partitions that cannot be read: %+v", v)
	}
}

// What a board or a driver does not have is no error.
func TestReadOfAnOldBoard(t *testing.T) {
	m := newMachine(t, "dgx1-v100", time.Minute)
	v := m.reader.Read(t.Context(), m.gpus[0], 6)
	if v.Err != nil || !errors.Is(v.RemapPending.Err, inventory.ErrNotSupported) || v.RetirementPending.Err != nil {
		t.Errorf("%+v", v)
	}
}

// A GPU that hangs keeps nobody from reading the others.
func TestAGPUThatHangs(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Second)
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetTemperature", GPU: 4, Hang: true, Count: gpusim.Forever}))
	if got := m.reader.Read(t.Context(), m.gpus[4], 18); !errors.Is(got.Err, inventory.ErrHung) {
		t.Errorf("the one that hangs: %v", got.Err)
	}
	if got := m.reader.Read(t.Context(), m.gpus[5], 18); got.Err != nil {
		t.Errorf("another: %v", got.Err)
	}
}

// watching watches all GPUs of a machine until the test ends.
func watching(t *testing.T, m machine) (deaf map[inventory.GPUID]error, events <-chan vitals.Event, ended <-chan error) {
	t.Helper()
	heard, events, ended := watchingAll(t, m)
	select {
	case deaf = <-heard:
	case err := <-ended:
		t.Fatal(err)
	}
	return deaf, events, ended
}

// watchingAll does so too, and gives all that is told of deaf GPUs.
func watchingAll(t *testing.T, m machine) (heard <-chan map[inventory.GPUID]error, events <-chan vitals.Event, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan vitals.Event, 16), make(chan error, 1)
	listening := make(chan map[inventory.GPUID]error, 16)
	go func() {
		done <- m.reader.Watch(ctx, m.gpus, func(d map[inventory.GPUID]error) { listening <- d }, func(e vitals.Event) { told <- e })
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done //nolint:errcheck // it was told to end
	})
	return listening, told, done
}

// An error wakes a waiter that has the library for itself, with the GPU and the instance that it
// is of.
func TestWatch(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Minute)
	deaf, events, _ := watching(t, m)
	if len(deaf) > 0 {
		t.Errorf("not registered: %v", deaf)
	}
	for _, want := range []vitals.Event{
		{GPU: m.gpus[6], XID: 79, Instance: -1}, {GPU: m.gpus[1], XID: 94, Instance: 3},
	} {
		xid := gpusim.XID{Code: uint64(want.XID)}
		if want.Instance >= 0 {
			xid.GPUInstance = new(uint32(want.Instance))
		}
		for i, g := range m.gpus {
			if g == want.GPU {
				do(t, m.InjectXID(i, xid))
			}
		}
		if got := <-events; got != want {
			t.Errorf("told of %+v, want %+v", got, want)
		}
	}
	do(t, m.InjectEvent(2, gpusim.EventGPUUnavailable))
	if got := <-events; got != (vitals.Event{GPU: m.gpus[2], Instance: -1}) {
		t.Errorf("told of %+v", got)
	}
}

// A board that cannot be registered is named, and does not keep the others from being watched.
func TestWatchWithoutOne(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Minute)
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceRegisterEvents", GPU: 3, Code: 999, Count: gpusim.Forever}))
	deaf, events, _ := watching(t, m)
	if len(deaf) != 1 || deaf[m.gpus[3]] == nil {
		t.Errorf("not registered: %v", deaf)
	}
	do(t, m.InjectXID(4, gpusim.XID{Code: 48}))
	if got := <-events; got.XID != 48 || got.GPU != m.gpus[4] {
		t.Errorf("told of %+v", got)
	}
}

// A GPU that is lost when the watch begins is watched once it is back.
func TestALostOneIsWatchedAgain(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Minute)
	m.reader.Retry = time.Millisecond
	do(t, m.LoseGPU(3))
	heard, events, _ := watchingAll(t, m)
	if deaf := <-heard; len(deaf) != 1 || !errors.Is(deaf[m.gpus[3]], inventory.ErrLost) {
		t.Errorf("not registered: %v", deaf)
	}
	do(t, m.HealGPU(3))
	if deaf := <-heard; len(deaf) != 0 {
		t.Errorf("still not registered: %v", deaf)
	}
	do(t, m.InjectXID(3, gpusim.XID{Code: 48}))
	for e := range events {
		// The lost GPU may have ended a wait before.
		if e == (vitals.Event{GPU: m.gpus[3], XID: 48, Instance: -1}) {
			break
		}
	}
}

// A GPU that hangs when the watch begins holds up nobody, and is watched once it answers.
func TestOneThatHangsIsWatchedLater(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Minute)
	m.reader.Retry = time.Millisecond
	do(t, m.FailCall(gpusim.CallFault{Function: "nvmlDeviceRegisterEvents", GPU: 3, Hang: true, Count: gpusim.Forever}))
	heard, events, _ := watchingAll(t, m)
	if deaf := <-heard; deaf[m.gpus[3]] == nil {
		t.Errorf("not registered: %v", deaf)
	}
	do(t, m.InjectXID(4, gpusim.XID{Code: 48}))
	if got := <-events; got != (vitals.Event{GPU: m.gpus[4], XID: 48, Instance: -1}) {
		t.Errorf("told of %+v", got)
	}
	do(t, m.ClearFaults())
	for deaf := range heard {
		if len(deaf) == 0 {
			break
		}
	}
	do(t, m.InjectXID(3, gpusim.XID{Code: 48}))
	if got := <-events; got != (vitals.Event{GPU: m.gpus[3], XID: 48, Instance: -1}) {
		t.Errorf("told of %+v", got)
	}
}

// Whoever closes the session gets it, and the watch says why it ended.
func TestTheSessionIsCalledBack(t *testing.T) {
	m := newMachine(t, "t4-4", time.Minute)
	_, _, ended := watching(t, m)
	do(t, m.library.Close(t.Context()))
	if err := <-ended; !errors.Is(err, vitals.ErrRecalled) {
		t.Errorf("it ended with %v", err)
	}
	// A new one is there for who wants it.
	if _, _, ended = watching(t, m); len(ended) != 0 {
		t.Error("it does not begin anew")
	}
}

// Who is told to end does not wait for the end of a turn; what is left behind is nobody's event, keeps
// the session open as long as it lasts, and stands in the way of no other watch.
func TestAWatchEndsAtOnce(t *testing.T) {
	m := newMachine(t, "t4-4", time.Hour)
	m.reader.Turn = time.Hour
	waits, err := m.CountCalls(gpusim.AnyGPU, "nvmlEventSetWait")
	do(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	listening, done := make(chan struct{}, 4), make(chan error, 1)
	go func() {
		done <- m.reader.Watch(ctx, m.gpus, func(map[inventory.GPUID]error) { listening <- struct{}{} }, func(e vitals.Event) { t.Errorf("told of %+v", e) })
	}()
	<-listening
	eventually(t, func() bool {
		n, err := waits()
		do(t, err)
		return n > 0
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := m.library.Close(t.Context()); err == nil {
		t.Error("the session was closed under a wait")
	}
	m.reader.Turn = time.Millisecond
	_, events, _ := watching(t, m)
	do(t, m.InjectXID(1, gpusim.XID{Code: 79}))
	if got := <-events; got != (vitals.Event{GPU: m.gpus[1], XID: 79, Instance: -1}) {
		t.Errorf("told of %+v", got)
	}
}

// A change of a GPU keeps nobody from hearing of another.
func TestWatchBesideAModeChange(t *testing.T) {
	m := newMachine(t, "hgx-h100-8", time.Minute)
	_, events, _ := watching(t, m)
	do(t, m.library.SetMIGMode(t.Context(), m.gpus[1], true))
	do(t, m.InjectXID(4, gpusim.XID{Code: 48}))
	if got := <-events; got != (vitals.Event{GPU: m.gpus[4], XID: 48, Instance: -1}) {
		t.Errorf("told of %+v", got)
	}
	if _, err := m.scanner.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	do(t, m.InjectXID(5, gpusim.XID{Code: 48}))
	if got := <-events; got != (vitals.Event{GPU: m.gpus[5], XID: 48, Instance: -1}) {
		t.Errorf("told of %+v", got)
	}
}
