package prepare

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// link is a handler that adds what is named after it.
type link struct {
	name string
	err  error
}

func (l link) Steps(claims.Device) ([]journal.Step, error) {
	return []journal.Step{{Kind: l.name}}, l.err
}

func (l link) Edits(_ claims.Device, steps []journal.Step) (cdi.Edits, error) {
	edits := cdi.Edits{
		Nodes: []cdi.NodeWant{{Name: l.name}}, Env: []string{l.name + "=" + steps[0].Kind},
		Mounts: []*specs.Mount{{HostPath: l.name}}, Hooks: []*specs.Hook{{Path: l.name}},
	}
	steps[0].Kind = "changed by " + l.name
	return edits, l.err
}

func TestChain(t *testing.T) {
	chain := Chain{link{name: "make"}, link{name: "share"}}
	d := claims.Device{Device: gpu(1)}
	steps, err := chain.Steps(d)
	must(t, err)
	if diff := cmp.Diff([]journal.Step{{Kind: "make"}, {Kind: "share"}}, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	edits, err := chain.Edits(d, steps)
	must(t, err)
	want := cdi.Edits{
		Nodes:  []cdi.NodeWant{{Name: "make"}, {Name: "share"}},
		Env:    []string{"make=make", "share=make"},
		Mounts: []*specs.Mount{{HostPath: "make"}, {HostPath: "share"}},
		Hooks:  []*specs.Hook{{Path: "make"}, {Path: "share"}},
	}
	if diff := cmp.Diff(want, edits); diff != "" {
		t.Errorf("edits (-want +got):\n%s", diff)
	}
}

func TestChainEndsAtAnError(t *testing.T) {
	cause := errors.New("no")
	chain := Chain{link{name: "make"}, link{name: "share", err: cause}, link{name: "late"}}
	steps, err := chain.Steps(claims.Device{Device: gpu(1)})
	if !errors.Is(err, cause) || steps != nil {
		t.Errorf("steps %v, %v", steps, err)
	}
	edits, err := chain.Edits(claims.Device{Device: gpu(1)}, []journal.Step{{Kind: "make"}})
	if !errors.Is(err, cause) || edits.Nodes != nil {
		t.Errorf("edits %v, %v", edits, err)
	}
}
