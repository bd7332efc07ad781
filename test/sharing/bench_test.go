package sharing_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/process"
)

// percentiles reports what one of two and what 99 of 100 took no longer than, in milliseconds.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	for name, at := range map[string]int{"p50-ms": len(took) / 2, "p99-ms": len(took) * 99 / 100} {
		b.ReportMetric(float64(took[at].Microseconds())/1000, name)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPrepare measures what the kubelet waits for: a claim without sharing, the first claim
// of a GPU by MPS, which starts a control daemon, and a further share of such a GPU.
func BenchmarkPrepare(b *testing.B) {
	bed := newBed(b, "t4-4")
	bed.startPod()
	bed.start(process.Flag("shared-devices", `[{"devices": {"indices": [3]}, "enforcement": "mps", "replicas": 32}]`))
	measure := func(name string, gpu int, changes ...func(*resourceapi.ResourceClaim)) {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				claim := bed.Allocated("claim", []int{gpu}, changes...)
				begin := time.Now()
				bed.prepare(claim)
				took = append(took, time.Since(begin))
				bed.unprepare(claim)
			}
			percentiles(b, took)
		})
	}
	measure("plain", 0)
	measure("first-by-mps", 1, mps(25, "1Gi"))
	b.Run("further-by-mps", func(b *testing.B) {
		held, _ := bed.share("held", "first")
		bed.prepare(held)
		var took []time.Duration
		for i := 0; b.Loop(); i++ {
			claim, _ := bed.share("team", fmt.Sprintf("claim-%d", i))
			begin := time.Now()
			bed.prepare(claim)
			took = append(took, time.Since(begin))
			bed.unprepare(claim)
			bed.release(claim)
		}
		percentiles(b, took)
		bed.unprepare(held)
	})
}

// BenchmarkSurvival measures how many programs that share a GPU by MPS live through a kill of the
// plugin.
func BenchmarkSurvival(b *testing.B) {
	bed := newBed(b, "t4-4")
	bed.startPod()
	p := bed.start()
	claim := bed.Allocated("share", []int{0}, mps(25, "4Gi"))
	answer := bed.prepare(claim)
	var tenants []*tenant
	for range 4 {
		c := bed.tenant(answer)
		c.want("thread_percentage=25.0")
		tenants = append(tenants, c)
	}
	restarts := 0
	for b.Loop() {
		p.Kill()
		p = bed.start()
		restarts++
		for _, c := range tenants {
			c.ask("allocate 1", fmt.Sprintf("total=%d", restarts))
		}
	}
	b.ReportMetric(float64(len(tenants)), "survivors")
	for _, c := range tenants {
		c.end()
	}
	bed.unprepare(claim)
}
