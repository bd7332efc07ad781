package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/test/bench/allocation"
	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/sample"
)

// Preset is what a simulated machine publishes.
type Preset struct {
	Name            string
	Devices, Slices int
	// JSON and Protobuf are the bytes of all slices, without managed fields; Attributes is the largest number of
	// attributes and capacities of a device.
	JSON, Protobuf, Attributes int
	pool                       []resourceslice.Slice
}

// ReadPresets starts the plugin on a machine of each preset and reads the slices that it publishes.
func ReadPresets(ctx context.Context, api bed.API, programs bed.Programs, dir string, names []string) ([]Preset, error) {
	presets := make([]Preset, len(names))
	group, ctx := errgroup.WithContext(ctx)
	const together = 4
	group.SetLimit(together)
	for i, name := range names {
		group.Go(func() (err error) {
			presets[i], err = readPreset(ctx, api, programs, dir, name)
			return err
		})
	}
	return presets, group.Wait()
}

func readPreset(ctx context.Context, api bed.API, programs bed.Programs, dir, name string) (Preset, error) {
	p := Preset{Name: name}
	m, err := bed.NewMachine(ctx, api, programs, dir, name, name)
	if err != nil {
		return p, err
	}
	defer m.Close()
	plugin, err := m.Start(ctx, bed.Options{})
	if err != nil {
		return p, err
	}
	slices, err := plugin.Published(ctx)
	if err := errors.Join(err, plugin.Stop(ctx)); err != nil {
		return p, fmt.Errorf("preset %s: %w", name, err)
	}
	p.pool, p.Slices = allocation.Pool(slices), len(slices)
	for i := range slices {
		if err := p.weigh(&slices[i]); err != nil {
			return p, err
		}
	}
	return p, nil
}

// weigh adds a slice.
func (p *Preset) weigh(s *resourceapi.ResourceSlice) error {
	s.ManagedFields = nil
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("size of a slice: %w", err)
	}
	p.JSON += len(text)
	p.Protobuf += s.Size()
	p.Devices += len(s.Spec.Devices)
	for _, d := range s.Spec.Devices {
		p.Attributes = max(p.Attributes, len(d.Attributes)+len(d.Capacity))
	}
	return nil
}

// PresetSizes shows what the presets publish as Markdown.
func PresetSizes(presets []Preset) string {
	t := sample.NewTable("preset", "devices", "slices", "attributes + capacities of a device", "JSON, KiB", "protobuf, KiB", "protobuf bytes a device")
	kib := func(n int) string { return fmt.Sprintf("%.1f", float64(n)/1024) }
	for _, p := range presets {
		t.Add(p.Name, fmt.Sprint(p.Devices), fmt.Sprint(p.Slices), fmt.Sprint(p.Attributes), kib(p.JSON), kib(p.Protobuf), fmt.Sprint(p.Protobuf/max(p.Devices, 1)))
	}
	return "### Slices\n\n" + t.String()
}

// AllocatorTimes measures the allocator on what the presets published and shows it as Markdown, one row for each preset. A
// request that the scheduler would give up is shown as such.
func AllocatorTimes(ctx context.Context, presets []Preset, runs int) (string, error) {
	t := sample.NewTable("preset", "1 GPU", "all n", "n, one taken: no", "n + 1: no", "one NVLink domain", "domain, one of each taken: no")
	for _, p := range presets {
		row := []string{fmt.Sprintf("%s, n = %d", p.Name, p.Devices)}
		for _, c := range allocation.Cases(p.pool) {
			took, err := c.Time(ctx, p.pool, runs)
			cell := sample.Milliseconds(took.Median())
			switch {
			case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
				cell = fmt.Sprintf("over %.0f s: gives up", allocation.FilterTimeout.Seconds())
			case err != nil:
				return "", fmt.Errorf("preset %s: %w", p.Name, err)
			}
			if c.OneDomain && c.Fits {
				cell = fmt.Sprintf("%d GPUs: %s", c.Count, cell)
			}
			row = append(row, cell)
		}
		t.Add(row...)
	}
	return "### Allocator\n\nMilliseconds, medians.\n\n" + t.String(), nil
}
