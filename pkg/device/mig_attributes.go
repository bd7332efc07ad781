package device

import "slices"

// migAttributes describe what only partitions have.
func migAttributes() []Attribute {
	return []Attribute{
		{
			Name: "profile", Type: TypeString, Meaning: "profile of the partition, as NVML names it",
			Source: "nvmlDeviceGetGpuInstanceProfileInfoV", Absent: "never",
			Example: "1g.10gb", Expression: attr("profile", `""`, ` == "1g.10gb"`),
		},
		{
			Name: "parentUUID", Type: TypeString, Meaning: "UUID of the partition's GPU; with matchAttribute, several partitions come from one GPU",
			Source: "nvmlDeviceGetUUID of the GPU", Absent: "never",
			Example: "GPU-8f6d2b1c-0a7e-4c55-9d3f-6f1e2a3b4c5d", Expression: attr("parentUUID", `""`, ` == "GPU-8f6d2b1c-0a7e-4c55-9d3f-6f1e2a3b4c5d"`),
		},
		{
			Name: "migPlacementStart", Type: TypeInt, Meaning: "first memory slice of the partition",
			Source: "nvmlDeviceGetGpuInstancePossiblePlacements", Absent: "never",
			Example: "4", Expression: attr("migPlacementStart", `-1`, ` == 4`),
		},
		{
			Name: "migPlacementSize", Type: TypeInt, Meaning: "number of memory slices of the partition; how many the GPU has is the board's matter",
			Source: "nvmlDeviceGetGpuInstancePossiblePlacements", Absent: "never",
			Example: "1", Expression: attr("migPlacementSize", `0`, ` >= 1`),
		},
		engine("multiprocessors", "streaming multiprocessors of the partition", "16"),
		engine("copyEngines", "copy engines of the partition", "1"),
		engine("decoders", "video decoders of the partition", "1"),
		engine("encoders", "video encoders of the partition", "0"),
		engine("jpegEngines", "JPEG engines of the partition", "1"),
		engine("ofaEngines", "optical flow engines of the partition", "0"),
	}
}

// engine describes a capacity of partitions; the expression takes at least the example.
func engine(name, meaning, example string) Attribute {
	return Attribute{
		Name: name, Type: TypeQuantity, Capacity: true, Meaning: meaning,
		Source: "nvmlDeviceGetGpuInstanceProfileInfoV", Absent: "never", Example: example,
		Expression: `device.capacity["` + defaultDomain + `"].?` + name + `.orValue(quantity("-1")).compareTo(quantity("` + example + `")) >= 0`,
	}
}

// kindsOf tells which devices carry an attribute that whole GPUs have.
func kindsOf(name string) []Kind {
	whole := []string{
		"serial", "eccEnabled", "nvlinkDomain", "nvlinkDomainSize", "nvlinkLinks", "nvlinkBandwidth", "nvlinkVersion",
		"nvlinkCliques", "fabricClusterUUID", "fabricCliqueID",
	}
	if slices.Contains(whole, name) {
		return []Kind{KindGPU}
	}
	return []Kind{KindGPU, KindMIG}
}
