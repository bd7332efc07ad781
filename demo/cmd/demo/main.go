// Command demo shows the driver's main job on this machine, without Kubernetes and without a
// GPU. It only wires flags, signals and the terminal to package walkthrough.
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

	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/demo/walkthrough"
)

// interrupted is the exit code of a program that ctrl-C ended.
const interrupted = 130

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal, which tidies up, a second one kills.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 0, 1 for a failure, 2 for wrong flags, 130 after a signal.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	const wrongFlags = 2
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	preset := flags.String("preset", walkthrough.DefaultPreset, "simulated machine; `gpusim presets` lists them")
	keep := flags.Bool("keep", false, "keep the files of the walk to look at")
	install := flags.Bool("install", true, "install missing Debian packages with apt-get")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return wrongFlags
	}
	err := walkthrough.Run(ctx, walkthrough.Options{
		Preset: *preset, Keep: *keep, Install: *install, Out: stdout, Colour: colour(stdout, os.LookupEnv),
	})
	if err == nil {
		return 0
	}
	// A terminal that is gone cannot be told.
	if ctx.Err() != nil {
		_, _ = fmt.Fprintf(stderr, "\ndemo: interrupted (%v)\n", err)
		return interrupted
	}
	_, _ = fmt.Fprintf(stderr, "\ndemo: %v\n", err)
	return 1
}

// colour tells whether to write colours: to a terminal only, and not where NO_COLOR is set.
func colour(out io.Writer, lookup func(string) (string, bool)) bool {
	if value, _ := lookup("NO_COLOR"); value != "" {
		return false
	}
	if value, _ := lookup("TERM"); value == "dumb" {
		return false
	}
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
