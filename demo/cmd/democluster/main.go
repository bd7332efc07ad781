// Command democluster shows the driver's main job on a real Kubernetes cluster of this machine.
// It only wires flags and signals to package demo/cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpu-dra/driver/demo/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal ends what runs, in order; the second one kills.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit codes.
const (
	failed      = 1
	wrongUsage  = 2
	interrupted = 130
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("democluster", flag.ContinueOnError)
	flags.SetOutput(stderr)
	repository := flags.String("repository", ".", "root of the repository")
	flags.Usage = func() {
		// There is nobody else to tell.
		_, _ = fmt.Fprint(stderr, "usage: democluster [flags] up|down\n\n"+
			"up shows the driver's main job on a real Kubernetes cluster of this machine; it needs root.\n"+
			"down takes that cluster down and leaves the machine as it was.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return wrongUsage
	}
	var do func(context.Context, cluster.Options) error
	switch {
	case flags.NArg() == 1 && flags.Arg(0) == "up":
		do = cluster.Run
	case flags.NArg() == 1 && flags.Arg(0) == "down":
		do = cluster.Down
	default:
		flags.Usage()
		return wrongUsage
	}
	if err := do(ctx, cluster.Options{Repository: *repository, Getenv: os.Getenv, Out: stdout}); err != nil {
		_, _ = fmt.Fprintf(stderr, "democluster: %v\n", err)
		if ctx.Err() != nil {
			return interrupted
		}
		return failed
	}
	return 0
}
