package conflict_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/conflict"
)

const (
	driver = "gpu.nvidia.com"
	socket = "/registry/gpu.nvidia.com-reg.sock"
)

func offering(amounts ...string) conflict.Seen {
	n := &conflict.Node{Allocatable: map[string]string{}}
	for _, a := range amounts {
		name, amount, _ := strings.Cut(a, "=")
		n.Allocatable[name] = amount
	}
	return conflict.Seen{Node: n}
}

func TestJudge(t *testing.T) {
	all := offering("nvidia.com/gpu=8")
	all.Registered, all.MIGManager = map[string]string{driver: socket}, "a label"
	onDemand := conflict.Own{Driver: driver, Partitions: true}
	for name, row := range map[string]struct {
		seen conflict.Seen
		own  conflict.Own
		want []conflict.Kind
		says string
	}{
		"nothing known":           {conflict.Seen{}, onDemand, nil, ""},
		"nothing there":           {offering(), onDemand, nil, ""},
		"device plugin":           {offering("nvidia.com/gpu=8"), onDemand, []conflict.Kind{conflict.DevicePlugin}, "nvidia.com/gpu: 8"},
		"one that shares":         {offering("nvidia.com/gpu.shared=80"), onDemand, []conflict.Kind{conflict.DevicePlugin}, "gpu.shared: 80"},
		"one that splits":         {offering("nvidia.com/gpumem=80", "nvidia.com/gpucores=100"), onDemand, []conflict.Kind{conflict.DevicePlugin}, "gpucores: 100, nvidia.com/gpumem: 80"},
		"one of partitions":       {offering("nvidia.com/mig-1g.10gb=7"), conflict.Own{Driver: driver}, []conflict.Kind{conflict.DevicePlugin}, "mig-1g.10gb"},
		"one of network cards":    {offering("nvidia.com/hostdev=2", "nvidia.com/mlnxnics=1"), onDemand, nil, ""},
		"one of virtual machines": {offering("nvidia.com/GA102GL_A10=2"), onDemand, nil, ""},
		"one of other vendors":    {offering("amd.com/gpu=8", "example.com/gpu=1"), onDemand, nil, ""},
		"a driver of our name":    {conflict.Seen{Registered: map[string]string{driver: socket}}, onDemand, []conflict.Kind{conflict.DRAPlugin}, socket},
		"a MIG manager":           {conflict.Seen{MIGManager: "label x=y"}, onDemand, []conflict.Kind{conflict.MIGManager}, "label x=y"},
		"and we make none":        {conflict.Seen{MIGManager: "label x=y"}, conflict.Own{Driver: driver}, nil, ""},
		"all at once":             {all, onDemand, conflict.Kinds(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []conflict.Kind
			var texts strings.Builder
			for _, c := range conflict.Judge(row.seen, row.own) {
				got = append(got, c.Kind)
				texts.WriteString(c.String())
				if c.Sign == "" || c.Fix == "" {
					t.Errorf("%s without sign or way out: %+v", c.Kind, c)
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
			if !strings.Contains(texts.String(), row.says) {
				t.Errorf("%q does not say %q", texts.String(), row.says)
			}
		})
	}
}

func TestJudgeWhoWritesOurSlices(t *testing.T) {
	for own, same := range map[string]bool{driver: true, "gpu2.nvidia.com": false} {
		got := conflict.Judge(conflict.Seen{Registered: map[string]string{driver: socket}}, conflict.Own{Driver: own})
		if len(got) != 1 || got[0].SameSlices != same {
			t.Errorf("beside %s: %+v", own, got)
		}
	}
}

func TestPolicies(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "device-plugin=refuse,dra-plugin=refuse,mig-manager=refuse",
		"mig-manager=ignore":                   "device-plugin=refuse,dra-plugin=refuse,mig-manager=ignore",
		" dra-plugin=warn, device-plugin=warn": "device-plugin=warn,dra-plugin=warn,mig-manager=refuse",
	} {
		var p conflict.Policies
		if err := p.Set(text); err != nil || p.String() != want {
			t.Errorf("%q: %q, %v, want %q", text, p.String(), err, want)
		}
		var again conflict.Policies
		if err := again.Set(p.String()); err != nil || again.String() != want {
			t.Errorf("%q, written and read: %q, %v", text, again.String(), err)
		}
	}
	for text, says := range map[string]string{
		"dra=warn":                            `"dra" is unknown: use device-plugin, dra-plugin, mig-manager`,
		"dra-plugin=maybe":                    `"maybe" is not allowed: use refuse, warn, ignore`,
		"dra-plugin":                          `"" is not allowed`,
		"dra-plugin=warn,dra-plugin=warn":     "named twice",
		"device-plugin=warn;mig-manager=warn": "not allowed",
		"device-plugin=refuse,=refuse":        `"" is unknown`,
		"device-plugin = warn":                "is unknown",
	} {
		p := conflict.Policies{MIGManager: conflict.Warn}
		if err := p.Set(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
		if p.Of(conflict.MIGManager) != conflict.Warn {
			t.Errorf("%q: an error has changed the policies", text)
		}
	}
	if got := (conflict.Policies{}).Type(); got != "policies" {
		t.Error(got)
	}
}

func FuzzPolicies(f *testing.F) {
	f.Add("device-plugin=warn,mig-manager=ignore")
	f.Add("=,=")
	f.Fuzz(func(t *testing.T, text string) {
		var p, again conflict.Policies
		if p.Set(text) != nil {
			return
		}
		if err := again.Set(p.String()); err != nil || again.String() != p.String() {
			t.Errorf("%q is %q, then %q: %v", text, p.String(), again.String(), err)
		}
	})
}
