// Package journal is the durable record of prepared claims: one file per claim, written before
// anything is done to the node and removed after all of it was undone. It is for the prepare
// and reconcile packages. It must not know what the steps do, nor talk to the API server.
package journal

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/pci"
)

// State is how far a claim has come.
type State string

// The states of a record.
const (
	// StateStarted: steps may have been done in part; they are undone or finished.
	StateStarted State = "started"
	// StatePrepared: all steps are done and the answer may have reached the kubelet.
	StatePrepared State = "prepared"
)

// Record is what must be known to finish or to undo the preparation of a claim with nothing
// else at hand: no API server, no claim object, no GPU driver. Fields that this version does
// not know are kept when the record is written again.
type Record struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	State     State     `json:"state"`
	// BootID is the kernel's boot id when the record was written: after a reboot hardware
	// state and CDI files are gone and have to be made anew.
	BootID  string    `json:"bootID"`
	Created time.Time `json:"created"`
	Devices []Device  `json:"devices"`

	Unknown jsontext.Value `json:",embed"`
}

// Device is one device of a claim.
type Device struct {
	Request string     `json:"request"`
	Pool    string     `json:"pool"`
	Name    string     `json:"name"`
	ShareID *types.UID `json:"shareID,omitzero"`
	// MemoryBytes is how much of a shared device's memory was allocated; 0 where it is not counted.
	MemoryBytes int64 `json:"memoryBytes,omitzero"`
	AdminAccess bool  `json:"adminAccess,omitzero"`
	// Was is the device's name in the allocation where that is another driver's, whose claim this
	// was.
	Was string `json:"was,omitzero"`
	// PCI, GPUUUID and Partition are the device's identity (see package device).
	Kind      string      `json:"kind"`
	PCI       pci.Address `json:"pci"`
	GPUUUID   string      `json:"gpuUUID"`
	Partition string      `json:"partition,omitzero"`
	// CDIDeviceIDs are the names given to the kubelet, the device's own first.
	CDIDeviceIDs []string `json:"cdiDeviceIDs,omitzero"`
	Steps        []Step   `json:"steps,omitzero"`

	Unknown jsontext.Value `json:",embed"`
}

// Step is one side effect. It is recorded before it is done, and again when it is done.
type Step struct {
	// Kind names the executor that can do and undo it.
	Kind string `json:"kind"`
	// Params are the executor's own, enough to do and to undo the step.
	Params jsontext.Value `json:"params"`
	// Done is set when the step was done. Without it the step may still have been done; and in
	// a record that is only started, an undo that was cut short may have taken it back.
	Done bool `json:"done,omitzero"`
	// Output is what doing the step gave, such as the ids of a created instance.
	Output jsontext.Value `json:"output,omitzero"`

	Unknown jsontext.Value `json:",embed"`
}
