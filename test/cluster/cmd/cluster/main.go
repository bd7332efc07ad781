// Command cluster builds and runs a real Kubernetes cluster on this machine, for tests.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/cluster/internal/build"
	"github.com/gpu-dra/driver/test/cluster/internal/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(os.Stdout, os.Stderr).ExecuteContext(ctx)
	stop()
	var exit exitError
	if errors.As(err, &exit) {
		os.Exit(exit.code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// exitError passes on the exit code of a command that the user asked for and saw.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("the command ended with exit code %d", e.code) }

// app is what the commands share.
type app struct {
	config   cluster.Config
	binds    []string
	out, err io.Writer
	say      *progress.Printer
}

func command(out, stderr io.Writer) *cobra.Command {
	a := &app{out: out, err: stderr, say: progress.New(stderr)}
	config, configError := cluster.FromEnvironment(os.Getenv)
	a.config = config
	root := &cobra.Command{
		Use:   "cluster",
		Short: "A real Kubernetes cluster on this machine, for tests",
		Long: "Builds and runs a real Kubernetes cluster as processes on this Linux machine. Every flag\n" +
			"has an environment variable CLUSTER_*; see README.md beside the source.",
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if len(a.binds) > 0 {
				binds, err := cluster.ParseBinds(a.binds)
				if err != nil {
					return err
				}
				a.config.Binds = binds
			}
			return configError
		},
	}
	root.SetOut(out)
	root.SetErr(stderr)
	a.flags(root)
	root.AddCommand(a.build(), a.up(), a.down(), a.reset(), a.status(), a.load(), a.stop(), a.addNode(),
		a.exec(), a.nodeExec(), a.ctr(), a.env(), a.logs(), a.dump())
	return root
}

func (a *app) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.config.Name, "name", a.config.Name, "name of the cluster; several run side by side (CLUSTER_NAME)")
	f.StringVar(&a.config.Bin, "bin", a.config.Bin, "folder of the built programs (CLUSTER_BIN)")
	f.StringVar(&a.config.StateRoot, "state-root", a.config.StateRoot, "folder of all clusters' state, short (CLUSTER_STATE_ROOT)")
	f.IntVar(&a.config.Nodes, "nodes", a.config.Nodes, "number of nodes (CLUSTER_NODES)")
	f.StringVar(&a.config.Features, "features", a.config.Features, "default, alldra, or Gate=true,... (CLUSTER_FEATURES)")
	f.StringVar(&a.config.RuntimeConfig, "runtime-config", a.config.RuntimeConfig, "API groups to serve (CLUSTER_RUNTIME_CONFIG)")
	f.IntVar(&a.config.Verbosity, "v", a.config.Verbosity, "log level of the Kubernetes components (CLUSTER_V)")
	f.IntVar(&a.config.MaxPods, "max-pods", a.config.MaxPods, "pods per node, 0 for the kubelet's default (CLUSTER_MAX_PODS)")
	f.DurationVar(&a.config.SyncFrequency, "sync-frequency", a.config.SyncFrequency, "of the kubelet, 0 for its default of 1m (CLUSTER_SYNC_FREQUENCY)")
	f.IntVar(&a.config.APIQPS, "api-qps", a.config.APIQPS, "of controller manager and scheduler, 0 for their defaults (CLUSTER_API_QPS)")
	f.StringArrayVar(&a.binds, "bind", nil, "[NODE@]/SOURCE:/TARGET mounted into nodes, repeatable (CLUSTER_BINDS, by blanks)")
}

// with runs do on the cluster of the flags.
func (a *app) with(do func(context.Context, *cluster.Cluster, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := cluster.New(a.config, a.say)
		if err != nil {
			return err
		}
		return do(cmd.Context(), c, args)
	}
}

func (a *app) build() *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use:   "build [GROUP...]",
		Short: "Build the programs and base images that are missing or outdated",
		Long:  "Groups: cni, runc, containerd, etcd, k8s, images; dra-test-driver only when named.",
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, groups []string) error {
			if err := c.Preflight(ctx); err != nil {
				return err
			}
			if source == "" {
				found, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/gpu-dra/driver/test/cluster").Output()
				if err != nil {
					return fmt.Errorf("find the source of test/cluster: run inside the repository or pass --source: %w", err)
				}
				source = strings.TrimSpace(string(found))
			}
			b := build.Builder{Source: source, Bin: a.config.Bin, Say: a.say}
			if err := b.Build(ctx, groups); err != nil {
				return err
			}
			a.say.Say("built into %s; next: cluster up", a.config.Bin)
			return nil
		}),
	}
	cmd.Flags().StringVar(&source, "source", "", "folder of test/cluster (found through go list)")
	return cmd
}

func (a *app) up() *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Start the cluster, or whatever of it does not run as configured", Args: cobra.NoArgs,
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, _ []string) error {
			if err := c.Up(ctx); err != nil {
				return fmt.Errorf("%w\nlogs: %s", err, a.config.LogDir())
			}
			a.say.Say("up. Next:\n  export KUBECONFIG=%s\n  kubectl get nodes\n  eval \"$(cluster env)\"   # all that tests need\n  cluster down             # leaves the machine as it was", c.Kubeconfig())
			return nil
		}),
	}
}

func (a *app) down() *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "End everything and leave the machine as it was; data and logs stay", Args: cobra.NoArgs,
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, _ []string) error { return c.Down(ctx) }),
	}
}

func (a *app) reset() *cobra.Command {
	return &cobra.Command{
		Use: "reset", Short: "Like down, and remove data, certificates, images and logs", Args: cobra.NoArgs,
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, _ []string) error { return c.Reset(ctx) }),
	}
}

func (a *app) load() *cobra.Command {
	return &cobra.Command{
		Use: "load ARCHIVE...", Short: "Import image archives into every node", Args: cobra.MinimumNArgs(1),
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, archives []string) error {
			return c.Load(ctx, archives...)
		}),
	}
}
