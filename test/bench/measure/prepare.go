package measure

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/sample"
	"github.com/gpu-dra/driver/test/kubelet"
)

// Subject is a running plugin and the claims that it is measured with.
type Subject struct {
	Machine *bed.Machine
	Plugin  *bed.Plugin
	Claims  bed.Claims
}

// batch is how many filling claims go into one call.
const batch = 32

// fill prepares the first n filling claims that are not prepared yet, from the one after have.
func (s Subject) fill(ctx context.Context, have, n int) error {
	for chunk := range slices.Chunk(s.Claims.Filling[have:n], batch) {
		if err := s.Machine.Prepare(ctx, chunk...); err != nil {
			return err
		}
	}
	return nil
}

// drain unprepares the first n filling claims.
func (s Subject) drain(ctx context.Context, n int) error {
	for chunk := range slices.Chunk(s.Claims.Filling[:n], batch) {
		if err := s.Machine.Unprepare(ctx, chunk...); err != nil {
			return err
		}
	}
	return nil
}

// PrepareOptions say how much is measured.
type PrepareOptions struct {
	// Levels are numbers of claims that are prepared already, rising.
	Levels []int
	// Rounds is how often all levels are gone through, PerRound how many claims are measured at each.
	Rounds, PerRound int
}

// Level is what was measured with a number of claims prepared already.
type Level struct {
	Prepared                              int
	Files, Get, Floor, Prepare, Unprepare sample.Rounds
	// DiskPrepare and DiskUnprepare are what the process made the kernel write for one claim, in bytes.
	DiskPrepare, DiskUnprepare int64
}

// Prepares is the time of single prepare and unprepare calls beside the floor.
type Prepares struct {
	Title  string
	Levels []Level
	// Files are the sizes in bytes of what one prepared claim adds to the node, by a short name.
	Files map[string]int64
}

// TimePrepares measures one claim at a time, in turn with the floor, at each level in each round.
func TimePrepares(ctx context.Context, title string, s Subject, o PrepareOptions) (Prepares, error) {
	p := Prepares{Title: title, Levels: make([]Level, len(o.Levels))}
	f := floor{dir: s.Machine.Scratch(), client: s.Machine.Client, claim: s.Claims.Whole[0]}
	// The first calls meet cold connections and caches on both sides.
	if _, err := s.series(ctx, f, &Level{}, len(s.Claims.Whole)); err != nil {
		return p, err
	}
	var err error
	if p.Files, err = s.filesOfOne(ctx); err != nil {
		return p, err
	}
	for round := range o.Rounds {
		have := 0
		for i, n := range o.Levels {
			if err := s.fill(ctx, have, n); err != nil {
				return p, err
			}
			have = n
			level := &p.Levels[i]
			level.Prepared = n
			failed, err := s.series(ctx, f, level, o.PerRound)
			if err != nil {
				return p, fmt.Errorf("call %d of round %d with %d claims prepared: %w", failed, round, n, err)
			}
			if round == 0 {
				if err := s.disk(ctx, level); err != nil {
					return p, err
				}
			}
		}
		if err := s.drain(ctx, have); err != nil {
			return p, err
		}
	}
	return p, nil
}

// series measures n claims and appends them to the level as one round. It returns how many worked.
func (s Subject) series(ctx context.Context, f floor, level *Level, n int) (int, error) {
	var files, get, all, prepare, unprepare sample.Series
	for i := range n {
		c, err := f.once(ctx)
		if err != nil {
			return i, err
		}
		claim := s.Claims.Whole[i%len(s.Claims.Whole)]
		begun := time.Now()
		if err := s.Machine.Prepare(ctx, claim); err != nil {
			return i, err
		}
		prepared := time.Now()
		if err := s.Machine.Unprepare(ctx, claim); err != nil {
			return i, err
		}
		files, get, all = append(files, c.files), append(get, c.get), append(all, c.files+c.get)
		prepare, unprepare = append(prepare, prepared.Sub(begun)), append(unprepare, time.Since(prepared))
	}
	level.Files, level.Get, level.Floor = append(level.Files, files), append(level.Get, get), append(level.Floor, all)
	level.Prepare, level.Unprepare = append(level.Prepare, prepare), append(level.Unprepare, unprepare)
	return n, nil
}

