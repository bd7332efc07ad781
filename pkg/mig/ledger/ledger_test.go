package ledger_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
	"github.com/gpu-dra/driver/pkg/pci"
)

const boot = "1b1f7b1e-boot"

func gpu(n int) inventory.GPUID {
	return inventory.GPUID{PCI: pci.Address{Bus: uint8(0x10 + n)}, UUID: "GPU-" + string(rune('a'+n))}
}

func open(t testing.TB, dir, bootID string) *ledger.Ledger {
	t.Helper()
	return ledger.New(dir, bootID)
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, l *ledger.Ledger, g inventory.GPUID) ledger.Entry {
	t.Helper()
	e, err := l.Read(g)
	do(t, err)
	return e
}

func TestEntry(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mig")
	l := open(t, dir, boot)
	small, large := ledger.Instance{Profile: 19, Start: 6, Size: 1}, ledger.Instance{Profile: 9, Start: 0, Size: 4}
	if diff := cmp.Diff(ledger.Entry{}, read(t, l, gpu(0))); diff != "" || !l.Empty() {
		t.Errorf("in the beginning (-want +got):\n%s", diff)
	}
	do(t, l.SetMode(gpu(0), true))
	do(t, l.Add(gpu(0), small))
	do(t, l.Add(gpu(0), large))
	do(t, l.Add(gpu(0), small))
	want := ledger.Entry{PCI: gpu(0).PCI, GPUUUID: "GPU-a", BootID: boot, Deeds: ledger.Deeds{Mode: true, Instances: []ledger.Instance{small, large}}}
	// Another process sees the same.
	if diff := cmp.Diff(want, read(t, open(t, dir, boot), gpu(0))); diff != "" || l.Empty() {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	do(t, l.Remove(gpu(0), small))
	do(t, l.Remove(gpu(0), small))
	do(t, l.Remove(gpu(0), large))
	if e := read(t, l, gpu(0)); !e.Mode || len(e.Instances) != 0 {
		t.Errorf("without instances: %+v", e)
	}
	do(t, l.SetMode(gpu(0), false))
	do(t, l.SetMode(gpu(0), false))
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 || !l.Empty() {
		t.Errorf("in the end there are %v, %v", files, err)
	}
}

// What was done in another boot, to another board, or cannot be read, is not ours.
// Notes of an earlier boot go, and nothing else does.
func TestSweep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mig")
	now, earlier := open(t, dir, boot), open(t, dir, "earlier")
	do(t, now.Sweep()) // nothing was ever noted
	do(t, now.SetMode(gpu(0), true))
	do(t, earlier.SetMode(gpu(1), true))
	do(t, earlier.ForLayouts().SetMode(gpu(2), true))
	for _, name := range []string{"torn.json", "other.txt"} {
		do(t, os.WriteFile(filepath.Join(dir, name), []byte(`{"bootID":"earl`), 0o600))
	}
	do(t, now.Sweep())
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	do(t, err)
	want := []string{gpu(0).PCI.Label() + ".json", "other.txt", "torn.json"}
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if !read(t, now, gpu(0)).Mode {
		t.Error("a note of this boot is lost")
	}
	if err := open(t, filepath.Join(dir, "torn.json"), boot).Sweep(); err == nil {
		t.Error("a directory that is none was swept")
	}
}

func TestWhatDoesNotCount(t *testing.T) {
	dir := t.TempDir()
	l, i := open(t, dir, boot), ledger.Instance{Profile: 19, Size: 1}
	do(t, l.Add(gpu(0), i))
	next := open(t, dir, "another")
	if e := read(t, next, gpu(0)); len(e.Instances) != 0 || !next.Empty() {
		t.Errorf("after a reboot: %+v", e)
	}
	swapped := gpu(0)
	swapped.UUID = "GPU-new"
	if e := read(t, l, swapped); len(e.Instances) != 0 {
		t.Errorf("of another board: %+v", e)
	}
	// What is written next takes the place of the old.
	do(t, next.SetMode(gpu(0), true))
	if e := read(t, next, gpu(0)); !e.Mode || len(e.Instances) != 0 || e.BootID != "another" {
		t.Errorf("written after a reboot: %+v", e)
	}
	for _, text := range []string{"", "{", `{"instances":3}`, `[]`} {
		do(t, os.WriteFile(filepath.Join(dir, gpu(1).PCI.Label()+".json"), []byte(text), 0o600))
		if e := read(t, l, gpu(1)); e.Mode || len(e.Instances) != 0 {
			t.Errorf("of %q: %+v", text, e)
		}
	}
	do(t, l.Add(gpu(1), i))
	if e := read(t, l, gpu(1)); len(e.Instances) != 1 {
		t.Errorf("written over a broken file: %+v", e)
	}
	do(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o600))
	if l.Empty() {
		t.Error("the entry does not show beside a file that is none")
	}
}

func TestFaultsOfTheDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mig")
	l := open(t, dir, boot)
	if _, err := os.Stat(dir); err == nil {
		t.Error("there is a directory before there is an entry")
	}
	do(t, os.WriteFile(dir, nil, 0o600))
	if err := l.SetMode(gpu(0), true); err == nil {
		t.Error("no error where the directory is a file")
	}
	if _, err := l.Read(gpu(0)); err == nil {
		t.Error("no error where nothing can be read")
	}
	if err := l.Remove(gpu(0), ledger.Instance{}); err == nil {
		t.Error("no error where nothing can be removed")
	}
	do(t, os.Remove(dir))
	do(t, os.MkdirAll(filepath.Join(dir, gpu(0).PCI.Label()+".json"), 0o700))
	if _, err := l.Read(gpu(0)); err == nil {
		t.Error("no error where an entry is a directory")
	}
	if !l.Empty() {
		t.Error("a directory is an entry")
	}
}

type scan func() (inventory.Snapshot, error)

func (s scan) Scan(context.Context) (inventory.Snapshot, error) { return s() }

func snapshot() inventory.Snapshot {
	at := func(start, size, profile int) inventory.MIGInstance {
		return inventory.MIGInstance{ID: start, ProfileID: profile, Placement: inventory.MIGPlacement{Start: start, Size: size}}
	}
	on := inventory.MIG{Capable: true, Enabled: true, Instances: []inventory.MIGInstance{at(0, 1, 19), at(1, 1, 19), at(4, 4, 9)}}
	return inventory.Snapshot{GPUs: []inventory.GPU{
		{PCI: gpu(0).PCI, UUID: gpu(0).UUID, MIG: on}, {PCI: gpu(1).PCI, UUID: gpu(1).UUID, MIG: inventory.MIG{Capable: true}},
	}}
}

// An instance is ours if the ledger had it before the look or has it after.
func TestMarker(t *testing.T) {
	l := open(t, t.TempDir(), boot)
	gone, kept, fresh := ledger.Instance{Profile: 19, Start: 0, Size: 1}, ledger.Instance{Profile: 9, Start: 4, Size: 4}, ledger.Instance{Profile: 19, Start: 1, Size: 1}
	do(t, l.SetMode(gpu(0), true))
	do(t, l.SetMode(gpu(1), true))
	do(t, l.Add(gpu(0), gone))
	do(t, l.Add(gpu(0), kept))
	during := func() {}
	m := ledger.Marker{Ledger: l, Scanner: scan(func() (inventory.Snapshot, error) { during(); return snapshot(), nil })}
	marks := func() []bool {
		s, err := m.Scan(t.Context())
		do(t, err)
		out := []bool{s.GPUs[0].MIG.Ours, s.GPUs[1].MIG.Ours}
		for _, i := range s.GPUs[0].MIG.Instances {
			out = append(out, i.Ours)
		}
		return out
	}
	during = func() {
		do(t, l.Remove(gpu(0), gone))
		do(t, l.Add(gpu(0), fresh))
	}
	if diff := cmp.Diff([]bool{true, false, true, true, true}, marks()); diff != "" {
		t.Errorf("changed during the look (-want +got):\n%s", diff)
	}
	during = func() {}
	if diff := cmp.Diff([]bool{true, false, false, true, true}, marks()); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
	// Another profile at the same place is somebody else's.
	do(t, l.Remove(gpu(0), fresh))
	do(t, l.Add(gpu(0), ledger.Instance{Profile: 20, Start: 1, Size: 1}))
	if diff := cmp.Diff([]bool{true, false, false, false, true}, marks()); diff != "" {
		t.Errorf("of another profile (-want +got):\n%s", diff)
	}
	broken := errors.New("broken")
	m.Scanner = scan(func() (inventory.Snapshot, error) { return inventory.Snapshot{}, broken })
	if _, err := m.Scan(t.Context()); !errors.Is(err, broken) {
		t.Errorf("a scan that fails gives %v", err)
	}
	swapped := snapshot()
	swapped.GPUs[0].UUID = "GPU-new"
	m.Scanner = scan(func() (inventory.Snapshot, error) { return swapped, nil })
	if s, err := m.Scan(t.Context()); err != nil || s.GPUs[0].MIG.Ours || s.GPUs[0].MIG.Instances[2].Ours {
		t.Errorf("on another board: %+v, %v", s.GPUs[0].MIG, err)
	}
}

