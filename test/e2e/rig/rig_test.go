package rig

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-dra/driver/test/cluster"
)

// newRig returns a rig of two nodes whose tools are a script that writes down how it was called.
func newRig(t *testing.T, script string) (*Rig, *bytes.Buffer) {
	t.Helper()
	config, err := cluster.FromEnvironment(func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	config.Name, config.Bin = "unit", "/programs"
	repository, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r, err := New(Config{
		Repository: repository, Out: t.TempDir(), Cluster: config, Log: &log,
		Presets: []string{"t4-4", "mixed"}, Machines: filepath.Join(t.TempDir(), "machines"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cluster", "chartctl", "imagebuild"} {
		if err := os.MkdirAll(filepath.Dir(r.tool(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.tool(name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r, &log
}

const writeDown = `echo "$(basename $0)" "$@"`

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "presets") {
		t.Errorf("no presets: %v", err)
	}
	if _, err := New(Config{Presets: []string{"mixed"}, Cluster: cluster.Config{Name: "Not a name"}}); !errors.Is(err, cluster.ErrConfig) {
		t.Errorf("bad cluster: %v", err)
	}
}

func TestClusterCommand(t *testing.T) {
	r, log := newRig(t, writeDown)
	if err := r.ClusterCommand(t.Context(), "stop", "kubelet-0"); err != nil {
		t.Fatal(err)
	}
	m := r.Machines
	want := "cluster --name unit --bin /programs --state-root /var/tmp/kc --nodes 2 --features default " +
		"--bind 0@" + m + "/0-t4-4:" + m + "/node --bind 1@" + m + "/1-mixed:" + m + "/node stop kubelet-0\n"
	if diff := cmp.Diff(want, log.String()); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
}

func TestRelease(t *testing.T) {
	r, log := newRig(t, writeDown)
	for _, do := range []func() error{
		func() error { return r.Install(t.Context(), "v1", Values{"rescanInterval": "1s"}) },
		func() error { return r.Upgrade(t.Context(), "v2", Values{"devRoot": "/dev"}) },
		func() error { return r.Uninstall(t.Context(), fake.NewClientset()) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(log.String(), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d commands: %q", len(lines)-1, lines)
	}
	node := r.Mount()
	for i, words := range [][]string{
		{"chartctl install gpu-dra-driver ", "/deployments/helm/gpu-dra-driver --set", "--set image.tag=v1", "--set rescanInterval=1s", "--set devRoot=" + node + "/driver/dev"},
		{"chartctl upgrade gpu-dra-driver ", "--set image.tag=v2", "--set devRoot=/dev --set", "--set nvidiaDriverRoot=" + node + "/driver", "--namespace gpu-dra-driver"},
		{"chartctl uninstall gpu-dra-driver --namespace gpu-dra-driver --kubeconfig " + r.Nodes.Kubeconfig()},
	} {
		for _, word := range words {
			if !strings.Contains(lines[i], word) {
				t.Errorf("%q is not in: %s", word, lines[i])
			}
		}
	}
}

func TestBuildImage(t *testing.T) {
	r, log := newRig(t, writeDown)
	// The script that builds the programs is the repository's; here it is another one.
	r.Repository = t.TempDir()
	dir := filepath.Join(r.Repository, "deployments/container")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "build-binaries.sh"), []byte("#!/bin/sh\necho build $VERSION into $OUT\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	archive, err := r.BuildImage(t.Context(), "v7")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(filepath.Join(r.Out, "gpu-dra-driver-v7.tar"), archive); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
	for _, words := range []string{
		"build v7 into " + r.Out + "/v7\n", "--define VERSION=v7", "--define BIN=" + r.Out + "/v7", "--name localhost/gpu-dra-driver:v7", "--out " + archive,
	} {
		if !strings.Contains(log.String(), words) {
			t.Errorf("%q is not in:\n%s", words, log)
		}
	}
}

func TestFailureSaysWhatTheToolSaid(t *testing.T) {
	r, _ := newRig(t, "for i in $(seq 100); do echo line $i; done; echo out of space >&2; exit 3")
	err := r.ClusterCommand(t.Context(), "up")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Fatalf("error: %v", err)
	}
	if text := err.Error(); !strings.HasSuffix(text, "line 100\nout of space") || strings.Contains(text, "line 1\n") {
		t.Errorf("the error is not the end of what was said: %s", text)
	}
}

// TestMachines makes simulated machines as Up does, and removes all of them as Down does.
func TestMachines(t *testing.T) {
	r, _ := newRig(t, writeDown)
	if err := r.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The cluster makes the place of its mounts, and may leave it.
	if err := os.MkdirAll(r.Mount(), 0o755); err != nil {
		t.Fatal(err)
	}
	first, err := r.Machine(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Machine(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if n := first.GPUCount(); n != 4 {
		t.Errorf("the first machine has %d GPUs", n)
	}
	if n := second.GPUCount(); n != 5 {
		t.Errorf("the second machine has %d GPUs", n)
	}
	before := first.UUIDs()
	anew, err := r.NewMachine(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, anew.UUIDs()); diff != "" {
		t.Errorf("UUIDs of the same machine (-before +after):\n%s", diff)
	}
	for range 2 {
		if err := r.Down(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(r.Machines); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the machines' folder is left: %v", err)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		began := time.Now()
		err := Wait(t.Context(), time.Minute, "it is done", func(context.Context) (string, error) {
			asked++
			return map[bool]string{true: "not yet"}[asked < 4], nil
		})
		if err != nil || asked != 4 || time.Since(began) > time.Second {
			t.Errorf("asked %d times in %s: %v", asked, time.Since(began), err)
		}

		broken := errors.New("broken")
		asked = 0
		err = Wait(t.Context(), time.Minute, "it is done", func(context.Context) (string, error) { asked++; return "", broken })
		if !errors.Is(err, broken) || asked != 1 {
			t.Errorf("asked %d times: %v", asked, err)
		}

		began = time.Now()
		err = Wait(t.Context(), 5*time.Second, "it is done", func(context.Context) (string, error) { return "3 are left", nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		for _, words := range []string{"5s", "it is done", "3 are left"} {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("the error does not say %q: %v", words, err)
			}
		}

		// An answer that comes too late, and says only that, does not hide what was missing.
		err = Wait(t.Context(), time.Second, "it is done", func(ctx context.Context) (string, error) {
			if time.Since(began) < 5*time.Second+500*time.Millisecond {
				return "5 are left", nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
		if err == nil || !strings.Contains(err.Error(), "5 are left") {
			t.Errorf("a late answer: %v", err)
		}
	})
}

func TestRolledOut(t *testing.T) {
	set := func(change func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
		s := &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Generation: 3},
			Status: appsv1.DaemonSetStatus{
				ObservedGeneration: 3, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2,
			},
		}
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		change func(*appsv1.DaemonSet)
		want   string
	}{
		"all are":     {change: func(*appsv1.DaemonSet) {}},
		"not seen":    {change: func(s *appsv1.DaemonSet) { s.Generation++ }, want: "has not seen"},
		"a node less": {change: func(s *appsv1.DaemonSet) { s.Status.DesiredNumberScheduled = 1 }, want: "1 of 2 nodes"},
		"an old one":  {change: func(s *appsv1.DaemonSet) { s.Status.UpdatedNumberScheduled = 1 }, want: "1 of 2 plugins are updated"},
		"not ready":   {change: func(s *appsv1.DaemonSet) { s.Status.NumberAvailable = 0 }, want: "0 available"},
	} {
		got := RolledOut(set(c.change), 2)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
