package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// What sysfs shows of a PCIe switch port.
const (
	bridgeClass = 0x060400
	bridgeID    = 0xc0101000
)

func (b *Builder) sys() error {
	for _, dir := range []string{"bus/pci/devices", "bus/pci/drivers/nvidia", "kernel/iommu_groups", "module/nvidia"} {
		if err := os.MkdirAll(filepath.Join(b.Sys(), dir), 0o755); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(b.Sys(), "module/nvidia/version"), b.Version+"\n"); err != nil {
		return err
	}
	if err := write(filepath.Join(b.Sys(), "module/nvidia/initstate"), "live\n"); err != nil {
		return err
	}
	for i := range b.Node.GPUs {
		if err := b.sysGPU(&b.Node.GPUs[i]); err != nil {
			return err
		}
	}
	return b.sysNUMA()
}

// devicePath is the directory of a GPU below sys: root complex, bridges, board.
func devicePath(gpu *nodefile.ResolvedGPU) string {
	parts := []string{"devices", gpu.Root}
	for _, bridge := range gpu.Bridges {
		parts = append(parts, bridge.String())
	}
	return filepath.Join(append(parts, gpu.PCI.String())...)
}

func iommuGroup(gpu *nodefile.ResolvedGPU) string {
	return filepath.Join("kernel/iommu_groups", strconv.Itoa(gpu.IOMMUGroup))
}

func (b *Builder) sysGPU(gpu *nodefile.ResolvedGPU) error {
	dir := devicePath(gpu)
	above := filepath.Dir(dir)
	for i := len(gpu.Bridges) - 1; i >= 0; i-- {
		if err := b.pciDevice(above, gpu.NUMA, bridgeClass, bridgeID, nil); err != nil {
			return err
		}
		above = filepath.Dir(above)
	}
	device, errDevice := nodefile.ParseID(gpu.Board.PCIDevice)
	subsystem, errSubsystem := nodefile.ParseID(gpu.Board.PCISubsystem)
	if errDevice != nil || errSubsystem != nil {
		return fmt.Errorf("board %s has no PCI ids", gpu.Board.Product) // Excluded by validation.
	}
	class := uint32(0x030200)
	if gpu.Board.PCIClass != "" {
		parsed, err := nodefile.ParseID(gpu.Board.PCIClass)
		if err != nil {
			return err
		}
		class = parsed
	}
	if err := b.pciDevice(dir, gpu.NUMA, class, device, boardFiles(class, device, subsystem, gpu.CPUs)); err != nil {
		return err
	}
	up := upToSys(dir)
	full := filepath.Join(b.Sys(), dir)
	group := iommuGroup(gpu)
	links := map[string]string{
		filepath.Join(full, "driver"):                                      up + "bus/pci/drivers/nvidia",
		filepath.Join(full, "iommu_group"):                                 up + group,
		filepath.Join(b.Sys(), "bus/pci/drivers/nvidia", gpu.PCI.String()): "../../../../" + dir,
		filepath.Join(b.Sys(), group, "devices", gpu.PCI.String()):         "../../../../" + dir,
	}
	for path, target := range links {
		if err := link(target, path); err != nil {
			return err
		}
	}
	return nil
}

// Unbind takes the driver away from every board, as unloading it does.
func (b *Builder) Unbind() error {
	for i := range b.Node.GPUs {
		if err := remove(filepath.Join(b.Sys(), devicePath(&b.Node.GPUs[i]), "driver")); err != nil {
			return err
		}
	}
	return nil
}

