// Package advise answers whether tenants of a model should have GPUs of their own, MIG partitions,
// MPS or time slicing: what fits, how many share a GPU, how long a decode step takes at least, and
// what keeps tenants apart. It is for the command advise. It is arithmetic on published figures of
// boards and knows no cluster.
//
// # Formulae
//
// Memory: an instance needs weights + KV cache + overhead, in GB of 10^9 bytes. Overhead is what
// CUDA and the framework take, 1 GB unless told.
//
// Time: a decode step of batch 1 reads all weights once, so it takes at least
// weights / (bandwidth × share). The share is 1 for a GPU of one's own, the compute share of the
// profile for a partition (1/7, 2/7, 3/7 …), and 1/n for n busy tenants with time slicing or MPS.
//
// Number: a GPU has as many partitions of a profile as the vendor states; with time slicing and MPS
// as many tenants as their memory fits. GPUs = tenants / tenants per GPU, rounded up.
package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Mode is a way to give tenants their part.
type Mode string

// The modes.
const (
	Dedicated   Mode = "dedicated"
	MIG         Mode = "mig"
	MPS         Mode = "mps"
	TimeSlicing Mode = "time-slicing"
)

// Need is what is asked.
type Need struct {
	// WeightsGB, KVCacheGB and OverheadGB are for one tenant, in 10^9 bytes.
	WeightsGB, KVCacheGB, OverheadGB float64
	Tenants                          int
	GPU                              string
	// Isolation asks for tenants that hardware keeps apart; Steady for latency that does not depend
	// on what others do.
	Isolation, Steady bool
	// MaxStepMS bounds the decode step, in milliseconds; 0 for no bound.
	MaxStepMS float64
}

