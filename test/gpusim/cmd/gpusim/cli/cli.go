// Package cli is the command line of the simulated node, for people and scripts.
//
// It parses, calls package gpusim and prints; what a node is it does not know.
package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// New returns the root command, writing to out and errOut.
func New(out, errOut io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "gpusim",
		Short:         "Simulated GPU nodes: driver root, device nodes, proc and sysfs without a GPU",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.AddCommand(newCreate(), newPresets(), newInspect(), newInject(), newRemove(), newBuildLib())
	return root
}

func newCreate() *cobra.Command {
	var preset, file, seed, libDir string
	cmd := &cobra.Command{
		Use:     "create (--preset NAME | --node FILE) DIR",
		Short:   "Lay out a node in DIR",
		Example: "  gpusim create --preset two-islands /tmp/node\n  gpusim create --node my-node.yaml --seed worker-1 /tmp/node",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := load(preset, file)
			if err != nil {
				return err
			}
			var opts []gpusim.Option
			if seed != "" {
				opts = append(opts, gpusim.WithSeed(seed))
			}
			if libDir != "" {
				opts = append(opts, gpusim.WithLibDir(libDir))
			}
			start := time.Now()
			fmt.Fprintf(cmd.ErrOrStderr(), "Creating node %s in %s (the first time the library is compiled, some seconds) ...\n", node.Name, args[0])
			n, err := gpusim.Create(cmd.Context(), args[0], node, opts...)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Done in %s: %d GPUs, driver %s.\n", time.Since(start).Round(time.Millisecond), n.GPUCount(), n.Spec().Driver.Version)
			fmt.Fprintf(cmd.OutOrStdout(), "driver-root: %s\ndev-root: %s\nproc-root: %s\nsys-root: %s\n", n.DriverRoot(), n.DevRoot(), n.ProcRoot(), n.SysRoot())
			fmt.Fprintf(cmd.ErrOrStderr(), "Next: %s -L, or gpusim inspect %s\n", n.SMI(), n.Dir())
			return nil
		},
	}
	cmd.Flags().StringVar(&preset, "preset", "", "built-in node, see gpusim presets")
	cmd.Flags().StringVar(&file, "node", "", "node file")
	cmd.Flags().StringVar(&seed, "seed", "", "what UUIDs and serials are made from; give each node of a cluster its own")
	cmd.Flags().StringVar(&libDir, "lib-dir", "", "directory of a finished build, where gcc and Go are missing")
	cmd.MarkFlagsOneRequired("preset", "node")
	cmd.MarkFlagsMutuallyExclusive("preset", "node")
	return cmd
}

func load(preset, file string) (*nodefile.File, error) {
	if preset != "" {
		return nodefile.Preset(preset)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return nodefile.Parse(text)
}

func newPresets() *cobra.Command {
	return &cobra.Command{
		Use:   "presets",
		Short: "List the built-in nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range nodefile.Presets() {
				file, err := nodefile.Preset(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%-16s %s\n", name, file.Description)
			}
			return nil
		},
	}
}

func newRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove DIR",
		Short: "Delete the node in DIR",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := gpusim.Remove(args[0]); err != nil {
				return err
			}
			return os.Remove(args[0])
		},
	}
}

func newBuildLib() *cobra.Command {
	return &cobra.Command{
		Use:   "build-lib DIR",
		Short: "Build libnvidia-ml.so.1, nvidia-smi and the stub library into DIR, for --lib-dir",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			artifacts, err := gpusim.BuildLibrary(cmd.Context(), "")
			if err != nil {
				return err
			}
			if err := artifacts.CopyTo(args[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Next: gpusim create --lib-dir %s --preset hgx-h100-8 DIR\n", args[0])
			return nil
		},
	}
}