// Bind gives the driver back to every board that is in the machine.
func (b *Builder) Bind() error {
	for i := range b.Node.GPUs {
		dir := devicePath(&b.Node.GPUs[i])
		if _, err := os.Stat(filepath.Join(b.Sys(), dir)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := link(upToSys(dir)+"bus/pci/drivers/nvidia", filepath.Join(b.Sys(), dir, "driver")); err != nil {
			return err
		}
	}
	return nil
}

// upToSys is the relative way from an entry of a directory below sys up to sys.
func upToSys(dir string) string { return strings.Repeat("../", strings.Count(dir, "/")+1) }

// pciDevice writes the attributes that every PCI device has; ids are device and vendor, as
// NVML combines them.
func (b *Builder) pciDevice(dir string, numa int, class, id uint32, more map[string]string) error {
	full := filepath.Join(b.Sys(), dir)
	files := map[string]string{
		"vendor":    fmt.Sprintf("0x%04x\n", id&0xffff),
		"device":    fmt.Sprintf("0x%04x\n", id>>16),
		"class":     fmt.Sprintf("0x%06x\n", class),
		"numa_node": fmt.Sprintf("%d\n", numa),
	}
	maps.Copy(files, more)
	for name, content := range files {
		if err := write(filepath.Join(full, name), content); err != nil {
			return err
		}
	}
	return link("../../../"+dir, filepath.Join(b.Sys(), "bus/pci/devices", filepath.Base(dir)))
}

// boardFiles are the attributes of a GPU beyond those of any device.
func boardFiles(class, id, subsystem uint32, cpus []int) map[string]string {
	return map[string]string{
		"subsystem_vendor":   fmt.Sprintf("0x%04x\n", subsystem&0xffff),
		"subsystem_device":   fmt.Sprintf("0x%04x\n", subsystem>>16),
		"revision":           "0xa1\n",
		"local_cpulist":      cpuList(cpus) + "\n",
		"enable":             "1\n",
		"resource":           strings.Repeat("0x0000000000000000 0x0000000000000000 0x0000000000000000\n", 7),
		"config":             configSpace(class, id, subsystem),
		"current_link_speed": "32.0 GT/s PCIe\n",
		"max_link_speed":     "32.0 GT/s PCIe\n",
		"current_link_width": "16\n",
		"max_link_width":     "16\n",
	}
}

// configSpace is the start of a device's configuration space, in its little-endian form.
func configSpace(class, id, subsystem uint32) string {
	space := make([]byte, 256)
	put := func(at int, value uint32) {
		for i := range 4 {
			space[at+i] = byte(value >> (8 * i))
		}
	}
	put(0x00, id)
	put(0x08, class<<8|0xa1)
	put(0x2c, subsystem)
	return string(space)
}

// sysNUMA writes the NUMA nodes that GPUs lie on, with their CPUs and distances.
func (b *Builder) sysNUMA() error {
	cpus := map[int][]int{}
	for i := range b.Node.GPUs {
		if gpu := &b.Node.GPUs[i]; gpu.NUMA >= 0 {
			cpus[gpu.NUMA] = gpu.CPUs
		}
	}
	if len(cpus) == 0 {
		return nil
	}
	last := slices.Max(slices.Collect(maps.Keys(cpus)))
	root := filepath.Join(b.Sys(), "devices/system")
	for node := range last + 1 {
		distances := make([]string, last+1)
		for other := range distances {
			distances[other] = "32"
		}
		distances[node] = "10"
		dir := filepath.Join(root, "node", fmt.Sprintf("node%d", node))
		if err := write(filepath.Join(dir, "distance"), strings.Join(distances, " ")+"\n"); err != nil {
			return err
		}
		if err := write(filepath.Join(dir, "cpulist"), cpuList(cpus[node])+"\n"); err != nil {
			return err
		}
		for _, cpu := range cpus[node] {
			dir := filepath.Join(root, "cpu", fmt.Sprintf("cpu%d", cpu))
			if err := write(filepath.Join(dir, "topology/physical_package_id"), fmt.Sprintf("%d\n", node)); err != nil {
				return err
			}
		}
	}
	return nil
}

// cpuList writes sorted numbers as the kernel does: 0-3,8.
func cpuList(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		part := strconv.Itoa(cpus[i])
		if j > i {
			part += "-" + strconv.Itoa(cpus[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}
