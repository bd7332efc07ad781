package gpusim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// placed is one GPU instance in the model: a profile of the board, and where it lies.
type placed struct {
	profile int
	start   uint32
}

// partition is the model of a board's instances: which sets of them are legal.
type partition struct {
	board *nodefile.BoardMIG
	live  []placed
}

// legal says whether a set of instances can exist, from the whole set and not step by step.
func (p *partition) legal(set []placed) bool {
	units := map[uint32]bool{}
	counts := map[int]uint32{}
	for _, instance := range set {
		profile := &p.board.Profiles[instance.profile]
		counts[instance.profile]++
		for unit := instance.start; unit < instance.start+profile.Size; unit++ {
			if units[unit] {
				return false
			}
			units[unit] = true
		}
	}
	for profile, count := range counts {
		if count > p.board.Profiles[profile].Max {
			return false
		}
	}
	for _, engine := range engineCounts() {
		used, most := uint32(0), uint32(0)
		for _, instance := range set {
			used += engine(&p.board.Profiles[instance.profile])
		}
		for i := range p.board.Profiles {
			most = max(most, engine(&p.board.Profiles[i])*p.board.Profiles[i].Max)
		}
		if used > most {
			return false
		}
	}
	return true
}

func engineCounts() []func(*nodefile.MIGProfile) uint32 {
	return []func(*nodefile.MIGProfile) uint32{
		func(p *nodefile.MIGProfile) uint32 { return p.CE }, func(p *nodefile.MIGProfile) uint32 { return p.DEC },
		func(p *nodefile.MIGProfile) uint32 { return p.ENC }, func(p *nodefile.MIGProfile) uint32 { return p.JPG },
		func(p *nodefile.MIGProfile) uint32 { return p.OFA }, func(p *nodefile.MIGProfile) uint32 { return p.Slices },
	}
}

// id is the number of an instance in the tree of halves.
func (p *partition) id(instance placed) uint32 {
	size := p.board.Profiles[instance.profile].Size
	return p.board.Units/size - 1 + instance.start/size
}

func (p *partition) fits(instance placed) bool {
	return p.legal(append(slices.Clone(p.live), instance))
}

// all lists every profile at every place.
func (p *partition) all() []placed {
	var out []placed
	for i := range p.board.Profiles {
		for _, start := range p.board.Profiles[i].Starts {
			out = append(out, placed{i, start})
		}
	}
	return out
}

// walk makes every legal set of instances on a GPU, and tries every further instance at each
// of them: the library must refuse exactly what the model does.
type walk struct {
	partition
	device nvml.Device
	// Sets and Refused count what was made and what was refused.
	Sets, Refused int
}

func (w *walk) create(instance placed) (nvml.GpuInstance, nvml.Return) {
	profile := &w.board.Profiles[instance.profile]
	return w.device.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: profile.ID}, &nvml.GpuInstancePlacement{Start: instance.start, Size: profile.Size})
}

// from visits the sets that have the present one and only later instances of the list.
func (w *walk) from(list []placed, next int) error {
	w.Sets++
	for i, instance := range list {
		fits := w.fits(instance)
		if fits && i < next {
			continue // Visited on another way.
		}
		gi, ret := w.create(instance)
		if fits != (ret == nvml.SUCCESS) || (!fits && ret != nvml.ERROR_INSUFFICIENT_RESOURCES) {
			return fmt.Errorf("beside %v, %s at %d: %w; the model says %t", w.live, w.board.Profiles[instance.profile].Name, instance.start, ret, fits)
		}
		if !fits {
			w.Refused++
			continue
		}
		info, ret := gi.GetInfo()
		if ret != nvml.SUCCESS || info.Id != w.id(instance) {
			return fmt.Errorf("%s at %d has id %d, want %d (%w)", w.board.Profiles[instance.profile].Name, instance.start, info.Id, w.id(instance), ret)
		}
		w.live = append(w.live, instance)
		if err := w.from(list, i+1); err != nil {
			return err
		}
		w.live = w.live[:len(w.live)-1]
		if ret := gi.Destroy(); ret != nvml.SUCCESS {
			return fmt.Errorf("destroy: %w", ret)
		}
	}
	return nil
}

