package process_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

// cell is one row of the matrix: a claim whose call was cut short, and a second claim for the
// first of its GPUs.
type cell struct {
	*testing.T
	bed          *process.Bed
	gpus         []int
	claim, other kubelet.Claim
	// held is what a refusal of the second claim says beside the first one's name.
	held string
}

// way is what happens after the process was killed: before it starts again, and after.
type way struct {
	name  string
	while func(c cell)
	after func(c cell)
}

func ways() []way {
	again := func(c cell) {
		prepare(c, c.bed, c.claim, c.gpus...)
		refused(c, c.bed, c.other, c.held, "default/"+c.claim.Name)
		unprepare(c, c.bed, c.claim)
	}
	reboot := func(c cell) {
		must(c, c.bed.Node.Reboot(uint64(len(c.gpus))+7))
		specs, err := filepath.Glob(filepath.Join(c.bed.CDIDir(), "*"))
		must(c, err)
		for _, s := range specs {
			must(c, os.Remove(s))
		}
	}
	nothing := func(cell) {}
	return []way{
		{"prepare again", nothing, again},
		{"unprepare", nothing, func(c cell) { unprepare(c, c.bed, c.claim) }},
		{"claim deleted", func(c cell) {
			must(c, c.bed.Client.ResourceV1().ResourceClaims("default").Delete(c.Context(), c.claim.Name, metav1.DeleteOptions{}))
		}, healed},
		{"reboot, prepare again", reboot, again},
		{"reboot, unprepare", reboot, func(c cell) { unprepare(c, c.bed, c.claim) }},
	}
}

// healed is a claim that is gone and that nobody unprepares: it is undone all the same.
func healed(c cell) {
	c.bed.Eventually("the claim is undone", func() error {
		if c.bed.Record(c.claim.UID) {
			return errors.New("there is a record")
		}
		return nil
	})
	prepare(c, c.bed, c.other, c.gpus[0])
	unprepare(c, c.bed, c.other)
	cleaned(c, c.bed)
}

// cleaned waits until nothing is left of claims. The record of one that is undone goes before its
// place in the index of holders.
func cleaned(t testing.TB, b *process.Bed) {
	t.Helper()
	b.Eventually("nothing is left", func() error {
		if left := settled(b); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// calls are the two that can be cut short.
func calls() map[string]func(b *process.Bed, c kubelet.Claim) error {
	return map[string]func(b *process.Bed, c kubelet.Claim) error{
		"prepare": func(b *process.Bed, c kubelet.Claim) error {
			_, err := b.Prepare(c)
			return err
		},
		"unprepare": (*process.Bed).Unprepare,
	}
}

// TestCrashMatrix kills the process before every change that it makes to its files, and after the
// answer, in a prepare and in an unprepare, and goes on in every way. One device meets every way
// at every point, more devices one way at each point, in turn.
func TestCrashMatrix(t *testing.T) {
	for _, gpus := range [][]int{{3}, {1, 2}, all(8)} {
		for name, call := range calls() {
			t.Run(fmt.Sprintf("%s/%d devices", name, len(gpus)), func(t *testing.T) {
				t.Parallel()
				b := process.New(t, "hgx-h100-8")
				m := &matrix{T: t, bed: b, gpus: gpus, call: call, prepared: name == "unprepare", held: "is still prepared for claim", every: len(gpus) == 1}
				m.run()
			})
		}
	}
}

// TestCrashMatrixOfSharing does the same for a whole GPU with a time slice, and for a share with one,
// whose neighbour wants another. Each point meets one way, in turn.
func TestCrashMatrixOfSharing(t *testing.T) {
	for kind, m := range map[string]matrix{
		"time slice": {
			held: "is still prepared for claim",
			with: []change{interval("Long")}, otherWith: []change{interval("Medium")},
		},
		"share": {
			held: `"Long"`, settings: []process.Setting{process.Flag("shared-devices", `[{"enforcement":"none","replicas":4,"devices":{"indices":[3]}}]`)},
			with: []change{share("0"), interval("Long")}, otherWith: []change{share("0"), interval("Medium")},
		},
	} {
		for name, call := range calls() {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				m := m
				m.T, m.bed, m.gpus, m.call, m.prepared = t, process.New(t, "hgx-h100-8"), []int{3}, call, name == "unprepare"
				m.run()
			})
		}
	}
}

// change makes of a claim of whole GPUs another one.
type change = func(*resourceapi.ResourceClaim)

type matrix struct {
	*testing.T
	bed    *process.Bed
	plugin *process.Plugin
	gpus   []int
	call   func(b *process.Bed, c kubelet.Claim) error
	// prepared: the claim is before the call.
	prepared bool
	// every: each point meets every way.
	every bool
	// held is what a refusal of the second claim says beside the first one's name.
	held string
	// with and otherWith make the two claims what they are.
	with, otherWith []change
	settings        []process.Setting
	rows            int
}

func (m *matrix) start() {
	m.plugin = m.bed.Start(append([]process.Setting{
		process.Flag("holder-wait", "1ms"), process.Flag("rescan-interval", "1h"),
		process.Flag("orphan-grace", "0s"), process.Flag("reconcile-interval", "1s"),
	}, m.settings...)...)
}

func (m *matrix) run() {
	m.start()
	points := 0
	for last := false; !last; {
		points++
		for i, w := range ways() {
			if !m.every && i != points%len(ways()) && !last {
				continue
			}
			last = !m.row(points, w)
			if m.Failed() {
				return
			}
		}
	}
	if points < 10 {
		m.Errorf("only %d points", points)
	}
	// What a killed process was writing is swept when it is old enough.
	m.age()
	m.plugin.Kill()
	m.start()
	clean(m, m.bed)
	m.Logf("%d points, %d rows", points, m.rows)
}

// row kills at a point and goes on. It returns false where the call ended before the point; then
// the process was killed after its answer.
func (m *matrix) row(point int, w way) (hit bool) {
	m.rows++
	c := cell{T: m.T, bed: m.bed, gpus: m.gpus, held: m.held}
	c.claim = m.bed.Allocated(fmt.Sprintf("c%d", m.rows), m.gpus, m.with...)
	c.other = m.bed.Allocated("other", m.gpus[:1], m.otherWith...)
	if m.prepared {
		prepare(m, m.bed, c.claim, m.gpus...)
	}
	trace := m.plugin.Trace(tracer.Plan{At: point})
	err := m.call(m.bed, c.claim)
	changes, traceErr := trace.Stop()
	must(m, traceErr)
	at := "the answer"
	if n := len(changes); n > 0 && changes[n-1].Hit {
		hit, at = true, changes[n-1].String()
	}
	if hit != (err != nil) {
		m.Fatalf("point %d, %s: the call ended with %v", point, at, err)
	}
	m.plugin.Kill()
	w.while(c)
	m.start()
	w.after(c)
	prepare(m, m.bed, c.other, m.gpus[0])
	unprepare(m, m.bed, c.other)
	cleanButTemporary(m, m.bed)
	sliced(m, m.bed, m.gpus[0], gpusim.TimeSliceDefault)
	if m.Failed() {
		m.Errorf("this was point %d, %s, way %q", point, at, w.name)
	}
	return hit
}

// cleanButTemporary allows files that a write was cut short in: a later start sweeps them.
func cleanButTemporary(t testing.TB, b *process.Bed) {
	t.Helper()
	for _, f := range settled(b) {
		t.Errorf("left behind: %s", f)
	}
}

// settled lists what is left behind, but for files that a write was cut short in.
func settled(b *process.Bed) []string {
	return slices.DeleteFunc(b.Leftovers(), func(f string) bool { return strings.HasPrefix(filepath.Base(f), ".") })
}

// age makes every temporary file an hour old.
func (m *matrix) age() {
	old := time.Now().Add(-time.Hour)
	for _, dir := range m.bed.StateDirs() {
		must(m, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && strings.HasPrefix(d.Name(), ".") {
				err = os.Chtimes(path, old, old)
			}
			return err
		}))
	}
}

