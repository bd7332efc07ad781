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
	failed     = 1
	wrongUsage = 2
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("democluster", flag.ContinueOnError)
	flags.SetOutput(stderr)
	down := flags.Bool("down", false, "take the cluster down and leave the machine as it was")
	repository := flags.String("repository", ".", "root of the repository")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return wrongUsage
	}
	do := cluster.Run
	if *down {
		do = cluster.Down
	}
	if err := do(ctx, cluster.Options{Repository: *repository, Getenv: os.Getenv, Out: stdout}); err != nil {
		// There is nobody else to tell.
		_, _ = fmt.Fprintf(stderr, "democluster: %v\n", err)
		return failed
	}
	return 0
}
