package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program that runs beside the measurements, its output in a log file.
type process struct {
	cmd   *exec.Cmd
	log   string
	began time.Time
	// ended is closed when the process has ended; err may be read then.
	ended chan struct{}
	err   error
}

// launch starts a program that outlives ctx: end or kill ends it. The log is appended to.
func launch(ctx context.Context, log, path string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", filepath.Base(path), err)
	}
	defer file.Close() // the process has its own
	p := &process{cmd: exec.CommandContext(context.WithoutCancel(ctx), path, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	// Every flag of the plugin can come from the environment: it must not from this one.
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// end sends SIGTERM and waits for a bounded time, then kills.
func (p *process) end(limit time.Duration) error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.cmd.Path, err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		p.kill()
		return fmt.Errorf("%s still ran %s after SIGTERM: see %s", p.cmd.Path, limit, p.log)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: see %s", p.cmd.Path, p.err, p.log)
	}
	return nil
}

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it fails only where the process has ended
	<-p.ended
}

// running tells whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}
