package sharing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/wait"

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

// BenchmarkPolling draws what a claim waits for in a design that makes a Deployment for each claim
// and asks whether it is ready, as NVIDIA's driver does: at once, and after steps of 1, 2 and 4
// seconds, each made longer at random by up to its own length. The pod is ready 0.63 to 1.21 s
// after it was made, as pods without a GPU were in docs/performance.md, and the Deployment's
// controller and the daemon's own start cost nothing. Nothing is run.
func BenchmarkPolling(b *testing.B) {
	const least, most = 630 * time.Millisecond, 1210 * time.Millisecond
	var took []time.Duration
	for range 10_000 {
		steps := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Steps: 4}
		ready := least + rand.N(most-least)
		var asked time.Duration
		for asked < ready {
			asked += steps.Step()
		}
		took = append(took, asked)
	}
	percentiles(b, took)
}
