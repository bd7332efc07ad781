package inventory_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// What was read of partitions is in the snapshot in an order of its own; what could not be is a
// problem, and nothing is said of boards that are not partitionable.
func TestMIGFacts(t *testing.T) {
	broken := errors.New("broken")
	small, large := inventory.MIGProfile{ID: 19, Name: "1g.10gb"}, inventory.MIGProfile{ID: 9, Name: "3g.40gb"}
	front, back := inventory.MIGInstance{ID: 7, Placement: inventory.MIGPlacement{Size: 1}}, inventory.MIGInstance{ID: 2, Placement: inventory.MIGPlacement{Start: 4, Size: 4}}
	for name, c := range map[string]struct {
		mode      inventory.Fact[inventory.MIG]
		profiles  inventory.Fact[[]inventory.MIGProfile]
		instances inventory.Fact[[]inventory.MIGInstance]
		want      inventory.MIG
		problems  []string
	}{
		"all": {
			mode:      inventory.Known(inventory.MIG{Capable: true, Enabled: true}),
			profiles:  inventory.Known([]inventory.MIGProfile{small, large}),
			instances: inventory.Known([]inventory.MIGInstance{back, front}),
			want:      inventory.MIG{Capable: true, Enabled: true, Profiles: []inventory.MIGProfile{large, small}, Instances: []inventory.MIGInstance{front, back}},
		},
		"nothing asked for": {
			mode: inventory.Known(inventory.MIG{Capable: true}),
			want: inventory.MIG{Capable: true},
		},
		"unreadable": {
			mode:      inventory.Known(inventory.MIG{Capable: true}),
			profiles:  inventory.Unknown[[]inventory.MIGProfile](broken),
			instances: inventory.Unknown[[]inventory.MIGInstance](broken),
			want:      inventory.MIG{Capable: true},
			problems:  []string{"migInstances", "migProfiles"},
		},
		"not partitionable": {
			mode:     inventory.Unknown[inventory.MIG](inventory.ErrNotSupported),
			profiles: inventory.Unknown[[]inventory.MIGProfile](broken),
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := node(1)
			b := &e.reading.Boards[0]
			b.MIG, b.MIGProfiles, b.MIGInstances = c.mode, c.profiles, c.instances
			s := e.scan(t)
			if diff := cmp.Diff(c.want, s.GPUs[0].MIG); diff != "" {
				t.Errorf("MIG (-want +got):\n%s", diff)
			}
			var problems []string
			for _, p := range s.Problems {
				problems = append(problems, p.Fact)
			}
			if diff := cmp.Diff(c.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlacements(t *testing.T) {
	p := func(start, size int) inventory.MIGPlacement {
		return inventory.MIGPlacement{Start: start, Size: size}
	}
	for _, c := range []struct {
		a, b     inventory.MIGPlacement
		overlaps bool
		order    int
	}{
		{p(0, 1), p(1, 1), false, -1},
		{p(0, 4), p(3, 1), true, -1},
		{p(4, 4), p(0, 4), false, 1},
		{p(2, 2), p(2, 2), true, 0},
		{p(2, 2), p(2, 1), true, 1},
		{p(0, 8), p(6, 2), true, -1},
	} {
		if c.a.Overlaps(c.b) != c.overlaps || c.b.Overlaps(c.a) != c.overlaps {
			t.Errorf("%v overlaps %v: %t wanted", c.a, c.b, c.overlaps)
		}
		if c.a.Compare(c.b) != c.order || c.b.Compare(c.a) != -c.order {
			t.Errorf("%v compared with %v: %d wanted", c.a, c.b, c.order)
		}
	}
	if text := p(4, 2).String(); text != "4:2" {
		t.Errorf("a placement reads %q", text)
	}
}
