package gpusim_test

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// profile is what a child reads about a GPU instance profile through NVML.
type profile struct {
	V1         nvml.GpuInstanceProfileInfo
	Name, ByID string
	GFX        bool
	Starts     []int
	Size       int
}

// geometry is what a child reads about the partitions that a GPU can have.
type geometry struct {
	// Profiles are by their numbers in nvml.h; what is not there has a code in Missing.
	Profiles map[int]profile
	Missing  map[int]string
	Mode     string
	Max      int
}

// migChild reads the geometry of every GPU.
func migChild(lib nvml.Interface, _ []string) (any, error) {
	return initialised(lib, func() ([]geometry, error) {
		var out []geometry
		for i := range must(lib.DeviceGetCount()) {
			d := must(lib.DeviceGetHandleByIndex(i))
			g := geometry{Profiles: map[int]profile{}, Missing: map[int]string{}, Mode: answerMIG(d, "getmig", nil), Max: must(d.GetMaxMigDeviceCount())}
			// One past the last number is asked too.
			for number := range nvml.GPU_INSTANCE_PROFILE_COUNT + 1 {
				if p, ret := readProfile(d, number); ret == nvml.SUCCESS {
					g.Profiles[number] = p
				} else {
					g.Missing[number] = code(ret)
				}
			}
			out = append(out, g)
		}
		return out, nil
	})
}

func readProfile(d nvml.Device, number int) (profile, nvml.Return) {
	v1, ret := d.GetGpuInstanceProfileInfo(number)
	if ret != nvml.SUCCESS {
		return profile{}, ret
	}
	handler := d.GetGpuInstanceProfileInfoV(number)
	v2, v3 := must(handler.V2()), must(handler.V3())
	byID := must(d.GetGpuInstanceProfileInfoByIdV(int(v1.Id)).V3())
	p := profile{V1: v1, Name: text(v2.Name[:]), ByID: text(byID.Name[:]), GFX: v3.Capabilities&nvml.GPU_INSTANCE_PROFILE_CAPS_GFX != 0}
	same := v2.Id == v1.Id && v3.Id == v1.Id && v2.SliceCount == v1.SliceCount && v3.SliceCount == v1.SliceCount &&
		v2.MemorySizeMB == v1.MemorySizeMB && v3.MemorySizeMB == v1.MemorySizeMB && v2.OfaCount == v1.OfaCount && v3.OfaCount == v1.OfaCount &&
		text(v3.Name[:]) == p.Name && v2.MultiprocessorCount == v3.MultiprocessorCount && v2.InstanceCount == v3.InstanceCount
	if !same {
		panic(fmt.Sprintf("the versions differ: %+v, %+v, %+v", v1, v2, v3))
	}
	for _, placement := range must(d.GetGpuInstancePossiblePlacements(&v1)) {
		p.Starts = append(p.Starts, int(placement.Start))
		p.Size = int(placement.Size)
	}
	return p, nvml.SUCCESS
}

// expectedGeometry says the same from the board's data.
func expectedGeometry(board *nodefile.Board) geometry {
	g := geometry{Profiles: map[int]profile{}, Missing: map[int]string{nvml.GPU_INSTANCE_PROFILE_COUNT: invalid}, Mode: notSupported}
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		g.Missing[number] = notSupported
	}
	if board.MIG == nil {
		return g
	}
	g.Mode = "0 0"
	for _, p := range board.MIG.Profiles {
		delete(g.Missing, int(p.Enum))
		starts := make([]int, len(p.Starts))
		for i, start := range p.Starts {
			starts[i] = int(start)
		}
		g.Profiles[int(p.Enum)] = profile{
			V1: nvml.GpuInstanceProfileInfo{
				Id: p.ID, SliceCount: p.Slices, InstanceCount: p.Max, MultiprocessorCount: p.SM, CopyEngineCount: p.CE,
				DecoderCount: p.DEC, EncoderCount: p.ENC, JpegCount: p.JPG, OfaCount: p.OFA, MemorySizeMB: p.MemoryMiB,
			},
			Name: "MIG " + p.Name, ByID: "MIG " + p.Name, GFX: p.GFX, Starts: starts, Size: int(p.Size),
		}
	}
	return g
}

