package report

import "slices"

// Reason is the machine-readable reason of an Event. Reasons are part of the driver's
// interface: alerts match on them, so they are never renamed.
type Reason string

// The reasons.
const (
	PrepareFailed      Reason = "PrepareFailed"
	UnprepareFailed    Reason = "UnprepareFailed"
	NoEffect           Reason = "NoEffect"
	ValueOmitted       Reason = "ValueOmitted"
	GPUUnusable        Reason = "GPUUnusable"
	FactUnreadable     Reason = "FactUnreadable"
	DriverMissing      Reason = "GPUDriverMissing"
	DriverHung         Reason = "GPUDriverHung"
	SlicesRefused      Reason = "SlicesRefused"
	OtherOwner         Reason = "OtherOwner"
	RecordQuarantined  Reason = "RecordQuarantined"
	RecordRebuilt      Reason = "RecordRebuilt"
	MPSDaemonDown      Reason = "MPSDaemonDown"
	MPSDaemonRestarted Reason = "MPSDaemonRestarted"
	OrphanUndone       Reason = "OrphanUndone"
	OrphanKept         Reason = "OrphanKept"
	LeftoverRemoved    Reason = "LeftoverRemoved"
	MIGWithheld        Reason = "MIGPartitionsWithheld"
	MIGInUse           Reason = "MIGInstanceInUse"
	MIGLayoutPending   Reason = "MIGLayoutPending"
	MIGLayoutFailed    Reason = "MIGLayoutFailed"
	MIGLayoutRefused   Reason = "MIGLayoutRefused"
)

// Description explains a Reason in the reference page.
type Description struct {
	Reason Reason
	// On is the kind of object that carries the Event.
	On string
	// Means says what happened, Do what to do about it.
	Means, Do string
}

// Descriptions lists every reason in the order of the reference page.
func Descriptions() []Description {
	return slices.Concat(ofClaimsAndDriver(), ofPartitions(), ofRecords(), healthDescriptions())
}

func ofClaimsAndDriver() []Description {
	return []Description{
		{
			PrepareFailed, "ResourceClaim", "The claim's devices could not be prepared; the note says why.",
			"The kubelet tries again after 60 to 90 seconds. Follow the note: it names the field, the device or the claim that is in the way.",
		},
		{
			UnprepareFailed, "ResourceClaim", "What was done for the claim could not be undone yet; its pod stays Terminating.",
			"The kubelet tries again after 10 to 15 seconds. The note names the step that fails.",
		},
		{
			NoEffect, "ResourceClaim", "The claim is prepared, and something that its configuration asks for has no effect on the device that it got.",
			"Time slicing of a MIG device has nothing to set: leave it out, or ask for a whole GPU.",
		},
		{
			GPUUnusable, "Node", "A GPU is on the PCI bus but cannot be handed out.",
			"Look at the note (lost, bound to another kernel driver, no GPU driver). The other GPUs are not affected; the GPU returns by itself once it answers.",
		},
		{
			FactUnreadable, "Node", "One fact of a GPU could not be read; its attribute is left out.",
			"The GPU is still served. Selectors on that attribute do not match it: guard them with `.?attribute.orValue(...)`.",
		},
		{
			DriverMissing, "Node", "The GPU driver's library is absent or refuses to work; the pool is empty.",
			"Install or repair the GPU driver. No restart is needed: the driver is looked for at every rescan.",
		},
		{
			DriverHung, "Node", "The GPU driver's library does not come back from a call. The node's devices stay published as they were.",
			"Look for NVRM messages in the kernel log. Pods that run go on; if the driver does not recover, drain the node and reboot it.",
		},
		{
			ValueOmitted, "Node", "A value is longer than the API's 64 bytes, or otherwise not publishable, and is left out.",
			"Select by another attribute.",
		},
		{
			SlicesRefused, "Node", "The API server does not hold what the node wants to publish.",
			"The note has the API server's words: an RBAC rule or admission policy that denies, or a feature gate that drops fields.",
		},
		{
			OtherOwner, "Node", "Something else on the node hands out or cuts up the same GPUs: a device plugin, another DRA driver, a MIG manager.",
			"Take one of the two off the node, as the note says. Unless the setting `conflicts` has it otherwise, new claims are refused there until then; those that are prepared go on.",
		},
	}
}

