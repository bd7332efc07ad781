package slices_test

import (
	"testing"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
)

// BenchmarkBuild measures one rendering of the pool.
func BenchmarkBuild(b *testing.B) {
	for name, n := range map[string]int{"8-gpus": 8, "64-gpus": 64} {
		in := healthy(inventorytest.New().Add(inventorytest.Board{LinkVersion: 4, LinkMBps: 26562}, n).Switch(0, n, 18).Snapshot)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				slices.Build(in)
			}
		})
	}
}

// BenchmarkAllocate measures the scheduler on one node whose first GPU is taken: two and four
// GPUs of one NVLink domain, and one more than are free, which never fits.
func BenchmarkAllocate(b *testing.B) {
	for name, s := range inventorytest.All() {
		pool := slices.Build(healthy(s)).Slices
		for what, count := range map[string]int64{"two": 2, "four": 4, "one-more-than-free": int64(len(s.GPUs))} {
			sched := slicestest.New(pool, false)
			sched.Take(device.GPUName(s.GPUs[0].PCI))
			claim := slicestest.Claim(byDomain, slicestest.Request("gpus", count))
			b.Run(name+"/"+what, func(b *testing.B) {
				for b.Loop() {
					if _, err := sched.Free(b.Context(), claim); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
