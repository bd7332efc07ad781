package walkthrough

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// driverName is the driver's, and the domain of its attributes.
const driverName = "gpu.nvidia.com"

// gpu is a device as its slice describes it. What was not published is empty.
type gpu struct {
	// number counts the node's GPUs in the order of their PCI addresses, as NVML does.
	number  int
	name    string
	uuid    string
	product string
	// memory is in bytes.
	memory int64
	// domain is the NVLink domain.
	domain   string
	pci      string
	pcieRoot string
	numa     string
}

// fromSlices reads the GPUs of complete pools, by number.
func fromSlices(all []resourceapi.ResourceSlice) []gpu {
	var gpus []gpu
	for _, s := range all {
		if s.Spec.Driver != driverName {
			continue
		}
		for _, d := range s.Spec.Devices {
			if text(d, "type") == "gpu" {
				gpus = append(gpus, fromDevice(d))
			}
		}
	}
	slices.SortFunc(gpus, func(a, b gpu) int { return cmp.Compare(a.pci, b.pci) })
	for i := range gpus {
		gpus[i].number = i
	}
	return gpus
}

func fromDevice(d resourceapi.Device) gpu {
	memory := d.Capacity["memory"].Value
	return gpu{
		name: d.Name, uuid: text(d, "uuid"), product: text(d, "productName"), domain: text(d, "nvlinkDomain"),
		memory: memory.Value(),
		pci:    text(d, deviceattribute.StandardDeviceAttributePCIBusID), pcieRoot: text(d, deviceattribute.StandardDeviceAttributePCIeRoot),
		numa: text(d, deviceattribute.StandardDeviceAttributeNUMANode),
	}
}

// text is an attribute's value in words; empty where there is none.
func text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	switch a := d.Attributes[name]; {
	case a.StringValue != nil:
		return *a.StringValue
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	default:
		return ""
	}
}

// complete tells whether the newest generation of the driver's pool has all of its slices.
func complete(all []resourceapi.ResourceSlice, pool string) bool {
	var newest, want, have int64
	for _, s := range all {
		p := s.Spec.Pool
		if s.Spec.Driver != driverName || p.Name != pool || p.Generation < newest {
			continue
		}
		if p.Generation > newest {
			newest, have = p.Generation, 0
		}
		want = p.ResourceSliceCount
		have++
	}
	return have > 0 && have == want
}

// table renders GPUs in columns. held names who has a GPU, by device name.
func table(gpus []gpu, held map[string]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	// Writing to memory does not fail.
	_, _ = fmt.Fprintln(w, "#\tDEVICE\tPRODUCT\tMEMORY\tNVLINK DOMAIN\tPCIE ROOT\tNUMA\tCLAIM")
	for _, g := range gpus {
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.number, g.name, dash(g.product), gibibytes(g.memory),
			dash(short(g.domain)), dash(g.pcieRoot), dash(g.numa), dash(held[g.name]))
	}
	_ = w.Flush()
	return b.String()
}

// short keeps the first letters of a long name, enough to tell a node's domains apart.
func short(name string) string {
	const letters = 12
	if len(name) <= letters {
		return name
	}
	return name[:letters] + "…"
}

func dash(text string) string { return cmp.Or(text, "-") }

func gibibytes(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	const gibi = 1 << 30
	return fmt.Sprintf("%.4g GiB", float64(bytes)/gibi)
}

// numbers lists GPUs as "#2 #3".
func numbers(gpus []gpu) string {
	var all []string
	for _, g := range gpus {
		all = append(all, fmt.Sprintf("#%d", g.number))
	}
	return strings.Join(all, " ")
}
