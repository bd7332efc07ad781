package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/test/cluster"
)

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "List the running components and the nodes", Args: cobra.NoArgs,
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, _ []string) error {
			components, err := c.Status()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "COMPONENT\tPID\tMEMORY")
			for _, p := range components {
				_, _ = fmt.Fprintf(w, "%s\t%d\t%d MiB\n", p.Name, p.PID, p.RSS>>20)
			}
			if err := w.Flush(); err != nil || len(components) == 0 {
				return err
			}
			get, err := c.Command(ctx, "kubectl", "get", "nodes", "-o", "wide")
			if err != nil {
				return err
			}
			return a.foreground(get)
		}),
	}
}

// foreground runs a command with this process's own input and output.
func (a *app) foreground(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.out, a.err
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitError{exit.ExitCode()}
	}
	return err
}

func (a *app) stop() *cobra.Command {
	return &cobra.Command{
		Use: "stop COMPONENT [SIGNAL]", Short: "End one component, such as kubelet-0; up starts it again", Args: cobra.RangeArgs(1, 2),
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, args []string) error {
			signal := syscall.SIGTERM
			if len(args) > 1 {
				signal = unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(args[1]), "SIG"))
				if signal == 0 {
					return fmt.Errorf("signal %q: must be a name such as TERM or KILL", args[1])
				}
			}
			return c.Stop(ctx, args[0], signal)
		}),
	}
}

func (a *app) addNode() *cobra.Command {
	return &cobra.Command{
		Use: "add-node N", Short: "Start node N (1, 2, ...) of the running cluster", Args: cobra.ExactArgs(1),
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, args []string) error {
			i, err := nodeNumber(args[0])
			if err != nil {
				return err
			}
			return c.AddNode(ctx, i)
		}),
	}
}

func nodeNumber(s string) (int, error) {
	i, err := strconv.Atoi(strings.TrimPrefix(s, "node-"))
	if err != nil {
		return 0, fmt.Errorf("node %q: must be a number, from 0", s)
	}
	return i, nil
}

func (a *app) exec() *cobra.Command {
	return &cobra.Command{
		Use: "exec -- COMMAND...", Short: "Run a command in the cluster's network, with KUBECONFIG set", Args: cobra.MinimumNArgs(1),
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, line []string) error {
			cmd, err := c.Command(ctx, line...)
			if err != nil {
				return err
			}
			return a.foreground(cmd)
		}),
	}
}

func (a *app) nodeExec() *cobra.Command {
	return &cobra.Command{
		Use: "node-exec N -- COMMAND...", Short: "Run a command on node N: with its mounts, in the cluster's network", Args: cobra.MinimumNArgs(2),
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, args []string) error {
			i, err := nodeNumber(args[0])
			if err != nil {
				return err
			}
			cmd, err := c.NodeCommand(ctx, i, args[1:]...)
			if err != nil {
				return err
			}
			return a.foreground(cmd)
		}),
	}
}

func (a *app) ctr() *cobra.Command {
	return &cobra.Command{
		Use: "ctr N -- ARGUMENT...", Short: "Run ctr against node N's containerd", Args: cobra.MinimumNArgs(1),
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, args []string) error {
			i, err := nodeNumber(args[0])
			if err != nil {
				return err
			}
			return a.foreground(c.Ctr(ctx, i, args[1:]...))
		}),
	}
}

func (a *app) env() *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "Print the environment that tests need, to be evaluated by a shell", Args: cobra.NoArgs,
		RunE: a.with(func(_ context.Context, c *cluster.Cluster, _ []string) error {
			for _, pair := range c.Environment() {
				if _, err := fmt.Fprintf(a.out, "export %s='%s'\n", pair[0], strings.ReplaceAll(pair[1], "'", `'\''`)); err != nil {
					return err
				}
			}
			_, err := fmt.Fprintf(a.out, "export PATH='%s':\"$PATH\"\n", a.config.Bin)
			return err
		}),
	}
}

func (a *app) logs() *cobra.Command {
	return &cobra.Command{
		Use: "logs [COMPONENT]", Short: "Print a component's log, or list the components that have one", Args: cobra.MaximumNArgs(1),
		RunE: a.with(func(_ context.Context, c *cluster.Cluster, args []string) error {
			if len(args) == 0 {
				names, err := c.Logs()
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(a.out, strings.Join(names, "\n"))
				return err
			}
			f, err := os.Open(c.LogFile(args[0]))
			if err != nil {
				return fmt.Errorf("log: %w", err)
			}
			_, err = io.Copy(a.out, f)
			return err
		}),
	}
}

func (a *app) dump() *cobra.Command {
	return &cobra.Command{
		Use: "dump DIRECTORY", Short: "Write logs and the cluster's objects into a folder, to look into a failure", Args: cobra.ExactArgs(1),
		RunE: a.with(func(ctx context.Context, c *cluster.Cluster, args []string) error { return c.Dump(ctx, args[0]) }),
	}
}
