package runc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Container is what to run.
type Container struct {
	// Rootfs is the root file system, writable; see [NewRootfs].
	Rootfs string
	Args   []string
	// Env is added to PATH and HOME, as K=V.
	Env []string
	// Devices are fully qualified CDI names ("vendor.com/class=name").
	Devices []string
	// SpecDirs are the directories of CDI specs; later ones win.
	SpecDirs []string
	// Mounts are added to those of every container.
	Mounts []specs.Mount
	// Runc is the binary, "runc" by default.
	Runc string
}

// Result is what came of a container.
type Result struct {
	Stdout, Stderr string
	ExitCode       int
}

// Run runs c to its end. A program that ends with an exit code other than 0 is no error; a container that
// cannot be made, a hook that fails and the end of ctx are. Nothing is left behind but what the container wrote
// into its root file system.
func Run(ctx context.Context, c Container) (Result, error) {
	spec, err := Spec(c)
	if err != nil {
		return Result{}, err
	}
	bundle, err := os.MkdirTemp("", "runc-")
	if err != nil {
		return Result{}, fmt.Errorf("make bundle: %w", err)
	}
	result, err := runIn(ctx, c, spec, bundle)
	return result, errors.Join(err, os.RemoveAll(bundle))
}

func runIn(ctx context.Context, c Container, spec *specs.Spec, bundle string) (Result, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return Result{}, fmt.Errorf("encode OCI spec: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600); err != nil {
		return Result{}, fmt.Errorf("write OCI spec: %w", err)
	}
	binary := c.Runc
	if binary == "" {
		binary = "runc"
	}
	if binary, err = exec.LookPath(binary); err != nil {
		return Result{}, fmt.Errorf("find runc (apt-get install runc): %w", err)
	}
	id := "c-" + uuid.NewString()
	global := []string{"--root", filepath.Join(bundle, "state"), "--log", filepath.Join(bundle, "log"), "--log-format", "json"}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, append(global, "run", "--bundle", bundle, id)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// The container may outlive a killed runc and hold the pipes: do not wait for them for ever.
	const patience = 5 * time.Second
	cmd.WaitDelay = patience
	failed := cmd.Run()
	result := Result{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: cmd.ProcessState.ExitCode()}
	// runc removes a container that ended; what a killed or failed runc left is removed here.
	leftover := exec.CommandContext(context.WithoutCancel(ctx), binary, append(global[:2:2], "delete", "--force", id)...)
	leftovers, cleanup := leftover.CombinedOutput()
	if cleanup != nil {
		cleanup = fmt.Errorf("delete container: %w: %s", cleanup, bytes.TrimSpace(leftovers))
	}
	if ctx.Err() != nil {
		return result, errors.Join(fmt.Errorf("run container: %w", ctx.Err()), cleanup)
	}
	var exit *exec.ExitError
	if failed != nil && !errors.As(failed, &exit) {
		return result, errors.Join(fmt.Errorf("run container: %w", failed), cleanup)
	}
	if msg := failure(filepath.Join(bundle, "log")); msg != "" && failed != nil {
		return result, errors.Join(fmt.Errorf("run container: %s", msg), cleanup)
	}
	return result, cleanup
}

// failure returns the errors in runc's log: they tell a failure of runc from a program that ended
// badly, which share exit codes.
func failure(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "" // runc makes no log before it has something to say
	}
	var messages []string
	for line := range bytes.Lines(data) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Level == "error" {
			messages = append(messages, entry.Msg)
		}
	}
	return strings.Join(messages, "; ")
}