// Advice is the answer.
type Advice struct {
	Need    Need     `json:"-"`
	GPU     Board    `json:"gpu"`
	Options []Option `json:"options"`
	// Best is the recommended option; nil when none will do.
	Best  *Option  `json:"best,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Option is one way.
type Option struct {
	Mode    Mode   `json:"mode"`
	Profile string `json:"profile,omitempty"`
	// PerGPU is how many tenants a GPU takes, GPUs how many are needed, Spread who goes where.
	PerGPU int    `json:"tenantsPerGPU"`
	GPUs   int    `json:"gpus"`
	Spread string `json:"spread"`
	// StepMS is the lower bound of a decode step in milliseconds, when all tenants of a GPU are busy.
	StepMS float64 `json:"decodeStepMs"`
	// SpareGB is what is left of a tenant's memory when weights, KV cache and overhead are in it.
	SpareGB   float64 `json:"spareGB"`
	Isolation string  `json:"isolation"`
	// Refused says why the option will not do; empty when it will.
	Refused string `json:"refused,omitempty"`
}

// Make weighs the options. It fails on a need that makes no sense.
func Make(n Need) (Advice, error) {
	board, err := Find(n.GPU)
	if err != nil {
		return Advice{}, err
	}
	// No model has a petabyte, and no cluster a million tenants: beyond that it is a slip of the pen.
	const most = 1_000_000
	among := func(v float64) bool { return v >= 0 && v <= most } // NaN is not
	switch {
	case !among(n.WeightsGB) || n.WeightsGB == 0:
		return Advice{}, fmt.Errorf("--weights-gb %v: use more than 0, and at most %d", n.WeightsGB, most)
	case !among(n.KVCacheGB) || !among(n.OverheadGB) || !among(n.MaxStepMS):
		return Advice{}, fmt.Errorf("--kv-gb %v, --overhead-gb %v, --max-step-ms %v: use 0 to %d", n.KVCacheGB, n.OverheadGB, n.MaxStepMS, most)
	case n.Tenants < 1 || n.Tenants > most:
		return Advice{}, fmt.Errorf("--tenants %d: use 1 to %d", n.Tenants, most)
	}
	a := Advice{Need: n, GPU: board}
	a.Options = append(a.Options, n.dedicated(board))
	for _, p := range board.Profiles {
		a.Options = append(a.Options, n.partition(board, p))
	}
	a.Options = append(a.Options, n.shared(board, MPS), n.shared(board, TimeSlicing))
	for i := range a.Options {
		n.judge(&a.Options[i])
	}
	a.Best = best(a.Options)
	a.Notes = n.notes(a)
	return a, nil
}

// total is what a tenant needs, in GB.
func (n Need) total() float64 { return n.WeightsGB + n.KVCacheGB + n.OverheadGB }

// step is the lower bound of a decode step in ms.
func (n Need) step(b Board, share float64) float64 {
	const ms = 1000
	return n.WeightsGB / (b.BandwidthGBps * share) * ms
}

func (n Need) dedicated(b Board) Option {
	o := Option{Mode: Dedicated, PerGPU: 1, StepMS: n.step(b, 1), SpareGB: b.MemoryGB - n.total(), Isolation: "a GPU of one's own"}
	n.place(&o)
	return o
}

func (n Need) partition(b Board, p Profile) Option {
	o := Option{
		Mode: MIG, Profile: p.Name, PerGPU: p.Instances, StepMS: n.step(b, float64(p.Slices)/float64(b.Slices)),
		SpareGB: p.MemoryGB - n.total(), Isolation: "hardware: SMs, L2 and memory paths",
	}
	n.place(&o)
	return o
}

func (n Need) shared(b Board, mode Mode) Option {
	o := Option{Mode: mode, PerGPU: int(b.MemoryGB / n.total()), Isolation: "none: the driver rotates, memory is divided by hand"}
	if mode == MPS {
		o.Isolation = "none for faults; kernels run at once, memory can be limited"
	}
	if o.PerGPU < 1 {
		o.SpareGB = b.MemoryGB - n.total()
		return o
	}
	n.place(&o)
	// As few as the GPUs allow, as even as it goes: the fullest GPU bounds the step.
	fullest := (n.Tenants + o.GPUs - 1) / o.GPUs
	o.StepMS = n.step(b, 1/float64(fullest))
	o.SpareGB = b.MemoryGB/float64(fullest) - n.total()
	return o
}

// place spreads the tenants: partitions fill one GPU after the other, shared ones are spread evenly.
func (n Need) place(o *Option) {
	o.GPUs = (n.Tenants + o.PerGPU - 1) / o.PerGPU
	var counts []string
	left := n.Tenants
	for i := range o.GPUs {
		here := min(o.PerGPU, left)
		if o.Mode == MPS || o.Mode == TimeSlicing {
			here = (left + o.GPUs - i - 1) / (o.GPUs - i)
		}
		left -= here
		counts = append(counts, fmt.Sprint(here))
		const shown = 8
		if i == shown-1 && o.GPUs > shown {
			counts = append(counts, "…")
			break
		}
	}
	o.Spread = strings.Join(counts, " + ")
}

// judge says why an option will not do.
func (n Need) judge(o *Option) {
	const round = 1e-9
	switch {
	case o.SpareGB < -round:
		o.Refused = fmt.Sprintf("does not fit: %s GB are needed, %s missing", amount(n.total()), amount(-o.SpareGB))
	case n.Isolation && (o.Mode == MPS || o.Mode == TimeSlicing) && n.Tenants > 1:
		o.Refused = "tenants are not kept apart"
	case n.Steady && (o.Mode == MPS || o.Mode == TimeSlicing) && n.Tenants > 1:
		o.Refused = "latency depends on what the others do"
	case n.MaxStepMS > 0 && o.StepMS > n.MaxStepMS:
		o.Refused = fmt.Sprintf("a step takes %.2f ms at least, %s are allowed", o.StepMS, amount(n.MaxStepMS))
	}
}

// best takes the fewest GPUs, then the shortest step, then the better isolation.
func best(options []Option) *Option {
	var good []Option
	for _, o := range options {
		if o.Refused == "" {
			good = append(good, o)
		}
	}
	if len(good) == 0 {
		return nil
	}
	order := []Mode{Dedicated, MIG, MPS, TimeSlicing}
	return &slices.SortedStableFunc(slices.Values(good), func(a, b Option) int {
		return cmp.Or(a.GPUs-b.GPUs, cmp.Compare(a.StepMS, b.StepMS), slices.Index(order, a.Mode)-slices.Index(order, b.Mode))
	})[0]
}

func (n Need) notes(a Advice) []string {
	var out []string
	if fits := int(math.Ceil(n.total() / a.GPU.MemoryGB)); fits > 1 {
		out = append(out, fmt.Sprintf("A tenant needs %d GPUs: ask for them with matchAttribute gpu.nvidia.com/nvlinkDomain and run the model tensor-parallel.", fits))
	}
	if n.Tenants > 1 {
		out = append(out, "One shared instance with a prefix cache and priorities may serve all tenants with one copy of the weights; then a quota is all that is needed.")
	}
	out = append(out, fmt.Sprintf("With weights of half the size (FP8 for FP16) it would be %s GB, and half the time for a step.", amount(n.WeightsGB/2)))
	if len(a.GPU.Profiles) == 0 {
		out = append(out, a.GPU.Name+" cannot be partitioned (no MIG).")
	}
	return out
}

func amount(gb float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", gb), "0"), ".")
}
