package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/test/bench/allocation"
	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/partition"
	"github.com/gpu-dra/driver/test/bench/placement"
	"github.com/gpu-dra/driver/test/bench/sample"
)

// cut runs do with the slices of a machine whose GPUs are cut on demand.
func (r *run) cut(ctx context.Context, preset, vocabulary string, do func(*bed.Machine, []resourceslice.Slice) error) error {
	r.machines++
	m, err := bed.NewMachine(ctx, r.api, r.programs, r.Dir, fmt.Sprintf("m%d", r.machines), preset)
	if err != nil {
		return err
	}
	defer m.Close()
	for i, gpu := range m.Sim().Spec().GPUs {
		// Ampere is cut where its MIG mode is on, which the plugin does not switch.
		if gpu.Board.MIG == nil || !strings.HasPrefix(gpu.Board.ComputeCapability, "8.") {
			continue
		}
		if err := m.Sim().SetMIGMode(i, true); err != nil {
			return err
		}
	}
	p, err := m.Start(ctx, bed.Options{Flags: []string{partition.Flag, "--slice-vocabulary=" + vocabulary}})
	if err != nil {
		return err
	}
	slices, err := p.Published(ctx)
	if err != nil {
		return err
	}
	if err := p.Registered(ctx); err != nil {
		return err
	}
	return errors.Join(do(m, allocation.Pool(slices)), p.Stop(ctx))
}

// partitions measures prepares, sizes and the allocator on eight H100.
func (r *run) partitions(ctx context.Context) error {
	t := sample.NewTable("vocabulary", "devices", "slices", "JSON, KiB")
	for _, vocabulary := range []string{"full", "minimal"} {
		err := r.cut(ctx, preset, vocabulary, func(m *bed.Machine, pool []resourceslice.Slice) error {
			slices, err := m.Slices(ctx)
			if err != nil {
				return err
			}
			size, err := partition.Weigh(slices)
			if err != nil {
				return err
			}
			t.Add(vocabulary, fmt.Sprint(size.Devices), fmt.Sprint(size.Slices), fmt.Sprintf("%.1f", float64(size.JSON)/1024))
			if vocabulary == "minimal" {
				return nil
			}
			return r.cutTimes(ctx, m, pool)
		})
		if err != nil {
			return err
		}
	}
	r.report("### Slices of eight H100 with partitions\n\n%s", t)
	return nil
}

func (r *run) cutTimes(ctx context.Context, m *bed.Machine, pool []resourceslice.Slice) error {
	var all []partition.Times
	for _, latency := range []time.Duration{0, 500 * time.Millisecond} {
		times, err := partition.Measure(ctx, m, latency, r.Rounds)
		if err != nil {
			return err
		}
		all = append(all, times)
	}
	r.report("%s", partition.Table(all))
	t := sample.NewTable("request", "processor time, ms")
	for _, c := range allocation.PartitionCases(pool) {
		took, err := c.CPU(ctx, pool, min(r.Rounds, 3))
		if err != nil {
			return err
		}
		t.Add(c.Name, sample.Milliseconds(took))
	}
	r.report("### Allocator with partitions\n\n%s", t)
	return nil
}

// placement compares the order of partitions with others.
func (r *run) placement(ctx context.Context) error {
	for _, board := range []string{"dgx-a100-80", preset, "rtx-pro-6000-8"} {
		err := r.cut(ctx, board, "full", func(_ *bed.Machine, slices []resourceslice.Slice) error {
			pool, err := placement.NewPool(slices)
			if err != nil {
				return err
			}
			rules := placement.Rules(pool)
			rows, err := placement.Compare(ctx, pool, rules, placement.Options{
				Loads: []float64{0.4, 0.6, 0.8, 1, 1.2}, Seeds: 4 * r.Rounds, Requests: 3000, WarmUp: 300,
			})
			if err != nil {
				return err
			}
			r.report("### Placement\n\n%s", placement.Table(board, rules, rows))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
