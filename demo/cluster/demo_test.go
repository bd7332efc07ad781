package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/e2e/rig"
)

// islands are eight GPUs in two domains of four, not in the order of their addresses.
func islands() []rig.GPU {
	var gpus []rig.GPU
	for _, n := range []string{"4", "5", "6", "7", "0", "1", "2", "3"} {
		gpus = append(gpus, rig.GPU{Device: "gpu-" + n, UUID: "GPU-" + n, PCI: n, Domain: map[bool]string{true: "first", false: "second"}[n < "4"]})
	}
	return gpus
}

func TestCost(t *testing.T) {
	all := islands()
	lone := rig.GPU{UUID: "lone"}
	for name, c := range map[string]struct {
		gpus []rig.GPU
		want int
	}{
		"nothing":             {want: 0},
		"one":                 {gpus: all[:1], want: 0},
		"one island":          {gpus: all[:4], want: 6},
		"two and two":         {gpus: all[2:6], want: 18},
		"both without a link": {gpus: []rig.GPU{lone, lone}, want: 4},
	} {
		if got := cost(c.gpus); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestFirstFree(t *testing.T) {
	holders := map[string]string{"GPU-0": "pair", "GPU-1": "pair", "GPU-4": "four", "GPU-5": "four"}
	var got []string
	for _, g := range firstFree(islands(), holders, "four", 4) {
		got = append(got, g.PCI)
	}
	if diff := cmp.Diff([]string{"2", "3", "4", "5"}, got); diff != "" {
		t.Errorf("the first four by number (-want +got):\n%s", diff)
	}
	if n := len(firstFree(islands(), holders, "none", 9)); n != 4 {
		t.Errorf("%d GPUs are free of everybody", n)
	}
}

func TestMatrix(t *testing.T) {
	if diff := cmp.Diff("head\nrow\n", matrix("head\nrow\n\nLegend:\n", 1)); diff != "" {
		t.Errorf("matrix (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("head", matrix("head", 4)); diff != "" {
		t.Errorf("a short text (-want +got):\n%s", diff)
	}
}

// TestStep tells of a long step every ten seconds, with the tools' last line.
func TestStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, file bytes.Buffer
		log := &lastLine{to: &file}
		tell := newTeller(&out, log)
		broken := errors.New("broken")
		if _, err := log.Write([]byte("of an earlier step\n")); err != nil {
			t.Fatal(err)
		}
		err := tell.step("Building", func() error {
			time.Sleep(15 * time.Second)
			for _, text := range []string{"etcd\nkube", "let\n", "\n", "kubectl without an end"} {
				if _, err := log.Write([]byte(text)); err != nil {
					return err
				}
			}
			time.Sleep(10 * time.Second)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := tell.step("Starting", func() error { return broken }); !errors.Is(err, broken) {
			t.Errorf("error: %v", err)
		}
		tell.quote("a\nb")
		want := `
  10.0s  Building: not yet, 10s so far
  20.0s  Building: not yet, 20s so far: kubelet
  25.0s  Building: 25.0s
  25.0s  Starting: FAILED after 0.0s
       | a
       | b
`
		if diff := cmp.Diff(want, "\n"+out.String()); diff != "" {
			t.Errorf("what the viewer reads (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff("of an earlier step\netcd\nkubelet\n\nkubectl without an end", file.String()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestNewDemo(t *testing.T) {
	repository := t.TempDir()
	none := func(string) string { return "" }
	d, err := newDemo(Options{Repository: repository, Getenv: none, Out: &bytes.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	if d.Cluster.Name != "demo" || d.Cluster.Nodes != 1 {
		t.Errorf("cluster %s of %d nodes", d.Cluster.Name, d.Cluster.Nodes)
	}
	if _, err := os.Stat(filepath.Join(repository, "dist/demo-cluster/log")); err != nil {
		t.Errorf("the tools' log: %v", err)
	}
	bad := func(name string) string { return map[string]string{"CLUSTER_NODES": "some"}[name] }
	if _, err := newDemo(Options{Repository: repository, Getenv: bad, Out: &bytes.Buffer{}}); err == nil || !strings.Contains(err.Error(), "CLUSTER_NODES") {
		t.Errorf("a bad setting: %v", err)
	}
}
