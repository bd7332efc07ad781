package cluster

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// No two clusters, and no two networks of one, share an address; all lie in 198.18.0.0/15.
func TestPlansDoNotOverlap(t *testing.T) {
	tests := netip.MustParsePrefix("198.18.0.0/15")
	networks := func(p plan, node int) []netip.Prefix {
		return []netip.Prefix{p.outer().Masked(), p.services(), p.pods(node)}
	}
	rapid.Check(t, func(t *rapid.T) {
		slot, node := rapid.IntRange(0, slots-1), rapid.IntRange(0, maxNodes-1)
		a, b := plan{slot.Draw(t, "a")}, plan{slot.Draw(t, "b")}
		i, j := node.Draw(t, "i"), node.Draw(t, "j")
		for x, p := range networks(a, i) {
			if !tests.Overlaps(p) || !p.IsValid() {
				t.Fatalf("%s is outside of %s", p, tests)
			}
			for y, q := range networks(b, j) {
				same := a == b && x == y && (x != 2 || i == j)
				if p.Overlaps(q) != same {
					t.Fatalf("slot %d and %d: %s and %s overlap: %v, want %v", a.slot, b.slot, p, q, !same, same)
				}
			}
		}
		if !a.outer().Contains(a.node(i).Addr()) || a.node(i).Addr() == a.outer().Addr() {
			t.Fatalf("node %d has %s in %s", i, a.node(i), a.outer())
		}
		if !a.services().Contains(a.kubernetesService()) {
			t.Fatalf("service %s is outside of %s", a.kubernetesService(), a.services())
		}
	})
}

func state(t *testing.T, root, name string) string {
	t.Helper()
	dir := filepath.Join(root, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestClaimSlot(t *testing.T) {
	root := t.TempDir()
	claim := func(name string, addresses ...net.Addr) int {
		slot, err := claimSlot(state(t, root, name), addresses)
		if err != nil {
			t.Fatal(err)
		}
		return slot
	}
	// The machine uses slot 1's network for something else.
	taken := &net.IPNet{IP: net.IPv4(198, 18, 2, 77), Mask: net.CIDRMask(24, 32)}
	if got := claim("a", taken); got != 0 {
		t.Errorf("the first has slot %d, want 0", got)
	}
	if got := claim("b", taken); got != 2 {
		t.Errorf("the second has slot %d, want 2", got)
	}
	own := &net.IPNet{IP: net.IPv4(198, 18, 0, 1), Mask: net.CIDRMask(24, 32)}
	if got := claim("a", own); got != 0 {
		t.Errorf("a running cluster changed its slot to %d", got)
	}
}

func TestClaimSlotOnAFullMachine(t *testing.T) {
	root := t.TempDir()
	for i := range slots {
		if _, err := claimSlot(state(t, root, NodeName(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := claimSlot(state(t, root, "more"), nil); !errors.Is(err, ErrNoSlot) {
		t.Errorf("got %v, want ErrNoSlot", err)
	}
}

func TestDamagedSlotIsNamed(t *testing.T) {
	for _, content := range []string{"", "x", "-1", "16"} {
		dir := t.TempDir()
		if err := os.WriteFile(slotFile(dir), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := claimSlot(dir, nil); err == nil || !strings.Contains(err.Error(), slotFile(dir)) {
			t.Errorf("%q: got %v", content, err)
		}
	}
}
