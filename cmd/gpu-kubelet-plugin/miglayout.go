package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/pkg/mig/inspect"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/mig/ledger"
)

// layoutCommand answers questions about MIG layouts beside a plugin that runs.
func layoutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mig-layout",
		Short: "Compares this node's partitions with a MIG layout, or writes them down as one",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("mig-layout: say what to do: assert or export")
		},
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.AddCommand(assertCommand(), exportCommand())
	return cmd
}

func assertCommand() *cobra.Command {
	settings := config.Default()
	cmd := &cobra.Command{
		Use:   "assert",
		Short: "Fails unless this node's GPUs are as a MIG layout says",
		Long: "Compares this node's GPUs with a configuration of a file of MIG layouts, prints a line for each GPU that differs, and fails if there is one.\n" +
			"It changes nothing. Who made a partition does not matter.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := os.ReadFile(settings.MIGLayoutFile)
			if err != nil {
				return fmt.Errorf("--mig-layout-file: %w", err)
			}
			file, err := layout.Parse(text)
			if err != nil {
				return fmt.Errorf("--mig-layout-file: %w", err)
			}
			return looking(cmd.Context(), settings, func(ctx context.Context, scanner inspect.Scanner) error {
				return inspect.Assert(ctx, scanner, file, settings.MIGLayout, cmd.OutOrStdout())
			})
		},
	}
	return looks(cmd, settings, "mig-layout-file", "mig-layout")
}

func exportCommand() *cobra.Command {
	settings, name := config.Default(), "current"
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Writes this node's partitions down as a MIG layout",
		Long:  "Prints a file of MIG layouts with one configuration: the partitions that this node's GPUs have now, whoever made them. It changes nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return looking(cmd.Context(), settings, func(ctx context.Context, scanner inspect.Scanner) error {
				return inspect.Export(ctx, scanner, name, cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", name, "name of the configuration")
	return looks(cmd, settings)
}

// looks gives a command the plugin's flags that say where the hardware is, and those of the names.
// Those of the names are required.
func looks(cmd *cobra.Command, settings *config.Config, required ...string) *cobra.Command {
	cmd.Args, cmd.SilenceUsage, cmd.SilenceErrors = cobra.NoArgs, true, true
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	settings.AddFlags(all)
	for _, name := range append([]string{
		"driver-name", "driver-root-mount", "proc-root-mount", "sys-root-mount", "kubelet-plugins-dir", "node-name", "include-gpus", "exclude-gpus",
	}, required...) {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := config.ApplyEnv(cmd.Flags(), os.LookupEnv); err != nil {
			return err
		}
		for _, name := range []string{"include-gpus", "exclude-gpus"} {
			if _, err := selection.Parse(cmd.Flags().Lookup(name).Value.String()); err != nil {
				return fmt.Errorf("--%s: %w", name, err)
			}
		}
		for _, name := range required {
			if cmd.Flags().Lookup(name).Value.String() == "" {
				return fmt.Errorf("--%s: \"\" is not allowed: give it, or the environment variable %s", name, config.EnvName(name))
			}
		}
		return nil
	}
	return cmd
}

// looking calls f with what looks at the hardware as the plugin does.
func looking(ctx context.Context, settings *config.Config, f func(context.Context, inspect.Scanner) error) error {
	const limit = time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	boot, err := sysfs.BootID(settings.ProcRoot)
	if err != nil {
		return err
	}
	served := settings.Selection()
	library := nvml.New(nvml.Options{Root: settings.DriverRoot.Container, Partitions: true, Selection: served})
	plain := inventory.NewScanner(library, sysfs.New(settings.SysRoot, settings.ProcRoot)).Serving(served)
	err = f(ctx, ledger.Marker{Scanner: plain, Ledger: ledger.New(filepath.Join(settings.DataDir(), ledger.DirName), boot)})
	return errors.Join(err, library.Close(ctx))
}
