package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/test/gpusim"
)

// newMIG has the changes of MIG that another tool, or a program on an instance, makes.
func newMIG() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mig", Short: "MIG as another tool changes it: mode, instances, clients",
		Example: "  gpusim inject mig mode /tmp/node 0 on\n  gpusim inject mig create /tmp/node 0 3g.40gb --start 4\n  gpusim inject mig clients /tmp/node 0 2 0 1",
	}
	cmd.AddCommand(newMIGMode(), newMIGCreate(), newMIGDestroy(), newMIGClients(),
		onGPU("reset", "A GPU is reset: a pending mode takes effect, instances end", (*gpusim.Node).ResetGPU))
	return cmd
}

func newMIGMode() *cobra.Command {
	var pending bool
	cmd := &cobra.Command{
		Use: "mode DIR GPU|all on|off", Short: "MIG is switched on or off", Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			if args[2] != "on" && args[2] != "off" {
				return fmt.Errorf("mode %q: must be on or off", args[2])
			}
			set := n.SetMIGMode
			if pending {
				set = n.RequestMIGMode
			}
			return eachGPU(n, args[1], func(number int) error { return set(number, args[2] == "on") })
		},
	}
	cmd.Flags().BoolVar(&pending, "no-reset", false, "leave the mode pending where the board needs a reset")
	return cmd
}

func newMIGCreate() *cobra.Command {
	start := gpusim.AnyStart
	cmd := &cobra.Command{
		Use: "create DIR GPU PROFILE", Short: "An instance is made, with a compute instance that fills it", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			number, err := gpuNumber(args[1])
			if err != nil {
				return err
			}
			instance, err := n.CreateMIG(number, args[2], start)
			if err != nil {
				return err
			}
			printInstance(cmd.OutOrStdout(), number, instance)
			return nil
		},
	}
	cmd.Flags().IntVar(&start, "start", gpusim.AnyStart, "first memory unit; the driver chooses without it")
	return cmd
}

func newMIGDestroy() *cobra.Command {
	return &cobra.Command{
		Use: "destroy DIR GPU INSTANCE", Short: "A GPU instance and its compute instances end", Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			ids, err := integers(args[1:])
			if err != nil {
				return err
			}
			return n.DestroyMIG(ids[0], ids[1])
		},
	}
}

func newMIGClients() *cobra.Command {
	return &cobra.Command{
		Use: "clients DIR GPU INSTANCE COMPUTE-INSTANCE COUNT", Short: "Processes run on an instance, which then cannot end", Args: cobra.ExactArgs(5),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			ids, err := integers(args[1:])
			if err != nil {
				return err
			}
			return n.SetMIGClients(ids[0], ids[1], ids[2], ids[3])
		},
	}
}

func integers(args []string) ([]int, error) {
	out := make([]int, len(args))
	for i, arg := range args {
		number, err := strconv.Atoi(arg)
		if err != nil || number < 0 {
			return nil, fmt.Errorf("%q: must be a number, see gpusim inspect", arg)
		}
		out[i] = number
	}
	return out, nil
}

// printInstance writes one line for each MIG device of an instance, or one for an empty instance.
func printInstance(w io.Writer, number int, instance gpusim.MIGInstance) {
	head := fmt.Sprintf("mig: gpu=%d gi=%d profile=%s placement=%d:%d", number, instance.ID, instance.Profile, instance.Start, instance.Size)
	if len(instance.Compute) == 0 {
		fmt.Fprintln(w, head)
	}
	for _, ci := range instance.Compute {
		fmt.Fprintf(w, "%s ci=%d slices=%d:%d uuid=%s clients=%d\n", head, ci.ID, ci.Start, ci.Size, ci.UUID, ci.Clients)
	}
}
