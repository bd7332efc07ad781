/*
 * nvidia-smi mig -lgip -lgipp -lcip -lgi -lci
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "mig.h"

#define PROFILES_WIDTH 79u
#define CI_PROFILES_WIDTH 86u
#define GIS_WIDTH 57u
#define CIS_WIDTH 68u

/* Prints one row of a table, filled up to its width. */
void smi_row(unsigned int width, const char *format, ...)
{
	char text[160];
	va_list values;
	va_start(values, format);
	vsnprintf(text, sizeof(text), format, values);
	va_end(values);
	printf("|%-*.*s|\n", (int)width, (int)width, text);
}

void smi_line(unsigned int width, char with)
{
	char end = with == '=' ? '|' : '+';
	putchar(end);
	for (unsigned int i = 0; i < width; i++)
		putchar(with);
	printf("%c\n", end);
}

int smi_mig_lgip(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	nvmlGpuInstanceProfileInfo_v2_t list[SMI_MAX_PROFILES];
	unsigned int count = smi_gi_profiles(gpu->device, list);
	(void)options, (void)exit_code;
	smi_line(PROFILES_WIDTH, '-');
	smi_row(PROFILES_WIDTH, " GPU instance profiles:");
	smi_row(PROFILES_WIDTH, " GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC");
	smi_row(PROFILES_WIDTH, "                                Free/Total   GiB              CE    JPEG  OFA");
	smi_line(PROFILES_WIDTH, '=');
	for (unsigned int i = 0; i < count; i++) {
		const nvmlGpuInstanceProfileInfo_v2_t *p = &list[i];
		unsigned int left = 0;
		NVML(nvmlDeviceGetGpuInstanceRemainingCapacity, gpu->device, p->id, &left);
		smi_row(PROFILES_WIDTH, " %3u  %-20s%2u     %u/%u     %7.2f      %3s    %3u    %2u    %2u", gpu->index, p->name, p->id, left, p->instanceCount,
			(double)p->memorySizeMB / 1024, p->isP2pSupported ? "Yes" : "No", p->multiprocessorCount, p->decoderCount, p->encoderCount);
		smi_row(PROFILES_WIDTH, "%62s%2u    %2u    %2u", "", p->copyEngineCount, p->jpegCount, p->ofaCount);
		smi_line(PROFILES_WIDTH, '-');
	}
	return 1;
}

static int print_placements(unsigned int index, unsigned int id, const nvmlGpuInstancePlacement_t *list, unsigned int count)
{
	printf("GPU %2u Profile ID %2u %s: {", index, id, count == 1 ? "Placement " : "Placements");
	for (unsigned int i = 0; i < count; i++)
		printf("%s%u", i > 0 ? "," : "", list[i].start);
	printf("}:%u\n", count > 0 ? list[0].size : 0);
	return 1;
}

int smi_mig_lgipp(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	nvmlGpuInstanceProfileInfo_v2_t list[SMI_MAX_PROFILES];
	unsigned int profiles = smi_gi_profiles(gpu->device, list);
	int printed = 0;
	(void)options, (void)exit_code;
	for (unsigned int i = 0; i < profiles; i++) {
		nvmlGpuInstancePlacement_t placements[64];
		unsigned int count = 64;
		if (NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2, gpu->device, list[i].id, placements, &count) == NVML_SUCCESS)
			printed |= print_placements(gpu->index, list[i].id, placements, count);
	}
	return printed;
}

static void print_ci_profiles(const struct smi_gi *gi)
{
	nvmlComputeInstanceProfileInfo_v2_t p;
	nvmlReturn_t rc = NVML_SUCCESS;
	for (unsigned int number = 0; rc == NVML_SUCCESS || rc == NVML_ERROR_NOT_SUPPORTED; number++) {
		unsigned int left = 0;
		rc = smi_ci_profile(gi->handle, number, &p);
		if (rc != NVML_SUCCESS)
			continue;
		NVML(nvmlGpuInstanceGetComputeInstanceRemainingCapacity, gi->handle, p.id, &left);
		/* The star marks the profile that is taken when none is named. */
		smi_row(CI_PROFILES_WIDTH, " %3u     %2u       %-20s%2u%c     %u/%u          %3u       %2u    %2u    %2u", gi->gpu, gi->info.id, p.name, p.id,
			p.sliceCount == gi->profile.sliceCount ? '*' : ' ', left, p.instanceCount, p.multiprocessorCount,
			p.sharedDecoderCount, p.sharedEncoderCount, p.sharedOfaCount);
		smi_row(CI_PROFILES_WIDTH, "%68s%2u    %2u", "", p.sharedCopyEngineCount, p.sharedJpegCount);
		smi_line(CI_PROFILES_WIDTH, '-');
	}
}

