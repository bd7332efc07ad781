package ground

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/journal"
)

// opened is the ground of a node without a GPU driver, below a directory of the test's own.
func opened(t *testing.T, edit func(*config.Config)) *Ground {
	t.Helper()
	c := config.Default()
	c.NodeName = "node-1"
	c.KubeletPluginsDir, c.DriverRoot.Container, c.SysRoot = t.TempDir(), t.TempDir(), t.TempDir()
	edit(c)
	if err := os.MkdirAll(c.DataDir(), 0o750); err != nil {
		t.Fatal(err)
	}
	g := &Ground{Deps: Deps{Config: c}}
	if err := g.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestOpen(t *testing.T) {
	g := opened(t, func(*config.Config) {})
	if g.Library == nil || g.Tree == nil || g.Ledger == nil || g.Locks == nil || g.Journal == nil || g.Boot == "" {
		t.Errorf("%+v", g)
	}
	for _, dir := range []string{ClaimsDir, LocksDir} {
		if info, err := os.Stat(g.StateDir(dir)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// A file where a directory has to be is an error that says which.
	c := *g.Config
	c.KubeletPluginsDir = t.TempDir()
	if err := os.MkdirAll(c.DataDir(), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.DataDir(), ClaimsDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := (&Ground{Deps: Deps{Config: &c}}).Open(t.Context())
	if err == nil {
		t.Error("opened with a file for a directory")
	}
}

// A record that cannot be read is one: its claim may have devices.
func TestHasRecord(t *testing.T) {
	g := opened(t, func(*config.Config) {})
	if err := g.Journal.Save(&journal.Record{UID: "uid-1", Namespace: "ns", Name: "one", State: journal.StateStarted}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(g.Journal.Path("uid-2"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !g.HasRecord("uid-1") || !g.HasRecord("uid-2") || g.HasRecord("uid-3") {
		t.Errorf("%t %t %t", g.HasRecord("uid-1"), g.HasRecord("uid-2"), g.HasRecord("uid-3"))
	}
}

// What the admin decides reaches what the node offers.
func TestOffers(t *testing.T) {
	for name, row := range map[string]struct {
		edit                              func(*config.Config)
		partitions, onDemand, hides, lays bool
		shares                            int
	}{
		"default":   {edit: func(*config.Config) {}, onDemand: true},
		"on demand": {edit: func(c *config.Config) { c.MIGDevices = config.MIGOnDemand }, partitions: true, onDemand: true},
		"static":    {edit: func(c *config.Config) { c.MIGDevices = config.MIGStatic }, partitions: true},
		"foreign": {
			edit:       func(c *config.Config) { c.MIGDevices, c.MIGForeign = config.MIGOnDemand, false },
			partitions: true, onDemand: true, hides: true,
		},
		"layouts": {
			edit:       func(c *config.Config) { c.MIGDevices, c.MIGLayoutFile = config.MIGOnDemand, "/layouts" },
			partitions: true, onDemand: true, lays: true,
		},
		"shares": {edit: func(c *config.Config) { c.SharedDevices = "[{enforcement: none, replicas: 2}]" }, onDemand: true, shares: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := opened(t, row.edit)
			o := g.Offers()
			if o.Pool != "node-1" || o.Partitions != row.partitions || o.NotOnDemand == row.onDemand || o.HideForeign != row.hides || len(o.Shares) != row.shares {
				t.Errorf("%+v", o)
			}
			if g.Partitions() != row.partitions || g.Declares() != row.lays {
				t.Errorf("partitions %t, declares %t", g.Partitions(), g.Declares())
			}
		})
	}
}

func TestSharing(t *testing.T) {
	if s := opened(t, func(c *config.Config) { c.MPS = true }).Sharing(); !s.MPS || !s.TimeSlicing {
		t.Errorf("%+v", s)
	}
	if s := opened(t, func(*config.Config) {}).Sharing(); s.MPS || !s.TimeSlicing {
		t.Errorf("%+v", s)
	}
}
