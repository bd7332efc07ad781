package process_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// soakVariable is the number of claim cycles of the soak; make soak sets it.
const soakVariable = "SOAK_CYCLES"

// use is what the process and its directories take.
type use map[string]float64

func measure(t *testing.T, b *process.Bed, p *process.Plugin) use {
	t.Helper()
	_, body, err := p.Get("/metrics")
	must(t, err)
	u := use{}
	for _, name := range []string{"go_goroutines", "process_open_fds", "process_resident_memory_bytes", "go_memstats_heap_alloc_bytes"} {
		for _, l := range lines(body, name+" ") {
			u[name], err = strconv.ParseFloat(strings.Fields(l)[1], 64)
			must(t, err)
		}
	}
	for _, dir := range b.StateDirs() {
		must(t, filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil {
				u["files"]++
				u["bytes of files"] += float64(info.Size())
			}
			return err
		}))
	}
	return u
}

// soaker drives claims of mixed kinds over two GPUs of its own.
type soaker struct {
	*testing.T
	bed  *process.Bed
	gpus []int
	name string
}

// declared has GPU 6 shared by time slices, and GPU 7 by MPS.
func declared() process.Setting {
	return process.Flag("shared-devices", `[{"enforcement":"none","replicas":4,"devices":{"indices":[6]}},{"enforcement":"mps","replicas":4,"devices":{"indices":[7]}}]`)
}

// changes draw what the next claim gets: a GPU, two GPUs, a partition, a partition and a GPU, a GPU
// with a time slice, GPUs and a partition by MPS; or shares, of the GPUs that are declared so.
func (s soaker) changes() []change {
	a, b := s.bed.Device(s.gpus[0]), s.bed.Device(s.gpus[1])
	kinds := [][]change{
		{gets(a)},
		{gets(b)},
		{gets(a, b)},
		{gets(a + "-mig-1g-10gb-0")},
		{gets(a+"-mig-2g-20gb-4", a+"-mig-1g-10gb-6")},
		{gets(a+"-mig-3g-40gb-0", b)},
		{gets(a), interval("Long")},
		{gets(b), byMPS("GpuConfig")},
		{gets(a, b), byMPS("GpuConfig")},
		{gets(a + "-mig-2g-20gb-0"), byMPS("MigDeviceConfig")},
	}
	if s.gpus[0] == 6 {
		kinds = [][]change{{gets(a), share("0"), interval("Long")}, {gets(b), share("1Gi")}, {gets(a, b), share("1Gi")}}
	}
	return kinds[rand.IntN(len(kinds))]
}

// cycle is the life of one claim. One in twenty is deleted and never unprepared.
func (s soaker) cycle(n int) {
	claim := s.bed.Allocated(fmt.Sprintf("%s-%d", s.name, n), nil, s.changes()...)
	s.until("prepare", claim, func() error { _, err := s.bed.Prepare(claim); return err })
	if rand.IntN(20) == 0 {
		deleteClaim(s.T, s.bed, claim)
		return
	}
	s.until("unprepare", claim, func() error { return s.bed.Unprepare(claim) })
	deleteClaim(s.T, s.bed, claim)
}

// until tries as the kubelet does: the process may be killed, and a GPU may still be a ghost's.
func (s soaker) until(what string, c kubelet.Claim, call func() error) {
	deadline := time.Now().Add(3 * time.Minute)
	for err := call(); err != nil; err = call() {
		if time.Now().After(deadline) {
			s.Errorf("%s of claim %s: %v", what, c.Name, err)
			return
		}
	}
}

// soak runs cycles on all GPUs at once and calls tick after each.
func soak(t *testing.T, b *process.Bed, cycles int, tick func()) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s := soaker{T: t, bed: b, gpus: []int{2 * i, 2*i + 1}, name: fmt.Sprintf("soak%d-%d", i, cycles)}
			for n := range cycles / 4 {
				if t.Failed() {
					return
				}
				s.cycle(n)
				tick()
			}
		})
	}
	wg.Wait()
}

// Cycles of claims of mixed kinds, some of which nobody unprepares, leave nothing on the node and
// cost the process nothing that grows. Then the same while the process is killed at random.
func TestSoak(t *testing.T) {
	cycles := 60
	if text := os.Getenv(soakVariable); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		cycles = n
	} else {
		t.Parallel()
	}
	b := process.New(t, "hgx-h100-8")
	b.StartMPS()
	settings := append(eager(), process.Flag("mig-devices", "on-demand"), process.Flag("mps", "true"), declared(), process.Flag("holder-wait", "5s"), process.Flag("v", "0"))
	p := b.Start(settings...)
	p.WaitReady()
	soak(t, b, 20, func() {})
	settle := func() {
		b.Eventually("an empty node", func() error {
			left := settled(b)
			if len(left) > 0 {
				return fmt.Errorf("left: %v", left)
			}
			return idle(b)
		})
	}
	settle()
	before := measure(t, b, p)
	begun := time.Now()
	soak(t, b, cycles, func() {})
	settle()
	after := measure(t, b, p)
	t.Logf("%d cycles in %s", cycles, time.Since(begun).Round(time.Second))
	for _, name := range slices.Sorted(maps.Keys(before)) {
		t.Logf("%s: %.0f before, %.0f after", name, before[name], after[name])
	}
	// Idle connections and lock files of GPUs come and go; claims would leave many more. Resident
	// memory is the race detector's for the most part, which only grows: the heap is what counts.
	for name, slack := range map[string]float64{"go_goroutines": 30, "process_open_fds": 20, "files": 10, "bytes of files": 64 << 10, "go_memstats_heap_alloc_bytes": 50 << 20} {
		if after[name] > before[name]+slack {
			t.Errorf("%s grew from %.0f to %.0f", name, before[name], after[name])
		}
	}

	var mu sync.Mutex
	done, kills := 0, 0
	soak(t, b, max(cycles/5, 20), func() {
		mu.Lock()
		defer mu.Unlock()
		if done++; done%10 == 0 {
			kills++
			p.Kill()
			p = b.Start(settings...)
		}
	})
	settle()
	t.Logf("%d cycles with %d kills", done, kills)
}

// The time from the start of the process to its first answer, by the number of records.
func TestStartWithRecords(t *testing.T) {
	t.Parallel()
	for _, records := range []int{0, 64, 500} {
		b := process.New(t, "hgx-h100-8")
		p := b.Start()
		var claims []kubelet.Claim
		admin := func(c *resourceapi.ResourceClaim) {
			yes := true
			c.Status.Allocation.Devices.Results[0].AdminAccess = &yes
		}
		for i := range records {
			claims = append(claims, b.Allocated(fmt.Sprintf("c%d", i), []int{i % 8}, admin))
			_, err := b.Prepare(claims[i])
			must(t, err)
		}
		p.Kill()
		p = b.Start()
		registered := time.Since(p.Started)
		last := b.Allocated("last", []int{0})
		prepare(t, b, last, 0)
		t.Logf("%d records: registered after %s, first answer after %s", records, registered.Round(time.Millisecond), time.Since(p.Started).Round(time.Millisecond))
		unprepare(t, b, last)
		for _, c := range claims {
			if !b.Record(c.UID) {
				t.Errorf("claim %s is lost", c.Name)
			}
		}
		p.Kill()
	}
}
