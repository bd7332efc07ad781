package process_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

// modelVariable is the number of operations of the model test; make model sets it.
const modelVariable = "MODEL_OPERATIONS"

// operationsOf is how many operations a sequence has on average.
const operationsOf = 100

// sequence is one of operations. It has a node of its own, which ends with the sequence and
// not with the test, and what fails fails the sequence, so that a shorter one is looked for.
type sequence struct {
	testing.TB
	rt   *rapid.T
	ctx  context.Context
	ends []func()
}

func (s *sequence) Helper()                           {}
func (s *sequence) Context() context.Context          { return s.ctx }
func (s *sequence) Cleanup(end func())                { s.ends = append(s.ends, end) }
func (s *sequence) Errorf(format string, args ...any) { s.rt.Errorf(format, args...) }
func (s *sequence) Fatalf(format string, args ...any) { s.rt.Fatalf(format, args...) }
func (s *sequence) Error(args ...any)                 { s.rt.Error(args...) }
func (s *sequence) Fatal(args ...any)                 { s.rt.Fatal(args...) }
func (s *sequence) Log(args ...any)                   { s.rt.Log(args...) }
func (s *sequence) Logf(format string, args ...any)   { s.rt.Logf(format, args...) }
func (s *sequence) Fail()                             { s.rt.Fail() }
func (s *sequence) FailNow()                          { s.rt.FailNow() }
func (s *sequence) Failed() bool                      { return s.rt.Failed() }
func (s *sequence) Name() string                      { return s.TB.Name() }
func (s *sequence) Skip(args ...any)                  { s.rt.Skip(args...) }
func (s *sequence) Skipf(format string, args ...any)  { s.rt.Skipf(format, args...) }
func (s *sequence) SkipNow()                          { s.rt.SkipNow() }

// TempDir is one that goes with the sequence.
func (s *sequence) TempDir() string {
	dir, err := os.MkdirTemp("", "m")
	must(s, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *sequence) end() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}

// wish is what a claim of the model wants, and what is known of it.
type wish struct {
	kind
	claim kubelet.Claim
	// there: the API has the claim.
	there bool
	// owner: a prepare was answered, and no unprepare was asked for since. fresh: nor was there a reboot.
	owner, fresh bool
	// unsure: a call was cut short or went wrong, or the claim is gone: it may have anything or nothing.
	unsure bool
}

// GoString is what a failed sequence prints.
func (w *wish) GoString() string { return w.name }

// mayHave tells whether the claim can have something.
func (w *wish) mayHave() bool { return w.owner || w.unsure }

// excludes tells whether two claims cannot both have what they want.
func (w *wish) excludes(o *wish) bool {
	mine, theirs := w.gpusOf(), o.gpusOf()
	for gpu, part := range mine {
		other, both := theirs[gpu]
		switch {
		case !both:
		case w.isShare() && o.isShare():
			if w.slice != o.slice && w.slice != 0 && o.slice != 0 {
				return true
			}
		case part == "" || other == "" || part == other:
			return true
		}
	}
	return false
}

func (w *wish) isShare() bool { return strings.Contains(w.name, "share") }

// gpusOf maps the GPUs of the claim to the partition that it wants there, "" for the whole.
func (w *wish) gpusOf() map[int]string {
	all := map[int]string{}
	for _, gpu := range w.gpus {
		all[gpu] = ""
	}
	for _, p := range w.partitions {
		gpu, err := strconv.Atoi(p[:1])
		if err == nil {
			all[gpu] = p
		}
	}
	return all
}

