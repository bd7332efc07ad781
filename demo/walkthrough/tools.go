package walkthrough

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// tool is a program that the walk runs, and the Debian packages that it comes with.
type tool struct {
	command  string
	packages []string
}

// tools are what the walk needs besides Go.
func tools() []tool {
	return []tool{
		{"gcc", []string{"gcc", "libc6-dev"}},
		{"runc", []string{"runc"}},
		{"busybox", []string{"busybox-static"}},
	}
}

// missingPackages are the packages of tools that look does not find.
func missingPackages(all []tool, look func(string) (string, error)) []string {
	var packages []string
	for _, t := range all {
		if _, err := look(t.command); err != nil {
			packages = append(packages, t.packages...)
		}
	}
	return packages
}

// provideTools installs what is missing of the tools.
func provideTools(ctx context.Context, s *screen, install bool) error {
	packages := missingPackages(tools(), exec.LookPath)
	if len(packages) == 0 {
		return nil
	}
	list := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || !install {
		return &Problem{Err: fmt.Errorf("programs of the Debian packages %s are missing", list), Advice: "install them: apt-get install " + list}
	}
	return s.during("install missing Debian packages: "+list, func() error {
		env := append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		// The lists of a fresh machine are absent or old; if they cannot be had, the install says so.
		_, _ = output(ctx, env, "", "apt-get", "update", "--quiet")
		text, err := output(ctx, env, "", "apt-get", slices.Concat([]string{"install", "--yes", "--no-install-recommends"}, packages)...)
		if err != nil {
			return &Problem{Err: err, Component: "apt-get", Log: lastLines(text), Advice: "install them by hand, then run this again: apt-get install " + list}
		}
		return nil
	})
}

// sourceTree finds the root of the repository around the working directory.
func sourceTree(ctx context.Context) (string, error) {
	text, err := output(ctx, os.Environ(), "", "go", "env", "GOMOD")
	file := strings.TrimSpace(string(text))
	if err != nil || file == "" || file == os.DevNull {
		return "", &Problem{Err: errors.Join(errors.New("no Go module around the working directory"), err), Advice: "run this inside a clone of the repository, with Go installed"}
	}
	return filepath.Dir(file), nil
}

// build makes the programs that run on the node, in a directory of the source tree that is kept
// for the next time, and returns it. Go finds out what is new.
func build(ctx context.Context, s *screen, source string) (string, error) {
	bin := filepath.Join(source, "bin", "demo")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("make directory for programs: %w", err)
	}
	return bin, s.during("build gpu-kubelet-plugin and nvidia-cdi-hook", func() error {
		unlock, err := lock(ctx, filepath.Join(bin, ".lock"))
		if err != nil {
			return err
		}
		defer unlock()
		script := filepath.Join(source, "deployments/container/build-binaries.sh")
		text, err := output(ctx, append(os.Environ(), "OUT="+bin), source, "sh", script)
		if err != nil {
			return &Problem{Err: err, Component: "build", Log: lastLines(text), Advice: "see that Go can download modules (go env GOPROXY) and that gcc works"}
		}
		return nil
	})
}

// lock waits for a lock on a file, which another walk on this machine may hold while it builds.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock programs: %w", err)
	}
	const again = 100 * time.Millisecond
	err = wait.PollUntilContextCancel(ctx, again, true, func(context.Context) (bool, error) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock programs at %s: %w", path, err), file.Close())
	}
	// Closing is what unlocks; nothing was written.
	return func() { _ = file.Close() }, nil
}

// output runs a program to its end and returns all that it said.
func output(ctx context.Context, env []string, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = env, dir
	// A compiler or a download that a killed parent leaves must not keep the walk waiting.
	const patience = 5 * time.Second
	cmd.WaitDelay = patience
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	var all bytes.Buffer
	cmd.Stdout, cmd.Stderr = &all, &all
	if err := cmd.Run(); err != nil {
		return all.Bytes(), fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), errors.Join(context.Cause(ctx), err))
	}
	return all.Bytes(), nil
}

// workDir makes the directory of one walk below the first of the candidates that will do.
func workDir(candidates []string, usable func(string) error) (string, error) {
	var reasons []error
	for _, c := range candidates {
		if err := usable(c); err != nil {
			reasons = append(reasons, err)
			continue
		}
		dir, err := os.MkdirTemp(c, "gpu-demo-")
		if err == nil {
			return dir, os.Chmod(dir, 0o755)
		}
		reasons = append(reasons, err)
	}
	return "", &Problem{
		Err:    fmt.Errorf("no place for a simulated node: %w", errors.Join(reasons...)),
		Advice: fmt.Sprintf("set TMPDIR to a path of at most %d bytes on a file system mounted without noexec", maxBase),
	}
}

// maxBase leaves room for the longest socket path below a work directory: a unix socket's path has at
// most 107 bytes.
const maxBase = 40

// usableBase tells what is wrong with a directory for the walk.
func usableBase(dir string) error {
	if len(dir) > maxBase {
		return fmt.Errorf("%s: the path is longer than %d bytes", dir, maxBase)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	// The CDI hook and the driver's libraries lie there.
	if fs.Flags&unix.MS_NOEXEC != 0 {
		return fmt.Errorf("%s: its file system is mounted with noexec", dir)
	}
	return nil
}
