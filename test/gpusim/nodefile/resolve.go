package nodefile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Level is a PCIe distance, with NVML's numbers.
type Level uint8

// The levels, from near to far.
const (
	LevelInternal Level = 0
	LevelPIX      Level = 10
	LevelPXB      Level = 20
	LevelPHB      Level = 30
	LevelNode     Level = 40
	LevelSystem   Level = 50
)

// Node is a validated node: everything is filled in, GPUs are in PCI address order.
type Node struct {
	Name              string
	Driver            Driver
	CUDA              uint32
	PeerMaxLevel      Level
	Majors            Majors
	Missing           []string
	CallLatencyMicros uint32
	GPUs              []ResolvedGPU
}

// Address is a PCI address.
type Address struct {
	Domain, Bus, Device, Function uint32
}

// String gives the form of sysfs, 0000:1b:00.0.
func (a Address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders addresses as NVML enumerates.
func (a Address) Compare(b Address) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// ResolvedGPU is one GPU of a Node.
type ResolvedGPU struct {
	Board      Board
	PCI        Address
	Root       string
	Bridges    []Address
	NUMA       int
	MemoryNUMA int
	CPUs       []int
	Minor      uint32
	Module     uint32
	UUID       string
	Serial     string
	Lost       bool
	IOMMUGroup int
	Links      []Link
	Fabric     *ResolvedFabric
	// MIG is the zero value on boards without MIG.
	MIG MIG
}

// Link is one NVLink: to a peer, or to a switch plane when Plane is not zero. A link that
// goes nowhere has Peer -1 and Plane 0.
type Link struct {
	Peer  int
	Plane uint32
}

// ResolvedFabric is the fabric registration of one GPU.
type ResolvedFabric struct {
	State       uint32
	Status      uint32
	Clique      uint32
	HealthMask  uint32
	ClusterUUID [16]byte
	// Required says that switch links carry nothing before registration.
	Required bool
}

// healthyMask is the health mask with every part reported and well.
const healthyMask = 0x1aa

// Resolve validates a node file and fills in what it leaves out. All errors are reported together.
func Resolve(file *File) (*Node, error) {
	r := &resolver{file: file}
	r.top()
	order := r.gpus()
	if len(r.errs) == 0 {
		r.links(order)
	}
	if len(r.errs) > 0 {
		return nil, fmt.Errorf("node file %q: %w", file.Name, r.errs.ToAggregate())
	}
	return &r.node, nil
}

type resolver struct {
	file *File
	node Node
	errs field.ErrorList
}

func (r *resolver) bad(path *field.Path, value any, want string) {
	r.errs = append(r.errs, field.Invalid(path, value, want))
}

func (r *resolver) top() {
	f := r.file
	if f.APIVersion != APIVersion {
		r.bad(field.NewPath("apiVersion"), f.APIVersion, "must be "+APIVersion)
	}
	if f.Name == "" || len(f.Name) > 63 {
		r.bad(field.NewPath("name"), f.Name, "must have 1 to 63 characters")
	}
	r.node.Name, r.node.Driver, r.node.Majors = f.Name, f.Driver, f.Majors
	r.node.Missing, r.node.CallLatencyMicros = f.Missing, f.CallLatencyMicros
	r.driver(field.NewPath("driver"))
	r.node.PeerMaxLevel = LevelPHB
	if f.PeerMaxLevel != "" {
		level, ok := levelNames()[f.PeerMaxLevel]
		if !ok {
			r.bad(field.NewPath("peerMaxLevel"), f.PeerMaxLevel, "must be PIX, PXB, PHB, NODE or SYS")
		}
		r.node.PeerMaxLevel = level
	}
	r.node.Majors.GPU = cmp.Or(f.Majors.GPU, 195)
	r.node.Majors.UVM = cmp.Or(f.Majors.UVM, 510)
	r.node.Majors.Caps = cmp.Or(f.Majors.Caps, 236)
}

func levelNames() map[string]Level {
	return map[string]Level{"PIX": LevelPIX, "PXB": LevelPXB, "PHB": LevelPHB, "NODE": LevelNode, "SYS": LevelSystem}
}

// memoryLimitsSince is the CUDA version whose NVML has limits of device memory by cgroup.
const memoryLimitsSince = 13040

func (r *resolver) driver(path *field.Path) {
	d := &r.node.Driver
	if d.Version == "" || len(d.Version) > 79 || strings.ContainsAny(d.Version, "/ \n*?[") {
		r.bad(path.Child("version"), d.Version, "must be a version such as 580.105.08: it becomes part of file names")
	}
	major, minor, ok := twoNumbers(d.CUDA)
	if !ok || major == 0 || major > 99 || minor > 9 {
		r.bad(path.Child("cuda"), d.CUDA, "must be a CUDA version such as 13.0")
	}
	r.node.CUDA = 1000*major + 10*minor
	if r.node.CUDA < memoryLimitsSince {
		d.Lacks = append(slices.Clone(d.Lacks), "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
	}
	if d.NVML == "" {
		d.NVML = fmt.Sprintf("%d.%s", major, d.Version)
	}
	if len(d.NVML) > 79 {
		r.bad(path.Child("nvml"), d.NVML, "must have at most 79 characters")
	}
	if d.Branch == "" {
		first, _, _ := strings.Cut(d.Version, ".")
		d.Branch = "r" + first + "_00"
	}
}

func twoNumbers(text string) (major, minor uint32, ok bool) {
	first, second, found := strings.Cut(text, ".")
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(second, 10, 16)
	return uint32(a), uint32(b), found && errA == nil && errB == nil
}

// maxGPUs is the number of slots of a state file.
const maxGPUs = 64

// gpus resolves every GPU and returns, for each position in the file, its place in PCI order.
func (r *resolver) gpus() []int {
	list := field.NewPath("gpus")
	if len(r.file.GPUs) > maxGPUs {
		r.errs = append(r.errs, field.TooMany(list, len(r.file.GPUs), maxGPUs))
		return nil
	}
	type placed struct {
		gpu      ResolvedGPU
		position int
	}
	all := make([]placed, len(r.file.GPUs))
	for i := range r.file.GPUs {
		all[i] = placed{r.gpu(list.Index(i), &r.file.GPUs[i]), i}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return a.gpu.PCI.Compare(b.gpu.PCI) })
	order := make([]int, len(all))
	for place, p := range all {
		order[p.position] = place
		r.identify(place, &p.gpu, &r.file.GPUs[p.position])
		r.node.GPUs = append(r.node.GPUs, p.gpu)
	}
	r.unique(order)
	return order
}

func (r *resolver) gpu(path *field.Path, in *GPU) ResolvedGPU {
	out := ResolvedGPU{Root: in.Root, NUMA: -1, MemoryNUMA: -1, Lost: in.Lost}
	name := cmp.Or(in.Board, r.file.Board)
	board, err := r.file.board(name, 0)
	if err == nil {
		err = overlay(board, in.Override)
	}
	if err != nil {
		r.bad(path.Child("board"), name, err.Error())
	} else {
		out.Board = *board
		r.board(path.Child("board").Key(name), board)
	}
	r.place(path, in, &out)
	if in.NUMA != nil {
		out.NUMA = *in.NUMA
	}
	if out.NUMA < -1 || out.NUMA > 127 {
		r.bad(path.Child("numa"), out.NUMA, "must be -1 (none) to 127")
	}
	if in.MemoryNUMA != nil {
		out.MemoryNUMA = *in.MemoryNUMA
	}
	cpus, err := parseCPUs(in.CPUs)
	if err != nil {
		r.bad(path.Child("cpus"), in.CPUs, err.Error())
	}
	out.CPUs = cpus
	out.Fabric = r.fabric(path, in.Fabric, &out.Board)
	out.MIG = r.partition(path.Child("mig"), in.MIG, &out.Board)
	return out
}

// place reads the PCI address and the way to it.
func (r *resolver) place(path *field.Path, in *GPU, out *ResolvedGPU) {
	var err error
	if out.PCI, err = ParseAddress(in.PCI); err != nil {
		r.bad(path.Child("pci"), in.PCI, err.Error())
	}
	var domain, bus uint32
	if n, err := fmt.Sscanf(in.Root, "pci%04x:%02x", &domain, &bus); err != nil || n != 2 || in.Root != fmt.Sprintf("pci%04x:%02x", domain, bus) {
		r.bad(path.Child("root"), in.Root, "must be a PCIe root complex such as pci0000:15")
	}
	for i, text := range in.Bridges {
		bridge, err := ParseAddress(text)
		if err != nil {
			r.bad(path.Child("bridges").Index(i), text, err.Error())
		}
		out.Bridges = append(out.Bridges, bridge)
	}
}

// identify fills in what tells one board from another.
func (r *resolver) identify(place int, out *ResolvedGPU, in *GPU) {
	seed := cmp.Or(r.file.Seed, r.file.Name)
	sum := sha256.Sum256([]byte(seed + "\x00" + out.PCI.String()))
	out.UUID = cmp.Or(in.UUID, formatUUID(sum))
	out.Serial = cmp.Or(in.Serial, fmt.Sprintf("165%010d", (uint64(sum[20])<<24|uint64(sum[21])<<16|uint64(sum[22])<<8|uint64(sum[23]))))
	out.Minor, out.Module, out.IOMMUGroup = uint32(place), uint32(place+1), 40+place
	if in.Minor != nil {
		out.Minor = *in.Minor
	}
	if in.Module != nil {
		out.Module = *in.Module
	}
	if in.IOMMUGroup != nil {
		out.IOMMUGroup = *in.IOMMUGroup
	}
}

// formatUUID makes a version 4 UUID, the kind that boards carry.
func formatUUID(sum [32]byte) string {
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80
	h := hex.EncodeToString(sum[:16])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func (r *resolver) unique(order []int) {
	uuids, minors, addresses := map[string]int{}, map[uint32]int{}, map[Address]int{}
	for position, place := range order {
		gpu := &r.node.GPUs[place]
		path := field.NewPath("gpus").Index(position)
		if _, taken := uuids[gpu.UUID]; taken {
			r.errs = append(r.errs, field.Duplicate(path.Child("uuid"), gpu.UUID))
		}
		if _, taken := minors[gpu.Minor]; taken {
			r.errs = append(r.errs, field.Duplicate(path.Child("minor"), gpu.Minor))
		}
		if _, taken := addresses[gpu.PCI]; taken {
			r.errs = append(r.errs, field.Duplicate(path.Child("pci"), gpu.PCI.String()))
		}
		if gpu.Minor > 254 {
			r.bad(path.Child("minor"), gpu.Minor, "must be at most 254: 255 is nvidiactl")
		}
		if len(gpu.UUID) > 63 || len(gpu.Serial) > 31 {
			r.bad(path, gpu.UUID, "uuid must have at most 63 characters and serial at most 31")
		}
		uuids[gpu.UUID], minors[gpu.Minor], addresses[gpu.PCI] = place, place, place
	}
}

// ParseAddress reads domain:bus:device.function in hexadecimal, as in sysfs.
func ParseAddress(text string) (Address, error) {
	var a Address
	_, err := fmt.Sscanf(text, "%x:%x:%x.%x", &a.Domain, &a.Bus, &a.Device, &a.Function)
	if err != nil || a.String() != text || a.Bus > 0xff || a.Device > 0x1f || a.Function > 7 {
		return a, fmt.Errorf("must be a PCI address in lower case such as 0000:1b:00.0")
	}
	return a, nil
}

// parseCPUs reads a list such as 0-55,112-167.
func parseCPUs(text string) ([]int, error) {
	const most = 1023
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, errFrom := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if errFrom != nil || errTo != nil || from < 0 || to < from || to > most {
			return nil, fmt.Errorf("must be a list such as 0-55,112-167 with numbers up to %d", most)
		}
		for cpu := from; cpu <= to; cpu++ {
			out = append(out, cpu)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
