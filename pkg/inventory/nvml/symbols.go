package nvml

// The C functions that this package calls. Adding a call means adding its name here; a name
// that is in neither list counts as missing.
const (
	symDriverVersion = "nvmlSystemGetDriverVersion"
	symCount         = "nvmlDeviceGetCount_v2"
	symHandle        = "nvmlDeviceGetHandleByIndex_v2"
	symPCI           = "nvmlDeviceGetPciInfo_v3"
	symUUID          = "nvmlDeviceGetUUID"
	symMinor         = "nvmlDeviceGetMinorNumber"

	symCUDA           = "nvmlSystemGetCudaDriverVersion"
	symHandleByPCI    = "nvmlDeviceGetHandleByPciBusId_v2"
	symIndex          = "nvmlDeviceGetIndex"
	symName           = "nvmlDeviceGetName"
	symBrand          = "nvmlDeviceGetBrand"
	symArchitecture   = "nvmlDeviceGetArchitecture"
	symSerial         = "nvmlDeviceGetSerial"
	symAddressingMode = "nvmlDeviceGetAddressingMode"
	symCapability     = "nvmlDeviceGetCudaComputeCapability"
	symMemory         = "nvmlDeviceGetMemoryInfo"
	symECC            = "nvmlDeviceGetEccMode"
	symVirtualization = "nvmlDeviceGetVirtualizationMode"
	symMIGMode        = "nvmlDeviceGetMigMode"
	symFields         = "nvmlDeviceGetFieldValues"
	symLinkState      = "nvmlDeviceGetNvLinkState"
	symLinkVersion    = "nvmlDeviceGetNvLinkVersion"
	symLinkRemoteType = "nvmlDeviceGetNvLinkRemoteDeviceType"
	symLinkRemotePCI  = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
	symP2P            = "nvmlDeviceGetP2PStatus"
	symFabric         = "nvmlDeviceGetGpuFabricInfo"
	symFabricV        = "nvmlDeviceGetGpuFabricInfoV"
)

// required are the calls without which no GPU can be named. All are in drivers since R396.
func required() []string {
	return []string{symDriverVersion, symCount, symHandle, symPCI, symUUID, symMinor}
}

// optional are the calls whose facts are left out where the driver lacks them.
func optional() []string {
	return []string{
		symCUDA, symHandleByPCI, symIndex, symName, symBrand, symArchitecture, symSerial, symAddressingMode, symCapability,
		symMemory, symECC, symVirtualization, symMIGMode, symFields, symLinkState, symLinkVersion, symLinkRemoteType,
		symLinkRemotePCI, symP2P, symFabric, symFabricV,
	}
}
