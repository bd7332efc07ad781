// Package device holds the things that a claim can be given: typed allocatable devices, each
// with its name, its identity and what is published of it. It is for the slices, claims and
// prepare packages. It must not know NVML, files, the API server or who holds a device.
package device

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/pci"
)

// Kind is the type of a device, published as the attribute "type".
type Kind string

// The kinds of devices.
const (
	KindGPU Kind = "gpu"
	KindMIG Kind = "mig"
)

// Identity says which piece of hardware a device is. Names are derived from it; records keep
// it so that a board that was swapped is never taken for the one a claim was given.
type Identity struct {
	// PCI is the physical GPU (the parent, for a partition): the key of locks and holders.
	PCI pci.Address
	// GPUUUID is the UUID of that physical GPU.
	GPUUUID string
	// Partition is empty for a full GPU; for a partition it tells it from its siblings.
	Partition string
}

// Device is one allocatable device. Implementations are immutable values made from a
// snapshot: one type a kind.
type Device interface {
	// Name is the device's name in the pool, a DNS label derived from the PCI address.
	Name() string
	Kind() Kind
	Identity() Identity
	// Publish renders the device for a ResourceSlice. What cannot be published (a string over
	// the API's 64 bytes, say) is left out and returned.
	Publish(Vocabulary) (resourceapi.Device, []Omission)
	// Overlaps tells whether both devices use the same hardware, so that two owners exclude
	// each other. It is symmetric.
	Overlaps(Identity) bool
}

// Vocabulary chooses how much is published of each device.
type Vocabulary string

// The vocabularies.
const (
	// VocabularyFull is the published vocabulary of NVIDIA's driver and ours.
	VocabularyFull Vocabulary = "full"
	// VocabularyMinimal holds only what claims commonly select by.
	VocabularyMinimal Vocabulary = "minimal"
)

// Omission is a value that was left out of a published device, and why.
type Omission struct {
	Device string
	// Name is the attribute or capacity.
	Name   string
	Value  string
	Reason string
}
