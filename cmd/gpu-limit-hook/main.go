// Command gpu-limit-hook is run by the container runtime while it creates a container with a share
// of a GPU's memory. It asks the node plugin to have the GPU driver limit the container's cgroup,
// and fails, so that no container is created, where that cannot be. The plugin copies it to the
// host, so it is static.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpu-dra/driver/pkg/sharing/memlimit/hook"
)

// version is set by the linker.
var version = "v0.0.0-dev"

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-limit-hook:", err)
		os.Exit(1)
	}
}

// run takes the container's state from the runtime.
func run(args []string, state io.Reader, out io.Writer) error {
	var r hook.Request
	fs := flag.NewFlagSet("gpu-limit-hook", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	socket := fs.String("socket", "", "the plugin's socket")
	procRoot := fs.String("proc-root", "/proc", "the host's /proc")
	patience := fs.Duration("patience", 30*time.Second, "how long to wait for a plugin that does not answer")
	show := fs.Bool("version", false, "print the version and end")
	fs.StringVar(&r.Claim, "claim", "", "UID of the claim")
	fs.StringVar(&r.Device, "device", "", "name of the device")
	fs.StringVar(&r.Share, "share", "", "the share's ID")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *show {
		_, err := fmt.Fprintln(out, version)
		return err
	}
	if *socket == "" {
		return errors.New("--socket: is missing")
	}
	cgroup, err := hook.Cgroup(state, *procRoot)
	if err != nil {
		return err
	}
	r.Cgroup = cgroup
	ctx, cancel := context.WithTimeout(context.Background(), *patience)
	defer cancel()
	return hook.Ask(ctx, *socket, r)
}
