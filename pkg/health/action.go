package health

import (
	"slices"
	"strconv"
)

// Action is the recovery that the driver asks for, field 230 of NVML
// (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.h of NVML 13.4).
type Action struct {
	// Supported tells that the driver has the field, Read that it was read.
	Supported bool `json:"supported,omitzero"`
	Read      bool `json:"read,omitzero"`
	// Value is nvmlDeviceGpuRecoveryAction_t.
	Value int `json:"value,omitzero"`
}

// ActionNone is the action of a GPU that needs none.
const ActionNone = 0

// actions are the names of the values from 0 on.
func actions() []string {
	return []string{"none", "reset", "reboot-node", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "reboot-system"}
}

// ActionNames lists the actions that NVML 13.4 has, but for none.
func ActionNames() []string { return actions()[1:] }

func (a Action) String() string {
	switch names := actions(); {
	case !a.Supported:
		return "not supported"
	case !a.Read:
		return "unreadable"
	case a.Value >= 0 && a.Value < len(names):
		return names[a.Value]
	}
	return "unknown-" + strconv.Itoa(a.Value)
}

// fault is the code of the fault that an action is; empty for none, and for what is not known.
func (a Action) fault() string {
	if !a.known() || a.Value == ActionNone {
		return ""
	}
	return a.String()
}

func (a Action) known() bool { return a.Supported && a.Read }

func (a Action) done() bool { return a.known() && a.Value == ActionNone }

// ByReset tells whether a reset of the GPU is what the driver asks for.
func (a Action) ByReset() bool {
	return a.known() && slices.Contains([]string{"reset", "drain-and-reset"}, a.String())
}

func decimal(n int) string { return strconv.Itoa(n) }
