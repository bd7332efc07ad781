package inventory

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// The fields of nvmlGpuFabricInfo's health mask (nvml.h of NVML 13.4, NVML_GPU_FABRIC_HEALTH_MASK_*).
// In all fields 0 means that the platform does not report it.
const (
	shiftDegradedBandwidth = 0
	shiftRouteRecovery     = 2
	shiftRouteUnhealthy    = 4
	shiftAccessTimeout     = 6
	shiftConfiguration     = 8
	shiftPartition         = 12
	shiftFabricManager     = 14

	flagTrue  = 1
	flagFalse = 2
	// configurationCorrect is NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE.
	configurationCorrect = 1
)

// judgeFabric turns NVML's fabric structure into the GPU's place in the fabric. Only a
// completed registration is judged: before that, status and mask mean nothing.
func judgeFabric(r FabricReading) Fabric {
	f := Fabric{State: r.State, Healthy: true}
	if r.State != FabricCompleted {
		return f
	}
	f.CliqueID = r.CliqueID
	if r.ClusterUUID != [16]byte{} {
		f.ClusterUUID = uuid.UUID(r.ClusterUUID).String()
	}
	var faults []string
	if r.Status != nil {
		faults = append(faults, fmt.Sprintf("registration ended with %v", r.Status))
	}
	faults = append(faults, faultsOfMask(r.HealthMask)...)
	f.Healthy = len(faults) == 0
	f.Reason = strings.Join(faults, ", ")
	return f
}

func faultsOfMask(mask uint32) []string {
	flag := func(shift int) uint32 { return mask >> shift & 0x3 }
	var faults []string
	for _, fault := range []struct {
		shift int
		bad   uint32
		text  string
	}{
		{shiftDegradedBandwidth, flagTrue, "bandwidth degraded"},
		{shiftRouteRecovery, flagTrue, "route recovery in progress"},
		{shiftRouteUnhealthy, flagTrue, "route unhealthy"},
		{shiftAccessTimeout, flagTrue, "access timeout recovery in progress"},
		{shiftPartition, flagFalse, "no partition assigned"},
		{shiftFabricManager, flagFalse, "global fabric manager disconnected"},
	} {
		if flag(fault.shift) == fault.bad {
			faults = append(faults, fault.text)
		}
	}
	if c := mask >> shiftConfiguration & 0xf; c > configurationCorrect {
		faults = append(faults, "incorrect configuration: "+configurationFault(c))
	}
	return faults
}

// configurationFault names the values of NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*.
func configurationFault(value uint32) string {
	names := map[uint32]string{
		2: "system GUID", 3: "chassis serial number", 4: "no partition", 5: "insufficient NVLinks",
		6: "incompatible GPU firmware", 7: "invalid location", 8: "GPU state invalid",
	}
	if name, ok := names[value]; ok {
		return name
	}
	return fmt.Sprintf("code %d", value)
}
