package memlimit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit"
	"github.com/gpu-dra/driver/pkg/sharing/memlimit/hook"
	"github.com/gpu-dra/driver/pkg/topology"
)

// A container gets what its claim's share has, and those that have none of it get nothing.
func TestHandler(t *testing.T) {
	r := newRig(t)
	share := r.share("a", 0, 0, 5<<10)
	steps, err := r.sharing.Handler.Steps(share)
	must(t, err)
	if len(steps) != 1 || steps[0].Kind != memlimit.Kind {
		t.Fatalf("steps %+v", steps)
	}
	edits, err := r.sharing.Handler.Edits(claims.Device{Device: share.Device}, steps)
	must(t, err)
	if diff := cmp.Diff([]string{"NVIDIA_GPU_MEMORY_LIMIT=5120"}, edits.Env); diff != "" {
		t.Error(diff)
	}
	if len(edits.Hooks) != 1 || edits.Hooks[0].HookName != "createRuntime" || edits.Hooks[0].Path != "/data/gpu-limit-hook" || *edits.Hooks[0].Timeout <= 30 {
		t.Errorf("hooks %+v", edits.Hooks)
	}
	args := strings.Join(edits.Hooks[0].Args, " ")
	for _, part := range []string{"--socket=" + filepath.Join(r.config.Dir, "s"), "--claim=uid-a", "--device=" + share.Device.Name(), "--share=share-a"} {
		if !strings.Contains(args, part) {
			t.Errorf("the hook is called with %q, without %s", args, part)
		}
	}
	admin, whole, uncounted := share, share, share
	admin.AdminAccess, whole.ShareID, uncounted.MemoryBytes = true, nil, 0
	other := share
	other.Device = device.FromSnapshot(inventorytest.T4(), topology.Assignment{})[0]
	for name, d := range map[string]claims.Device{"admin access": admin, "whole": whole, "not declared": other} {
		steps, err := r.sharing.Handler.Steps(d)
		edits, editErr := r.sharing.Handler.Edits(d, steps)
		if len(steps) != 0 || len(edits.Hooks)+len(edits.Env) != 0 || err != nil || editErr != nil {
			t.Errorf("%s: steps %v, edits %v, %v, %v", name, steps, edits, err, editErr)
		}
	}
	if _, err := r.sharing.Handler.Steps(uncounted); err == nil || !strings.Contains(err.Error(), "ask for capacity memory") {
		t.Errorf("nothing to enforce: %v", err)
	}
}

// A claim fails before its containers do.
func TestPrepareWhereNoLimitIsPossible(t *testing.T) {
	r := newRig(t)
	steps, err := r.sharing.Handler.Steps(r.share("a", 0, 0, 100))
	must(t, err)
	do := func() error {
		_, err := r.sharing.Executor.Do(t.Context(), steps[0].Params)
		return err
	}
	must(t, do())
	r.driver.lacks = fmt.Errorf("call: %w", inventory.ErrNotSupported)
	if err := do(); !errors.Is(err, inventory.ErrNotSupported) || !strings.Contains(err.Error(), r.devices[0].Identity().PCI.String()) {
		t.Errorf("error %v", err)
	}
	r.driver.lacks = nil
	must(t, os.Remove(filepath.Join(r.cgroups, "cgroup.controllers")))
	if err := do(); err == nil || !strings.Contains(err.Error(), "need cgroup v2") {
		t.Errorf("error %v", err)
	}
}

// Shares of one GPU are limited each on their own; one container with two has their sum; one
// that starts again gets its share again.
func TestLimits(t *testing.T) {
	r := newRig(t)
	a, b, c := r.share("a", 0, 0, 100), r.share("b", 0, 0, 200), r.share("b", 0, 1, 50)
	r.prepare(a)
	r.prepare(b, c)
	first, second := r.begin("first"), r.begin("second")
	for _, asked := range []hook.Request{request(a, first), request(b, second), request(c, second), request(c, second)} {
		must(t, r.sharing.Limit(t.Context(), asked))
	}
	if diff := cmp.Diff(map[string]uint64{"first": 100, "second": 250}, r.has(0)); diff != "" {
		t.Error(diff)
	}
	r.end(first)
	again := r.begin("again")
	must(t, r.sharing.Limit(t.Context(), request(a, again)))
	if got := r.has(0)["again"]; got != 100 {
		t.Errorf("after its start again it has %d MiB", got)
	}
	// A later cgroup of the same name is another one.
	r.end(second)
	must(t, r.sharing.Limit(t.Context(), request(b, r.begin("second"))))
	r.unprepare(a)
	r.unprepare(b, c)
	if n := r.left(); n != 0 {
		t.Errorf("%d notes are left", n)
	}
}