// wishes are those of the model's claims: on GPUs 0 and 1 everything that can be done to a GPU, on
// GPU 2 shares by MPS and on GPU 3 shares with a time slice.
func wishes() []*wish {
	long, medium := []change{share("0"), interval("Long")}, []change{share("0"), interval("Medium")}
	const exclusive = gpusim.ComputeExclusiveProcess
	var all []*wish
	for _, k := range []kind{
		{name: "whole", gpus: []int{0}},
		{name: "pair", gpus: []int{0, 1}},
		{name: "time slice", gpus: []int{1}, slice: gpusim.TimeSliceLong, with: []change{interval("Long")}},
		{name: "MPS", gpus: []int{0}, mode: exclusive, daemons: 1, with: []change{byMPS("GpuConfig")}},
		{name: "MPS pair", gpus: []int{0, 1}, mode: exclusive, daemons: 1, with: []change{byMPS("GpuConfig")}},
		{name: "partition", partitions: []string{"0/2g.20gb/4"}},
		{name: "partitions", partitions: []string{"0/1g.10gb/0", "1/3g.40gb/0"}},
		{name: "partition by MPS", partitions: []string{"1/1g.10gb/6"}, daemons: 1, with: []change{byMPS("MigDeviceConfig")}},
		{name: "share a", gpus: []int{3}, slice: gpusim.TimeSliceLong, with: long},
		{name: "share b", gpus: []int{3}, slice: gpusim.TimeSliceLong, with: long},
		{name: "share c", gpus: []int{3}, slice: gpusim.TimeSliceMedium, with: medium},
		{name: "share by MPS a", gpus: []int{2}, mode: exclusive, daemons: 1, with: []change{share("1Gi")}},
		{name: "share by MPS b", gpus: []int{2}, mode: exclusive, daemons: 1, with: []change{share("2Gi")}},
	} {
		all = append(all, &wish{kind: k})
	}
	return all
}

// world is a node together with the model of it.
type world struct {
	*sequence
	bed    *process.Bed
	plugin *process.Plugin
	pod    *process.MPSPod
	wishes []*wish
	// ghosts were deleted while they might have something.
	ghosts []*wish
	// away: the API server cannot be reached. faulty: calls of the driver are to fail.
	away, faulty bool
	// blind: the process was started, and may not know the API server's release yet. Until it does it
	// offers no shares beside partitions.
	blind bool
	// returned: the API server was away, and connections to it may be of before.
	returned bool
	made     int
}

func (w *world) start() {
	w.blind = true
	w.plugin = w.bed.Start(append(eager(), process.Flag("rescan-interval", "1h"), process.Flag("v", "0"),
		process.Flag("mig-devices", "on-demand"), process.Flag("mps", "true"), process.Flag("shared-devices",
			`[{"enforcement":"mps","replicas":4,"devices":{"indices":[2]}},{"enforcement":"none","replicas":4,"devices":{"indices":[3]}}]`))...)
}

// wish draws one of the claims, which is in the API then.
func (w *world) wish() *wish {
	wanted := rapid.SampledFrom(w.wishes).Draw(w.rt, "claim")
	if !wanted.there {
		w.made++
		wanted.claim = wanted.kind.claim(w.bed, fmt.Sprintf("claim-%d", w.made))
		wanted.there = true
	}
	return wanted
}

// others are all claims but one.
func (w *world) others(but *wish) []*wish {
	return slices.DeleteFunc(slices.Concat(w.wishes, w.ghosts), func(o *wish) bool { return o == but })
}

// prepared holds the answer to a prepare against the model. cut: the process was killed in the call.
func (w *world) prepared(c *wish, answer []kubelet.Device, err error, cut bool) {
	if err == nil {
		for _, o := range w.others(c) {
			if o.owner && !o.unsure && c.excludes(o) {
				w.Fatalf("%s got its devices although %s has some of them", c.name, o.name)
			}
		}
		if err := w.has(c); err != nil {
			w.Fatalf("%s is prepared, and %v", c.name, err)
		}
		if len(c.partitions) == 0 {
			if err := w.bed.CheckPrepared(c.claim, answer, c.gpus...); err != nil {
				w.Fatalf("%s: %v", c.name, err)
			}
		}
		c.owner, c.fresh, c.unsure = true, true, false
		w.blind, w.returned = w.blind && !c.isShare(), false
		return
	}
	// What is prepared stays so, whatever becomes of being asked again; not so after a reboot.
	if cut || w.faulty {
		c.unsure = c.unsure || !c.owner || !c.fresh
		return
	}
	if w.blind && c.isShare() && strings.Contains(err.Error(), "is not in pool") {
		return
	}
	inTheWay := slices.ContainsFunc(w.others(c), func(o *wish) bool { return o.mayHave() && c.excludes(o) })
	if !w.away && !w.returned && !inTheWay {
		w.Fatalf("%s is refused, and nothing is in its way: %v", c.name, err)
	}
}

// unprepared does so for an unprepare.
func (w *world) unprepared(c *wish, err error, cut bool) {
	c.owner = false
	switch {
	case err == nil:
		c.unsure = false
	case cut || w.faulty:
		c.unsure = true
	default:
		w.Fatalf("%s cannot be unprepared: %v", c.name, err)
	}
}