int smi_mig_lcip(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	struct smi_gi gis[SMI_MAX_GIS];
	unsigned int count = smi_gis(gpu, gis);
	(void)exit_code;
	if (count == 0)
		return 0;
	smi_line(CI_PROFILES_WIDTH, '-');
	smi_row(CI_PROFILES_WIDTH, " Compute instance profiles:");
	smi_row(CI_PROFILES_WIDTH, " GPU     GPU       Name             Profile  Instances   Exclusive       Shared");
	smi_row(CI_PROFILES_WIDTH, "       Instance                       ID     Free/Total     SM       DEC   ENC   OFA");
	smi_row(CI_PROFILES_WIDTH, "         ID                                                          CE    JPEG");
	smi_line(CI_PROFILES_WIDTH, '=');
	for (unsigned int i = 0; i < count; i++) {
		if (smi_listed(options->gis, gis[i].info.id))
			print_ci_profiles(&gis[i]);
	}
	return 1;
}

int smi_mig_lgi(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	struct smi_gi gis[SMI_MAX_GIS];
	unsigned int count = smi_gis(gpu, gis);
	(void)options, (void)exit_code;
	if (count == 0)
		return 0;
	smi_line(GIS_WIDTH, '-');
	smi_row(GIS_WIDTH, " GPU instances:");
	smi_row(GIS_WIDTH, " GPU   Name               Profile  Instance   Placement");
	smi_row(GIS_WIDTH, "                            ID       ID       Start:Size");
	smi_line(GIS_WIDTH, '=');
	for (unsigned int i = 0; i < count; i++) {
		const nvmlGpuInstanceInfo_t *info = &gis[i].info;
		smi_row(GIS_WIDTH, " %3u  %-21s%3u      %3u         %2u:%u", gpu->index, gis[i].profile.name, info->profileId, info->id,
			info->placement.start, info->placement.size);
		smi_line(GIS_WIDTH, '-');
	}
	return 1;
}

static int print_cis(const struct smi_gi *gi, const struct smi_mig_options *options, int before)
{
	struct smi_ci cis[SMI_MAX_CIS];
	unsigned int count = smi_listed(options->gis, gi->info.id) ? smi_cis(gi, cis) : 0;
	if (count > 0 && !before) {
		smi_line(CIS_WIDTH, '-');
		smi_row(CIS_WIDTH, " Compute instances:");
		smi_row(CIS_WIDTH, " GPU     GPU       Name             Profile   Instance   Placement");
		smi_row(CIS_WIDTH, "       Instance                       ID        ID       Start:Size");
		smi_row(CIS_WIDTH, "         ID");
		smi_line(CIS_WIDTH, '=');
	}
	for (unsigned int i = 0; i < count; i++) {
		const nvmlComputeInstanceInfo_t *info = &cis[i].info;
		smi_row(CIS_WIDTH, " %3u    %3u       %-19s%3u       %3u         %2u:%u", gi->gpu, gi->info.id, cis[i].profile.name, info->profileId, info->id,
			info->placement.start, info->placement.size);
		smi_line(CIS_WIDTH, '-');
	}
	return before || count > 0;
}

int smi_mig_lci(const struct smi_gpu *gpu, const struct smi_mig_options *options, int *exit_code)
{
	struct smi_gi gis[SMI_MAX_GIS];
	unsigned int count = smi_gis(gpu, gis);
	int printed = 0;
	(void)exit_code;
	for (unsigned int i = 0; i < count; i++)
		printed = print_cis(&gis[i], options, printed);
	return printed;
}
