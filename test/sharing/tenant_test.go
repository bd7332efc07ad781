package sharing_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/runc"
)

// tenant is a container with a claim's devices, in which a program computes as far as others see.
type tenant struct {
	bed  *bed
	dir  string
	done chan result
	// heard is what was read of its output.
	heard int
}

type result struct {
	runc.Result
	err error
}

// tenant runs a container with the devices of an answer.
func (b *bed) tenant(answer []kubelet.Device, args ...string) *tenant {
	b.T.Helper()
	return b.tenantIn(runc.Container{}, answer, args...)
}

// tenantIn is tenant with more variables and mounts.
func (b *bed) tenantIn(more runc.Container, answer []kubelet.Device, args ...string) *tenant {
	b.T.Helper()
	c := &tenant{bed: b, dir: b.T.TempDir(), done: make(chan result, 1)}
	rootfs := b.T.TempDir()
	must(b.T, runc.NewRootfs(b.T.Context(), rootfs))
	// The links to the driver's libraries, which the real CDI hook makes.
	library := strings.TrimPrefix(b.Node.Library(), b.Node.DriverRoot())
	must(b.T, os.MkdirAll(filepath.Join(rootfs, filepath.Dir(library)), 0o755))
	must(b.T, os.Symlink("libnvidia-ml.so."+b.Node.Spec().Driver.Version, filepath.Join(rootfs, library)))
	must(b.T, unix.Mkfifo(filepath.Join(c.dir, "orders"), 0o600))
	must(b.T, os.WriteFile(filepath.Join(c.dir, "said"), nil, 0o644))
	container := runc.Container{
		Rootfs: rootfs, SpecDirs: []string{b.CDIDir()},
		Args:   []string{"/bin/sh", "-c", "exec " + b.Node.ContainerClient() + " " + strings.Join(args, " ") + " <>/tenant/orders >>/tenant/said"},
		Mounts: append(more.Mounts, specs.Mount{Destination: "/tenant", Source: c.dir, Type: "bind", Options: []string{"rbind", "rw"}}),
		Env:    more.Env,
	}
	for _, d := range answer {
		container.Devices = append(container.Devices, d.CDIDeviceIDs...)
	}
	slices.Sort(container.Devices)
	container.Devices = slices.Compact(container.Devices)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.T.Context()))
	go func() {
		r, err := runc.Run(ctx, container)
		c.done <- result{r, err}
	}()
	b.T.Cleanup(func() {
		cancel()
		c.done <- <-c.done
	})
	return c
}

// line waits for the next line of its output.
func (c *tenant) line() string {
	c.bed.T.Helper()
	var next string
	c.bed.Eventually("a word of the program", func() error {
		// Before the file is read: what a container says before its end is in it then.
		var ended *result
		select {
		case r := <-c.done:
			c.done <- r
			ended = &r
		default:
		}
		text, err := os.ReadFile(filepath.Join(c.dir, "said"))
		if err != nil {
			return err
		}
		line, _, found := strings.Cut(string(text[c.heard:]), "\n")
		if found {
			next, c.heard = line, c.heard+len(line)+1
			return nil
		}
		if ended != nil {
			c.bed.T.Fatalf("the container ended: %+v", *ended)
		}
		return fmt.Errorf("it said %q", text)
	})
	return next
}

// want reads a line that must have these words.
func (c *tenant) want(words ...string) string {
	c.bed.T.Helper()
	line := c.line()
	if !hasAll(line, words) {
		c.bed.T.Errorf("the program said %q, want %q in it", line, words)
	}
	return line
}

func (c *tenant) order(line string) {
	c.bed.T.Helper()
	f, err := os.OpenFile(filepath.Join(c.dir, "orders"), os.O_RDWR, 0)
	must(c.bed.T, err)
	_, err = fmt.Fprintln(f, line)
	must(c.bed.T, err)
	must(c.bed.T, f.Close())
}

// ask gives an order and reads a line that must have these words.
func (c *tenant) ask(order string, words ...string) {
	c.bed.T.Helper()
	c.order(order)
	c.want(words...)
}

// end has the program end, which must be well.
func (c *tenant) end() {
	c.bed.T.Helper()
	c.order("quit")
	if code := c.ended(); code != 0 {
		c.bed.T.Errorf("the program ended with %d", code)
	}
}

// ended waits for the program's end and gives its exit code.
func (c *tenant) ended() int {
	c.bed.T.Helper()
	r := <-c.done
	c.done <- r
	must(c.bed.T, r.err)
	return r.ExitCode
}

// server is the process number of the MPS server that a line tells of; 0 for none.
func server(t testing.TB, line string) int {
	t.Helper()
	match := regexp.MustCompile(` mps=(\d+) `).FindStringSubmatch(line)
	if match == nil {
		return 0
	}
	pid, err := strconv.Atoi(match[1])
	must(t, err)
	return pid
}
