package walkthrough

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nothingLeft fails the test if a walk leaves its directory.
func nothingLeft(t *testing.T) {
	t.Helper()
	base, err := os.MkdirTemp("/var/tmp", "walk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", base)
	t.Cleanup(func() {
		left, err := os.ReadDir(base)
		if err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", base, left, err)
		}
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
}

// TestWalk is the whole walk, with everything real that the demo has.
func TestWalk(t *testing.T) {
	nothingLeft(t)
	var out bytes.Buffer
	if err := Run(t.Context(), Options{Out: &out}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"8 GPUs in 2 NVLink domains",
		"claim pair has #0 #1",
		"matchAttribute: gpu.nvidia.com/nvlinkDomain",
		"by number  #2 #3 #4 #5  18\n",
		"of the claim               #4 #5 #6 #7   6\n",
		"kind: gpu.nvidia.com/claim",
		"/dev/nvidiactl",
		"GPU 3: NVIDIA A100-SXM4-80GB (UUID: GPU-",
		"GPU3	NV4	NV4	NV4	 X ",
		"exactly the 4 GPUs of the claim",
		"no device node, no driver file",
		"SIGTERM ended the plugin with exit code 0",
		"Done: everything above was checked",
		"make demo-cluster",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not shown", want)
		}
	}
	if strings.Contains(out.String(), "\x1b[") || strings.Contains(out.String(), "GPU 4:") {
		t.Errorf("colours or too many GPUs in\n%s", out.String())
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// begin is a walk up to two prepared claims.
func begin(t *testing.T) (*walk, *bytes.Buffer) {
	t.Helper()
	nothingLeft(t)
	var out bytes.Buffer
	w := &walk{screen: newScreen(&out, false), options: Options{Preset: DefaultPreset}, held: map[string]string{}}
	t.Cleanup(func() {
		if err := w.tidyUp(context.Background(), nil); err != nil {
			t.Error(err)
		}
	})
	for _, step := range []func(context.Context) error{w.setUp, w.showDevices, w.takePair, w.allocateFour, w.prepareFour} {
		if err := step(t.Context()); err != nil {
			t.Fatal(w.explain(t.Context(), err))
		}
	}
	return w, &out
}

func TestWalkFindsABrokenDriver(t *testing.T) {
	w, _ := begin(t)
	// A container that was given the GPUs of another claim.
	right := w.four.cdi
	w.four.cdi = w.pair.cdi
	if err := w.lookInside(t.Context()); err == nil || !strings.Contains(err.Error(), w.four.gpus[0].uuid) {
		t.Errorf("wrong GPUs in the container: %v", err)
	}
	w.four.cdi = right
	// A record that unprepare forgets.
	forgotten := filepath.Join(w.dataDir(), "claims", string(w.four.claim.UID)+".old")
	if err := os.WriteFile(forgotten, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.giveBack(t.Context()); err == nil || !strings.Contains(err.Error(), forgotten) {
		t.Errorf("a file is left: %v", err)
	}
}

func TestWalkTellsThatThePluginDied(t *testing.T) {
	w, _ := begin(t)
	ctx, cancel := w.plugin.while(t.Context())
	defer cancel()
	if err := w.plugin.cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	err := w.explain(ctx, w.lookInside(ctx))
	var problem *Problem
	if !errors.As(err, &problem) || !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "This instance publishes") {
		t.Errorf("%v", err)
	}
}

func TestInterruptedWalkTidiesUp(t *testing.T) {
	nothingLeft(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &interrupter{at: "2/7", interrupt: cancel}
	if err := Run(ctx, Options{Out: out}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if text := out.text.String(); !strings.Contains(text, "removed ") || strings.Contains(text, "Done:") {
		t.Errorf("%s", text)
	}
}

// interrupter is a viewer who presses ctrl-C at the sight of a text.
type interrupter struct {
	text      bytes.Buffer
	at        string
	interrupt func()
}

func (i *interrupter) Write(text []byte) (int, error) {
	if bytes.Contains(text, []byte(i.at)) {
		i.interrupt()
	}
	return i.text.Write(text)
}

func TestMachineWithoutRoomForTheClaims(t *testing.T) {
	nothingLeft(t)
	var out bytes.Buffer
	err := Run(t.Context(), Options{Preset: "t4-4", Out: &out})
	if err == nil || !strings.Contains(err.Error(), "stays pending") || !strings.Contains(err.Error(), "--preset two-islands") {
		t.Errorf("%v", err)
	}
	if strings.Contains(out.String(), "2 NVLink domains") {
		t.Errorf("%s", out.String())
	}
}

func TestUnknownMachine(t *testing.T) {
	if err := Run(t.Context(), Options{Preset: "abacus", Out: &bytes.Buffer{}}); err == nil || !strings.Contains(err.Error(), "two-islands") {
		t.Errorf("%v, want the known presets", err)
	}
}

func TestKeptWalkStays(t *testing.T) {
	nothingLeft(t)
	var out bytes.Buffer
	w := &walk{screen: newScreen(&out, false), options: Options{Keep: true}, dir: t.TempDir()}
	if err := w.tidyUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.dir); err != nil || !strings.Contains(out.String(), "kept: "+w.dir) || !strings.Contains(out.String(), "inspect "+w.dir) {
		t.Errorf("%v, %s", err, out.String())
	}
}
