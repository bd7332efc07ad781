package process_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

// cell is one row of the matrix: a claim whose call was cut short, and a second claim for the
// first of its devices.
type cell struct {
	*testing.T
	kind
	m *matrix
	b *process.Bed
	// one met the mishap, two wants what it has.
	one, two kubelet.Claim
}

// way is what happens after the process was killed: before it starts again, and after.
type way struct {
	name  string
	while func(c cell)
	after func(c cell)
}

func ways() []way {
	again := func(c cell) {
		c.prepare(c, c.b, c.one)
		if c.held != "" {
			refused(c, c.b, c.two, c.held, "default/"+c.one.Name)
		}
		unprepare(c, c.b, c.one)
	}
	nothing := func(cell) {}
	return []way{
		{"prepare again", nothing, again},
		{"unprepare", nothing, func(c cell) { unprepare(c, c.b, c.one) }},
		{"claim deleted", func(c cell) { deleteClaim(c.T, c.b, c.one) }, healed},
		{"reboot, prepare again", func(c cell) { c.m.reboot() }, again},
		{"reboot, unprepare", func(c cell) { c.m.reboot() }, func(c cell) { unprepare(c, c.b, c.one) }},
	}
}

// healed is a claim that is gone and that nobody unprepares: it is undone all the same.
func healed(c cell) {
	c.b.Eventually("the claim is undone", func() error {
		if c.b.Record(c.one.UID) {
			return errors.New("there is a record")
		}
		return nil
	})
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

// matrixVariable has every row run, where it is not empty: make matrix sets it.
const matrixVariable = "CRASH_MATRIX"

// TestCrashMatrix kills the process before every change that it makes to its files, and after the
// answer, in a prepare and in an unprepare, and goes on in every way. In the whole matrix each point
// meets every way. Otherwise, in turn, one whole device meets two ways at each point, two meet one, eight
// one at each third point, and claims that change the hardware one at each tenth.
func TestCrashMatrix(t *testing.T) {
	whole := os.Getenv(matrixVariable) != ""
	for i, k := range append([]kind{wholes(3), wholes(1, 2), wholes(all(8)...)}, kinds()...) {
		for name, call := range calls() {
			t.Run(k.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				m := newMatrix(t, k)
				m.call, m.prepared, m.ways, m.stride, m.point = call, name == "unprepare", len(ways()), 1, 1
				if !whole {
					m.ways = 1 + max(0, 1-i)
				}
				switch {
				case whole:
				case i == 2:
					m.stride = 3
				case i > 2:
					m.stride, m.point = 10, 1+3*i%10
				}
				m.run()
			})
		}
	}
}

type matrix struct {
	*testing.T
	kind
	bed    *process.Bed
	plugin *process.Plugin
	pod    *process.MPSPod
	call   func(b *process.Bed, c kubelet.Claim) error
	// prepared: the claim is before the call.
	prepared bool
	// every: each point meets every fault of the disk.
	every bool
	// ways are the ways that each point meets, in turn.
	ways int
	// point is the next one to be killed at, and stride how many there are to the one after.
	point, stride int
	points, rows  int
}

// newMatrix makes a node for claims of the kind.
func newMatrix(t *testing.T, k kind) *matrix {
	m := &matrix{T: t, kind: k, bed: process.New(t, "hgx-h100-8", gpusim.WithFile(func(f *nodefile.File) {
		if len(k.gpus) <= 4 {
			four(f)
		}
	}))}
	m.up()
	return m
}

// up starts what a node with such claims has beside the plugin.
func (m *matrix) up() {
	if m.mps {
		m.pod = m.bed.StartMPS()
	}
}

// reboot is one of the machine, whose plugin has ended.
func (m *matrix) reboot() {
	if m.pod != nil {
		m.pod.End()
	}
	must(m, m.bed.Node.Reboot(uint64(m.rows)+7))
	specs, err := filepath.Glob(filepath.Join(m.bed.CDIDir(), "*"))
	must(m, err)
	for _, s := range specs {
		must(m, os.Remove(s))
	}
	m.up()
}

func (m *matrix) start() {
	m.plugin = m.bed.Start(m.flags(eager()...)...)
}

func (m *matrix) run() {
	m.start()
	for last := false; !last; m.point += m.stride {
		m.points++
		for i, w := range ways() {
			if (i+m.points*m.ways)%len(ways()) >= m.ways && !last {
				continue
			}
			last = !m.row(w)
			if m.Failed() {
				return
			}
		}
	}
	if m.points*m.stride < 10 {
		m.Errorf("only %d points", m.points)
	}
	// What a killed process was writing is swept when it is old enough.
	m.age()
	m.plugin.Kill()
	m.start()
	clean(m, m.bed)
	m.Logf("%d points, %d rows", m.points, m.rows)
}

// row kills at the point and goes on. It returns false where the call ended before the point; then
// the process was killed after its answer.
func (m *matrix) row(w way) (hit bool) {
	m.rows++
	c := cell{T: m.T, kind: m.kind, m: m, b: m.bed, one: m.claim(m.bed, fmt.Sprintf("c%d", m.rows)), two: m.other(m.bed)}
	if m.prepared {
		m.prepare(m, m.bed, c.one)
	}
	trace := m.plugin.Trace(tracer.Plan{At: m.point})
	err := m.call(m.bed, c.one)
	changes, traceErr := trace.Stop()
	must(m, traceErr)
	at, n := "the answer", len(changes)
	switch {
	case err == nil: // the process may have been killed since, in other work
	case n > 0 && changes[n-1].Hit:
		hit, at = true, changes[n-1].String()
	default:
		m.Fatalf("point %d: the call ended with %v after %v", m.point, err, changes)
	}
	m.plugin.Kill()
	defer func() {
		if m.Failed() {
			m.Logf("this was point %d, %s, way %q", m.point, at, w.name)
		}
	}()
	w.while(c)
	m.start()
	w.after(c)
	m.settle(c.two)
	return hit
}

// settle has the other claim prepared and unprepared, which must leave nothing of either.
func (m *matrix) settle(other kubelet.Claim) {
	_, err := m.bed.Prepare(other)
	must(m, err)
	unprepare(m, m.bed, other)
	cleaned(m, m.bed)
	m.bed.Eventually("hardware without claims", func() error { return idle(m.bed) })
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
