package prepare

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/journal"
)

func TestVanishedSpecIsWrittenAgain(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, plan("c1", gpu(1)))
	want := n.spec(t, "c1")
	must(t, os.Remove(filepath.Join(n.dir, "cdi", "gpu.nvidia.com-claim_c1.json")))
	prepareOK(t, e, plan("c1", gpu(1)))
	if n.spec(t, "c1") != want {
		t.Error("the spec was not written again")
	}
	// The minor number changed with a reload of the driver: the spec follows the device.
	moved := gpu(1)
	moved.minor = 7
	prepareOK(t, e, plan("c1", moved))
	if spec := n.spec(t, "c1"); !strings.Contains(spec, "/dev/nvidia7") {
		t.Error(spec)
	}
	delete(n.nodes, "nvidia7")
	if _, err := e.Prepare(t.Context(), plan("c1", moved)); err == nil {
		t.Error("a claim whose node is gone is prepared")
	}
	unprepareOK(t, e, "c1")
	n.clean(t)
}

func TestRebootRebuildsOnTheSameBoard(t *testing.T) {
	n := newNode(t)
	p := plan("c1", part(1, "a"), gpu(2))
	first := prepareOK(t, n.start(t), p)
	n.reboot(t)
	// Minor numbers are dealt anew.
	b, g := part(1, "a"), gpu(2)
	b.minor, g.minor = 2, 1
	e := n.start(t)
	if _, err := e.Prepare(t.Context(), plan("c2", gpu(2))); err == nil {
		t.Error("after a reboot another claim got a GPU that is taken")
	}
	again := prepareOK(t, e, plan("c1", b, g))
	if diff := cmp.Diff(first, again); diff != "" {
		t.Error(diff)
	}
	if len(n.hw.made) != 2 {
		t.Errorf("hardware: %v", n.hw.made)
	}
	if spec := n.spec(t, "c1"); strings.Index(spec, "/dev/nvidia2") > strings.Index(spec, "/dev/nvidia1") {
		t.Error(spec)
	}
	r, err := n.store(t).Load("c1")
	if err != nil || r.BootID != "boot-1" || r.State != journal.StatePrepared {
		t.Errorf("record %+v %v", r, err)
	}
	unprepareOK(t, e, "c1")
	n.clean(t)
}

func TestSwappedBoardIsRefused(t *testing.T) {
	n := newNode(t)
	prepareOK(t, n.start(t), plan("c1", gpu(1)))
	n.reboot(t)
	e := n.start(t)
	swap := gpu(1)
	swap.uuid = "GPU-new"
	_, err := e.Prepare(t.Context(), plan("c1", swap))
	swapped := new(SwappedError)
	if !errors.As(err, &swapped) || !strings.Contains(err.Error(), "GPU-1") || !strings.Contains(err.Error(), "GPU-new") {
		t.Fatal(err)
	}
	unprepareOK(t, e, "c1")
	prepareOK(t, e, plan("c1", swap))
	unprepareOK(t, e, "c1")
	n.clean(t)
}

// The claim was released and allocated anew while nobody told this node.
func TestOtherAllocationOfTheSameClaim(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, plan("c1", part(1, "a"), gpu(2)))
	prepareOK(t, e, plan("c1", part(3, "b")))
	if diff := cmp.Diff(map[string]int{"carve gpu-3-b": 3, "wire gpu-3-b": 4}, n.hw.made); diff != "" {
		t.Error(diff)
	}
	prepareOK(t, e, plan("c2", gpu(1)))
	prepareOK(t, e, plan("c3", gpu(2)))
	for _, uid := range []types.UID{"c1", "c2", "c3"} {
		unprepareOK(t, e, uid)
	}
	n.clean(t)
}