// disk is a fault of the file system.
type disk struct {
	errno syscall.Errno
	fails []tracer.Kind
	once  bool
}

func disks() map[string]disk {
	return map[string]disk{
		"full":      {syscall.ENOSPC, []tracer.Kind{tracer.Create, tracer.Write, tracer.Mkdir, tracer.Rename}, false},
		"read-only": {syscall.EROFS, []tracer.Kind{tracer.Create, tracer.Mkdir, tracer.Rename, tracer.Remove}, false},
		"I/O error": {syscall.EIO, nil, true},
	}
}

// TestDiskFaults lets the file system fail from every change on, or at one alone. The call says
// why it failed; once the disk is well the claim can be prepared and unprepared, and nothing of
// it is left.
func TestDiskFaults(t *testing.T) {
	for name, fault := range disks() {
		for call, do := range calls() {
			t.Run(name+"/"+call, func(t *testing.T) {
				t.Parallel()
				b := process.New(t, "hgx-h100-8")
				p := b.Start(process.Flag("holder-wait", "1ms"), process.Flag("rescan-interval", "1h"))
				point, failed := 1, 0
				for ; ; point++ {
					gpus := []int{1, 2}
					c := b.Allocated(fmt.Sprintf("c%d", point), gpus)
					if call == "unprepare" {
						prepare(t, b, c, gpus...)
					}
					trace := p.Trace(tracer.Plan{At: point, Errno: fault.errno, Fails: fault.fails, Once: fault.once})
					err := do(b, c)
					changes, traceErr := trace.Stop()
					must(t, traceErr)
					if err != nil {
						failed++
						says(t, err, fault.errno.Error())
					} else if call == "prepare" {
						prepare(t, b, c, gpus...)
					}
					if point%2 == 0 {
						prepare(t, b, c, gpus...)
					}
					unprepare(t, b, c)
					// Who takes the GPUs next also removes what may be left in the index of holders.
					other := b.Allocated("other", gpus)
					prepare(t, b, other, gpus...)
					unprepare(t, b, other)
					cleanButTemporary(t, b)
					if t.Failed() {
						t.Fatalf("this was point %d, error %v, of %v", point, err, changes)
					}
					if len(changes) < point {
						break
					}
				}
				if failed == 0 {
					t.Error("no call failed")
				}
				t.Logf("%d points, %d failed calls", point-1, failed)
			})
		}
	}
}
