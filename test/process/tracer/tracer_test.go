package tracer_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/process/tracer"
)

// workVariable makes the test binary the program that is traced, in that directory.
const workVariable = "TRACER_TEST_DIR"

func TestMain(m *testing.M) {
	tracer.Main()
	if dir := os.Getenv(workVariable); dir != "" {
		work(dir)
		return
	}
	os.Exit(m.Run())
}

// work changes files at each line that it reads, and answers with the first error.
func work(dir string) {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("up")
	for in.Scan() {
		fmt.Println(change(dir))
	}
}

func change(dir string) error {
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(sub, "new"))
	if err != nil {
		return err
	}
	_, err = f.WriteString("text")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// Elsewhere: it does not count.
	if err := os.WriteFile(dir+".elsewhere", nil, 0o600); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(sub, "old")); err != nil {
		return err
	}
	return os.RemoveAll(sub)
}

// program is the traced one.
type program struct {
	*testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
	dir string
}

func start(t *testing.T) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{T: t, dir: filepath.Join(t.TempDir(), "work"), cmd: exec.CommandContext(t.Context(), self)}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.cmd.Env = append(os.Environ(), workVariable+"="+p.dir)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.line()
	return p
}

// line reads one; "" at the end.
func (p *program) line() string {
	if !p.out.Scan() {
		return ""
	}
	return p.out.Text()
}

// run lets the program work once under a trace.
func (p *program) run(plan tracer.Plan) (answer string, changes []string) {
	p.Helper()
	plan.PID, plan.Dirs = p.cmd.Process.Pid, []string{p.dir}
	t, err := tracer.Start(p.Context(), plan)
	if err != nil {
		p.Fatal(err)
	}
	if _, err := fmt.Fprintln(p.in, "go"); err != nil {
		p.Fatal(err)
	}
	answer = p.line()
	seen, err := t.Stop()
	if err != nil {
		p.Fatal(err)
	}
	for _, c := range seen {
		rel, err := filepath.Rel(p.dir, c.Path)
		if err != nil {
			p.Fatal(err)
		}
		text := string(c.Kind) + " " + rel
		if c.Hit {
			text += " (hit)"
		}
		changes = append(changes, text)
	}
	return answer, changes
}

func TestCounts(t *testing.T) {
	p := start(t)
	for range 2 { // it can be traced again
		answer, changes := p.run(tracer.Plan{})
		if answer != "<nil>" {
			t.Errorf("the program says %q", answer)
		}
		want := []string{"mkdir sub", "create sub/new", "write sub/new", "sync sub/new", "rename sub/old"}
		if len(changes) < len(want) {
			t.Fatalf("changes %q", changes)
		}
		if diff := cmp.Diff(want, changes[:len(want)]); diff != "" {
			t.Error(diff)
		}
		// RemoveAll tries more than it must.
		if last := changes[len(changes)-1]; last != "remove sub" {
			t.Errorf("the last change is %q", last)
		}
	}
}

func TestKills(t *testing.T) {
	for at, there := range map[int]string{1: "", 2: "sub", 3: "sub/new", 5: "sub/new", 6: "sub/old"} {
		p := start(t)
		answer, changes := p.run(tracer.Plan{At: at})
		if answer != "" || len(changes) != at {
			t.Errorf("killed at %d: %q, %q", at, answer, changes)
		}
		var exit *exec.ExitError
		if err := p.cmd.Wait(); !errors.As(err, &exit) || exit.String() != "signal: killed" {
			t.Errorf("it ended with %v", err)
		}
		if _, err := os.Stat(filepath.Join(p.dir, there)); err != nil {
			t.Errorf("killed at %d: %v", at, err)
		}
		left, err := filepath.Glob(filepath.Join(p.dir, "*"))
		if err != nil || there == "" && len(left) > 0 {
			t.Errorf("killed at %d, the change was made: %v, %v", at, left, err)
		}
	}
}

func TestFails(t *testing.T) {
	p := start(t)
	for name, row := range map[string]struct {
		plan tracer.Plan
		hits int
		want string
	}{
		"once":        {tracer.Plan{At: 1, Errno: syscall.EIO, Once: true}, 1, "input/output error"},
		"from then":   {tracer.Plan{At: 1, Errno: syscall.EROFS}, 1, "read-only file system"},
		"some kinds":  {tracer.Plan{At: 1, Errno: syscall.ENOSPC, Fails: []tracer.Kind{tracer.Sync}}, 1, "no space left on device"},
		"other kinds": {tracer.Plan{At: 99, Errno: syscall.ENOSPC}, 0, "<nil>"},
	} {
		answer, changes := p.run(row.plan)
		hits := 0
		for _, c := range changes {
			if strings.HasSuffix(c, "(hit)") {
				hits++
			}
		}
		if hits != row.hits || !strings.Contains(answer, row.want) {
			t.Errorf("%s: %q after %q", name, answer, changes)
		}
		if err := os.RemoveAll(filepath.Join(p.dir, "sub")); err != nil {
			t.Fatal(err)
		}
	}
}

// A change that waits is made in the end, by itself or when the trace ends.
func TestDelays(t *testing.T) {
	p := start(t)
	began := time.Now()
	answer, changes := p.run(tracer.Plan{At: 2, Delay: 50 * time.Millisecond, Fails: []tracer.Kind{tracer.Create, tracer.Sync}})
	if took := time.Since(began); answer != "<nil>" || took < 100*time.Millisecond {
		t.Errorf("%q after %s", answer, took)
	}
	if diff := cmp.Diff([]string{"mkdir sub", "create sub/new (hit)", "write sub/new", "sync sub/new (hit)", "rename sub/old"}, changes[:5]); diff != "" {
		t.Error(diff)
	}

	trace, err := tracer.Start(t.Context(), tracer.Plan{PID: p.cmd.Process.Pid, Dirs: []string{p.dir}, At: 4, Delay: time.Hour, Once: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(p.in, "go"); err != nil {
		t.Fatal(err)
	}
	<-trace.Hit()
	for path, there := range map[string]bool{"sub/new": true, "sub/old": false} {
		if _, err := os.Stat(filepath.Join(p.dir, path)); (err == nil) != there {
			t.Errorf("while the change waits, of %s: %v", path, err)
		}
	}
	seen, err := trace.Stop()
	if err != nil || len(seen) != 4 || !seen[3].Hit {
		t.Errorf("%v, %v", seen, err)
	}
	if answer := p.line(); answer != "<nil>" {
		t.Errorf("then the program says %q", answer)
	}
}

func TestNoSuchProcess(t *testing.T) {
	if _, err := tracer.Start(t.Context(), tracer.Plan{PID: 1 << 30}); err == nil {
		t.Error("a process that is not there is traced")
	}
}
