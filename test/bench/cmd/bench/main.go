// Command bench measures the plugin on this machine and writes the tables of docs/performance.md. It needs root, takes about
// twenty minutes and says meanwhile what it does. It only wires flags and signals to package measure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-dra/driver/test/bench/measure"
	"github.com/gpu-dra/driver/test/bench/pods"
	"github.com/gpu-dra/driver/test/gpusim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal, which tidies up, a second one kills.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := measure.Options{Report: stdout, Progress: stderr, Only: map[string]bool{}}
	flags.StringVar(&o.Source, "source", ".", "root of the repository")
	flags.StringVar(&o.Bin, "bin", defaultBin(os.LookupEnv), "directory of kube-apiserver and etcd, as test/cluster builds them")
	base := flags.String("dir", "/var/tmp", "directory on the file system to measure, with a short path")
	flags.IntVar(&o.Rounds, "rounds", 10, "rounds of each measurement")
	flags.IntVar(&o.PerRound, "per-round", 24, "claims measured in a round")
	flags.DurationVar(&o.Idle, "idle", 3*time.Minute, "how long the idle plugin is watched, at least")
	only := flags.String("only", "", "parts to run, separated by commas: "+strings.Join(measure.Parts(), ","))
	starts := flags.Int("pods", 0, "instead: run this number of pods of each kind on the cluster of -kubeconfig, on which the driver is installed")
	sick := flags.Int("sick", 0, "instead: have a GPU fall ill under a pod this number of times, on the cluster of -kubeconfig, whose one node is the machine of -machine")
	machine := flags.String("machine", "", "directory of the simulated machine for -sick")
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "cluster for -pods and -sick")
	image := flags.String("image", "localhost/busybox:1", "image for -pods and -sick, with a program sleep; it must be on the node")
	keep := flags.Bool("keep", false, "keep logs and state to look at")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, part := range strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }) {
		if !slices.Contains(measure.Parts(), part) {
			return fmt.Errorf("-only: %q is no part: use some of %s", part, strings.Join(measure.Parts(), ","))
		}
		o.Only[part] = true
	}
	if o.Rounds < 1 || o.PerRound < 1 || flags.NArg() > 0 {
		return fmt.Errorf("-rounds=%d -per-round=%d %q: both must be at least 1, and there are no arguments", o.Rounds, o.PerRound, flags.Args())
	}
	if *starts > 0 || *sick > 0 {
		return onCluster(ctx, stdout, *kubeconfig, *image, *machine, *starts, *sick)
	}
	if os.Geteuid() != 0 {
		return errors.New("only root can make device nodes: run this with sudo")
	}
	if o.Source, err = filepath.Abs(o.Source); err != nil {
		return fmt.Errorf("source tree: %w", err)
	}
	if o.Dir, err = os.MkdirTemp(*base, "gb-"); err != nil {
		return fmt.Errorf("work directory: %w", err)
	}
	err = measure.Run(ctx, o)
	if *keep || err != nil {
		fmt.Fprintln(stderr, "kept:", o.Dir)
		return err
	}
	return os.RemoveAll(o.Dir)
}

// onCluster measures pods on a cluster that is there.
func onCluster(ctx context.Context, out io.Writer, kubeconfig, image, machine string, starts, sick int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("-kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("-kubeconfig: %w", err)
	}
	var result fmt.Stringer
	if starts > 0 {
		result, err = pods.TimeStarts(ctx, client, image, starts)
	} else {
		var node *gpusim.Node
		if node, err = gpusim.Open(machine); err != nil {
			return fmt.Errorf("-machine: %w", err)
		}
		result, err = pods.TimeSick(ctx, client, image, node, sick)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(out, result)
	return err
}

// defaultBin is where test/cluster keeps its programs.
func defaultBin(lookup func(string) (string, bool)) string {
	if dir, _ := lookup("CLUSTER_BIN"); dir != "" {
		return dir
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = "/var/tmp"
	}
	return filepath.Join(cache, "test-cluster", "bin")
}
