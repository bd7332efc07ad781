package advise

import (
	"fmt"
	"io"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

// Kind names the object.
func (Advice) Kind() string { return "Advice" }

// Text writes the options as a table, the best one with its claim, and notes.
func (a Advice) Text(out io.Writer, wide bool) error {
	w := output.NewWriter(out)
	w.Printf("%d × (%s GB weights, %s GB KV cache, %s GB overhead) on %s: %s GB, %s GB/s\n\n", a.Need.Tenants,
		amount(a.Need.WeightsGB), amount(a.Need.KVCacheGB), amount(a.Need.OverheadGB), a.GPU.Name, amount(a.GPU.MemoryGB), amount(a.GPU.BandwidthGBps))
	t := output.NewTable("MODE", "PROFILE", "PER GPU", "GPUS", "SPREAD", "STEP MS", "SPARE GB", "VERDICT", "+ISOLATION")
	for _, o := range a.Options {
		verdict := o.Refused
		switch {
		case a.Best != nil && *a.Best == o:
			verdict = "recommended"
		case verdict == "":
			verdict = "will do"
		}
		step, gpus := "", ""
		if o.StepMS > 0 {
			step, gpus = fmt.Sprintf("%.2f", o.StepMS), fmt.Sprint(o.GPUs)
		}
		t.Row(string(o.Mode), o.Profile, fmt.Sprint(o.PerGPU), gpus, o.Spread, step, amount(o.SpareGB), verdict, o.Isolation)
	}
	if w.Err != nil {
		return w.Err
	}
	if err := t.Write(out, wide); err != nil {
		return err
	}
	w.Printf("\n")
	if a.Best != nil {
		w.Printf("%s\nIsolation: %s\n", a.Best.claim(), a.Best.Isolation)
	} else {
		w.Printf("No option will do.\n")
	}
	for _, n := range a.Notes {
		w.Printf("- %s\n", n)
	}
	return w.Err
}

// claim says how to ask for an option.
func (o Option) claim() string {
	switch o.Mode {
	case Dedicated:
		return "Claim: deviceClassName gpu.nvidia.com, one for each tenant"
	case MIG:
		return fmt.Sprintf("Claim: deviceClassName mig.nvidia.com with the selector device.attributes[\"gpu.nvidia.com\"].?profile.orValue(\"\") == %q, one for each tenant", o.Profile)
	case MPS:
		return "Claim: deviceClassName gpu.nvidia.com with a GpuConfig whose sharing.strategy is MPS, one for the tenants of a GPU"
	}
	return "Claim: deviceClassName gpu.nvidia.com with a GpuConfig whose sharing.strategy is TimeSlicing, one for the tenants of a GPU"
}