// A share is one container's at a time: with two, each would have all of it.
func TestOneContainerAtATime(t *testing.T) {
	r := newRig(t)
	a := r.share("a", 0, 0, 100)
	r.prepare(a)
	first, second := r.begin("first"), r.begin("second")
	must(t, r.sharing.Limit(t.Context(), request(a, first)))
	err := r.sharing.Limit(t.Context(), request(a, second))
	var inUse *memlimit.InUseError
	if !errors.As(err, &inUse) || inUse.Cgroup != first || !strings.Contains(err.Error(), "team/a") || !strings.Contains(err.Error(), "a share of its own") {
		t.Errorf("error %v", err)
	}
	// The first has ended, and its cgroup is still there.
	events := filepath.Join(r.cgroups, first, "cgroup.events")
	must(t, os.WriteFile(events, []byte("populated 1\nfrozen 0\n"), 0o600))
	if err := r.sharing.Limit(t.Context(), request(a, second)); !errors.As(err, &inUse) {
		t.Errorf("error %v", err)
	}
	must(t, os.WriteFile(events, []byte("populated 0\nfrozen 0\n"), 0o600))
	must(t, r.sharing.Limit(t.Context(), request(a, second)))
	// After a reboot nobody has it.
	r.config.Boot = "boot-2"
	rebooted := memlimit.New(r.config)
	must(t, rebooted.Limit(t.Context(), request(a, first)))
}

// Only what is prepared is limited, and a limit that is not in force lets no container start.
func TestRefused(t *testing.T) {
	r := newRig(t)
	a, b := r.share("a", 0, 0, 100), r.share("b", 1, 0, 100)
	plain := r.share("plain", 0, 0, 100)
	plain.ShareID = nil
	r.prepare(a)
	r.prepare(plain)
	begun := &journal.Record{UID: b.Claim.UID, State: journal.StateStarted}
	must(t, r.journal.Save(begun))
	here := r.begin("here")
	other := request(a, here)
	other.Share = "share-b"
	noShare := request(a, here)
	noShare.Claim = "uid-plain"
	escaping := request(a, here)
	escaping.Claim = "../claims/uid-a"
	for name, tt := range map[string]struct {
		request hook.Request
		says    string
	}{
		"no claim":              {request(r.share("c", 0, 0, 1), here), "not prepared for claim uid-c"},
		"a claim in the making": {request(b, here), "the claim is started"},
		"another share":         {other, "no such share"},
		"no share":              {noShare, "no such share"},
		"no UID":                {escaping, "not prepared for claim"},
		"no cgroup":             {request(a, "/pods/nowhere"), "has to see the host's cgroups"},
		"everybody's cgroup":    {request(a, "/"), "cgroup v2"},
		"out of the tree":       {request(a, "/../x"), "not allowed"},
	} {
		if err := r.sharing.Limit(t.Context(), tt.request); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q in it", name, err, tt.says)
		}
	}
	if has := r.has(0); len(has) != 0 {
		t.Errorf("limits %v", has)
	}
	r.driver.fails = errors.New("no permission")
	if err := r.sharing.Limit(t.Context(), request(a, here)); !errors.Is(err, r.driver.fails) || !strings.Contains(err.Error(), "to 100 MiB") {
		t.Errorf("error %v", err)
	}
	r.driver.fails = nil
	must(t, r.sharing.Limit(t.Context(), request(a, here)))
}

// Containers of two shares that are created at once get a share each, whatever the order.
func TestLimitsAtOnce(t *testing.T) {
	r := newRig(t)
	a := r.share("a", 0, 0, 100)
	r.prepare(a)
	var cgroups []string
	for i := range 4 {
		cgroups = append(cgroups, r.begin(fmt.Sprint(i)))
	}
	var wait sync.WaitGroup
	errs := make([]error, len(cgroups))
	for i, cgroup := range cgroups {
		wait.Go(func() { errs[i] = r.sharing.Limit(t.Context(), request(a, cgroup)) })
	}
	wait.Wait()
	if failed := len(slices.DeleteFunc(errs, func(err error) bool { return err == nil })); failed != len(cgroups)-1 || len(r.has(0)) != 1 {
		t.Errorf("%d were refused, limits %v", failed, r.has(0))
	}
}

