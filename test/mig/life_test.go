package mig_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/process"
)

// A claim for a partition from the slices to its end: nothing is published anew for it.
func TestLife(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	p := b.start()
	pool := b.published()
	if len(pool) != 9 || len(pool[0].Spec.SharedCounters) != 8 || len(pool[1].Spec.Devices) != 26 {
		t.Fatalf("%d slices, the first with %d counter sets, the second with %d devices", len(pool), len(pool[0].Spec.SharedCounters), len(pool[1].Spec.Devices))
	}
	b.API.ResetRequests()
	claim, devices := b.wants("one", "1g.10gb", 1)
	if want := b.Device(0) + "-mig-1g-10gb-6"; len(devices) != 1 || devices[0] != want {
		t.Fatalf("the scheduler gives %v, want %s", devices, want)
	}
	answer := b.prepare(claim)
	if diff := cmp.Diff([]string{"1g.10gb:6"}, b.partitions(0)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
	minor := b.Node.Spec().GPUs[0].Minor
	// The instance at 6 is number 13 of the GPU: its capability has number 3 + 135*minor + 9*13.
	capability := 3 + 135*minor + 9*13
	want := map[string][]string{devices[0]: {
		fmt.Sprintf("nvidia%d", minor), fmt.Sprintf("nvidia-caps/nvidia-cap%d", capability), fmt.Sprintf("nvidia-caps/nvidia-cap%d", capability+1),
	}}
	if diff := cmp.Diff(want, b.nodes(claim)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	again := b.prepare(claim)
	if diff := cmp.Diff(answer, again); diff != "" {
		t.Errorf("prepared again (-first +second):\n%s", diff)
	}
	second, devices := b.wants("two", "3g.40gb", 1)
	if want := b.Device(0) + "-mig-3g-40gb-0"; devices[0] != want {
		t.Errorf("the scheduler gives %v, want %s", devices, want)
	}
	b.prepare(second)
	b.unprepare(claim)
	if diff := cmp.Diff([]string{"3g.40gb:0"}, b.partitions(0)); diff != "" || !b.mode(0) {
		t.Errorf("after the first: mode %t, partitions (-want +got):\n%s", b.mode(0), diff)
	}
	b.unprepare(second)
	b.untouched()
	b.looked(p, 4)
	if n := b.writes(); n != 0 {
		t.Errorf("%d changes of slices because of claims: %s", n, cmp.Diff(pool, b.published()))
	}
}

// With partitions off a node is as it was before there were any.
func TestOff(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	p := b.Start()
	p.WaitReady()
	for _, s := range b.published() {
		if len(s.Spec.SharedCounters) > 0 {
			t.Error("counters are published")
		}
		for _, d := range s.Spec.Devices {
			if len(d.ConsumesCounters) > 0 || strings.Contains(d.Name, "mig") {
				t.Errorf("device %s is published", d.Name)
			}
		}
	}
	// Claims of a time when they were on are unprepared.
	p.Terminate()
	on := b.start()
	// Ready says that the pool is this one's, whole, not what the one before left.
	claim, _ := b.wants("one", "1g.10gb", 1)
	b.prepare(claim)
	on.Terminate()
	b.Start().WaitReady()
	b.unprepare(claim)
	b.untouched()
}

// What another tool makes is published as it is, given out, and never destroyed.
func TestForeignInstance(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.start()
	must(t, b.Node.SetMIGMode(2, true))
	made, err := b.Node.CreateMIG(2, "3g.40gb", 4)
	must(t, err)
	b.Eventually("the instance is published", func() error {
		// A partition of that name was on offer before, beside all that it excludes.
		if names := b.names(2); len(names) == 0 || names[0] != "3g-40gb-4" || slices.Contains(names, "1g-10gb-5") {
			return fmt.Errorf("devices %v", names)
		}
		return nil
	})
	for _, name := range b.names(2)[1:] {
		for _, gone := range []string{"-4", "-5", "-6"} {
			if strings.HasSuffix(name, gone) || name == "" {
				t.Errorf("device %q is published beside it", name)
			}
		}
	}
	claim := b.gets("static", b.Device(2)+"-mig-3g-40gb-4")
	b.prepare(claim)
	if nodes := b.nodes(claim)[b.Device(2)+"-mig-3g-40gb-4"]; len(nodes) != 3 {
		t.Errorf("nodes %v", nodes)
	}
	beside := b.gets("beside", b.Device(2)+"-mig-1g-10gb-0")
	b.prepare(beside)
	b.unprepare(claim)
	b.unprepare(beside)
	if diff := cmp.Diff([]string{"3g.40gb:4"}, b.partitions(2)); diff != "" || !b.mode(2) {
		t.Errorf("after the claims: mode %t, partitions (-want +got):\n%s", b.mode(2), diff)
	}
	must(t, b.Node.DestroyMIG(2, made.ID))
	b.Eventually("its place is published again", func() error {
		if n := len(b.names(2)); n != 25 {
			return fmt.Errorf("%d devices", n)
		}
		return nil
	})
	must(t, b.Node.SetMIGMode(2, false))
	b.Eventually("the whole GPU is published again", func() error {
		if n := len(b.names(2)); n != 26 {
			return fmt.Errorf("%d devices", n)
		}
		return nil
	})
}

// Seven small ones fill a GPU, the eighth goes to the next, and a whole GPU to the one after.
func TestSevenAndOne(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.start()
	seven, devices := b.wants("seven", "1g.10gb", 7)
	b.prepare(seven)
	if len(b.partitions(0)) != 7 || len(b.nodes(seven)) != 7 {
		t.Errorf("devices %v, partitions %v", devices, b.partitions(0))
	}
	eighth, devices := b.wants("eighth", "1g.10gb", 1)
	b.prepare(eighth)
	if diff := cmp.Diff([]string{b.Device(1) + "-mig-1g-10gb-6"}, devices); diff != "" {
		t.Errorf("the eighth (-want +got):\n%s", diff)
	}
	whole := b.Allocated("whole", []int{2})
	b.prepare(whole)
	b.unprepare(whole)
	b.unprepare(eighth)
	b.unprepare(seven)
	b.untouched()
}

// On Ampere partitions are there when the mode is, and neither is switched.
func TestAmpere(t *testing.T) {
	b := newBed(t, "dgx-a100-80")
	must(t, b.Node.SetMIGMode(1, true))
	b.start()
	if off, on := b.names(0), b.names(1); len(off) != 1 || len(on) != 25 {
		t.Fatalf("devices of the one in no mode %v, of the other %v", off, on)
	}
	claim, devices := b.wants("one", "2g.20gb", 2)
	b.prepare(claim)
	if diff := cmp.Diff([]string{"2g.20gb:2", "2g.20gb:4"}, b.partitions(1)); diff != "" {
		t.Errorf("%v: partitions (-want +got):\n%s", devices, diff)
	}
	b.unprepare(claim)
	if len(b.partitions(1)) != 0 || !b.mode(1) || b.mode(0) {
		t.Errorf("partitions %v, modes %t and %t", b.partitions(1), b.mode(0), b.mode(1))
	}
}

// A partition in use by a program stays with its claim until the program ends.
func TestInUse(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.start()
	claim, _ := b.wants("one", "1g.10gb", 1)
	b.prepare(claim)
	found, err := b.Node.MIGInstances(0)
	must(t, err)
	must(t, b.Node.SetMIGClients(0, found[0].ID, found[0].Compute[0].ID, 1))
	if err := b.Unprepare(claim); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("unprepare says %v", err)
	}
	next := b.gets("next", b.Device(0)+"-mig-1g-20gb-6")
	if _, err := b.Prepare(next); err == nil || !strings.Contains(err.Error(), "still prepared for claim default/one") {
		t.Errorf("prepare of the next says %v", err)
	}
	must(t, b.Node.SetMIGClients(0, found[0].ID, found[0].Compute[0].ID, 0))
	b.unprepare(claim)
	b.prepare(next)
	b.unprepare(next)
	b.untouched()
}

// A claim of another instance of the plugin is unprepared by this one, as after an update.
func TestOtherInstance(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	old := b.start()
	claim, _ := b.wants("one", "1g.10gb", 1)
	b.prepare(claim)
	next := b.start(process.Instance("11111111-2222-3333-4444-555555555555"))
	old.Terminate()
	b.unprepare(claim)
	b.untouched()
	if !next.Running() {
		t.Error("the next instance ended")
	}
}
