package gpusim_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// answerMIG answers a live session's questions about the partitions of one GPU; n are the
// numbers behind the GPU's.
func answerMIG(d nvml.Device, verb string, n []int) string {
	switch verb {
	case "getmig":
		current, pending, ret := d.GetMigMode()
		return orText(fmt.Sprint(current, pending), ret)
	case "setmig":
		status, ret := d.SetMigMode(n[0])
		return orText(fmt.Sprintf("status %d", status), ret)
	case "maxmig":
		return orText(d.GetMaxMigDeviceCount())
	case "migs":
		return migDevices(d)
	case "remaining":
		return orText(d.GetGpuInstanceRemainingCapacity(&nvml.GpuInstanceProfileInfo{Id: uint32(n[0])}))
	case "gis":
		return strings.Join(instancesOf(d), " ")
	case "gicreate":
		return createGI(d, n)
	}
	gi, ret := d.GetGpuInstanceById(n[0])
	if ret != nvml.SUCCESS {
		return code(ret)
	}
	return answerGI(gi, verb, n[1:])
}

func answerGI(gi nvml.GpuInstance, verb string, n []int) string {
	switch verb {
	case "gidestroy":
		return code(gi.Destroy())
	case "cicreate":
		return createCI(gi, n)
	case "cidestroy":
		ci, ret := gi.GetComputeInstanceById(n[0])
		if ret != nvml.SUCCESS {
			return code(ret)
		}
		return code(ci.Destroy())
	case "ciremaining":
		return orText(gi.GetComputeInstanceRemainingCapacity(&nvml.ComputeInstanceProfileInfo{Id: uint32(n[0])}))
	}
	return "unknown verb " + verb
}

// createGI makes a GPU instance of the profile id n[0], at n[1] with size n[2] if they are given.
func createGI(d nvml.Device, n []int) string {
	profile := nvml.GpuInstanceProfileInfo{Id: uint32(n[0])}
	var gi nvml.GpuInstance
	var ret nvml.Return
	if len(n) == 1 {
		gi, ret = d.CreateGpuInstance(&profile)
	} else {
		gi, ret = d.CreateGpuInstanceWithPlacement(&profile, &nvml.GpuInstancePlacement{Start: uint32(n[1]), Size: uint32(n[2])})
	}
	if ret != nvml.SUCCESS {
		return code(ret)
	}
	info, ret := gi.GetInfo()
	return orText(fmt.Sprintf("gi %d at %d", info.Id, info.Placement.Start), ret)
}

func createCI(gi nvml.GpuInstance, n []int) string {
	profile := nvml.ComputeInstanceProfileInfo{Id: uint32(n[0])}
	var ci nvml.ComputeInstance
	var ret nvml.Return
	if len(n) == 1 {
		ci, ret = gi.CreateComputeInstance(&profile)
	} else {
		ci, ret = gi.CreateComputeInstanceWithPlacement(&profile, &nvml.ComputeInstancePlacement{Start: uint32(n[1]), Size: uint32(n[2])})
	}
	if ret != nvml.SUCCESS {
		return code(ret)
	}
	info, ret := ci.GetInfo()
	return orText(fmt.Sprintf("ci %d at %d", info.Id, info.Placement.Start), ret)
}

// instancesOf lists what there is as id:profile:start:size/ci:profile:start:size/..., by id.
func instancesOf(d nvml.Device) []string {
	var out []string
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		profile, ret := d.GetGpuInstanceProfileInfo(number)
		if ret != nvml.SUCCESS {
			continue
		}
		gis, ret := d.GetGpuInstances(&profile)
		if ret != nvml.SUCCESS {
			return []string{code(ret)}
		}
		for _, gi := range gis {
			info := must(gi.GetInfo())
			text := fmt.Sprintf("%d:%d:%d:%d", info.Id, info.ProfileId, info.Placement.Start, info.Placement.Size)
			out = append(out, text+computeInstancesOf(gi))
		}
	}
	slices.Sort(out)
	return out
}

func computeInstancesOf(gi nvml.GpuInstance) string {
	var out []string
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		profile, ret := gi.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvml.SUCCESS {
			continue
		}
		for _, ci := range must(gi.GetComputeInstances(&profile)) {
			info := must(ci.GetInfo())
			out = append(out, fmt.Sprintf("/%d:%d:%d:%d", info.Id, info.ProfileId, info.Placement.Start, info.Placement.Size))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// migDevices lists the MIG devices of a GPU in the order of their indices, as gi/ci.
func migDevices(d nvml.Device) string {
	var out []string
	for index := range must(d.GetMaxMigDeviceCount()) {
		mig, ret := d.GetMigDeviceHandleByIndex(index)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return code(ret)
		}
		out = append(out, fmt.Sprintf("%d=%d/%d", must(mig.GetIndex()), must(mig.GetGpuInstanceId()), must(mig.GetComputeInstanceId())))
	}
	return strings.Join(out, " ")
}