func boardMIG(name string) (*nodefile.BoardMIG, error) {
	node, err := nodefile.Resolve(&nodefile.File{
		APIVersion: nodefile.APIVersion, Name: "one", Driver: nodefile.Driver{Version: "1", CUDA: "13.0"},
		GPUs: []nodefile.GPU{{Board: name, PCI: "0000:01:00.0", Root: "pci0000:00"}},
	})
	if err != nil {
		return nil, err
	}
	return node.GPUs[0].Board.MIG, nil
}

func walkChild(lib nvml.Interface, args []string) (any, error) {
	board, err := boardMIG(args[0])
	if err != nil {
		return nil, err
	}
	return initialised(lib, func() ([2]int, error) {
		w := walk{partition: partition{board: board}, device: must(lib.DeviceGetHandleByIndex(0))}
		err := w.from(w.all(), 0)
		return [2]int{w.Sets, w.Refused}, err
	})
}

// Every combination that a board allows can be made, and no other.
func TestEveryCombination(t *testing.T) {
	t.Parallel()
	for _, board := range migBoards() {
		t.Run(board, func(t *testing.T) {
			t.Parallel()
			node, _ := migOn(t, board)
			got := inChild[[2]int](t, node, "walk", board)
			t.Logf("%d sets made, %d instances refused", got[0], got[1])
			if got[0] < 30 || got[1] < 100 {
				t.Errorf("only %d sets and %d refusals: the walk ended early", got[0], got[1])
			}
			if files, nodes := capabilities(t, node, 0); len(files) != 0 || len(nodes) != 0 {
				t.Errorf("after the walk: files %v, nodes %v", files, nodes)
			}
		})
	}
}

// Combinations whose answer is known from guides and headers, not from our data.
func TestKnownCombinations(t *testing.T) {
	t.Parallel()
	tests := []struct{ board, profiles, want string }{
		{"a100-sxm4-40gb", "4g.20gb 3g.20gb", ""},
		{"a100-sxm4-40gb", "4g.20gb 2g.10gb 1g.5gb", ""},
		{"a100-sxm4-40gb", "2g.10gb 2g.10gb 2g.10gb 1g.5gb", ""},
		{"a100-sxm4-40gb", "4g.20gb 4g.20gb", "4g.20gb"},
		{"a100-sxm4-40gb", "1g.5gb+me 1g.5gb+me", "1g.5gb+me"},
		{"a100-sxm4-80gb", "1g.20gb 1g.20gb 1g.20gb 1g.20gb 1g.10gb", "1g.10gb"},
		{"h100-sxm5-80gb", "1g.10gb+me 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb", ""},
		{"h100-sxm5-80gb", "3g.40gb 3g.40gb 1g.10gb", "1g.10gb"},
		{"b200-sxm6-180gb", "1g.23gb 1g.23gb 1g.23gb 1g.23gb 1g.23gb 1g.23gb 1g.23gb", ""},
		{"gb200-186gb", "4g.93gb 3g.93gb", ""},
		{"rtx-pro-6000-96gb", "1g.24gb+me.all 1g.24gb-me 1g.24gb-me 1g.24gb-me", ""},
		{"rtx-pro-6000-96gb", "1g.24gb+me.all 1g.24gb", "1g.24gb"},
		{"rtx-pro-6000-96gb", "2g.48gb+me.all 2g.48gb-me", ""},
		{"rtx-pro-6000-96gb", "2g.48gb+me.all 2g.48gb+gfx", "2g.48gb+gfx"},
		{"rtx-pro-6000-96gb", "1g.24gb+gfx 1g.24gb+gfx 2g.48gb", ""},
		{"a30-24gb", "2g.12gb+me 2g.12gb", ""},
		{"a30-24gb", "2g.12gb+me 1g.6gb+me", "1g.6gb+me"},
	}
	for _, test := range tests {
		t.Run(test.board+" "+test.profiles, func(t *testing.T) {
			t.Parallel()
			node := oneOf(t, test.board)
			do(t, node.SetMIGMode(0, true))
			refused := ""
			for profile := range strings.FieldsSeq(test.profiles) {
				if _, err := node.CreateMIG(0, profile, gpusim.AnyStart); err != nil {
					refused = profile
				}
			}
			if refused != test.want {
				t.Errorf("refused %q, want %q", refused, test.want)
			}
		})
	}
}