// has looks at the hardware for what a claim that is prepared must have there.
func (w *world) has(c *wish) error {
	have, err := partitioned(w.bed)
	if err != nil {
		return err
	}
	for _, p := range c.partitions {
		if !slices.Contains(have, p) {
			return fmt.Errorf("partition %s is not among %v", p, have)
		}
	}
	for _, gpu := range c.gpus {
		if have, err := w.bed.Node.Sharing(gpu); err != nil || have.TimeSlice != c.slice || have.ComputeMode != c.mode {
			return fmt.Errorf("GPU %d is shared as %+v, %w", gpu, have, err)
		}
	}
	return c.served(w.bed, c.claim)
}

func (w *world) prepare(*rapid.T) {
	c := w.wish()
	answer, err := w.bed.Prepare(c.claim)
	w.prepared(c, answer, err, false)
}

func (w *world) unprepare(*rapid.T) {
	c := w.wish()
	w.unprepared(c, w.bed.Unprepare(c.claim), false)
}

// killed kills the process at a change of its files in a call.
func (w *world) killed(*rapid.T) {
	c, unprepare := w.wish(), rapid.Bool().Draw(w.rt, "unprepare")
	trace := w.plugin.Trace(tracer.Plan{At: rapid.IntRange(1, 45).Draw(w.rt, "point")})
	var answer []kubelet.Device
	var err error
	if unprepare {
		err = w.bed.Unprepare(c.claim)
	} else {
		answer, err = w.bed.Prepare(c.claim)
	}
	changes, traceErr := trace.Stop()
	must(w, traceErr)
	cut := len(changes) > 0 && changes[len(changes)-1].Hit
	if unprepare {
		w.unprepared(c, err, cut)
	} else {
		w.prepared(c, answer, err, cut)
	}
	w.plugin.Kill()
	w.start()
}

func (w *world) restart(*rapid.T) {
	if rapid.Bool().Draw(w.rt, "in order") {
		w.plugin.Terminate()
	}
	w.plugin.Kill()
	w.start()
}

func (w *world) reboot(*rapid.T) {
	w.plugin.Kill()
	w.pod.End()
	must(w, w.bed.Node.Reboot(rapid.Uint64Range(1, 100).Draw(w.rt, "seed")))
	w.faulty = false
	specs, err := filepath.Glob(filepath.Join(w.bed.CDIDir(), "*"))
	must(w, err)
	for _, s := range specs {
		must(w, os.Remove(s))
	}
	for _, c := range w.wishes {
		c.fresh = false
	}
	w.pod = w.bed.StartMPS()
	w.start()
}

