package device

import (
	"slices"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// The attributes whose names Kubernetes defines.
const (
	AttributePCIBusID = string(deviceattribute.StandardDeviceAttributePCIBusID)
	AttributePCIeRoot = string(deviceattribute.StandardDeviceAttributePCIeRoot)
	AttributeNUMANode = string(deviceattribute.StandardDeviceAttributeNUMANode)
)

// AttributeType is the type of a published value.
type AttributeType string

// The types of published values.
const (
	TypeString   AttributeType = "string"
	TypeInt      AttributeType = "int"
	TypeBool     AttributeType = "bool"
	TypeVersion  AttributeType = "version"
	TypeStrings  AttributeType = "list of strings"
	TypeQuantity AttributeType = "quantity"
)

// Attribute describes one attribute or capacity for the reference page.
type Attribute struct {
	// Name is bare: the driver's name is its domain. Standard names have their own.
	Name string
	Type AttributeType
	// Capacity is true for capacities, false for attributes.
	Capacity bool
	// Kinds are the devices that carry it.
	Kinds []Kind
	// Minimal tells that it is part of the minimal vocabulary too.
	Minimal bool
	// Meaning says what the value is; Source where it comes from; Absent when there is none.
	Meaning, Source, Absent string
	// Example is a value, Expression a CEL selector that this value satisfies, with the
	// driver's default name.
	Example, Expression string
}

// Selector gives the example expression for a driver of another name.
func (a Attribute) Selector(driver string) string {
	return strings.ReplaceAll(a.Expression, `["`+defaultDomain+`"]`, `["`+driver+`"]`)
}

const defaultDomain = "gpu.nvidia.com"

// minimalNames is the minimal vocabulary: what claims commonly select by.
func minimalNames() []string {
	return []string{"type", "uuid", "parentUUID", "productName", "profile", capacityMemory, "multiprocessors", "nvlinkDomain", "sharingEnforcement", capacityShares}
}

// InMinimal tells whether the minimal vocabulary has an attribute or a capacity.
func InMinimal(name string) bool { return slices.Contains(minimalNames(), name) }

// attr writes the selector of an optional attribute. Selectors guard against absent values:
// an unguarded one ends the scheduling of the pod on every node of the cluster.
func attr(name, fallback, rest string) string {
	return `device.attributes["` + defaultDomain + `"].?` + name + `.orValue(` + fallback + `)` + rest
}

// searched writes a selector that looks into a string. The API server estimates what that costs
// from the longest string there can be, and orValue hides that an attribute has at most 64
// bytes: such an expression is refused as too costly. After has it is not.
func searched(name, rest string) string {
	attribute := `device.attributes["` + defaultDomain + `"].` + name
	return "has(" + attribute + ") && " + attribute + rest
}

func standard(name, fallback, rest string) string {
	domain, id, _ := strings.Cut(name, "/")
	return `device.attributes["` + domain + `"].?` + id + `.orValue(` + fallback + `)` + rest
}

const noVersion = `semver("0.0.0")`

// Attributes describes everything that is published, in the order of the reference page.
func Attributes() []Attribute {
	all := append(productAttributes(), append(nvlinkAttributes(), append(placeAttributes(), sharingAttributes()...)...)...)
	for i := range all {
		all[i].Kinds = kindsOf(all[i].Name)
	}
	for _, a := range migAttributes() {
		a.Kinds = []Kind{KindMIG}
		all = append(all, a)
	}
	for i := range all {
		all[i].Minimal = InMinimal(all[i].Name)
	}
	return all
}

// productAttributes describe the board and its driver.
func productAttributes() []Attribute {
	return []Attribute{
		{
			Name: "type", Type: TypeString, Meaning: "what kind of device this is",
			Source: "constant", Absent: "never",
			Example: "gpu", Expression: `device.attributes["gpu.nvidia.com"].type == "gpu"`,
		},
		{
			Name: "uuid", Type: TypeString, Meaning: "the GPU's UUID, the same in every node and over reboots; a partition's is its MIG UUID, which may come again",
			Source: "nvmlDeviceGetUUID", Absent: "for partitions that are made when a claim gets them",
			Example: "GPU-8f6d2b1c-0a7e-4c55-9d3f-6f1e2a3b4c5d", Expression: attr("uuid", `""`, ` == "GPU-8f6d2b1c-0a7e-4c55-9d3f-6f1e2a3b4c5d"`),
		},
		{
			Name: "productName", Type: TypeString, Meaning: "marketing name of the board",
			Source: "nvmlDeviceGetName", Absent: "the name is over 64 bytes",
			Example: "NVIDIA H100 80GB HBM3", Expression: searched("productName", `.lowerAscii().contains("h100")`),
		},
		{
			Name: "brand", Type: TypeString, Meaning: "product line",
			Source: "nvmlDeviceGetBrand", Absent: "NVML does not say",
			Example: "Nvidia", Expression: attr("brand", `""`, ` == "Nvidia"`),
		},
		{
			Name: "architecture", Type: TypeString, Meaning: "GPU architecture",
			Source: "nvmlDeviceGetArchitecture", Absent: "NVML does not say",
			Example: "Hopper", Expression: attr("architecture", `""`, ` in ["Hopper", "Blackwell"]`),
		},
		{
			Name: "cudaComputeCapability", Type: TypeVersion, Meaning: "CUDA compute capability, padded to three numbers",
			Source: "nvmlDeviceGetCudaComputeCapability", Absent: "NVML does not say",
			Example: "9.0.0", Expression: attr("cudaComputeCapability", noVersion, `.compareTo(semver("8.0.0")) >= 0`),
		},
		{
			Name: "driverVersion", Type: TypeVersion, Meaning: "version of the GPU driver; leading zeros are dropped, a suffix becomes build metadata",
			Source: "nvmlSystemGetDriverVersion", Absent: "the version has no numbers",
			Example: "580.95.5", Expression: attr("driverVersion", noVersion, `.compareTo(semver("580.0.0")) >= 0`),
		},
		{
			Name: "cudaDriverVersion", Type: TypeVersion, Meaning: "newest CUDA version that the driver supports",
			Source: "nvmlSystemGetCudaDriverVersion", Absent: "NVML does not say",
			Example: "13.0.0", Expression: attr("cudaDriverVersion", noVersion, `.compareTo(semver("12.8.0")) >= 0`),
		},
		{
			Name: "addressingMode", Type: TypeString, Meaning: "how the GPU addresses system memory: HMM, ATS or None",
			Source: "nvmlDeviceGetAddressingMode", Absent: "the platform has no such mode",
			Example: "HMM", Expression: attr("addressingMode", `""`, ` in ["HMM", "ATS"]`),
		},
		{
			Name: "serial", Type: TypeString, Meaning: "serial number of the board",
			Source: "nvmlDeviceGetSerial", Absent: "the board has none",
			Example: "1650220012345", Expression: attr("serial", `""`, ` == "1650220012345"`),
		},
		{
			Name: "eccEnabled", Type: TypeBool, Meaning: "error correction of the device memory is on",
			Source: "nvmlDeviceGetEccMode, current", Absent: "the board has no ECC",
			Example: "true", Expression: attr("eccEnabled", `false`, ``),
		},
	}
}

// nvlinkAttributes describe NVLink.
func nvlinkAttributes() []Attribute {
	return []Attribute{
		{
			Name: "nvlinkDomain", Type: TypeString, Meaning: "GPUs with an equal value reach each other all-to-all over NVLink; for use with matchAttribute",
			Source: "NVLink peer-to-peer status, links and fabric of all GPUs", Absent: "the GPU has no working NVLink to another GPU, or is in MIG mode",
			Example: "343177a99589748a73e2f36ccb433cff", Expression: attr("nvlinkDomain", `""`, ` != ""`),
		},
		{
			Name: "nvlinkDomainSize", Type: TypeInt, Meaning: "GPUs of the domain on this node at full health",
			Source: "as nvlinkDomain", Absent: "as nvlinkDomain",
			Example: "8", Expression: attr("nvlinkDomainSize", `0`, ` >= 4`),
		},
		{
			Name: "nvlinkLinks", Type: TypeInt, Meaning: "active NVLinks of the GPU",
			Source: "nvmlDeviceGetNvLinkState", Absent: "no link is active",
			Example: "18", Expression: attr("nvlinkLinks", `0`, ` >= 12`),
		},
		{
			Name: "nvlinkBandwidth", Type: TypeInt, Meaning: "sum over the active NVLinks in MB/s (10^6 bytes) in one direction",
			Source: "NVLink speed field values", Absent: "no link is active or the speed is not known",
			Example: "478116", Expression: attr("nvlinkBandwidth", `0`, ` >= 300000`),
		},
		{
			Name: "nvlinkVersion", Type: TypeInt, Meaning: "NVLink generation",
			Source: "nvmlDeviceGetNvLinkVersion", Absent: "no link is active",
			Example: "4", Expression: attr("nvlinkVersion", `0`, ` >= 4`),
		},
		{
			Name: "nvlinkCliques", Type: TypeStrings, Meaning: "all maximal sets of GPUs that reach each other all-to-all and have this GPU as a member, at most 8; with matchAttribute it is exact on partial meshes. Published only with list attributes switched on",
			Source: "as nvlinkDomain", Absent: "as nvlinkDomain",
			Example: "343177a99589748a73e2f36ccb433cff", Expression: `device.attributes["gpu.nvidia.com"].?nvlinkCliques.hasValue()`,
		},
		{
			Name: "fabricClusterUUID", Type: TypeString, Meaning: "UUID of an NVLink fabric that spans nodes",
			Source: "nvmlDeviceGetGpuFabricInfoV", Absent: "the fabric ends at the node or there is none",
			Example: "5fb4f8a1-6b1c-4d5a-9c2e-1d2a3b4c5d6e", Expression: attr("fabricClusterUUID", `""`, ` == "5fb4f8a1-6b1c-4d5a-9c2e-1d2a3b4c5d6e"`),
		},
		{
			Name: "fabricCliqueID", Type: TypeInt, Meaning: "clique of that fabric; GPUs of one clique reach each other",
			Source: "nvmlDeviceGetGpuFabricInfoV", Absent: "as fabricClusterUUID",
			Example: "7", Expression: attr("fabricCliqueID", `-1`, ` == 7`),
		},
	}
}

// placeAttributes describe where the board sits and what it holds.
func placeAttributes() []Attribute {
	return []Attribute{
		{
			Name: AttributePCIBusID, Type: TypeString, Meaning: "PCI address",
			Source: "NVML, in the form of sysfs", Absent: "never",
			Example: "0000:1a:00.0", Expression: standard(AttributePCIBusID, `""`, ` == "0000:1a:00.0"`),
		},
		{
			Name: AttributePCIeRoot, Type: TypeString, Meaning: "PCIe root complex; equal for devices under one root, of other drivers too",
			Source: "sysfs", Absent: "sysfs does not say",
			Example: "pci0000:16", Expression: standard(AttributePCIeRoot, `""`, ` == "pci0000:16"`),
		},
		{
			Name: AttributeNUMANode, Type: TypeInt, Meaning: "NUMA node of the PCI device; a list of one with list attributes switched on",
			Source: "sysfs, numa_node", Absent: "the kernel says -1",
			Example: "0", Expression: standard(AttributeNUMANode, `-1`, ` == 0`),
		},
		{
			Name: capacityMemory, Type: TypeQuantity, Capacity: true, Meaning: "device memory in bytes: the GPU's physical memory, or what the partition has of it",
			Source: "nvmlDeviceGetMemoryInfo, total; nvmlDeviceGetGpuInstanceProfileInfoV", Absent: "the board has no memory of its own",
			Example: "80Gi", Expression: `device.capacity["gpu.nvidia.com"].?memory.orValue(quantity("0")).compareTo(quantity("40Gi")) >= 0`,
		},
	}
}

// sharingAttributes describe devices that several claims share.
func sharingAttributes() []Attribute {
	return []Attribute{
		{
			Name: "sharingEnforcement", Type: TypeString, Meaning: "who keeps the claims on a shared device to their part of its memory: mps, driver (the GPU driver, for each container), cooperative (containers are told, and nothing holds them to it) or none",
			Source: "the node's declaration of shared devices", Absent: "the device is given out whole",
			Example: "mps", Expression: attr("sharingEnforcement", `""`, ` == "mps"`),
		},
		{
			Name: capacityShares, Type: TypeQuantity, Capacity: true, Meaning: "number of shares of a shared device; a claim that asks for none gets one",
			Source: "the node's declaration of shared devices", Absent: "the device is given out whole, or by memory alone",
			Example: "4", Expression: `device.capacity["gpu.nvidia.com"].?shares.orValue(quantity("0")).compareTo(quantity("2")) >= 0`,
		},
	}
}