func TestCorruptRecord(t *testing.T) {
	n := newNode(t)
	prepareOK(t, n.start(t), plan("c1", gpu(1), gpu(2)))
	prepareOK(t, n.start(t), plan("c2", gpu(3)))
	store := n.store(t)
	must(t, os.Truncate(store.Path("c1"), 50))
	// While it is not set aside, its GPUs are taken; nobody else is hurt.
	e := n.start(t, func(c *Config) { c.Journal = unlisted{store} })
	held := new(HeldError)
	if _, err := e.Prepare(t.Context(), plan("c3", gpu(1))); !errors.As(err, &held) || held.Holder.UID != "c1" {
		t.Fatal(err)
	}
	prepareOK(t, e, plan("c2", gpu(3)))
	// A start rebuilds ownership from the holder files.
	e, err := New(e.Config)
	must(t, err)
	e.Journal = store
	e.holders.journal = store
	found, err := e.Recover(t.Context())
	must(t, err)
	if len(found.Quarantined) != 1 || found.Quarantined[0].UID != "c1" || len(found.Rebuilt) != 1 || found.Rebuilt[0] != claimOf("c1") || found.Records != 2 {
		t.Errorf("recovered %+v", found)
	}
	if _, err := e.Prepare(t.Context(), plan("c3", gpu(2))); !errors.As(err, &held) {
		t.Fatal(err)
	}
	prepareOK(t, e, plan("c1", gpu(1), gpu(2)))
	unprepareOK(t, e, "c1")
	unprepareOK(t, e, "c2")
	if left := n.leftovers(t); len(left) != 1 || !strings.HasPrefix(left[0], "journal/quarantine/c1.") {
		t.Errorf("left: %v", left)
	}
}

// A record that was made from a device's name knows no board: whatever is there now is the claim's.
func TestRecordWithoutBoard(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	c := claimOf("c1")
	record := &journal.Record{Namespace: c.Namespace, Name: c.Name, UID: c.UID, State: journal.StateStarted, BootID: e.BootID, Devices: []journal.Device{
		{Request: "r0", Pool: "node", Name: gpu(1).Name(), Kind: "gpu", PCI: gpu(1).Identity().PCI},
	}}
	if adopted, err := e.Adopt(t.Context(), record); err != nil || !adopted {
		t.Fatal(adopted, err)
	}
	held := new(HeldError)
	if _, err := e.Prepare(t.Context(), plan("c2", gpu(1))); !errors.As(err, &held) || held.Holder != c {
		t.Fatal(err)
	}
	prepareOK(t, e, plan("c1", gpu(1)))
	if r, err := n.store(t).Load("c1"); err != nil || r.Devices[0].GPUUUID != "GPU-1" {
		t.Errorf("record %+v %v", r, err)
	}
	unprepareOK(t, e, "c1")
	n.clean(t)
}

// unlisted is a journal that finds nothing at the start.
type unlisted struct{ *journal.Store }

func (unlisted) List() ([]*journal.Record, []journal.Bad, error) { return nil, nil, nil }

func TestCorruptRecordMeetsItsOwnClaim(t *testing.T) {
	for _, call := range []string{"prepare", "unprepare"} {
		n := newNode(t)
		e := n.start(t)
		prepareOK(t, e, plan("c1", gpu(1)))
		must(t, os.Truncate(n.store(t).Path("c1"), 0))
		if call == "prepare" {
			prepareOK(t, e, plan("c1", gpu(1)))
		}
		unprepareOK(t, e, "c1")
		prepareOK(t, e, plan("c2", gpu(1)))
		unprepareOK(t, e, "c2")
		if left := n.leftovers(t); len(left) != 1 || !strings.HasPrefix(left[0], "journal/quarantine/") {
			t.Errorf("%s: left %v", call, left)
		}
	}
}

func TestRecordOfANewerRelease(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, plan("c1", gpu(1)))
	path := n.store(t).Path("c1")
	must(t, os.WriteFile(path, []byte("gpu-claim-record 9 x\n"), 0o600))
	newer := new(journal.NewerFormatError)
	_, err := e.Prepare(t.Context(), plan("c1", gpu(1)))
	for _, err := range []error{err, e.Unprepare(t.Context(), claimOf("c1"))} {
		if !errors.As(err, &newer) {
			t.Error(err)
		}
	}
	found, err := e.Recover(t.Context())
	if err != nil || len(found.Unreadable) != 1 || len(found.Quarantined) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := e.Prepare(t.Context(), plan("c2", gpu(1))); err == nil {
		t.Error("its GPU was given away")
	}
}

