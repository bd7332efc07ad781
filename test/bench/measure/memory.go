package measure

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/sample"
)

// Memories is what fresh plugin processes have in RAM.
type Memories struct {
	// Idle is some seconds after the start, Full with Prepared claims prepared, Loaded after they are gone again.
	Idle, Full, Loaded []bed.Memory
	Prepared           int
}

// WeighMemory starts a plugin several times, each from a copy of the program that is not in the page cache.
func WeighMemory(ctx context.Context, m *bed.Machine, program string, claims bed.Claims, rounds int) (Memories, error) {
	r := Memories{Prepared: len(claims.Filling)}
	for range rounds {
		if err := r.once(ctx, m, program, claims); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r *Memories) once(ctx context.Context, m *bed.Machine, program string, claims bed.Claims) error {
	cold := filepath.Join(m.Scratch(), "cold-plugin")
	if err := bed.Cold(program, cold); err != nil {
		return err
	}
	p, err := m.Start(ctx, bed.Options{Program: cold})
	if err != nil {
		return err
	}
	if err := p.Registered(ctx); err != nil {
		return err
	}
	if _, err := p.Published(ctx); err != nil {
		return err
	}
	look := func(into *[]bed.Memory) error {
		// What the start or the load left behind is gone, or it counts.
		const rest = 4 * time.Second
		if err := pause(ctx, rest); err != nil {
			return err
		}
		memory, err := p.Memory()
		*into = append(*into, memory)
		return err
	}
	if err := look(&r.Idle); err != nil {
		return err
	}
	subject := Subject{Machine: m, Plugin: p, Claims: claims}
	if err := subject.fill(ctx, 0, r.Prepared); err != nil {
		return err
	}
	if err := look(&r.Full); err != nil {
		return err
	}
	if err := subject.drain(ctx, r.Prepared); err != nil {
		return err
	}
	if err := look(&r.Loaded); err != nil {
		return err
	}
	return p.Stop(ctx)
}

// String is the result as Markdown.
func (r Memories) String() string {
	t := sample.NewTable("MiB", "RSS", "anonymous", "file", "threads")
	for _, state := range []struct {
		name   string
		values []bed.Memory
	}{{"idle", r.Idle}, {fmt.Sprintf("with %d claims prepared", r.Prepared), r.Full}, {"after they were unprepared", r.Loaded}} {
		median := func(of func(bed.Memory) int64) int64 {
			var all []float64
			for _, v := range state.values {
				all = append(all, float64(of(v)))
			}
			return int64(sample.Median(all))
		}
		t.Add(state.name, sample.MiB(median(func(m bed.Memory) int64 { return m.RSS })), sample.MiB(median(func(m bed.Memory) int64 { return m.Anon })),
			sample.MiB(median(func(m bed.Memory) int64 { return m.File })), fmt.Sprint(median(func(m bed.Memory) int64 { return m.Threads })))
	}
	return fmt.Sprintf("### Memory\n\n%s\nMedians of %d processes, each started from a file outside the page cache.\n", t, len(r.Idle))
}
