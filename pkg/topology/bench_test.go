package topology_test

import (
	"fmt"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/topology"
)

// BenchmarkResolve measures one scan's resolution, with the machine known and unknown.
func BenchmarkResolve(b *testing.B) {
	for _, n := range []int{8, 16, 64} {
		board := inventorytest.Board{LinkVersion: 4, LinkMBps: 26562}
		s := inventorytest.New().Add(board, n).Switch(0, n, 18).Snapshot
		_, known := topology.Resolve(s, topology.Memory{})
		for name, memory := range map[string]topology.Memory{"first": {}, "known": known} {
			b.Run(fmt.Sprintf("%d-gpus/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					topology.Resolve(s, memory)
				}
			})
		}
	}
	mesh := inventorytest.CubeMesh()
	b.Run("cube-mesh/first", func(b *testing.B) {
		for b.Loop() {
			topology.Resolve(mesh, topology.Memory{})
		}
	})
}
