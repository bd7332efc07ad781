package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/test/gpusim"
)

// waitFirst has a command wait before it acts, so that a few of them in the background make a
// timeline.
func waitFirst(cmd *cobra.Command) {
	wait := cmd.PersistentFlags().Duration("in", 0, "wait for so long first")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		timer := time.NewTimer(*wait)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		}
	}
}

// opened opens the node and finds the GPU that the first two arguments name.
func opened(args []string) (*gpusim.Node, int, error) {
	n, err := gpusim.Open(args[0])
	if err != nil {
		return nil, 0, err
	}
	number, err := gpuNumber(args[1])
	return n, number, err
}

func newXID() *cobra.Command {
	var gi, ci uint32
	var only bool
	cmd := &cobra.Command{
		Use: "xid DIR GPU CODE", Short: "The driver reports an XID, by NVML and in the kernel log", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, number, err := opened(args)
			if err != nil {
				return err
			}
			code, err := strconv.ParseUint(args[2], 10, 32)
			if err != nil {
				return fmt.Errorf("XID %q: must be a number such as 79", args[2])
			}
			xid := gpusim.XID{Code: code}
			if cmd.Flags().Changed("gi") {
				xid.GPUInstance = &gi
			}
			if cmd.Flags().Changed("ci") {
				xid.ComputeInstance = &ci
			}
			if only {
				return n.LogXID(number, xid)
			}
			return n.InjectXID(number, xid)
		},
	}
	cmd.Flags().Uint32Var(&gi, "gi", 0, "GPU instance that it is of; without it the whole GPU")
	cmd.Flags().Uint32Var(&ci, "ci", 0, "compute instance that it is of")
	cmd.Flags().BoolVar(&only, "log-only", false, "in the kernel log alone (the file kmsg of the node): NVML misses it")
	return cmd
}

// recoveryActions are the names of nvmlDeviceGpuRecoveryAction_t, from 0 on.
func recoveryActions() []string {
	return []string{"none", "reset", "reboot-node", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "reboot-system"}
}

func newRecovery() *cobra.Command {
	return &cobra.Command{
		Use: "recovery DIR GPU ACTION", Args: cobra.ExactArgs(3),
		Short: "The driver asks for a recovery: " + strings.Join(recoveryActions(), ", ") + ", or a number",
		RunE: func(_ *cobra.Command, args []string) error {
			n, number, err := opened(args)
			if err != nil {
				return err
			}
			action := slices.Index(recoveryActions(), args[2])
			if action < 0 {
				if action, err = strconv.Atoi(args[2]); err != nil || action < 0 {
					return fmt.Errorf("recovery action %q: use a number or one of %s", args[2], strings.Join(recoveryActions(), ", "))
				}
			}
			return n.SetRecoveryAction(number, uint32(action))
		},
	}
}

func newMemory() *cobra.Command {
	var h gpusim.MemoryHealth
	cmd := &cobra.Command{
		Use: "memory DIR GPU", Short: "What a GPU counts of its memory: all that is not given is zero", Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			n, number, err := opened(args)
			if err != nil {
				return err
			}
			return n.SetMemoryHealth(number, h)
		},
	}
	cmd.Flags().BoolVar(&h.RemapPending, "remap-pending", false, "a row will be replaced at the next reset")
	cmd.Flags().BoolVar(&h.RemapFailed, "remap-failed", false, "a row could not be replaced")
	cmd.Flags().BoolVar(&h.RetirementPending, "retirement-pending", false, "a page will be retired at the next reset")
	cmd.Flags().Uint64Var(&h.Corrected, "corrected", 0, "ECC errors that were corrected")
	cmd.Flags().Uint64Var(&h.Uncorrected, "uncorrected", 0, "ECC errors that could not be")
	return cmd
}

func newLinkErrors() *cobra.Command {
	return &cobra.Command{
		Use: "link-errors DIR GPU LINK COUNT", Short: "An NVLink has counted so many replays", Args: cobra.ExactArgs(4),
		RunE: func(_ *cobra.Command, args []string) error {
			n, number, err := opened(args)
			if err != nil {
				return err
			}
			link, err := strconv.Atoi(args[2])
			if err != nil {
				return fmt.Errorf("link %q: must be a number", args[2])
			}
			count, err := strconv.ParseUint(args[3], 10, 64)
			if err != nil {
				return fmt.Errorf("count %q: must be a number", args[3])
			}
			return n.SetLinkErrors(number, link, count)
		},
	}
}

func newEvent() *cobra.Command {
	kinds := map[string]uint64{"unavailable": gpusim.EventGPUUnavailable, "recovery-action": gpusim.EventRecoveryAction}
	return &cobra.Command{
		Use: "event DIR GPU unavailable|recovery-action", Short: "The driver reports an event that is no XID", Args: cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			n, number, err := opened(args)
			if err != nil {
				return err
			}
			kind, ok := kinds[args[2]]
			if !ok {
				return fmt.Errorf("event %q: use unavailable or recovery-action", args[2])
			}
			return n.InjectEvent(number, kind)
		},
	}
}