// Random creates and destroys, with and without a place, of GPU and compute instances.
func TestRandomChangesFollowTheModel(t *testing.T) {
	t.Parallel()
	for _, board := range []string{"a100-sxm4-80gb", "h100-nvl-94gb", "rtx-pro-6000-96gb", "a30-24gb"} {
		t.Run(board, func(t *testing.T) {
			t.Parallel()
			node, s := migOn(t, board)
			mig := node.Spec().GPUs[0].Board.MIG
			rapid.Check(t, func(rt *rapid.T) {
				do(t, node.ResetGPU(0))
				m := &changes{rt: rt, s: s, partition: partition{board: mig}, compute: map[uint32]bool{}}
				rt.Repeat(map[string]func(*rapid.T){"create": m.create, "create anywhere": m.createAnywhere, "destroy": m.destroy, "fill": m.fill, "empty": m.empty, "": m.check})
			})
		})
	}
}

// changes is a board under random changes and its model.
type changes struct {
	partition
	rt *rapid.T
	s  *session
	// compute holds the GPU instances with a compute instance.
	compute map[uint32]bool
}

func (m *changes) expect(rt *rapid.T, question, want string) {
	if got := m.s.ask(question); got != want {
		rt.Fatalf("%s: got %q, want %q; the model has %v", question, got, want, m.live)
	}
}

func (m *changes) create(rt *rapid.T) {
	instance := rapid.SampledFrom(m.all()).Draw(rt, "instance")
	profile := &m.board.Profiles[instance.profile]
	want := noResources
	fits := m.fits(instance)
	if fits {
		want = fmt.Sprintf("gi %d at %d", m.id(instance), instance.start)
	}
	m.expect(rt, fmt.Sprintf("gicreate 0 %d %d %d", profile.ID, instance.start, profile.Size), want)
	if fits {
		m.live = append(m.live, instance)
	}
}

// createAnywhere checks that the library finds a place when there is one, and a legal one.
func (m *changes) createAnywhere(rt *rapid.T) {
	number := rapid.IntRange(0, len(m.board.Profiles)-1).Draw(rt, "profile")
	profile := &m.board.Profiles[number]
	possible := 0
	for _, start := range profile.Starts {
		if m.fits(placed{number, start}) {
			possible++
		}
	}
	got := m.s.ask(fmt.Sprintf("gicreate 0 %d", profile.ID))
	if possible == 0 {
		if got != noResources {
			rt.Fatalf("%s: got %q, want %q; the model has %v", profile.Name, got, noResources, m.live)
		}
		return
	}
	var id, start uint32
	if _, err := fmt.Sscanf(got, "gi %d at %d", &id, &start); err != nil {
		rt.Fatalf("%s: got %q though %d places are free; the model has %v", profile.Name, got, possible, m.live)
	}
	instance := placed{number, start}
	if !slices.Contains(profile.Starts, start) || !m.fits(instance) || m.id(instance) != id {
		rt.Fatalf("%s was made at %d with id %d; the model has %v", profile.Name, start, id, m.live)
	}
	m.live = append(m.live, instance)
}

