package process_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

// TestSlowDisk has every change of a file take long, and then one alone hang until after the kubelet
// has given up. A slow call is a call that works. While one hangs, the claim of another GPU is
// prepared and unprepared and the plugin is live; when the disk is well again nothing is half done.
// In the whole matrix every change hangs once, otherwise each twentieth.
func TestSlowDisk(t *testing.T) {
	whole := os.Getenv(matrixVariable) != ""
	for i, k := range append([]kind{wholes(1, 2)}, kinds()...) {
		for name, call := range calls() {
			t.Run(k.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				m := newMatrix(t, k)
				m.call, m.prepared, m.point, m.stride = call, name == "unprepare", 1+2*i, 20
				if whole {
					m.point, m.stride = 1, 1
				}
				m.plugin = m.bed.Start(m.flags(process.Flag("holder-wait", "1ms"))...)
				m.beside() // what is made once on a node is there from now on
				m.slow()
				hung := 0
				for m.hangs() {
					hung++
					m.point += m.stride
				}
				if hung == 0 {
					t.Error("no change hung")
				}
				t.Logf("%d changes hung", hung)
			})
		}
	}
}

// beside has the claim of a GPU that the kind leaves alone prepared and unprepared.
func (m *matrix) beside() {
	m.Helper()
	used := (&wish{kind: m.kind}).gpusOf()
	free := slices.IndexFunc(all(m.bed.Node.GPUCount()), func(gpu int) bool { _, taken := used[gpu]; return !taken })
	other := m.bed.Allocated("beside", []int{free})
	prepare(m, m.bed, other, free)
	unprepare(m, m.bed, other)
}

// slow makes the call on a disk of which each change takes a while.
func (m *matrix) slow() {
	a := m.attempt("every change is slow")
	trace := m.plugin.Trace(tracer.Plan{At: 1, Delay: 5 * time.Millisecond})
	a.err = m.call(m.bed, a.claim)
	_, err := trace.Stop()
	must(m, err)
	if a.err != nil {
		m.Errorf("on a slow disk: %v", a.err)
	}
	a.end()
}

// hangs has the change at the point hang in the call. It returns false where the call ended before.
func (m *matrix) hangs() bool {
	a := m.attempt(fmt.Sprintf("change %d hangs", m.point))
	trace := m.plugin.Trace(tracer.Plan{At: m.point, Once: true, Delay: time.Hour})
	ctx, giveUp := context.WithCancel(m.Context())
	defer giveUp()
	ended := async(func() error { return a.ask(ctx) })
	hit := false
	select {
	case a.err = <-ended:
	case <-trace.Hit():
		hit = true
		m.beside()
		if code, body, err := m.plugin.Get("/healthz"); err != nil || code != http.StatusOK {
			m.Errorf("while %s: not live: %d, %s, %v", a.what, code, body, err)
		}
		giveUp()
		a.err = <-ended
	}
	changes, err := trace.Stop()
	must(m, err)
	if hit && len(changes) >= m.point {
		a.what = "hung: " + changes[m.point-1].String()
	}
	a.end()
	return hit
}
