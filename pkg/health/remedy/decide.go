package remedy

import (
	"fmt"
	"time"

	"github.com/gpu-dra/driver/pkg/health"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Patient is a GPU and how it is.
type Patient struct {
	// GPU is as it was when it last worked.
	GPU inventory.GPU
	// Severity is that of its gravest fault, Action the recovery that the driver asks for.
	Severity health.Severity
	Action   health.Action
	// Answers tells that it can be asked: a GPU that is lost or hangs cannot be reset by itself.
	Answers bool
}

func (p Patient) id() inventory.GPUID { return inventory.GPUID{PCI: p.GPU.PCI, UUID: p.GPU.UUID} }

// wants tells whether a reset is what the GPU needs.
func (p Patient) wants() bool { return p.Severity >= health.Avoid && p.Action.ByReset() }

// forbidden says what of the GPU itself forbids a reset; empty for nothing.
func (p Patient) forbidden() string {
	if !p.Answers {
		return "it does not answer"
	}
	if reason := cut(p.GPU.MIG); reason != "" {
		return reason
	}
	for _, link := range p.GPU.NVLink.Links {
		switch link.Remote {
		case inventory.RemoteGPU:
			return fmt.Sprintf("NVLinks join it to GPU %s: they have to be reset together", link.Peer)
		case inventory.RemoteSwitch:
			return onSwitch(p.GPU.Fabric)
		}
		if link.Active {
			return "where its NVLinks lead is not known"
		}
	}
	return ""
}

// onSwitch says what forbids a reset of a GPU on NVSwitches. Where GPUs register with the fabric they
// may be reset one by one, since the registration is done again.
func onSwitch(f inventory.Fabric) string {
	switch {
	case f.State == inventory.FabricNotSupported:
		return "it is on NVSwitches that know no registration: all GPUs on them have to be reset together"
	case f.State != inventory.FabricCompleted:
		return "its registration with the NVLink fabric is " + string(f.State)
	case f.ClusterUUID != "":
		return "its NVLink fabric joins several nodes"
	}
	return ""
}

// cut says how partitions forbid a reset, which ends them, and the mode as well on some boards.
func cut(m inventory.MIG) string {
	switch {
	case len(m.Instances) > 0:
		return fmt.Sprintf("it is cut into %d partitions", len(m.Instances))
	case m.Enabled || m.PendingEnabled:
		return "it is in MIG mode"
	}
	return ""
}

// held says which claim has something of a GPU; empty for none. Admin access counts, too.
func held(records []*journal.Record, at pci.Address) string {
	for _, r := range records {
		for _, d := range r.Devices {
			if d.PCI == at {
				return fmt.Sprintf("claim %s/%s has it", r.Namespace, r.Name)
			}
		}
	}
	return ""
}

const (
	// attempts is how often a GPU is reset before it is left to people.
	attempts = 3
	// pause is the time between two attempts; it doubles.
	pause = time.Minute
	// wellFor is how long a GPU must need no reset before the count begins anew.
	wellFor = time.Hour
)

// Note is what is known of the resets of a GPU in this boot.
type Note struct {
	UUID     string    `json:"uuid"`
	Attempts int       `json:"attempts"`
	Begun    time.Time `json:"begun"`
	// Ended is when the last attempt ended; the zero time while it has not.
	Ended time.Time `json:"ended,omitzero"`
	// Failed is why it failed; empty for one that did not.
	Failed string `json:"failed,omitzero"`
}

// due tells when the next attempt may be made; never, with why, after too many.
func (n Note) due() (at time.Time, why string) {
	switch {
	case n.Attempts == 0:
		return time.Time{}, ""
	case n.Attempts < attempts:
		return n.Begun.Add(pause << (n.Attempts - 1)), ""
	case n.Failed != "":
		return time.Time{}, fmt.Sprintf("%d resets failed, the last: %s", n.Attempts, n.Failed)
	}
	return time.Time{}, fmt.Sprintf("%d resets have not helped", n.Attempts)
}
