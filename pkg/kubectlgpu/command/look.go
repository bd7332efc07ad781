package command

import (
	"fmt"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/view"
)

// filter chooses the GPUs that get and tree show.
type filter struct {
	node string
	all  bool
}

func (f *filter) addTo(cmd *cobra.Command, from *source) {
	cmd.Flags().StringVar(&f.node, "node", "", "only the GPUs of this node")
	_ = cmd.RegisterFlagCompletionFunc("node", from.completing(1, func(_ *source, s *state.State, _ []string) []string { return s.NodeNames() }))
	cmd.Flags().BoolVar(&f.all, "all", false, "also partitions that nobody has")
}

func (f *filter) keep(g view.GPU) bool { return f.node == "" || g.Node == f.node }

func getCommand(kube *genericclioptions.ConfigFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get", Short: "List GPUs and partitions with their owners", Args: cobra.NoArgs, Aliases: []string{"list"},
		Long: "Lists the GPUs of all nodes, and of their partitions those that somebody has: where they are, in\n" +
			"which NVLink domain, how they are and which claim and pod has them. Below are totals of what is free.",
		Example: examples("kubectl gpu get", "kubectl gpu get --node node-1 -o wide", "kubectl gpu get --preset hgx-h100-8 --nodes 4"),
	}
	from, filter := newSource(kube, cmd), &filter{}
	filter.addTo(cmd, from)
	return printed(cmd, func(cmd *cobra.Command, _ []string) (output.Result, error) {
		s, err := from.load(cmd.Context())
		if err != nil {
			return nil, err
		}
		list := view.Show(s, from.driver, filter.keep)
		list.All = filter.all
		return list, nil
	})
}

func treeCommand(kube *genericclioptions.ConfigFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "tree", Short: "Show GPUs by node, NVLink domain and partition", Args: cobra.NoArgs,
		Long:    "Shows what get lists as a tree: nodes, their NVLink domains, GPUs, partitions and owners.",
		Example: examples("kubectl gpu tree", "kubectl gpu tree --from bundle/"),
	}
	from, filter := newSource(kube, cmd), &filter{}
	filter.addTo(cmd, from)
	return printed(cmd, func(cmd *cobra.Command, _ []string) (output.Result, error) {
		s, err := from.load(cmd.Context())
		if err != nil {
			return nil, err
		}
		list := view.Show(s, from.driver, filter.keep)
		list.All = filter.all
		return view.Tree{List: list}, nil
	})
}

func describeCommand(kube *genericclioptions.ConfigFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "Show everything known of a device, a GPU or a node's GPUs", Args: exactly(1),
		Long: "Shows attributes, capacity, taints, counters (-o wide) and owners. NAME is the name of a device, a\n" +
			"GPU's UUID or PCI address, or a node.",
		Example: examples("kubectl gpu describe gpu-0000-1a-00-0", "kubectl gpu describe node-1"),
	}
	from := newSource(kube, cmd)
	cmd.ValidArgsFunction = from.completing(1, devicesAndNodes)
	return printed(cmd, func(cmd *cobra.Command, args []string) (output.Result, error) {
		s, err := from.load(cmd.Context())
		if err != nil {
			return nil, err
		}
		return view.Describe(s, args[0])
	})
}

func sliceTemplateCommand() *cobra.Command {
	var flags presetFlags
	var node, driver string
	cmd := &cobra.Command{
		Use: "slice-template --preset NAME", Short: "Print the ResourceSlices that a node of a kind publishes", Args: cobra.NoArgs,
		Long: "Prints the ResourceSlices that a node of a kind will publish, for an autoscaler that has to know what\n" +
			"a node offers before there is one. They are those of a real node but for the identity of its boards.",
		Example: examples("kubectl gpu slice-template --preset hgx-h100-8", "kubectl gpu slice-template --preset dgx-a100-80 --values values.yaml"),
	}
	flags.addTo(cmd, "kind of node")
	cmd.Flags().StringVar(&node, "node-name", "template", "name of the node and its pool")
	cmd.Flags().StringVar(&driver, flagDriver, "", "name of the DRA driver; that of --values, or "+defaultDriver+", when it is not given")
	_ = cmd.MarkFlagRequired("preset")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed(flagDriver) && driver == "" {
			return fmt.Errorf("--%s is empty: name the driver, or leave the flag out", flagDriver)
		}
		if len(validation.IsDNS1123Subdomain(node)) > 0 {
			return fmt.Errorf("--node-name %q is not allowed: use the name of a node, in lower case with digits, '-' and '.'", node)
		}
		machine, settings, err := flags.machine(driver)
		if err != nil {
			return err
		}
		made, err := machine.Slices(node, settings)
		if err != nil {
			return err
		}
		return printSlices(cmd, made)
	}
	return cmd
}

func printSlices(cmd *cobra.Command, all []*resourceapi.ResourceSlice) error {
	printer := &printers.YAMLPrinter{}
	for _, slice := range all {
		if err := printer.PrintObj(slice, cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	return nil
}