// pick draws a live instance, or none.
func (m *changes) pick(rt *rapid.T) (index int, id uint32) {
	if len(m.live) == 0 {
		rt.Skip("no instance")
	}
	index = rapid.IntRange(0, len(m.live)-1).Draw(rt, "index")
	return index, m.id(m.live[index])
}

func (m *changes) destroy(rt *rapid.T) {
	index, id := m.pick(rt)
	if m.compute[id] {
		m.expect(rt, fmt.Sprintf("gidestroy 0 %d", id), inUse)
		return
	}
	m.expect(rt, fmt.Sprintf("gidestroy 0 %d", id), ok)
	m.live = slices.Delete(m.live, index, index+1)
}

func (m *changes) fill(rt *rapid.T) {
	index, id := m.pick(rt)
	whole := map[uint32]int{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[m.board.Profiles[m.live[index].profile].Slices]
	want := "ci 0 at 0"
	if m.compute[id] {
		want = noResources
	}
	m.expect(rt, fmt.Sprintf("cicreate 0 %d %d", id, whole), want)
	m.compute[id] = true
}

func (m *changes) empty(rt *rapid.T) {
	_, id := m.pick(rt)
	want := notFound
	if m.compute[id] {
		want = ok
	}
	m.expect(rt, fmt.Sprintf("cidestroy 0 %d 0", id), want)
	delete(m.compute, id)
}

// check compares everything that can be listed.
func (m *changes) check(rt *rapid.T) {
	var want, devices []string
	live := slices.Clone(m.live)
	slices.SortFunc(live, func(a, b placed) int { return int(m.id(a)) - int(m.id(b)) })
	for _, instance := range live {
		profile := &m.board.Profiles[instance.profile]
		text := fmt.Sprintf("%d:%d:%d:%d", m.id(instance), profile.ID, instance.start, profile.Size)
		if m.compute[m.id(instance)] {
			text += fmt.Sprintf("/0:%d:0:%d", map[uint32]int{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile.Slices], profile.Slices)
			devices = append(devices, fmt.Sprintf("%d=%d/0", len(devices), m.id(instance)))
		}
		want = append(want, text)
	}
	slices.Sort(want)
	m.expect(rt, "gis 0", strings.Join(want, " "))
	m.expect(rt, "migs 0", strings.Join(devices, " "))
	for i := range m.board.Profiles {
		var added partition
		added.board, added.live = m.board, slices.Clone(m.live)
		for _, start := range m.board.Profiles[i].Starts {
			if added.fits(placed{i, start}) {
				added.live = append(added.live, placed{i, start})
			}
		}
		m.expect(rt, fmt.Sprintf("remaining 0 %d", m.board.Profiles[i].ID), fmt.Sprint(len(added.live)-len(m.live)))
	}
}

func TestMIGUUIDs(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8")
	seen := map[string]string{}
	for _, gpu := range node.UUIDs() {
		for gi := range 15 {
			for ci := range 8 {
				uuid, key := gpusim.MIGUUID(gpu, gi, ci), fmt.Sprint(gpu, gi, ci)
				if other, taken := seen[uuid]; taken || !strings.HasPrefix(uuid, "MIG-") || uuid[18] != '5' || len(uuid) != 40 {
					t.Fatalf("%s: UUID %s, taken by %q", key, uuid, other)
				}
				seen[uuid] = key
			}
		}
	}
	do(t, node.SetMIGMode(4, true))
	first, err := node.CreateMIG(4, "2g.20gb", 2)
	do(t, err)
	do(t, node.DestroyMIG(4, first.ID))
	again, err := node.CreateMIG(4, "2g.20gb", 2)
	do(t, err)
	if diff := cmp.Diff(first, again); diff != "" || first.Compute[0].UUID != gpusim.MIGUUID(node.UUIDs()[4], 4, 0) {
		t.Errorf("made anew (-first +again):\n%s", diff)
	}
}
