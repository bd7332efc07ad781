package runc_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/test/runc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func rootfs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := runc.NewRootfs(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write stores a CDI spec in dir.
func write(t testing.TB, dir, name string, spec cdispecs.Spec) {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func script(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// board is a CDI spec with a device node that behaves like /dev/null, a mount, an environment and hooks.
func board(t testing.TB, hooks ...*cdispecs.Hook) string {
	t.Helper()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "library")
	if err := os.WriteFile(file, []byte("from the host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "board.json", cdispecs.Spec{Version: "0.5.0", Kind: "example.com/gpu", Devices: []cdispecs.Device{{
		Name: "gpu0", ContainerEdits: cdispecs.ContainerEdits{
			Env:         []string{"BOARD=0"},
			DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/board0", HostPath: "/dev/null", Type: "c", Major: 1, Minor: 3}},
			Mounts:      []*cdispecs.Mount{{HostPath: file, ContainerPath: "/opt/driver/library", Options: []string{"ro", "rbind"}}},
			Hooks:       hooks,
		},
	}}})
	return dir
}

func TestContainerSeesItsCDIDevice(t *testing.T) {
	hook := script(t, "hook", `
root=$(sed -e 's/.*"bundle":"\([^"]*\)".*/\1/' | xargs -I{} sed -e 's/.*"root":{"path":"\([^"]*\)".*/\1/' {}/config.json)
echo "$1" > "$root/etc/hook-was-here"
`)
	c := runc.Container{
		Rootfs: rootfs(t), Devices: []string{"example.com/gpu=gpu0"},
		SpecDirs: []string{board(t, &cdispecs.Hook{HookName: "createContainer", Path: hook, Args: []string{"hook", "hello"}})},
		Env:      []string{"MORE=1"},
		Args: []string{"sh", "-c", `set -e
echo "$BOARD $MORE"; stat -c '%F %t:%T' /dev/board0; echo x > /dev/board0; cat /opt/driver/library /etc/hook-was-here
test ! -e /dev/nvidia0; echo oops >&2; exit 3`},
	}
	got, err := runc.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	want := "0 1\ncharacter special file 1:3\nfrom the host\nhello\n"
	if got.Stdout != want || got.Stderr != "oops\n" || got.ExitCode != 3 {
		t.Errorf("got %q, %q, exit code %d; want %q, exit code 3", got.Stdout, got.Stderr, got.ExitCode, want)
	}
}

func TestContainerWithoutDeviceMayNotOpenIt(t *testing.T) {
	c := runc.Container{Rootfs: rootfs(t), Args: []string{"sh", "-c", "ls /dev/board0; mknod /tmp/disk b 254 0 || echo refused"}}
	got, err := runc.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.Stderr, "No such file") || !strings.Contains(got.Stdout, "refused") {
		t.Errorf("%+v", got)
	}
}

func TestDynamicProgramRuns(t *testing.T) {
	dir := rootfs(t)
	data, err := os.ReadFile("/bin/true") // of coreutils, linked with libc
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "usr/bin/dynamic"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := runc.Run(t.Context(), runc.Container{Rootfs: dir, Args: []string{"dynamic"}}); err != nil || got.ExitCode != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhatCannotRunIsAnError(t *testing.T) {
	failing := script(t, "hook", "echo no board >&2; exit 1\n")
	dir := rootfs(t)
	for name, tc := range map[string]struct {
		c    runc.Container
		want string
	}{
		"unknown device": {runc.Container{Rootfs: dir, Args: []string{"true"}, Devices: []string{"example.com/gpu=gpu9"}, SpecDirs: []string{board(t)}}, "gpu9"},
		"no directories": {runc.Container{Rootfs: dir, Args: []string{"true"}, Devices: []string{"example.com/gpu=gpu0"}}, "directories"},
		"no program":     {runc.Container{Rootfs: dir, Args: []string{"absent"}}, "absent"},
		"no rootfs":      {runc.Container{Rootfs: filepath.Join(dir, "absent"), Args: []string{"true"}}, "absent"},
		"no runc":        {runc.Container{Rootfs: dir, Args: []string{"true"}, Runc: "absent-runc"}, "apt-get install runc"},
		"failing hook": {runc.Container{
			Rootfs: dir, Args: []string{"true"}, Devices: []string{"example.com/gpu=gpu0"},
			SpecDirs: []string{board(t, &cdispecs.Hook{HookName: "createContainer", Path: failing})},
		}, "no board"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := runc.Run(t.Context(), tc.c); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestEndOfContextEndsTheContainer(t *testing.T) {
	dir := rootfs(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := runc.Run(ctx, runc.Container{Rootfs: dir, Args: []string{"sh", "-c", "touch /tmp/started; sleep 1000"}})
		done <- err
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := os.Stat(filepath.Join(dir, "tmp/started")); err == nil {
			break
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the end of the context", err)
	}
	roots, err := filepath.Glob("/proc/[0-9]*/root")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range roots {
		if root, err := os.Readlink(link); err == nil && root == dir {
			t.Errorf("%s still runs in the container", link)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	c := runc.Container{Rootfs: rootfs(b), Args: []string{"true"}, Devices: []string{"example.com/gpu=gpu0"}, SpecDirs: []string{board(b)}}
	for b.Loop() {
		if _, err := runc.Run(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