// ofPartitions are about MPS and MIG.
func ofPartitions() []Description {
	return []Description{
		{
			MPSDaemonDown, "Node", "An MPS control daemon that claims use does not serve, or its supervisor does not answer.",
			"It is started again by itself. The note has the reason and the end of the daemon's log; without a supervisor, look at the pod of the MPS DaemonSet on the node.",
		},
		{
			MPSDaemonRestarted, "Node", "An MPS control daemon ended and was started again with its limits.",
			"Programs that used the device were cut off: see that they started again. Often it is one of them that crashed.",
		},
		{
			MIGWithheld, "Node", "A GPU offers fewer partitions than it could have: instances that others made have their place, or a declared layout is about to be applied or cannot be.",
			"Nothing, if that is meant. Otherwise remove the instances that the note names, or correct the layout.",
		},
		{
			MIGInUse, "Node", "An instance of a claim that has ended cannot be removed, because something still uses it. What needs its place has the taint mig-instance-in-use meanwhile.",
			"End the program that the note names; where it names none, a monitoring agent may hold the instance: restart it. The kubelet tries again by itself.",
		},
		{
			MIGLayoutPending, "Node", "A GPU is not laid out as declared yet, because something uses it.",
			"Nothing: it offers no devices meanwhile and is laid out when the claims and programs that the note names have ended.",
		},
		{
			MIGLayoutFailed, "Node", "A GPU cannot be laid out as declared.",
			"The note names the configuration, the GPU, the profile and what would fit, the instances that are in the way, or what the GPU driver answered. It is tried again.",
		},
		{
			MIGLayoutRefused, "Node", "No declared MIG layout is applied on this node: the file or its configuration cannot be used, or another tool acts on the same labels.",
			"Follow the note: correct the file or the label, or switch the other tool off on this node and remove the label nvidia.com/mig.config.state.",
		},
	}
}

// ofRecords are about what claims leave.
func ofRecords() []Description {
	return []Description{
		{
			RecordQuarantined, "Node", "A claim's record could not be read and was set aside.",
			"Keep the file for a report. Pods that run are not affected.",
		},
		{
			RecordRebuilt, "Node", "The record of a claim was gone or could not be read, and its devices are known from its CDI spec or from the index of holders: they stay the claim's.",
			"Nothing for the pod. A setting that the claim changed on its GPU stays until the GPU's next claim or a reboot. Look why the record was lost: the disk, or somebody who removed files.",
		},
		{
			OrphanUndone, "Node", "A claim that is gone, and that the kubelet did not unprepare, was undone: its devices are free.",
			"Nothing. Where it happens often, look why the kubelet did not: it was down, or lost its state.",
		},
		{
			OrphanKept, "Node", "A claim is gone and still has devices: programs have them open, or a step cannot be undone.",
			"End the programs that the note names, or mend what it says. The claim is undone at the next look after that.",
		},
		{
			LeftoverRemoved, "Node", "A file, partition or setting of this driver was undone, since no claim's record accounts for it.",
			"Nothing. It was left by a process that was killed, or by a record that was lost.",
		},
	}
}

// action is the Event's action: what the driver was doing.
func (r Reason) action() string {
	switch r {
	case PrepareFailed, NoEffect:
		return "Prepare"
	case UnprepareFailed:
		return "Unprepare"
	case SlicesRefused, ValueOmitted, MIGWithheld, OtherOwner:
		return "Publish"
	case RecordQuarantined, RecordRebuilt:
		return "Recover"
	case OrphanUndone, OrphanKept, LeftoverRemoved:
		return "Reconcile"
	case MPSDaemonDown, MPSDaemonRestarted:
		return "Share"
	case MIGLayoutPending, MIGLayoutFailed, MIGLayoutRefused:
		return "LayOut"
	case MIGInUse:
		return "Unprepare"
	}
	if r.ofHealth() {
		return "Monitor"
	}
	return "Scan"
}
