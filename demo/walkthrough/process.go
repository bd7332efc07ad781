package walkthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program that runs beside the walk, its output in a log file.
type process struct {
	cmd *exec.Cmd
	log string
	// ended is closed when the process has ended; err may be read then.
	ended chan struct{}
	err   error
}

// startProcess starts a program that outlives ctx: only stop ends it.
func startProcess(ctx context.Context, log, path string, args ...string) (*process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	defer file.Close() // the process has its own
	cmd := exec.CommandContext(context.WithoutCancel(ctx), path, args...)
	cmd.Stdout, cmd.Stderr = file, file
	// Nothing of this terminal's environment may set the plugin's flags.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	// Ctrl-C is for the walk alone, and a killed walk takes the process along.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	p := &process{cmd: cmd, log: log, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop asks the process to end and waits, for a bounded time. It fails unless the process ends by
// itself with exit code 0.
func (p *process) stop(limit time.Duration) error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send SIGTERM to %s: %w", p.cmd.Path, err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		err := p.cmd.Process.Kill()
		<-p.ended
		return errors.Join(fmt.Errorf("%s still ran %s after SIGTERM and was killed", p.cmd.Path, limit), err)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.cmd.Path, p.err)
	}
	return nil
}

// while gives a context that also ends, with the reason as its cause, when the process does.
func (p *process) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.ended:
			cancel(fmt.Errorf("%s ended too early: %w", p.cmd.Path, errors.Join(p.err, errEnded)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// errEnded is there for a process that ended without an error of its own.
var errEnded = errors.New("nobody asked it to")