// Whatever order things are done in, the ledger has what was added and not removed.
func TestAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := open(t, t.TempDir(), boot)
		mode, model := map[int]bool{}, map[int]map[ledger.Instance]bool{0: {}, 1: {}}
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			n := rapid.IntRange(0, 1).Draw(rt, "gpu")
			i := ledger.Instance{Profile: rapid.IntRange(0, 1).Draw(rt, "profile"), Start: rapid.IntRange(0, 2).Draw(rt, "start"), Size: 1}
			switch rapid.IntRange(0, 2).Draw(rt, "action") {
			case 0:
				do(t, l.Add(gpu(n), i))
				model[n][i] = true
			case 1:
				do(t, l.Remove(gpu(n), i))
				delete(model[n], i)
			default:
				mode[n] = rapid.Bool().Draw(rt, "mode")
				do(t, l.SetMode(gpu(n), mode[n]))
			}
		}
		for n := range 2 {
			e := read(t, l, gpu(n))
			got := map[ledger.Instance]bool{}
			for _, i := range e.Instances {
				got[i] = true
			}
			if diff := cmp.Diff(model[n], got); diff != "" || e.Mode != mode[n] || len(got) != len(e.Instances) {
				rt.Fatalf("GPU %d: mode %t, instances (-want +got):\n%s", n, e.Mode, diff)
			}
		}
	})
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"pci":"0000:10:00.0","gpuUUID":"GPU-a","bootID":"1b1f7b1e-boot","mode":true,"instances":[{"profile":19,"start":0,"size":1}]}`))
	f.Add([]byte(`{"pci":"x"}`))
	dir := f.TempDir()
	l := open(f, dir, boot)
	f.Fuzz(func(t *testing.T, data []byte) {
		do(t, os.WriteFile(filepath.Join(dir, gpu(0).PCI.Label()+".json"), data, 0o600))
		if e := read(t, l, gpu(0)); (e.Mode || len(e.Instances) > 0) && (e.BootID != boot || e.GPUUUID != gpu(0).UUID) {
			t.Errorf("%q counts: %+v", data, e)
		}
	})
}

func BenchmarkMarker(b *testing.B) {
	l := open(b, b.TempDir(), boot)
	for n := range 8 {
		do(b, l.Add(gpu(n), ledger.Instance{Profile: 19, Size: 1}))
	}
	m := ledger.Marker{Ledger: l, Scanner: scan(func() (inventory.Snapshot, error) { return snapshot(), nil })}
	for b.Loop() {
		if _, err := m.Scan(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// What is done for layouts is apart from what is done for claims, in one file.
func TestLayoutsAreApart(t *testing.T) {
	l := ledger.New(t.TempDir(), boot)
	layouts := l.ForLayouts()
	id := gpu(0)
	small, large := ledger.Instance{Profile: 19, Start: 6, Size: 1}, ledger.Instance{Profile: 9, Start: 0, Size: 4}
	for _, err := range []error{l.SetMode(id, true), l.Add(id, small), layouts.Add(id, large)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	both := ledger.Entry{
		PCI: id.PCI, GPUUUID: id.UUID, BootID: boot,
		Deeds:  ledger.Deeds{Mode: true, Instances: []ledger.Instance{small}},
		Layout: ledger.Deeds{Instances: []ledger.Instance{large}},
	}
	if diff := cmp.Diff(both, read(t, l, id)); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(both.Layout, read(t, layouts, id).Deeds); diff != "" {
		t.Errorf("for layouts (-want +got):\n%s", diff)
	}
	if err := l.KeepMode(id); err != nil {
		t.Fatal(err)
	}
	g := inventory.GPU{PCI: id.PCI, UUID: id.UUID, MIG: inventory.MIG{Enabled: true, Instances: []inventory.MIGInstance{
		{ProfileID: 9, Placement: large.Placement()},
		{ProfileID: 19, Placement: small.Placement()},
		{ProfileID: 19, Placement: inventory.MIGPlacement{Start: 5, Size: 1}},
	}}}
	if err := l.Mark(&g); err != nil {
		t.Fatal(err)
	}
	i := g.MIG.Instances
	if !g.MIG.Declared || g.MIG.Ours || !i[0].Declared || i[0].Ours || !i[1].Ours || i[1].Declared || i[2].Ours || i[2].Declared {
		t.Errorf("marked %+v", g.MIG)
	}
	for _, err := range []error{l.Remove(id, small), layouts.Remove(id, small), layouts.Remove(id, large), layouts.SetMode(id, false)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if !l.Empty() {
		t.Errorf("left %+v", read(t, l, id))
	}
	other := inventory.GPU{PCI: id.PCI, UUID: "GPU-other", MIG: g.MIG}
	if err := l.Mark(&other); err != nil {
		t.Fatal(err)
	}
}

// An instance that comes and goes within a look, and its note with it, is nobody else's.
func TestComeAndGoneWithinALook(t *testing.T) {
	l := ledger.New(t.TempDir(), boot)
	brief := ledger.Instance{Profile: 19, Start: 6, Size: 1}
	looks := 0
	m := ledger.Marker{Ledger: l, Scanner: scan(func() (inventory.Snapshot, error) {
		looks++
		s := inventory.Snapshot{GPUs: []inventory.GPU{{PCI: gpu(0).PCI, UUID: gpu(0).UUID}}}
		if looks == 1 {
			do(t, l.Add(gpu(0), brief))
			s.GPUs[0].MIG = inventory.MIG{Enabled: true, Instances: []inventory.MIGInstance{{ProfileID: 19, Placement: brief.Placement()}}}
			do(t, l.Remove(gpu(0), brief))
		}
		return s, nil
	})}
	s, err := m.Scan(t.Context())
	do(t, err)
	if n := len(s.GPUs[0].MIG.Instances); n != 0 || looks != 2 {
		t.Errorf("%d instances after %d looks", n, looks)
	}
}
