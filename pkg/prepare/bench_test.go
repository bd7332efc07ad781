package prepare

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// floor is what two durable replacements of a file cost on this disk: write, sync, rename, sync
// of the directory. No driver that keeps what it did can prepare in less than one of them.
func floor(b *testing.B, dir string) time.Duration {
	b.Helper()
	content := make([]byte, 700)
	replace := func() {
		f, err := os.CreateTemp(dir, "floor")
		must(b, err)
		_, err = f.Write(content)
		must(b, errors.Join(err, f.Sync(), f.Close(), os.Rename(f.Name(), filepath.Join(dir, "floor-file"))))
		d, err := os.Open(dir)
		must(b, err)
		must(b, errors.Join(d.Sync(), d.Close()))
	}
	start := time.Now()
	replace()
	replace()
	return time.Since(start)
}

func median(times []time.Duration) float64 {
	slices.Sort(times)
	return float64(times[len(times)/2].Microseconds())
}

// present prepares claims that stay. They have admin access, so that a few GPUs suffice.
func present(b *testing.B, e *Engine, count int) {
	b.Helper()
	for i := range count {
		p := plan(types.UID(fmt.Sprintf("present-%d", i)), gpu(i%8))
		p.Devices[0].AdminAccess = true
		prepareOK(b, e, p)
	}
}

// A pair of calls beside the floor of the same moment, so that a busy disk shows in both.
func BenchmarkPrepare(b *testing.B) {
	for _, count := range []int{0, 256} {
		b.Run(fmt.Sprintf("present=%d", count), func(b *testing.B) {
			n := newNode(b)
			counted := &counting{Store: n.store(b)}
			e := n.start(b, func(c *Config) { c.Journal = counted })
			present(b, e, count)
			before, writes := counted.bytes, counted.writes
			var floors, prepares, again, unprepares []time.Duration
			timed := func(list *[]time.Duration, call func()) {
				start := time.Now()
				call()
				*list = append(*list, time.Since(start))
			}
			for b.Loop() {
				floors = append(floors, floor(b, n.dir))
				timed(&prepares, func() { prepareOK(b, e, plan("c1", gpu(1))) })
				timed(&again, func() { prepareOK(b, e, plan("c1", gpu(1))) })
				timed(&unprepares, func() { unprepareOK(b, e, "c1") })
			}
			pairs := float64(len(prepares))
			b.ReportMetric(median(floors), "floor-p50-µs")
			b.ReportMetric(median(prepares), "prepare-p50-µs")
			b.ReportMetric(median(again), "again-p50-µs")
			b.ReportMetric(median(unprepares), "unprepare-p50-µs")
			b.ReportMetric(median(prepares)/median(floors), "prepare/floor")
			b.ReportMetric(float64(counted.bytes-before)/pairs, "journal-bytes/pair")
			b.ReportMetric(float64(counted.writes-writes)/pairs, "durable-writes/pair")
		})
	}
}

// Eight callers on eight GPUs against one.
func BenchmarkCallers(b *testing.B) {
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			n := newNode(b)
			e := n.start(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			start := time.Now()
			for caller := range callers {
				wg.Go(func() {
					uid := types.UID(fmt.Sprintf("c%d", caller))
					for left.Add(-1) >= 0 {
						if _, err := e.Prepare(b.Context(), plan(uid, gpu(caller))); err != nil {
							b.Error(err)
						}
						if err := e.Unprepare(b.Context(), claims.Ref{UID: uid}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "pairs/s")
		})
	}
}

// Time from start to serving grows with the records, and with nothing else.
func BenchmarkRecover(b *testing.B) {
	n := newNode(b)
	e := n.start(b)
	for i := range 256 {
		must(b, e.Journal.Save(&journal.Record{
			UID: types.UID(fmt.Sprintf("r%d", i)), State: journal.StatePrepared,
			Devices: []journal.Device{{Name: "gpu-1", PCI: gpu(1).Identity().PCI, AdminAccess: i > 8}},
		}))
	}
	for b.Loop() {
		found, err := e.Recover(b.Context())
		must(b, err)
		if found.Records != 256 {
			b.Fatalf("%+v", found)
		}
	}
}
