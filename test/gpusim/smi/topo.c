/*
 * nvidia-smi topo -m
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define CPU_WORDS 16
#define NODE_WORDS 2

static int same_address(const nvmlPciInfo_t *a, const nvmlPciInfo_t *b)
{
	return a->domain == b->domain && a->bus == b->bus && a->device == b->device;
}

/* The number of active links from a to b: own links to its address, or all to a switch when NVLink reaches it. */
static unsigned int links_between(nvmlDevice_t a, nvmlDevice_t b)
{
	nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
	nvmlPciInfo_t target, remote;
	unsigned int direct = 0, switched = 0;
	if (NVML(nvmlDeviceGetP2PStatus, a, b, NVML_P2P_CAPS_INDEX_NVLINK, &status) != NVML_SUCCESS || status != NVML_P2P_STATUS_OK)
		return 0;
	if (NVML(nvmlDeviceGetPciInfo_v3, b, &target) != NVML_SUCCESS)
		return 0;
	for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS; link++) {
		nvmlEnableState_t active = NVML_FEATURE_DISABLED;
		nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
		if (NVML(nvmlDeviceGetNvLinkState, a, link, &active) != NVML_SUCCESS || active != NVML_FEATURE_ENABLED)
			continue;
		NVML(nvmlDeviceGetNvLinkRemoteDeviceType, a, link, &type);
		if (type == NVML_NVLINK_DEVICE_TYPE_SWITCH)
			switched++;
		else if (NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2, a, link, &remote) == NVML_SUCCESS && same_address(&remote, &target))
			direct++;
	}
	return direct > 0 ? direct : switched;
}

static const char *level_name(nvmlGpuTopologyLevel_t level)
{
	switch (level) {
	case NVML_TOPOLOGY_INTERNAL:
	case NVML_TOPOLOGY_SINGLE:
		return "PIX";
	case NVML_TOPOLOGY_MULTIPLE:
		return "PXB";
	case NVML_TOPOLOGY_HOSTBRIDGE:
		return "PHB";
	case NVML_TOPOLOGY_NODE:
		return "NODE";
	default:
		return "SYS";
	}
}

static void print_pair(const struct smi_gpu *a, const struct smi_gpu *b)
{
	nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
	if (a->index == b->index) {
		printf("\t X ");
		return;
	}
	unsigned int links = links_between(a->device, b->device);
	if (links > 0)
		printf("\tNV%u", links);
	else if (NVML(nvmlDeviceGetTopologyCommonAncestor, a->device, b->device, &level) == NVML_SUCCESS)
		printf("\t%s", level_name(level));
	else
		printf("\tN/A");
}

/* Prints the numbers of the set bits as ranges. */
static void print_mask(const unsigned long *mask, unsigned int words)
{
	const char *separator = "";
	unsigned int bits = words * 64;
	for (unsigned int first = 0; first < bits; first++) {
		unsigned int last = first;
		if (!(mask[first / 64] >> (first % 64) & 1))
			continue;
		while (last + 1 < bits && (mask[(last + 1) / 64] >> ((last + 1) % 64) & 1))
			last++;
		if (last > first)
			printf("%s%u-%u", separator, first, last);
		else
			printf("%s%u", separator, first);
		separator = ",";
		first = last;
	}
	if (*separator == '\0')
		printf("N/A");
}

static void print_affinity(nvmlDevice_t device)
{
	unsigned long cpus[CPU_WORDS] = {0}, nodes[NODE_WORDS] = {0};
	unsigned int memory_node = 0;
	NVML(nvmlDeviceGetCpuAffinity, device, CPU_WORDS, cpus);
	NVML(nvmlDeviceGetMemoryAffinity, device, NODE_WORDS, nodes, NVML_AFFINITY_SCOPE_NODE);
	printf("\t");
	print_mask(cpus, CPU_WORDS);
	printf("\t");
	print_mask(nodes, NODE_WORDS);
	if (NVML(nvmlDeviceGetNumaNodeId, device, &memory_node) == NVML_SUCCESS)
		printf("\t\t%u\n", memory_node);
	else
		printf("\t\tN/A\n");
}

static void print_legend(void)
{
	printf("\nLegend:\n\n"
		"  X    = the GPU itself\n"
		"  SYS  = over PCIe and the link between NUMA nodes\n"
		"  NODE = over PCIe and the link between host bridges of one NUMA node\n"
		"  PHB  = over PCIe and one host bridge (the CPU)\n"
		"  PXB  = over several PCIe bridges, but no host bridge\n"
		"  PIX  = over at most one PCIe bridge\n"
		"  NV#  = over a bonded set of # NVLinks\n");
}

int smi_topo(const struct smi_gpus *gpus)
{
	for (unsigned int i = 0; i < gpus->count; i++) {
		if (gpus->list[i].status != NVML_SUCCESS)
			return smi_report_lost(&gpus->list[i]);
	}
	for (unsigned int i = 0; i < gpus->count; i++)
		printf("\tGPU%u", gpus->list[i].index);
	printf("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n");
	for (unsigned int i = 0; i < gpus->count; i++) {
		printf("GPU%u", gpus->list[i].index);
		for (unsigned int j = 0; j < gpus->count; j++)
			print_pair(&gpus->list[i], &gpus->list[j]);
		print_affinity(gpus->list[i].device);
	}
	print_legend();
	return 0;
}
