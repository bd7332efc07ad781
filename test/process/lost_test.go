package process_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-dra/driver/test/process"
)

// Records and holder files are gone or damaged, and containers run on: their GPUs have an owner as
// long as the CDI directory is there, which can be prepared again and be unprepared.
func TestOwnersFromSpecsAlone(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(b *process.Bed, record string) error{
		"all state is gone": func(b *process.Bed, _ string) error { return os.RemoveAll(b.DataDir()) },
		"torn, and no holders": func(b *process.Bed, record string) error {
			if err := os.RemoveAll(filepath.Join(b.DataDir(), "holders")); err != nil {
				return err
			}
			return os.WriteFile(record, []byte("torn"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := process.New(t, "t4-4")
			p := b.Start()
			owner, again := b.Allocated("owner", []int{1, 2}), b.Allocated("again", []int{3})
			prepare(t, b, owner, 1, 2)
			prepare(t, b, again, 3)
			p.Kill()
			must(t, damage(b, filepath.Join(b.DataDir(), "claims", string(owner.UID)+".json")))
			b.Start(eager()...)
			thief := b.Allocated("thief", []int{2})
			refused(t, b, thief, "is still prepared for claim default/owner", string(owner.UID))
			prepare(t, b, again, 3)
			unprepare(t, b, owner, again)
			prepare(t, b, thief, 2)
			unprepare(t, b, thief)
			if left := only(b.Leftovers(), "claim_"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// A claim that lost its record and is gone from the API, too, is undone like any other.
func TestLostAndGone(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	claim := b.Allocated("ghost", []int{0})
	prepare(t, b, claim, 0)
	p.Kill()
	must(t, os.RemoveAll(b.DataDir()))
	deleteClaim(t, b, claim)
	b.Start(eager()...)
	event(t, b, "RecordRebuilt", "default/ghost")
	event(t, b, "OrphanUndone", "default/ghost")
	undone(t, b, claim)
	next := b.Allocated("next", []int{0})
	prepare(t, b, next, 0)
	unprepare(t, b, next)
	clean(t, b)
}