// Whatever comes and goes: the limits of all containers that live are never more than what is
// allocated, and each has exactly its shares.
func TestNeverMoreThanAllocated(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		all := []claims.Device{r.share("a", 0, 0, 100), r.share("a", 0, 1, 30), r.share("b", 0, 0, 7)}
		r.prepare(all[0], all[1])
		r.prepare(all[2])
		has := map[string]uint64{} // by container that lives
		holder := map[int]string{} // by share
		for range rapid.IntRange(1, 20).Draw(rt, "events") {
			n, name := rapid.IntRange(0, 2).Draw(rt, "share"), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "container")
			if rapid.Bool().Draw(rt, "ends") {
				r.end("/pods/" + name)
				delete(has, name)
				for share, by := range holder {
					if by == name {
						delete(holder, share)
					}
				}
				continue
			}
			err := r.sharing.Limit(t.Context(), request(all[n], r.begin(name)))
			by, taken := holder[n]
			if refused := taken && by != name; refused != (err != nil) {
				rt.Fatalf("share %d, container %s, held by %q: %v", n, name, by, err)
			}
			if err == nil && !taken {
				holder[n] = name
				has[name] += uint64(all[n].MemoryBytes >> 20)
			}
			if err == nil && r.has(0)[name] != has[name] {
				rt.Fatalf("container %s has %d MiB, want %d", name, r.has(0)[name], has[name])
			}
		}
	})
}

// Notes that no record accounts for are removed, others not.
func TestOwner(t *testing.T) {
	r := newRig(t)
	a, b := r.share("a", 0, 0, 100), r.share("b", 1, 0, 100)
	r.prepare(a)
	r.prepare(b)
	must(t, r.sharing.Limit(t.Context(), request(a, r.begin("a"))))
	must(t, r.sharing.Limit(t.Context(), request(b, r.begin("b"))))
	must(t, os.WriteFile(filepath.Join(r.config.Dir, "s"), nil, 0o600)) // the socket
	things, err := r.sharing.Owner.Things(t.Context())
	must(t, err)
	if len(things) != 2 || things[0].GPU != r.devices[0].Identity().PCI {
		t.Fatalf("things %+v", things)
	}
	record, err := r.journal.Load(a.Claim.UID)
	must(t, err)
	if !r.sharing.Owner.Accounts(record, things[0]) || r.sharing.Owner.Accounts(record, things[1]) || r.sharing.Owner.Accounts(&journal.Record{}, things[0]) {
		t.Error("the record accounts for what is not its own, or not for that")
	}
	record.Devices[0].Steps[0].Params = []byte("[]")
	if !r.sharing.Owner.Accounts(record, things[1]) {
		t.Error("what cannot be read accounts for nothing")
	}
	for range 2 {
		must(t, r.sharing.Owner.Remove(t.Context(), things[1]))
	}
	if n := r.left(); n != 1 {
		t.Errorf("%d notes", n)
	}
	if kind := r.sharing.Owner.Kind(); kind != "memory limit" {
		t.Errorf("kind %q", kind)
	}
}

// A note that a loss of power tore says that nobody has the share.
func TestTornNote(t *testing.T) {
	r := newRig(t)
	a := r.share("a", 0, 0, 100)
	r.prepare(a)
	must(t, r.sharing.Limit(t.Context(), request(a, r.begin("first"))))
	files, err := filepath.Glob(filepath.Join(r.config.Dir, "*", "*"))
	must(t, err)
	must(t, os.WriteFile(files[0], []byte(`{"pci":`), 0o600))
	must(t, r.sharing.Limit(t.Context(), request(a, r.begin("second"))))
	if diff := cmp.Diff(map[string]uint64{"first": 100, "second": 100}, r.has(0)); diff != "" {
		t.Error(diff)
	}
	for _, raw := range []string{`{`, `[]`} {
		_, err := r.sharing.Executor.Do(t.Context(), []byte(raw))
		if undo := r.sharing.Executor.Undo(t.Context(), []byte(raw), nil); err == nil || undo == nil {
			t.Errorf("%s: %v, %v", raw, err, undo)
		}
	}
}

// scanner sees the T4s, or fails.
type scanner struct{ err error }

func (s scanner) Scan(context.Context) (inventory.Snapshot, error) { return inventorytest.T4(), s.err }

// What the driver cannot limit is known from the last look that there was.
func TestProbe(t *testing.T) {
	r := newRig(t)
	at := r.devices[0].Identity().PCI
	look := func(s scanner) {
		if _, err := r.sharing.Watch(s).Scan(t.Context()); !errors.Is(err, s.err) {
			t.Fatal(err)
		}
	}
	if why := r.sharing.NoLimits(at); why != "" {
		t.Errorf("before a look: %s", why)
	}
	r.driver.lacks = fmt.Errorf("call: %w", inventory.ErrNotSupported)
	look(scanner{})
	if why := r.sharing.NoLimits(at); !strings.Contains(why, inventory.ErrNotSupported.Error()) {
		t.Errorf("why %q", why)
	}
	r.driver.lacks = nil
	look(scanner{errors.New("no look")})
	if why := r.sharing.NoLimits(at); why == "" {
		t.Error("a look that failed has told something")
	}
	look(scanner{})
	if why := r.sharing.NoLimits(at); why != "" {
		t.Errorf("why %q", why)
	}
	// A call that fails takes no device away, unless it fails again and again.
	for _, row := range []struct {
		err  error
		gone bool
	}{{errors.New("unknown"), false}, {errors.New("unknown"), false}, {nil, false}, {errors.New("unknown"), false}, {errors.New("unknown"), false}, {errors.New("unknown"), true}, {nil, false}, {inventory.ErrNotSupported, true}, {errors.New("unknown"), true}} {
		r.driver.lacks = row.err
		look(scanner{})
		if why := r.sharing.NoLimits(at); (why != "") != row.gone {
			t.Errorf("after %v: %q", row.err, why)
		}
	}
}

