package inventory

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/pci"
)

// kernelDriver is the name of NVIDIA's kernel driver on the PCI bus.
const kernelDriver = "nvidia"

// Scanner makes snapshots. It keeps nothing between scans and may be used concurrently as far
// as its edges may.
type Scanner struct {
	nvml      NVML
	bus       Bus
	selection selection.Selection
}

// NewScanner makes a scanner over the two edges.
func NewScanner(nvml NVML, bus Bus) *Scanner { return &Scanner{nvml: nvml, bus: bus} }

// Serving has the scanner leave out what a selection excludes, which the edge to NVML must have, too.
func (s *Scanner) Serving(only selection.Selection) *Scanner {
	s.selection = only
	return s
}

// Scan reads the hardware once. What is wrong with a GPU, with the driver or with the bus is
// part of the snapshot; the only error is that ctx ended before the scan was complete.
func (s *Scanner) Scan(ctx context.Context) (Snapshot, error) {
	functions, busErr := s.bus.GPUs(ctx)
	module, moduleErr := s.bus.DriverModule(ctx)
	reading, nvmlErr := s.nvml.Read(ctx, boundToDriver(functions))
	if err := ctx.Err(); err != nil {
		return Snapshot{}, fmt.Errorf("scan of the GPUs was cut short: %w", err)
	}

	var node []Problem
	if busErr != nil {
		node = append(node, Problem{Fact: "pciBus", Err: busErr})
	}
	if moduleErr != nil {
		node = append(node, Problem{Fact: "kernelModule", Err: moduleErr})
	}
	var snapshot Snapshot
	if nvmlErr != nil {
		snapshot = withoutDriver(nvmlErr, functions, busErr, module, node)
	} else {
		snapshot = assemble(reading, functions, node)
	}
	s.leaveOut(&snapshot, functions, reading.Excluded)
	return snapshot, nil
}

// leaveOut drops what is said of GPUs that are excluded.
func (s *Scanner) leaveOut(snapshot *Snapshot, functions []Function, excluded []pci.Address) {
	excluded = slices.Clone(excluded)
	for _, f := range functions {
		if s.selection.Verdict(selection.Identity{PCI: f.PCI}) == selection.Excluded {
			excluded = append(excluded, f.PCI)
		}
	}
	slices.SortFunc(excluded, pci.Address.Compare)
	snapshot.Excluded = slices.Compact(excluded)
	snapshot.Unusable = slices.DeleteFunc(snapshot.Unusable, func(u Unusable) bool { return slices.Contains(excluded, u.PCI) })
	snapshot.Problems = slices.DeleteFunc(snapshot.Problems, func(p Problem) bool { return slices.Contains(excluded, p.PCI) })
}

// boundToDriver picks the GPUs that NVML should know.
func boundToDriver(functions []Function) []pci.Address {
	var addresses []pci.Address
	for _, f := range functions {
		if f.Driver == kernelDriver && f.Physical == nil {
			addresses = append(addresses, f.PCI)
		}
	}
	return addresses
}

// withoutDriver is the snapshot of a node whose driver does not answer.
func withoutDriver(cause error, functions []Function, busErr error, module string, node []Problem) Snapshot {
	s := Snapshot{Driver: Driver{Missing: missing(cause, len(functions), busErr, module), Err: cause}, Problems: node}
	for _, f := range functions {
		reason := outOfReach(f)
		if reason == "" {
			reason = "the GPU driver does not answer"
		}
		s.Unusable = append(s.Unusable, Unusable{PCI: f.PCI, Reason: reason})
	}
	s.sort()
	return s
}

// missing composes the sentence that an operator reads in the readiness condition.
func missing(cause error, onBus int, busErr error, module string) string {
	hardware := fmt.Sprintf("the PCI bus shows %d NVIDIA GPUs", onBus)
	switch {
	case busErr != nil:
		hardware = "the PCI bus could not be read"
	case onBus == 0:
		hardware = "the PCI bus shows no NVIDIA GPU"
	case onBus == 1:
		hardware = "the PCI bus shows 1 NVIDIA GPU"
	}
	kernel := "no NVIDIA kernel module is loaded"
	if module != "" {
		kernel = "kernel module " + module + " is loaded"
	}
	return fmt.Sprintf("%v; %s, %s", cause, hardware, kernel)
}

// outOfReach says why the driver cannot hand out a function of the bus; empty when it could.
func outOfReach(f Function) string {
	switch {
	case f.Physical != nil:
		return fmt.Sprintf("SR-IOV virtual function of %s: vGPUs are not handed out", f.Physical)
	case f.Driver == "":
		return "no kernel driver is bound to it"
	case f.Driver != kernelDriver:
		return fmt.Sprintf("bound to the kernel driver %s, not to %s", f.Driver, kernelDriver)
	}
	return ""
}
