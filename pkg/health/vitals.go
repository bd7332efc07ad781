package health

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// Vitals are the readings of one GPU that say how it is. A fact that the board or the driver does
// not have is inventory.ErrNotSupported.
type Vitals struct {
	// Err is why the GPU could not be read at all.
	Err error
	// Recovery is NVML's field 230.
	Recovery inventory.Fact[int]
	// RemapPending and RemapFailed are of boards that replace rows, RetirementPending of those that
	// retire pages.
	RemapPending, RemapFailed, RetirementPending inventory.Fact[bool]
	// Corrected and Uncorrected are the ECC errors since the last reset.
	Corrected, Uncorrected inventory.Fact[uint64]
	// LinkErrors are the sums of the error counters of all active NVLinks.
	LinkErrors inventory.Fact[uint64]

	// CelsiusDegrees, PowerMilliwatts, MemoryUsed and MemoryTotal in bytes, and the utilizations in
	// percent are for people alone.
	CelsiusDegrees, PowerMilliwatts      inventory.Fact[int]
	MemoryUsed, MemoryTotal              inventory.Fact[uint64]
	GPUUtilization, MemoryBusUtilization inventory.Fact[int]
	// Partitions are those of a GPU in MIG mode that could be read, for people alone.
	Partitions []Partition
}

// Partition is a MIG device by its UUID, with its memory in bytes.
type Partition struct {
	UUID                    string
	MemoryUsed, MemoryTotal uint64
}

// manyLinkErrors is how many errors of its NVLinks make a GPU worth a note, since the first reading
// by this process: replays are a part of normal operation.
const manyLinkErrors = 1000

// Judge says what a GPU's readings mean, with what the inventory knows of its links and its fabric,
// nil where it does not know the GPU. full is the number of links at full health, and linkErrors
// the count of link errors to judge from.
func Judge(v Vitals, known *inventory.GPU, full int, linkErrors uint64) Look {
	l := Look{Reach: reachOf(v.Err)}
	if l.Reach != Answers {
		return l
	}
	l.Action = actionOf(v.Recovery)
	l.flag(Memory, "remap-pending", v.RemapPending)
	l.flag(Memory, "remap-failed", v.RemapFailed)
	l.flag(Memory, "retirement-pending", v.RetirementPending)
	l.count(Memory, "ecc-uncorrected", v.Uncorrected, 0)
	l.count(NVLink, "errors", v.LinkErrors, linkErrors+manyLinkErrors)
	if known == nil {
		l.Blind = append(l.Blind, NVLink, Fabric)
		return l
	}
	up := 0
	for _, link := range known.NVLink.Links {
		if link.Active {
			up++
		}
	}
	if up < full {
		l.On = append(l.On, Condition{Kind: NVLink, Code: "down", Detail: fmt.Sprintf("%d of %d links are up", up, full)})
	}
	switch f := known.Fabric; {
	case f.State == inventory.FabricNotSupported:
	case f.State != inventory.FabricCompleted:
		l.On = append(l.On, Condition{Kind: Fabric, Code: string(f.State)})
	case !f.Healthy:
		l.On = append(l.On, Condition{Kind: Fabric, Code: "unhealthy", Detail: f.Reason})
	}
	return l
}

func reachOf(err error) Reach {
	switch {
	case err == nil:
		return Answers
	case errors.Is(err, inventory.ErrLost):
		return Gone
	case errors.Is(err, inventory.ErrHung):
		return Hangs
	}
	return Fails
}

func actionOf(f inventory.Fact[int]) Action {
	switch {
	case f.Err == nil:
		return Action{Supported: true, Read: true, Value: f.Value}
	case errors.Is(f.Err, inventory.ErrNotSupported):
		return Action{}
	}
	return Action{Supported: true}
}

func (l *Look) flag(kind Kind, code string, f inventory.Fact[bool]) {
	switch {
	case f.Err == nil && f.Value:
		l.On = append(l.On, Condition{Kind: kind, Code: code})
	case f.Err != nil && !errors.Is(f.Err, inventory.ErrNotSupported):
		l.blind(kind)
	}
}

func (l *Look) count(kind Kind, code string, f inventory.Fact[uint64], most uint64) {
	switch {
	case f.Err == nil && f.Value > most:
		l.On = append(l.On, Condition{Kind: kind, Code: code})
	case f.Err != nil && !errors.Is(f.Err, inventory.ErrNotSupported):
		l.blind(kind)
	}
}

func (l *Look) blind(kind Kind) {
	if !slices.Contains(l.Blind, kind) {
		l.Blind = append(l.Blind, kind)
	}
}
