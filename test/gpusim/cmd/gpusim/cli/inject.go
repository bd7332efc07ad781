package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/test/gpusim"
)

// newInject has one command for each fault: inject FAULT DIR ...
func newInject() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inject",
		Short: "Change a node while software runs on it: faults, and their end",
		Long:  "Change a node while software runs on it.\n\nGPUs are named by their number in PCI order, as inspect shows them.",
		Example: "  gpusim inject lose /tmp/node 3\n  gpusim inject call /tmp/node nvmlDeviceGetMemoryInfo --code 999 --count 3\n" +
			"  gpusim inject fabric /tmp/node 0 inProgress",
	}
	cmd.AddCommand(
		onGPU("lose", "A GPU falls off the bus", (*gpusim.Node).LoseGPU),
		onGPU("heal", "A lost GPU answers again", (*gpusim.Node).HealGPU),
		onGPU("unplug", "A GPU leaves the machine", (*gpusim.Node).RemoveGPU),
		onGPU("plug", "An unplugged GPU returns", (*gpusim.Node).AddGPU),
		onNode("driver-absent", "The driver is uninstalled", (*gpusim.Node).RemoveDriver),
		onNode("driver-present", "The driver is installed again", (*gpusim.Node).RestoreDriver),
		onNode("clear", "All call faults end; hanging calls return", (*gpusim.Node).ClearFaults),
		newCall(), newXID(), newRecovery(), newMemory(), newEvent(), newLink(), newLinkErrors(), newFabric(), newReboot(), newLatency(), newMIG(),
	)
	waitFirst(cmd)
	return cmd
}

// onNode is a fault without arguments.
func onNode(name, short string, do func(*gpusim.Node) error) *cobra.Command {
	return &cobra.Command{
		Use: name + " DIR", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			return do(n)
		},
	}
}

// onGPU is a fault of one GPU or several.
func onGPU(name, short string, do func(*gpusim.Node, int) error) *cobra.Command {
	return &cobra.Command{
		Use: name + " DIR GPU...", Short: short, Args: cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			for _, arg := range args[1:] {
				number, err := gpuNumber(arg)
				if err != nil {
					return err
				}
				if err := do(n, number); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func gpuNumber(arg string) (int, error) {
	number, err := strconv.Atoi(arg)
	if err != nil {
		return 0, fmt.Errorf("GPU %q: must be a number in PCI order, see gpusim inspect", arg)
	}
	return number, nil
}

func newCall() *cobra.Command {
	fault := gpusim.CallFault{}
	cmd := &cobra.Command{
		Use: "call DIR FUNCTION", Short: "An NVML call fails, is slow or hangs", Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			if fault.Code == 0 && fault.Delay == 0 && !fault.Hang {
				return fmt.Errorf("this fault does nothing: give --code (an nvmlReturn_t such as 999), --delay or --hang")
			}
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			fault.Function = args[1]
			return n.FailCall(fault)
		},
	}
	cmd.Flags().IntVar(&fault.GPU, "gpu", gpusim.AnyGPU, "GPU number, -1 for all")
	cmd.Flags().Uint32Var(&fault.Code, "code", 0, "nvmlReturn_t to give, for example 15 for GPU_IS_LOST")
	cmd.Flags().Uint32Var(&fault.After, "after", 0, "calls that pass before")
	cmd.Flags().Int64Var(&fault.Count, "count", 1, "calls that are hit, -1 for all")
	cmd.Flags().DurationVar(&fault.Delay, "delay", 0, "time to sleep before the answer")
	cmd.Flags().BoolVar(&fault.Hang, "hang", false, "sleep until gpusim inject clear")
	return cmd
}

func newLink() *cobra.Command {
	return &cobra.Command{
		Use: "link DIR GPU LINK|all up|down", Short: "An NVLink goes down or up, on both ends", Args: cobra.ExactArgs(4),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			number, err := gpuNumber(args[1])
			if err != nil {
				return err
			}
			if args[3] != "up" && args[3] != "down" {
				return fmt.Errorf("state %q: must be up or down", args[3])
			}
			if args[2] == "all" {
				return n.SetAllLinks(number, args[3] == "up")
			}
			link, err := strconv.Atoi(args[2])
			if err != nil {
				return fmt.Errorf("link %q: must be a number or all", args[2])
			}
			return n.SetLink(number, link, args[3] == "up")
		},
	}
}

func newFabric() *cobra.Command {
	var status, clique, health uint32
	cmd := &cobra.Command{
		Use: "fabric DIR GPU|all STATE", Short: "The fabric registration becomes notSupported, notStarted, inProgress or completed", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			change := gpusim.FabricChange{State: args[2]}
			for name, field := range map[string]struct{ to, from **uint32 }{
				"status": {&change.Status, ptr(&status)}, "clique": {&change.Clique, ptr(&clique)}, "health-mask": {&change.HealthMask, ptr(&health)},
			} {
				if cmd.Flags().Changed(name) {
					*field.to = *field.from
				}
			}
			return eachGPU(n, args[1], func(number int) error { return n.SetFabric(number, change) })
		},
	}
	cmd.Flags().Uint32Var(&status, "status", 0, "nvmlReturn_t of the registration, 0 for success")
	cmd.Flags().Uint32Var(&clique, "clique", 0, "clique id")
	cmd.Flags().Uint32Var(&health, "health-mask", 0, "health mask")
	return cmd
}

func ptr(p *uint32) **uint32 { return &p }

func eachGPU(n *gpusim.Node, which string, do func(int) error) error {
	if !strings.EqualFold(which, "all") {
		number, err := gpuNumber(which)
		if err != nil {
			return err
		}
		return do(number)
	}
	for number := range n.GPUCount() {
		if err := do(number); err != nil {
			return err
		}
	}
	return nil
}

func newReboot() *cobra.Command {
	var seed uint64
	cmd := &cobra.Command{
		Use: "reboot DIR", Short: "Modes, faults and lost GPUs are forgotten; minor numbers may be permuted", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			return n.Reboot(seed)
		},
	}
	cmd.Flags().Uint64Var(&seed, "seed", 0, "permutes the minor numbers; 0 keeps them")
	return cmd
}

func newLatency() *cobra.Command {
	return &cobra.Command{
		Use: "latency DIR DURATION", Short: "Every NVML call takes this long", Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[1])
			if err != nil {
				return err
			}
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			return n.SetLatency(d)
		},
	}
}
