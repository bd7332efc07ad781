/*
 * PCI addresses, PCIe distance and affinity to CPUs and memory.
 */
#include <stdio.h>
#include <string.h>

#include "sim.h"

void sim_pci_info(const struct sim_gpu *gpu, nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof(*pci));
	pci->domain = gpu->pci_domain;
	pci->bus = gpu->pci_bus;
	pci->device = gpu->pci_device;
	pci->pciDeviceId = gpu->pci_device_id;
	pci->pciSubSystemId = gpu->pci_subsystem_id;
	/* The masks only tell the compiler that the texts fit. */
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT,
		pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0x1f);
	snprintf(pci->busId, sizeof(pci->busId), NVML_DEVICE_PCI_BUS_ID_FMT,
		pci->domain, pci->bus & 0xff, pci->device & 0x1f);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(pci != NULL);
	sim_pci_info(gpu, pci);
	return NVML_SUCCESS;
}

/* The structs of versions 1 and 2 end before busId: callers have no room for it. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t full;
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(pci != NULL);
	sim_pci_info(gpu, &full);
	memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t full;
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(pci != NULL);
	sim_pci_info(gpu, &full);
	memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
	nvmlPciInfo_t full;
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(pci != NULL);
	if (pci->version != nvmlPciInfoExt_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	sim_pci_info(gpu, &full);
	pci->domain = full.domain;
	pci->bus = full.bus;
	pci->device = full.device;
	pci->pciDeviceId = full.pciDeviceId;
	pci->pciSubSystemId = full.pciSubSystemId;
	pci->baseClass = 0x03;
	pci->subClass = 0x02;
	memcpy(pci->busId, full.busId, sizeof(pci->busId));
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
	nvmlGpuTopologyLevel_t *path)
{
	SIM_DEVICE(device1, a);
	SIM_DEVICE(device2, b);
	SIM_REQUIRE(path != NULL);
	SIM_SUPPORTED(a, SIM_FEATURE_TOPOLOGY);
	SIM_SUPPORTED(b, SIM_FEATURE_TOPOLOGY);
	*path = (nvmlGpuTopologyLevel_t)sim_level(a, b);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t at,
	unsigned int *count, nvmlDevice_t *found)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(count != NULL && (*count == 0 || found != NULL));
	SIM_SUPPORTED(gpu, SIM_FEATURE_TOPOLOGY);
	unsigned int room = *count, matches = 0;
	for (unsigned int i = 0; i < sim_visible_count(); i++) {
		struct sim_gpu *other = sim_visible(i);
		if (other == gpu || sim_level(gpu, other) != (unsigned int)at)
			continue;
		if (matches < room)
			found[matches] = sim_handle(other);
		matches++;
	}
	*count = room == 0 || matches < room ? matches : room;
	return NVML_SUCCESS;
}

/* Copies the words that both sides have and clears the caller's rest. */
static nvmlReturn_t copy_mask(unsigned long *out, unsigned int out_words, const uint64_t *mask, unsigned int words)
{
	SIM_REQUIRE(out != NULL && out_words > 0);
	for (unsigned int i = 0; i < out_words; i++)
		out[i] = i < words ? mask[i] : 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *cpus)
{
	SIM_DEVICE(device, gpu);
	SIM_SUPPORTED(gpu, SIM_FEATURE_CPU_AFFINITY);
	return copy_mask(cpus, words, gpu->cpu_affinity, SIM_CPU_WORDS);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *cpus,
	nvmlAffinityScope_t scope)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET);
	SIM_SUPPORTED(gpu, SIM_FEATURE_CPU_AFFINITY);
	return copy_mask(cpus, words, gpu->cpu_affinity, SIM_CPU_WORDS);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *nodes,
	nvmlAffinityScope_t scope)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET);
	SIM_SUPPORTED(gpu, SIM_FEATURE_NUMA);
	return copy_mask(nodes, words, gpu->node_affinity, SIM_NODE_WORDS);
}

/* Only boards whose memory is a NUMA node of its own (Grace) have one. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *numa_node)
{
	SIM_DEVICE(device, gpu);
	SIM_REQUIRE(numa_node != NULL);
	if (gpu->memory_numa_node < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*numa_node = (unsigned int)gpu->memory_numa_node;
	return NVML_SUCCESS;
}