// deleted deletes a claim that nobody unprepares.
func (w *world) deleted(*rapid.T) {
	c := w.wish()
	if w.away {
		return
	}
	w.bed.Eventually("a deleted claim", func() error {
		err := w.bed.Client.ResourceV1().ResourceClaims(c.claim.Namespace).Delete(w.ctx, c.claim.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err // a connection may be of before the API server was away
	})
	if c.mayHave() {
		ghost := *c
		ghost.owner, ghost.unsure = false, true
		w.ghosts = append(w.ghosts, &ghost)
	}
	c.there, c.owner, c.fresh, c.unsure = false, false, false, false
}

func (w *world) fault(*rapid.T) {
	k := kind{slice: 1, partitions: []string{""}, mps: true}
	f := gpusim.CallFault{
		Function: rapid.SampledFrom(k.functions()).Draw(w.rt, "function"), GPU: gpusim.AnyGPU, Code: 999,
		After: rapid.Uint32Range(0, 2).Draw(w.rt, "after"), Count: rapid.Int64Range(1, 3).Draw(w.rt, "count"),
	}
	if err := w.bed.Node.FailCall(f); !errors.Is(err, gpusim.ErrTooManyFaults) {
		must(w, err)
	}
	w.faulty = true
}

func (w *world) mended(*rapid.T) {
	must(w, w.bed.Node.ClearFaults())
	w.faulty = false
}

func (w *world) apiAway(*rapid.T) {
	if !w.away {
		must(w, w.bed.API.Away())
	}
	w.away = true
}

func (w *world) apiBack(*rapid.T) {
	if w.away {
		must(w, w.bed.API.Back())
		w.returned = true
	}
	w.away = false
}

func (w *world) supervisorKilled(*rapid.T) {
	must(w, syscall.Kill(w.pod.Supervisor(), syscall.SIGKILL))
}

// check holds the node against the model.
func (w *world) check(*rapid.T) {
	w.ghosts = slices.DeleteFunc(w.ghosts, func(g *wish) bool { return !w.bed.Record(g.claim.UID) })
	for _, c := range w.wishes {
		if !c.owner || c.unsure {
			continue
		}
		if !w.bed.Record(c.claim.UID) {
			w.Fatalf("%s is prepared and has no record", c.name)
		}
		if !c.fresh {
			continue
		}
		if err := w.has(c); err != nil {
			w.Fatalf("%s is prepared, and %v", c.name, err)
		}
	}
	have, err := partitioned(w.bed)
	must(w, err)
	for _, p := range have {
		if !slices.ContainsFunc(w.others(nil), func(o *wish) bool { return o.mayHave() && slices.Contains(o.partitions, p) }) && !w.leaving(p) {
			w.Fatalf("partition %s is nobody's", p)
		}
	}
}

// leaving tells whether a partition goes by itself: its owner ended just before it was looked for.
func (w *world) leaving(partition string) bool {
	w.bed.Eventually("the end of partition "+partition, func() error {
		have, err := partitioned(w.bed)
		if err == nil && slices.Contains(have, partition) {
			err = errors.New("it is there")
		}
		return err
	})
	return true
}

// end mends everything and has every claim unprepared. Then nothing is left.
func (w *world) over() {
	w.mended(nil)
	w.apiBack(nil)
	for _, c := range w.wishes {
		if c.there {
			w.unprepared(c, w.bed.Unprepare(c.claim), false)
		}
	}
	uids := map[types.UID]string{}
	for _, g := range w.ghosts {
		uids[g.claim.UID] = g.name
	}
	w.bed.Eventually("the end of claims that are gone", func() error {
		for uid, name := range uids {
			if w.bed.Record(uid) {
				return fmt.Errorf("%s has a record", name)
			}
		}
		return nil
	})
	cleaned(w, w.bed)
	w.bed.Eventually("hardware without claims", func() error { return idle(w.bed) })
}

// Random sequences of claims of all kinds, prepares, unprepares, kills at any change of a file,
// restarts, reboots, claims that are deleted, calls of the driver that fail, and an API server that
// is away, through the real process: never two owners of one device, every claim has what it was
// told, and nothing is left in the end.
func TestModel(t *testing.T) {
	operations, wanted, sequences := 0, 1, 1
	if text := os.Getenv(modelVariable); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		wanted, sequences = n, 10
	} else {
		// One sequence says nothing of others: it is the same each time.
		must(t, flag.Set("rapid.seed", "1"))
	}
	must(t, flag.Set("rapid.checks", strconv.Itoa(sequences)))
	must(t, flag.Set("rapid.steps", strconv.Itoa(operationsOf)))
	// Sequences of another version of the test say nothing.
	must(t, flag.Set("rapid.nofailfile", "true"))
	made := 0
	one := func(rt *rapid.T) {
		made++
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sequence{TB: t, rt: rt, ctx: ctx}
		defer s.end()
		w := &world{sequence: s, bed: process.New(s, "hgx-h100-8", gpusim.WithFile(four)), wishes: wishes()}
		w.pod = w.bed.StartMPS()
		w.start()
		counted := func(do func(*rapid.T)) func(*rapid.T) {
			return func(rt *rapid.T) { operations++; do(rt) }
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": w.check, "prepare": counted(w.prepare), "prepare another": counted(w.prepare), "prepare a third": counted(w.prepare),
			"unprepare": counted(w.unprepare), "unprepare another": counted(w.unprepare),
			"killed": counted(w.killed), "restart": counted(w.restart), "reboot": counted(w.reboot), "deleted": counted(w.deleted),
			"fault": counted(w.fault), "mended": counted(w.mended), "mended again": counted(w.mended),
			"API away": counted(w.apiAway), "API back": counted(w.apiBack), "API back again": counted(w.apiBack),
			"supervisor killed": counted(w.supervisorKilled),
		})
		w.over()
	}
	for operations < wanted && !t.Failed() {
		rapid.Check(t, one)
	}
	t.Logf("%d operations in %d sequences", operations, made)
}