// A node that declares no such shares looks at nothing, and serves what was prepared before.
func TestNotDeclared(t *testing.T) {
	r := newRig(t)
	a := r.share("a", 0, 0, 100)
	r.config.Shares = nil
	s := memlimit.New(r.config)
	if s.Needed(r.journal) {
		t.Error("needed, though nothing is declared and nothing prepared")
	}
	if _, err := s.Watch(scanner{}).Scan(t.Context()); err != nil || r.driver.checks != 0 {
		t.Errorf("%v, %d questions to the driver", err, r.driver.checks)
	}
	if why := s.NoLimits(pci.Address{}); why != "" {
		t.Errorf("why %q", why)
	}
	r.prepare(a)
	if !s.Needed(r.journal) || !r.sharing.Needed(r.journal) {
		t.Error("not needed, though a claim is prepared")
	}
	must(t, s.Limit(t.Context(), request(a, r.begin("a"))))
	r.unprepare(a)
	must(t, r.journal.Save(&journal.Record{UID: types.UID("other"), State: journal.StatePrepared}))
	if s.Needed(r.journal) {
		t.Error("needed for a claim without limits")
	}
}

// serve runs an instance of the plugin.
func (r *rig) serve() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() { memlimit.New(r.config).Run(ctx); close(ended) }()
	return func() { cancel(); <-ended }
}

// awaitOther waits until another file has the socket's name.
func (r *rig) awaitOther(before os.FileInfo) os.FileInfo {
	for {
		now, err := os.Stat(filepath.Join(r.config.Dir, "s"))
		must(r.t, err)
		if !os.SameFile(before, now) {
			return now
		}
		runtime.Gosched()
	}
}

// The hook's question and the plugin's answer, over the socket; the instance that came last
// answers, and one that ends takes nothing away.
func TestServed(t *testing.T) {
	r := newRig(t)
	a := r.share("a", 0, 0, 100)
	r.prepare(a)
	socket := filepath.Join(r.config.Dir, "s")
	stopFirst := r.serve()
	must(t, hook.Ask(t.Context(), socket, request(a, r.begin("a"))))
	before, err := os.Stat(socket)
	must(t, err)
	if before.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %s", before.Mode())
	}
	stopSecond := r.serve()
	r.awaitOther(before)
	stopFirst()
	var refused *hook.RefusedError
	if err := hook.Ask(t.Context(), socket, request(a, r.begin("b"))); !errors.As(err, &refused) || !strings.Contains(err.Error(), "another container's") {
		t.Errorf("error %v", err)
	}
	stopSecond()
	if got := r.has(0); len(got) != 1 {
		t.Errorf("limits %v", got)
	}
}

// An instance that took the socket and is gone, as one that is rolled back, leaves its name to the
// one that is still there; so does whoever removes the file.
func TestTheSocketIsTakenBack(t *testing.T) {
	r := newRig(t)
	r.config.Interval = time.Millisecond
	a := r.share("a", 0, 0, 100)
	r.prepare(a)
	cgroup, socket := r.begin("a"), filepath.Join(r.config.Dir, "s")
	stop := r.serve()
	defer stop()
	must(t, hook.Ask(t.Context(), socket, request(a, cgroup)))
	before, err := os.Stat(socket)
	must(t, err)
	stopOther := r.serve()
	other := r.awaitOther(before)
	stopOther()
	r.awaitOther(other)
	must(t, hook.Ask(t.Context(), socket, request(a, cgroup)))
	must(t, os.Remove(socket))
	must(t, hook.Ask(t.Context(), socket, request(a, cgroup)))
}

// What keeps the socket away ends nothing, and is waited for; so is a claim that another instance
// prepares, where this one shares nothing so.
func TestServedLater(t *testing.T) {
	r := newRig(t)
	a := r.share("a", 0, 0, 100)
	cgroup, dir := r.begin("a"), r.config.Dir
	must(t, os.WriteFile(dir, nil, 0o600))
	r.config.Interval, r.config.Shares = time.Millisecond, nil
	stop := r.serve()
	defer stop()
	r.prepare(a)
	must(t, os.Remove(dir))
	must(t, hook.Ask(t.Context(), filepath.Join(dir, "s"), request(a, cgroup)))
}
