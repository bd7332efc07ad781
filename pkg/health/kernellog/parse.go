package kernellog

import (
	"bytes"
	"regexp"
	"strconv"

	"github.com/gpu-dra/driver/pkg/pci"
)

// Message is an error in the log.
type Message struct {
	GPU pci.Address
	// XID is the error's number.
	XID int
	// Instance is the GPU instance that it names, as NVML numbers it; -1 for none.
	Instance int
}

// xidMessage is how the driver's messages begin: "NVRM: Xid (PCI:0000:c1:00): 79, pid=…", with
// " GPU-I:05" behind the address for an error of a GPU instance (open kernel modules 595.45.04).
// The address has no function: a GPU's is 0.
var xidMessage = regexp.MustCompile(`^NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.0)?((?: [A-Za-z-]{1,16}:[0-9]{1,10}){0,4})\): ([0-9]{1,9})[,\s]`)

// instanceMark is what stands before the number of a GPU instance.
var instanceMark = regexp.MustCompile(` GPU-I:([0-9]{1,9})`)

// firstOfPrograms is the first priority of records that programs wrote: the facility is in the bits
// above the three of the level, and the kernel's own is 0 (Documentation/ABI/testing/dev-kmsg).
const firstOfPrograms = 8

// Parse reads a record of /dev/kmsg, "priority,sequence,microseconds,flags;message", without its
// end of line. It is false for all that is no error of a GPU told by the kernel.
func Parse(record []byte) (Message, bool) {
	head, text, ok := bytes.Cut(record, []byte(";"))
	if !ok {
		return Message{}, false
	}
	priority, _, _ := bytes.Cut(head, []byte(","))
	if n, err := strconv.ParseUint(string(priority), 10, 32); err != nil || n >= firstOfPrograms {
		return Message{}, false
	}
	found := xidMessage.FindSubmatch(text)
	if found == nil {
		return Message{}, false
	}
	address, err := pci.Parse(string(found[1]) + ".0")
	if err != nil {
		return Message{}, false
	}
	code, err := strconv.Atoi(string(found[3]))
	if err != nil || code == 0 {
		return Message{}, false
	}
	m := Message{GPU: address, XID: code, Instance: -1}
	if mark := instanceMark.FindSubmatch(found[2]); mark != nil {
		// It has nine digits at most.
		m.Instance, _ = strconv.Atoi(string(mark[1]))
	}
	return m, true
}
