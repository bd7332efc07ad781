package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// report is what inspect prints about a node.
type report struct {
	Name       string        `json:"name"`
	Driver     string        `json:"driver"`
	CUDA       string        `json:"cuda"`
	DriverRoot string        `json:"driverRoot"`
	DevRoot    string        `json:"devRoot"`
	ProcRoot   string        `json:"procRoot"`
	SysRoot    string        `json:"sysRoot"`
	GPUs       []gpuReport   `json:"gpus"`
	Faults     []faultReport `json:"faults,omitempty"`
}

type gpuReport struct {
	Number      int    `json:"number"`
	UUID        string `json:"uuid"`
	Product     string `json:"product"`
	PCI         string `json:"pci"`
	PCIeRoot    string `json:"pcieRoot"`
	NUMA        int    `json:"numa"`
	Minor       uint32 `json:"minor"`
	MemoryMiB   uint64 `json:"memoryMiB"`
	Status      string `json:"status"`
	Links       uint32 `json:"links"`
	LinksActive uint32 `json:"linksActive"`
	// NVLinkPeers are the GPUs that links of this one are wired to.
	NVLinkPeers []int  `json:"nvlinkPeers,omitempty"`
	Fabric      string `json:"fabric,omitempty"`
	// MIG is none, off or on, with what is pending: "off (pending on)".
	MIG         string               `json:"mig"`
	Instances   []gpusim.MIGInstance `json:"instances,omitempty"`
	ComputeMode uint32               `json:"computeMode"`
}

type faultReport struct {
	Function  string `json:"function"`
	GPU       int32  `json:"gpu"`
	Code      uint32 `json:"code"`
	Remaining int64  `json:"remaining"`
	DelayUsec uint64 `json:"delayUsec"`
}

func newInspect() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show a node and its present state",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := gpusim.Open(args[0])
			if err != nil {
				return err
			}
			state, err := n.State()
			if err != nil {
				return fmt.Errorf("%w; is the driver taken away? gpusim inject %s driver-present", err, args[0])
			}
			return printReport(cmd.OutOrStdout(), format, makeReport(n, state))
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table, json or yaml")
	return cmd
}

func makeReport(n *gpusim.Node, state *simstate.Node) report {
	spec := n.Spec()
	out := report{
		Name: spec.Name, Driver: spec.Driver.Version, CUDA: spec.Driver.CUDA,
		DriverRoot: n.DriverRoot(), DevRoot: n.DevRoot(), ProcRoot: n.ProcRoot(), SysRoot: n.SysRoot(),
	}
	for i := range spec.GPUs {
		out.GPUs = append(out.GPUs, reportGPU(i, &spec.GPUs[i], state))
	}
	for i := range state.Faults {
		if f := &state.Faults[i]; f.Armed != 0 {
			out.Faults = append(out.Faults, faultReport{simstate.String(f.Function[:]), f.GPU, f.Code, f.Remaining, f.DelayUsec})
		}
	}
	return out
}

func reportGPU(number int, spec *nodefile.ResolvedGPU, state *simstate.Node) gpuReport {
	g := &state.GPUs[number]
	out := gpuReport{
		Number: number, UUID: spec.UUID, Product: spec.Board.Product, PCI: spec.PCI.String(), PCIeRoot: spec.Root,
		NUMA: spec.NUMA, Minor: g.Minor, MemoryMiB: g.MemoryTotal >> 20, Status: "ok", Links: g.LinkCount, MIG: "none", ComputeMode: g.ComputeMode,
	}
	switch {
	case g.Absent != 0:
		out.Status = "absent"
	case g.Lost != 0:
		out.Status = "lost"
	}
	if g.MIG.Capable != 0 {
		out.MIG = migMode(g.MIG.CurrentMode)
		if g.MIG.PendingMode != g.MIG.CurrentMode {
			out.MIG += " (pending " + migMode(g.MIG.PendingMode) + ")"
		}
		out.Instances = gpusim.Instances(g)
	}
	for name, value := range nodefile.FabricStates() {
		if g.Fabric.Supported != 0 && value == g.Fabric.State {
			out.Fabric = name
		}
	}
	for i := range g.LinkCount {
		out.LinksActive += g.Links[i].Active
	}
	for other := range state.GPUCount {
		if int(other) != number && wired(g, &state.GPUs[other], int32(other)) {
			out.NVLinkPeers = append(out.NVLinkPeers, int(other))
		}
	}
	return out
}

func migMode(mode uint32) string { return []string{"off", "on"}[mode&1] }

func wired(a, b *simstate.GPU, number int32) bool {
	for i := range a.LinkCount {
		l := &a.Links[i]
		if l.Active == 0 {
			continue
		}
		if l.Remote == simstate.RemoteGPU && l.PeerGPU == number {
			return true
		}
		if l.Remote == simstate.RemoteSwitch && b.LinkCount > 0 && b.Links[0].Plane == l.Plane {
			return true
		}
	}
	return false
}

func printReport(w io.Writer, format string, r report) error {
	switch format {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	case "yaml":
		text, err := yaml.Marshal(r)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	case "table":
		return printTable(w, r)
	default:
		return fmt.Errorf("--output %q: must be table, json or yaml", format)
	}
}

func printTable(w io.Writer, r report) error {
	fmt.Fprintf(w, "%s: driver %s, CUDA %s, root %s\n\n", r.Name, r.Driver, r.CUDA, r.DriverRoot)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "GPU\tPRODUCT\tMEMORY\tPCI\tPCIE ROOT\tNUMA\tMINOR\tNVLINK\tPEERS\tFABRIC\tMIG\tSTATUS")
	for _, g := range r.GPUs {
		fmt.Fprintf(table, "%d\t%s\t%dMiB\t%s\t%s\t%d\t%d\t%d/%d\t%s\t%s\t%s\t%s\n", g.Number, g.Product, g.MemoryMiB, g.PCI, g.PCIeRoot,
			g.NUMA, g.Minor, g.LinksActive, g.Links, numbers(g.NVLinkPeers), orDash(g.Fabric), g.MIG, g.Status)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, g := range r.GPUs {
		for _, instance := range g.Instances {
			printInstance(w, g.Number, instance)
		}
	}
	for _, f := range r.Faults {
		fmt.Fprintf(w, "fault: %s gpu=%d code=%d remaining=%d delay=%dus\n", f.Function, f.GPU, f.Code, f.Remaining, f.DelayUsec)
	}
	return nil
}

func numbers(list []int) string {
	return orDash(strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]"))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
