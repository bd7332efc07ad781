package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/doctor"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/gather"
)

func doctorCommand(kube *genericclioptions.ConfigFlags) *cobra.Command {
	var here bool
	var node doctor.Node
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check the chain from the GPU driver to the pod, and say how to mend it", Args: cobra.NoArgs,
		Long: "Checks a cluster: versions, the driver's pods, slices and pools, classes and their expressions, device\n" +
			"plugins and drivers for the same GPUs, taints, claims whose devices are gone. With --this-node it\n" +
			"checks the machine that it runs on instead: driver library, device nodes, CDI, runtime, registration.",
		Example: examples("kubectl gpu doctor", "kubectl gpu doctor --fail-on error", "kubectl-gpu doctor --this-node --driver-root /run/nvidia/driver"),
	}
	from, failOn := newSource(kube, cmd), failFlag(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&here, "this-node", false, "check the machine that this runs on")
	fs.StringVar(&node.DriverRoot, "driver-root", "/", "with --this-node: where the GPU driver is installed")
	fs.StringVar(&node.DevRoot, "dev-root", "/", "with --this-node: the folder that has dev")
	fs.StringVar(&node.CDIDir, "cdi-dir", "/var/run/cdi", "with --this-node: the folder of CDI specs")
	fs.StringVar(&node.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "with --this-node: the kubelet's folder")
	fs.StringVar(&node.RuntimeConfig, "runtime-config", "/etc/containerd/config.toml", "with --this-node: containerd's configuration")
	return reported(cmd, failOn, func(cmd *cobra.Command) (finding.Report, error) {
		if here {
			node.Driver = from.driverName()
			return doctor.CheckNode(node), nil
		}
		s, err := from.loadAll(cmd.Context())
		if err != nil {
			return finding.Report{}, err
		}
		return doctor.Check(cmd.Context(), doctor.Cluster{State: s, Driver: from.driverName()}), nil
	})
}

func gatherCommand(kube *genericclioptions.ConfigFlags, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "gather DIR", Short: "Save what questions about GPUs need, without secrets", Args: exactly(1),
		Long: "Writes slices, classes, claims, templates, taint rules, and of pods, nodes and events what matters for\n" +
			"devices, into a new folder that --from reads. It reads no Secrets and no ConfigMaps; commands,\n" +
			"variables, images, labels, annotations and other drivers' configurations are left out.",
		Example: examples("kubectl gpu gather bundle", "kubectl gpu explain pod train-0 -n team-a --from bundle"),
	}
	from := newSource(kube, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := from.loadAll(cmd.Context())
		if err != nil {
			return err
		}
		files, err := gather.Bundle(s, from.driverName(), version)
		if err != nil {
			return err
		}
		if err := os.Mkdir(args[0], 0o755); err != nil {
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("%s is there already: name a new folder", args[0])
			}
			return err
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(args[0], f.Name), f.Data, 0o644); err != nil {
				return err
			}
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(args[0], f.Name))
		}
		return nil
	}
	return cmd
}