// disk measures what a prepare and an unprepare write, over all whole GPUs one after the other.
func (s Subject) disk(ctx context.Context, level *Level) error {
	written := func(do func(context.Context, ...kubelet.Claim) error) (int64, error) {
		before, err := s.Plugin.IO()
		if err != nil {
			return 0, err
		}
		for _, claim := range s.Claims.Whole {
			if err := do(ctx, claim); err != nil {
				return 0, err
			}
		}
		after, err := s.Plugin.IO()
		return (after.Disk - before.Disk) / int64(len(s.Claims.Whole)), err
	}
	var err error
	if level.DiskPrepare, err = written(s.Machine.Prepare); err != nil {
		return err
	}
	level.DiskUnprepare, err = written(s.Machine.Unprepare)
	return err
}

// filesOfOne finds the files that one prepared claim adds.
func (s Subject) filesOfOne(ctx context.Context) (map[string]int64, error) {
	dirs := []string{s.Machine.CDIDir(), s.Machine.DataDir()}
	before, err := bed.Files(dirs...)
	if err != nil {
		return nil, err
	}
	claim := s.Claims.Whole[0]
	if err := s.Machine.Prepare(ctx, claim); err != nil {
		return nil, err
	}
	after, err := bed.Files(dirs...)
	if err != nil {
		return nil, err
	}
	added := map[string]int64{}
	for path, size := range after {
		if _, old := before[path]; !old {
			short := strings.NewReplacer(s.Machine.CDIDir(), "cdi", s.Machine.DataDir(), "state", string(claim.UID), "UID", claim.Name, "NAME").Replace(path)
			added[short] = size
		}
	}
	return added, s.Machine.Unprepare(ctx, claim)
}

// String is the result as Markdown.
func (p Prepares) String() string {
	t := sample.NewTable("claims prepared", "what", "p50, ms", "/ floor", "rounds' p50, ms", "p99, ms", "p99 / p50", "KiB to disk")
	const kib = 1024
	for _, l := range p.Levels {
		add := func(what string, r sample.Rounds, disk string) {
			least, most := r.Spread()
			t.Add(fmt.Sprint(l.Prepared), what, sample.Milliseconds(r.Median()), sample.Times(r.Ratio(l.Floor)), sample.Milliseconds(least)+" to "+sample.Milliseconds(most),
				sample.Milliseconds(r.All().Percentile(99)), tail(r), disk)
		}
		add("floor: "+sample.Milliseconds(l.Files.Median())+" files, "+sample.Milliseconds(l.Get.Median())+" GET", l.Floor, "")
		add("prepare", l.Prepare, fmt.Sprint(l.DiskPrepare/kib))
		add("unprepare", l.Unprepare, fmt.Sprint(l.DiskUnprepare/kib))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n%s\n", p.Title, t)
	if len(p.Levels) > 0 {
		first, last := p.Levels[0], p.Levels[len(p.Levels)-1]
		fmt.Fprintf(&b, "%d rounds of %d claims at each level. ", len(first.Prepare), len(first.Prepare[0]))
		if n := last.Prepared - first.Prepared; n > 0 {
			fmt.Fprintf(&b, "Growth per prepared claim: prepare %s µs, unprepare %s µs, floor %s µs.",
				sample.Microseconds(last.Prepare.Growth(first.Prepare, n)), sample.Microseconds(last.Unprepare.Growth(first.Unprepare, n)), sample.Microseconds(last.Floor.Growth(first.Floor, n)))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// FileSizes shows what one prepared claim adds to the node as Markdown.
func (p Prepares) FileSizes() string {
	files := sample.NewTable("file of one prepared claim", "bytes")
	var total int64
	for _, path := range sortedKeys(p.Files) {
		files.Add("`"+path+"`", fmt.Sprint(p.Files[path]))
		total += p.Files[path]
	}
	files.Add("all", fmt.Sprint(total))
	return files.String()
}

// tail is how far the slowest percent is from the middle.
func tail(r sample.Rounds) string {
	all := r.All()
	if all.Median() == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", float64(all.Percentile(99))/float64(all.Median()))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