func TestRecoverMendsTheIndex(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, plan("c1", gpu(1)))
	holders := filepath.Join(n.dir, "holders")
	must(t, os.RemoveAll(holders))
	stale := filepath.Join(holders, gpu(2).Identity().PCI.Label(), "gone")
	must(t, os.MkdirAll(filepath.Dir(stale), 0o700))
	must(t, os.WriteFile(stale, nil, 0o600))
	foreign := filepath.Join(holders, "not-a-gpu", "x")
	must(t, os.MkdirAll(filepath.Dir(foreign), 0o700))
	must(t, os.WriteFile(foreign, nil, 0o600))
	_, err := e.Recover(t.Context())
	must(t, err)
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("a stale entry is still there: %v", err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	held := new(HeldError)
	if _, err := e.Prepare(t.Context(), plan("c2", gpu(1))); !errors.As(err, &held) {
		t.Error(err)
	}
	// Stale and torn entries block nobody, also without a Recover.
	must(t, os.WriteFile(stale, []byte("{"), 0o600))
	prepareOK(t, e, plan("c3", gpu(2)))
}

func TestIsLabel(t *testing.T) {
	for name, want := range map[string]bool{
		gpu(0x1a).Identity().PCI.Label(): true, "10000-c1-1f-7": true,
		"": false, "0000-1a-00": false, "0000-1A-00-0": false, "0000-1a-00-9": false, "x-1a-00-0": false, "0000-1a-00-0-0": false, "..": false,
	} {
		if isLabel(name) != want {
			t.Errorf("isLabel(%q) = %t", name, !want)
		}
	}
}

// A loss of power can leave the index empty or torn, since it is not synced: records are enough.
func TestIndexAfterALossOfPower(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"gone": os.Remove, "empty": func(path string) error { return os.Truncate(path, 0) },
		"torn": func(path string) error { return os.Truncate(path, 30) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			prepareOK(t, n.start(t), plan("c1", gpu(1), part(2, "a")))
			for _, g := range []int{1, 2} {
				must(t, damage(filepath.Join(n.dir, "holders", gpu(g).Identity().PCI.Label(), "c1")))
			}
			n.reboot(t)
			e := n.start(t)
			held := new(HeldError)
			for _, b := range []board{gpu(1), gpu(2), part(2, "a")} {
				if _, err := e.Prepare(t.Context(), plan("c2", b)); !errors.As(err, &held) || held.Holder != claimOf("c1") {
					t.Errorf("%s: %v", b.Name(), err)
				}
			}
			prepareOK(t, e, plan("c2", part(2, "b")))
			unprepareOK(t, e, "c2")
			unprepareOK(t, e, "c1")
			n.clean(t)
		})
	}
}

// Nothing is known of what the claim has: then nobody gets the GPU, rather than two.
func TestUnreadableRecordAndEntry(t *testing.T) {
	n := newNode(t)
	e := n.start(t)
	prepareOK(t, e, plan("c1", gpu(1)))
	must(t, os.Truncate(n.store(t).Path("c1"), 10))
	must(t, os.Truncate(filepath.Join(n.dir, "holders", gpu(1).Identity().PCI.Label(), "c1"), 10))
	if _, err := e.Prepare(t.Context(), plan("c2", gpu(1))); err == nil || !strings.Contains(err.Error(), "unreadable record") {
		t.Error(err)
	}
	prepareOK(t, e, plan("c3", gpu(2)))
	found, err := e.Recover(t.Context())
	if err != nil || len(found.Quarantined) != 1 || len(found.Rebuilt) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// Two instances recover while claims come and go: no claim loses its device.
func TestRecoverBesideCalls(t *testing.T) {
	n := newNode(t)
	a, b := n.start(t), n.start(t)
	prepareOK(t, a, plan("stays", gpu(1)))
	var wg sync.WaitGroup
	for _, e := range []*Engine{a, b} {
		wg.Go(func() {
			for range 10 {
				if _, err := e.Recover(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 10 {
		uid := types.UID(fmt.Sprintf("c%d", i))
		p := plan(uid, part(2, "a"))
		if _, err := a.Prepare(t.Context(), p); err != nil {
			t.Error(err)
		}
		held := new(HeldError)
		if _, err := b.Prepare(t.Context(), plan("thief", gpu(2))); !errors.As(err, &held) {
			t.Errorf("while %s has a part of it: %v", uid, err)
		}
		unprepareOK(t, b, uid)
	}
	wg.Wait()
	unprepareOK(t, b, "stays")
	b.holders.journal = n.store(t)
	_, err := b.Recover(t.Context())
	must(t, err)
	n.clean(t)
}
