package proc

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newSupervisor(t *testing.T) *Supervisor {
	t.Helper()
	dir := t.TempDir()
	s := &Supervisor{Table: Table{Root: "/proc"}, Owner: dir, LogDir: dir, Path: os.Getenv("PATH")}
	t.Cleanup(func() {
		if err := s.KillAll(context.Background(), func(Process) bool { return true }); err != nil {
			t.Error(err)
		}
	})
	return s
}

func shell(script string) Command { return Command{Args: []string{"sh", "-c", script}} }

func TestStartIsIdempotent(t *testing.T) {
	s := newSupervisor(t)
	first, err := s.Start(t.Context(), "a", shell("exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Start(t.Context(), "a", shell("exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	if again.PID != first.PID {
		t.Errorf("started twice: %d and %d", first.PID, again.PID)
	}
	if ok, err := s.Current("a", shell("exec sleep 1000")); err != nil || !ok {
		t.Errorf("Current is %v, %v", ok, err)
	}
	changed, err := s.Start(t.Context(), "a", shell("exec sleep 1001"))
	if err != nil {
		t.Fatal(err)
	}
	if changed.PID == first.PID || s.Table.Alive(first) {
		t.Error("a changed command did not replace the process")
	}
	if ok, err := s.Current("a", shell("exec sleep 1000")); err != nil || ok {
		t.Errorf("an outdated process counts as current: %v, %v", ok, err)
	}
}

// The record is the process table: another supervisor of the same owner, as after a crash
// of the tool, finds the process; one of another owner does not.
func TestAnotherSupervisorFindsTheProcess(t *testing.T) {
	s := newSupervisor(t)
	started, err := s.Start(t.Context(), "a", shell("exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	other := &Supervisor{Table: s.Table, Owner: s.Owner, LogDir: s.LogDir}
	found, ok, err := other.Find("a")
	if err != nil || !ok || found.PID != started.PID {
		t.Errorf("found %+v, %v, %v; want pid %d", found, ok, err, started.PID)
	}
	stranger := &Supervisor{Table: s.Table, Owner: s.Owner + "x"}
	if _, ok, err := stranger.Find("a"); ok || err != nil {
		t.Errorf("another owner found it: %v, %v", ok, err)
	}
}

func TestStopEndsTheStubborn(t *testing.T) {
	s := newSupervisor(t)
	if err := s.Stop(t.Context(), "absent", syscall.SIGTERM); err != nil {
		t.Errorf("stopping what does not run: %v", err)
	}
	p, err := s.Start(t.Context(), "a", shell("trap '' TERM; echo ready; while :; do sleep 1000; done"))
	if err != nil {
		t.Fatal(err)
	}
	err = s.WaitReady(t.Context(), "a", 10*time.Second, func(context.Context) error {
		raw, err := os.ReadFile(s.LogFile("a"))
		if err == nil && !strings.Contains(string(raw), "ready") {
			err = errors.New("not yet")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.end(t.Context(), p, syscall.SIGTERM, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if s.Table.Alive(p) {
		t.Error("the process still runs")
	}
}

// Children carry the marks: those that outlive their component are found and ended.
func TestKillAllEndsOrphans(t *testing.T) {
	s := newSupervisor(t)
	parent, err := s.Start(t.Context(), "a", shell("sleep 1000 & exec sleep 1001"))
	if err != nil {
		t.Fatal(err)
	}
	count := func() int {
		all, err := s.Table.Scan(s.Owner)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if err := Poll(t.Context(), 10*time.Second, func() (bool, error) { return count() == 2, nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context(), "a", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if s.Table.Alive(parent) || count() != 1 {
		t.Fatalf("%d processes are left, want the orphan alone", count())
	}
	if _, ok, _ := s.Find("a"); ok {
		t.Error("the orphan counts as the component")
	}
	if err := s.KillAll(t.Context(), func(p Process) bool { return p.Component == "a" }); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

func TestWaitReadyTellsWhatHappened(t *testing.T) {
	s := newSupervisor(t)
	if _, err := s.Start(t.Context(), "a", shell("echo cannot bind; exit 3")); err != nil && !errors.Is(err, ErrEnded) {
		t.Fatal(err)
	}
	err := s.WaitReady(t.Context(), "a", 10*time.Second, func(context.Context) error { return errors.New("refused") })
	if !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "cannot bind") || !strings.Contains(err.Error(), s.LogFile("a")) {
		t.Errorf("got %v, want ErrEnded with the log's last lines and its path", err)
	}
	if _, err := s.Start(t.Context(), "b", shell("exec sleep 1000")); err != nil {
		t.Fatal(err)
	}
	err = s.WaitReady(t.Context(), "b", time.Millisecond, func(context.Context) error { return errors.New("refused") })
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want ErrTimeout with the last failure", err)
	}
}

func TestStartOfAMissingProgram(t *testing.T) {
	s := newSupervisor(t)
	if _, err := s.Start(t.Context(), "a", Command{Args: []string{"/does/not/exist"}}); err == nil {
		t.Error("no error")
	}
}

func TestEnvironmentReplacesMarks(t *testing.T) {
	t.Setenv(ownerKey, "outer")
	t.Setenv("KUBECONFIG", "/outer")
	s := newSupervisor(t)
	s.Path = "/only/here"
	env := strings.Join(s.environment("n", shell("true")), "\n") + "\n"
	for _, want := range []string{ownerKey + "=" + s.Owner + "\n", componentKey + "=n\n", "PATH=/only/here\n"} {
		if !strings.Contains(env, want) {
			t.Errorf("the environment lacks %q", want)
		}
	}
	for _, not := range []string{"outer"} {
		if strings.Contains(env, not) {
			t.Errorf("the environment passes on %q", not)
		}
	}
}

func TestPollEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := Poll(ctx, time.Hour, func() (bool, error) { cancel(); return false, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Two commands have one hash only if they are the same.
func TestHashTellsCommandsApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-c]{0,3}`), 1, 4)
		a, b := Command{Args: words.Draw(t, "a")}, Command{Args: words.Draw(t, "b")}
		same := strings.Join(a.Args, "\x00") == strings.Join(b.Args, "\x00") && len(a.Args) == len(b.Args)
		if (a.hash() == b.hash()) != same {
			t.Fatalf("hashes of %q and %q: equal is %v, want %v", a.Args, b.Args, !same, same)
		}
	})
}
