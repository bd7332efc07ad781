// Command gpu-kubelet-plugin is the node plugin of the driver: it publishes the node's GPUs as
// ResourceSlices and prepares ResourceClaims. It only wires flags, logs and signals to package
// agent.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/agent"
	"github.com/gpu-dra/driver/pkg/agent/apiserver"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/uninstall"
)

// version is set by the linker.
var version = "v0.0.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	// After the first signal a second one kills.
	context.AfterFunc(ctx, stop)
	err := command(version).ExecuteContext(ctx)
	if errors.Is(err, agent.ErrRestart) {
		err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func command(version string) *cobra.Command {
	settings := config.Default()
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:           "gpu-kubelet-plugin",
		Short:         "Publishes a node's GPUs and prepares claims for them",
		Long:          "Publishes a node's GPUs as ResourceSlices and prepares ResourceClaims for them.\nEvery flag can also be set by an environment variable: --node-name by NODE_NAME, and so on.",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.ApplyEnv(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			klog.FromContext(cmd.Context()).Info("Starting", "version", version, "settings", fmt.Sprintf("%+v", *settings))
			return agent.Run(cmd.Context(), settings, version)
		},
	}
	settings.AddFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	cmd.AddCommand(cleanupCommand(version), checkUninstallCommand(version), layoutCommand())
	return cmd
}

// cleanupCommand is for a node that the driver leaves, where no plugin runs any more.
func cleanupCommand(version string) *cobra.Command {
	settings := config.Default()
	force := false
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Undoes on this node all that the driver did",
		Long: "Undoes on this node all that the driver did: every claim that is still prepared, then every file.\n" +
			"For a node on which no plugin runs any more; it needs no API server and no kubelet. Give it the plugin's own flags.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.ApplyEnv(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			return agent.Cleanup(cmd.Context(), settings, version, force)
		},
	}
	settings.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", force, "Also undo claims whose devices are in use.")
	return cmd
}

// checkUninstallCommand is what the chart's hook runs before an uninstall.
func checkUninstallCommand(version string) *cobra.Command {
	settings := config.Default()
	warnOnly, limit := false, 30*time.Second
	cmd := &cobra.Command{
		Use:   "check-uninstall",
		Short: "Fails while claims use the driver on any node",
		Long:  "Asks the API server which claims have devices of the driver and are in use, names them, and fails if there are any.\nIt changes nothing.",
		Args:  cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := apiserver.NewClient(settings, version, &apiserver.Gate{})
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			return uninstall.Tell(ctx, client.ResourceV1().ResourceClaims(""), settings.DriverName, warnOnly, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&settings.DriverName, "driver-name", settings.DriverName, "name of the driver whose claims are looked for")
	cmd.Flags().StringVar(&settings.Kubeconfig, "kubeconfig", settings.Kubeconfig, "file with the API server's address and credentials; empty in a pod")
	cmd.Flags().BoolVar(&warnOnly, "warn-only", warnOnly, "only print what was found")
	cmd.Flags().DurationVar(&limit, "timeout", limit, "how long the API server may take")
	return cmd
}
