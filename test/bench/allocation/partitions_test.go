package allocation_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/topology"
	"github.com/gpu-dra/driver/test/bench/allocation"
)

// cut is the pool of the first GPUs of a preset that are cut on demand.
func cut(t testing.TB, preset string, gpus int) []resourceslice.Slice {
	t.Helper()
	s := migtest.Snapshot(t, preset)
	s.GPUs = s.GPUs[:gpus]
	a, _ := topology.Resolve(s, topology.Memory{})
	made := offer.Settings{Pool: "node", Vocabulary: device.VocabularyFull, Partitions: true}.Make(s, a, offer.Conditions{})
	return made.Resources.Pools["node"].Slices
}

// Each case has the answer that it expects.
func TestPartitionCases(t *testing.T) {
	for _, preset := range []string{"hgx-h100-8", "rtx-pro-6000-8"} {
		t.Run(preset, func(t *testing.T) {
			pool := cut(t, preset, 2)
			cases := allocation.PartitionCases(pool)
			for _, c := range cases {
				if err := c.Ask(pool)(t.Context()); err != nil {
					t.Error(err)
				}
				c.Fits = !c.Fits
				if err := c.Ask(pool)(t.Context()); err == nil {
					t.Errorf("%s: the opposite answer is taken as well", c.Name)
				}
			}
		})
	}
	var counts []int
	for _, c := range allocation.PartitionCases(cut(t, "hgx-h100-8", 2)) {
		counts = append(counts, c.Count)
	}
	if diff := cmp.Diff([]int{1, 7, 7, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8}, counts); diff != "" {
		t.Errorf("devices asked for (-want +got):\n%s", diff)
	}
}

func TestCPU(t *testing.T) {
	pool := cut(t, "hgx-h100-8", 1)
	took, err := allocation.PartitionCases(pool)[0].CPU(t.Context(), pool, 2)
	if err != nil || took <= 0 {
		t.Errorf("%s, %v", took, err)
	}
	c := allocation.Case{Name: "wrong", Count: 1}
	if _, err := c.CPU(t.Context(), pool, 1); err == nil {
		t.Error("a wrong answer is timed")
	}
}