// migBoards are the boards with MIG.
func migBoards() []string {
	return []string{
		"a30-24gb", "a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h100-nvl-94gb",
		"h200-sxm5-141gb", "b200-sxm6-180gb", "gb200-186gb", "rtx-pro-6000-96gb",
	}
}

// oneOf makes a node of GPUs with the given boards.
func oneOf(t *testing.T, boards ...string) *gpusim.Node {
	t.Helper()
	file := &nodefile.File{APIVersion: nodefile.APIVersion, Name: "boards", Driver: nodefile.Driver{Version: "580.105.08", CUDA: "13.0"}}
	for i, board := range boards {
		file.GPUs = append(file.GPUs, nodefile.GPU{Board: board, PCI: fmt.Sprintf("0000:%02x:00.0", 16+i), Root: "pci0000:00"})
	}
	return gpusim.NewFromFile(t, file)
}

func TestProfilesOfEveryBoard(t *testing.T) {
	t.Parallel()
	node := oneOf(t, append(migBoards(), "l40s-48gb", "t4-16gb", "v100-sxm2-16gb")...)
	got := inChild[[]geometry](t, node, "mig")
	for i, gpu := range node.Spec().GPUs {
		want := expectedGeometry(&gpu.Board)
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", gpu.Board.Product, diff)
		}
	}
}

// What is published about a board, independent of its data file: names, ids, places.
func TestProfilesAsPublished(t *testing.T) {
	t.Parallel()
	node := oneOf(t, "h100-sxm5-80gb", "rtx-pro-6000-96gb", "a30-24gb", "a100-sxm4-40gb")
	tests := []struct {
		gpu  int
		want string
	}{
		{0, "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1\nGPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1\nGPU  0 Profile ID 15 Placements: {0,2,4,6}:2\n" +
			"GPU  0 Profile ID 14 Placements: {0,2,4}:2\nGPU  0 Profile ID  9 Placements: {0,4}:4\nGPU  0 Profile ID  5 Placement : {0}:4\nGPU  0 Profile ID  0 Placement : {0}:8\n"},
		{1, "GPU  1 Profile ID 14 Placements: {0,3,6,9}:3\nGPU  1 Profile ID 21 Placements: {0,3,6,9}:3\nGPU  1 Profile ID 47 Placements: {0,3,6,9}:3\n" +
			"GPU  1 Profile ID 67 Placements: {0,3,6,9}:3\nGPU  1 Profile ID 65 Placements: {0,3,6,9}:3\nGPU  1 Profile ID  5 Placements: {0,6}:6\nGPU  1 Profile ID 35 Placements: {0,6}:6\n" +
			"GPU  1 Profile ID 66 Placements: {0,6}:6\nGPU  1 Profile ID 64 Placements: {0,6}:6\nGPU  1 Profile ID  0 Placement : {0}:12\nGPU  1 Profile ID 32 Placement : {0}:12\n"},
		{2, "GPU  2 Profile ID 14 Placements: {0,1,2,3}:1\nGPU  2 Profile ID 21 Placements: {0,1,2,3}:1\nGPU  2 Profile ID  5 Placements: {0,2}:2\n" +
			"GPU  2 Profile ID  6 Placements: {0,2}:2\nGPU  2 Profile ID  0 Placement : {0}:4\n"},
	}
	for _, test := range tests {
		out, exit := smi(t, node, "mig", "-lgipp", "-i", fmt.Sprint(test.gpu))
		if diff := cmp.Diff(test.want, out); diff != "" || exit != 0 {
			t.Errorf("GPU %d: exit %d (-want +got):\n%s", test.gpu, exit, diff)
		}
	}
	do(t, node.SetMIGMode(0, true))
	out, _ := smi(t, node, "mig", "-lgip")
	const want = "+-------------------------------------------------------------------------------+\n" +
		"| GPU instance profiles:                                                        |\n" +
		"| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |\n" +
		"|                                Free/Total   GiB              CE    JPEG  OFA  |\n" +
		"|===============================================================================|\n" +
		"|   0  MIG 1g.10gb         19     7/7        9.75       No     16     1     0   |\n" +
		"|                                                               1     1     0   |\n"
	if diff := cmp.Diff(want, out[:min(len(want), len(out))]); diff != "" {
		t.Errorf("-lgip (-want +got):\n%s", diff)
	}
}
