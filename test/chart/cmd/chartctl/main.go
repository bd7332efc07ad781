// Command chartctl installs, upgrades, uninstalls, renders and packages the driver's chart
// with Helm's own library: what the helm command does, for machines without one.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/test/chart"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "chartctl",
		Short:         "Install, upgrade, uninstall, render and package the driver's Helm chart",
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	root.AddCommand(newInstall(), newUpgrade(), newUninstall(), newRestore(), newTemplate(), newPackage(), newDocs())
	return root
}

// target holds the flags by which commands reach a cluster.
type target struct {
	kubeconfig string
	namespace  string
	wait       time.Duration
	values     chart.Values
	// take is of install and upgrade alone.
	take bool
	// keep is of upgrade alone.
	keep bool
}

func (t *target) addFlags(cmd *cobra.Command, withValues bool) {
	fs := cmd.Flags()
	fs.StringVar(&t.kubeconfig, "kubeconfig", "", "kubeconfig file; empty means the usual places")
	fs.StringVarP(&t.namespace, "namespace", "n", "gpu-dra-driver", "namespace of the release")
	fs.DurationVar(&t.wait, "wait", 0, "wait this long for the objects to be ready or gone; 0 means not to wait")
	if withValues {
		t.addValues(cmd)
	}
}

func (t *target) addValues(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&t.values.Files, "values", "f", nil, "values file; may be given several times")
	cmd.Flags().StringArrayVar(&t.values.Set, "set", nil, "value, such as image.tag=dev; may be given several times")
}

func (t *target) connect(log io.Writer) (*chart.Cluster, error) {
	return chart.Connect(t.kubeconfig, t.namespace, t.wait,
		slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (t *target) release(args []string) chart.Release {
	return chart.Release{Name: args[0], Namespace: t.namespace, Chart: args[1], Values: t.values, TakeOwnership: t.take, KeepValues: t.keep}
}

func newInstall() *cobra.Command {
	return newChange("install", "Install a release", "Installed", (*chart.Cluster).Install)
}

func newUpgrade() *cobra.Command {
	return newChange("upgrade", "Change a release", "Upgraded", (*chart.Cluster).Upgrade)
}

// newChange makes the command of an action that needs a chart.
func newChange(name, short, done string, change func(*chart.Cluster, context.Context, chart.Release) (string, error)) *cobra.Command {
	var t target
	cmd := &cobra.Command{Use: name + " RELEASE CHART", Short: short, Args: cobra.ExactArgs(2)}
	t.addFlags(cmd, true)
	cmd.Flags().BoolVar(&t.take, "take-ownership", false, "make objects that are there, and are another release's or nobody's, this one's")
	if name == "upgrade" {
		cmd.Flags().BoolVar(&t.keep, "reset-then-reuse-values", false, "keep the values that the release was given, over the chart's own and under the given ones")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cluster, err := t.connect(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return t.report(cmd, done, args[0], func() (string, error) { return change(cluster, cmd.Context(), t.release(args)) })
	}
	return cmd
}

func newUninstall() *cobra.Command {
	return newAct("uninstall", "Remove a release", "Uninstalled", (*chart.Cluster).Uninstall)
}

func newRestore() *cobra.Command {
	return newAct("restore", "Deploy a release's last revision again, after an uninstall that was refused", "Restored", (*chart.Cluster).Restore)
}

// newAct makes the command of an action that needs only a release.
func newAct(name, short, done string, act func(*chart.Cluster, string) error) *cobra.Command {
	var t target
	cmd := &cobra.Command{Use: name + " RELEASE", Short: short, Args: cobra.ExactArgs(1)}
	t.addFlags(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cluster, err := t.connect(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return t.report(cmd, done, args[0], func() (string, error) { return "", act(cluster, args[0]) })
	}
	return cmd
}

// report says what was done and how long it took.
func (t *target) report(cmd *cobra.Command, done, release string, do func() (string, error)) error {
	start := time.Now()
	notes, err := do()
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %s in namespace %s in %s.\n", done, release, t.namespace, time.Since(start).Round(time.Millisecond))
	if notes != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", notes)
	}
	return nil
}

func newTemplate() *cobra.Command {
	var t target
	var kubeVersion string
	cmd := &cobra.Command{Use: "template RELEASE CHART", Short: "Print a release's objects", Args: cobra.ExactArgs(2)}
	cmd.Flags().StringVarP(&t.namespace, "namespace", "n", "gpu-dra-driver", "namespace of the release")
	cmd.Flags().StringVar(&kubeVersion, "kube-version", "1.37.0", "Kubernetes version to render for")
	t.addValues(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rendered, err := chart.Render(cmd.Context(), t.release(args), kubeVersion)
		if err != nil {
			return err
		}
		_, err = io.WriteString(cmd.OutOrStdout(), rendered.Manifest)
		return err
	}
	return cmd
}

func newPackage() *cobra.Command {
	var to, version, appVersion string
	cmd := &cobra.Command{Use: "package CHART", Short: "Write a chart's .tgz", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVarP(&to, "destination", "d", ".", "directory for the package")
	cmd.Flags().StringVar(&version, "version", "", "version of the chart; empty means the one of Chart.yaml")
	cmd.Flags().StringVar(&appVersion, "app-version", "", "version of the driver; empty means the one of Chart.yaml")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := chart.Package(args[0], to, version, appVersion, time.Unix(0, 0))
		if err == nil {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
		}
		return err
	}
	return cmd
}

func newDocs() *cobra.Command {
	return &cobra.Command{
		Use: "docs CHART", Short: "Write the table of values into a chart's README.md", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			values, err := os.ReadFile(filepath.Join(args[0], "values.yaml"))
			if err != nil {
				return err
			}
			table, err := chart.ValuesTable(values)
			if err != nil {
				return err
			}
			path := filepath.Join(args[0], "README.md")
			readme, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			readme, err = chart.InsertValues(readme, table)
			if err != nil {
				return err
			}
			return os.WriteFile(path, readme, 0o644)
		},
	}
}
